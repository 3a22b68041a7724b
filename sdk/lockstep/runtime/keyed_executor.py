"""Runs work on threads for a loop: the loop starts it under a key and takes the result at a later poll.

    loop:           begin(key, work) ......... take(key) -> the result, once; raises what the work raised
    worker thread:               work()  -> on_done()

Every program of the market talks to the chain in one loop; computing, reading files and waiting for other parties
happen on worker threads, so that no deadline passes meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class Stopped(Exception):
    """Raised in a piece of work that was asked to stop."""


def _nothing() -> None:
    pass


class KeyedExecutor(Generic[Key, Result]):
    """Runs pieces of work on threads, and holds their futures by key."""

    def __init__(self, name: str, on_done: Callable[[], None] = _nothing, *, threads: int = 1) -> None:
        """`on_done` is called from the worker thread whenever a piece of work ends."""
        self._pool = ThreadPoolExecutor(threads, name)
        self._on_done = on_done
        self._work: dict[Key, Future[Result]] = {}
        self._cancelled: set[Key] = set()
        self._stop = threading.Event()

    def begin(self, key: Key, work: Callable[[], Result]) -> None:
        """Starts a piece of work, unless there is one with this key."""
        if key not in self._work:
            self._work[key] = self._pool.submit(work)
            self._work[key].add_done_callback(lambda _: self._on_done())

    def __contains__(self, key: Key) -> bool:
        """Returns True if a piece of work with this key is running, or finished and not taken."""
        return key in self._work

    def __len__(self) -> int:
        return len(self._work)

    @property
    def idle(self) -> bool:
        """True if no work is under way."""
        return all(work.done() for work in self._work.values())

    def over(self, key: Key) -> bool:
        """Returns True if the work with this key can be taken."""
        return key in self._work and self._work[key].done()

    def finished(self) -> list[Key]:
        """Returns the keys whose work can be taken, in the order in which it was started."""
        return [key for key in self._work if self.over(key)]

    def take(self, key: Key) -> Result | None:
        """Returns the result, once; None while the work runs. Raises the work's exception."""
        if not self.over(key):
            return None
        self._cancelled.discard(key)
        return self._work.pop(key).result()

    def cancel(self, key: Key) -> None:
        """Asks the work with this key to stop after its step; its key stays until it is taken."""
        if key in self._work:
            self._cancelled.add(key)

    def go_on(self, key: Key | None = None) -> None:
        """Called by the work between its steps. Raises Stopped once the executor is closed or `key` is cancelled."""
        if self._stop.is_set() or key in self._cancelled:
            raise Stopped

    def close(self, *, wait: bool = True) -> None:
        """Stops the work after its step, and drops work that has not started."""
        self._stop.set()
        self._pool.shutdown(wait=wait, cancel_futures=True)
