"""One Chromium for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium.started() as running:
        yield running
