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


@pytest.fixture
def index(postgres: str, redis: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an index in PostgreSQL, beside a queue in Redis; otherwise it is a file beside a queue in a folder."""
    url = servers.create_database(postgres, f"test-{uuid4().hex}")
    monkeypatch.setenv("LOCKSTEP_COORDINATOR_DATABASE", url)
    monkeypatch.setenv("LOCKSTEP_COORDINATOR_BROKER", redis)
    return url
