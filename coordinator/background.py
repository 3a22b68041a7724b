"""Runs long work on a thread while the coordinator's only loop keeps playing games, which have deadlines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")

EVERY_SECONDS = 1.0
"""Machine seconds between two calls of `tend`."""


def run_in_background(work: Callable[[], Result], tend: Callable[[], None], every: float = EVERY_SECONDS) -> Result:
    """Runs `work` in a thread and returns its result; calls `tend` on this thread repeatedly until then.

    Raises the exception of `work`; an exception of `tend` is raised once the work is done.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="background") as pool:
        doing = pool.submit(work)
        while not wait([doing], every).done:
            tend()
        return doing.result()
