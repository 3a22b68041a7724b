"""A market of the test's own."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.market import Market
from tests.support import servers
from tests.support.replay import replayed


@pytest.fixture
def terms() -> dict[str, object]:
    """What the job of a test changes of the toy job's terms."""
    return {}


@pytest.fixture
def market(tmp_path: Path, terms: dict[str, object]) -> Iterator[Market]:
    running = Market.start(tmp_path, **terms)
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def in_the_twin(market: Market) -> Iterator[None]:
    """After the test: whatever its processes sent ends in the twin as it did on the chain."""
    yield
    replayed(market.devnet.w3, market.contracts.addresses)


@pytest.fixture(params=["sqlite", "postgresql"])
def index(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the coordinator's index: SQLite beside a queue in a folder, or PostgreSQL beside one in Redis."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/coordinator/index.sqlite"
    url = servers.create_database(request.getfixturevalue("postgres"), f"test-{uuid4().hex}")
    monkeypatch.setenv("LOCKSTEP_COORDINATOR_DATABASE", url)
    monkeypatch.setenv("LOCKSTEP_COORDINATOR_BROKER", request.getfixturevalue("redis"))
    return url
