"""Long work beside what has deadlines: a coordinator has one thread, and every job's games are played in it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")

EVERY_SECONDS = 1.0
"""Between two calls of what is tended meanwhile, by this machine's clock."""


def beside(work: Callable[[], Result], tend: Callable[[], None], every: float = EVERY_SECONDS) -> Result:
    """The result of `work`, which runs in a thread of its own; `tend` is called here again and again until then.

    Raises what `work` raises; what `tend` raises is raised once the work is done.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as pool:
        doing = pool.submit(work)
        while not wait([doing], every).done:
            tend()
        return doing.result()
