"""One chain for the whole folder; each cheat begins where it was funded. What the normal suite runs is not slow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversarial.court import Court
from tests.support.replay import replayed

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.adversarial)
            item.add_marker(pytest.mark.chain)


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    """A market whose parties hold stakes."""
    running = Court.start(tmp_path_factory.mktemp("adversarial"))
    yield running
    running.stop()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Court]:
    """The same on the chain in memory."""
    running = Court.in_memory(tmp_path)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _the_twin_says_the_same(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each cheat: every transaction of its chain, honest or not, ends in the twin as it did on the chain."""
    yield
    if "court" in request.fixturenames:
        court: Court = request.getfixturevalue("court")
        replayed(court.devnet.w3, court.contracts.addresses)
