"""Waiting for what real processes do: until it holds. How fast the machine is ends no wait."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 1_500
"""Seconds after which something is taken to hang: several times what the slowest takes beside other work, and less than
the limit of a slow test (`tests/conftest.py`), so that what was waited for is told."""


def wait(until: Callable[[], bool], what: str, every: float = 0.1) -> None:
    """Polls until it holds, once `every` seconds."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(every)
