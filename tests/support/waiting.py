"""Waits for conditions on real processes; a slow machine ends no wait."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 1_500
"""Seconds after which a wait fails: several times the slowest under load, and below a slow test's limit
(`tests/conftest.py`), so that the condition is reported.
"""


def wait(until: Callable[[], bool], what: str, every: float = 0.1) -> None:
    """Polls every `every` seconds until the condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(every)
