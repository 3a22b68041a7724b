"""A market of the test's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.market import Market


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    running = Market.start(tmp_path)
    try:
        yield running
    finally:
        running.stop()
