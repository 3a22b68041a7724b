"""Access of the API to the store: a bounded number of calls at a time, each with a timeout, on threads of their own.

A store that hangs occupies at most CALLS threads; further requests get an error and may be repeated.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from lockstep.protocol.errors import TryLater

Result = TypeVar("Result")

CALLS = 8
WAIT_SECONDS = 2.0
"""The longest that a request waits for a free call."""
CALL_SECONDS = 30.0
"""Seconds that a request waits for the store; the call itself ends by the store's own limits."""


class StoreCalls:
    """Calls a store from one event loop."""

    def __init__(
        self, calls: int = CALLS, *, wait_seconds: float = WAIT_SECONDS, call_seconds: float = CALL_SECONDS
    ) -> None:
        self._free = asyncio.Semaphore(calls)
        self._wait_seconds = wait_seconds
        self._call_seconds = call_seconds

    async def call(self, act: Callable[[], Result]) -> Result:
        """Runs `act` in a thread and returns its result. Raises TryLater if no call is free, or if the store takes too
        long."""
        try:
            async with asyncio.timeout(self._wait_seconds):
                await self._free.acquire()
        except TimeoutError as error:
            raise TryLater("the store is busy: too many calls at once", "try again shortly", code="busy") from error
        # INVARIANT: a call holds its place until its thread is free, whoever still waits for it.
        running = _in_thread(act)
        running.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._call_seconds):
                return await asyncio.shield(running)
        except TimeoutError as error:
            raise TryLater(
                f"the store has not answered for {self._call_seconds:.0f} s", "try again shortly", code="busy"
            ) from error

    async def stream(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yields each piece by a call of its own, so that a client that reads slowly occupies no call."""
        while (piece := await self.call(lambda: next(pieces, None))) is not None:
            yield piece

    def _ended(self, running: asyncio.Future[Result]) -> None:
        self._free.release()
        # Whoever asked may have gone: then nobody else takes the exception.
        if not running.cancelled():
            running.exception()


def _in_thread(act: Callable[[], Result]) -> asyncio.Future[Result]:
    """Runs `act` in a daemon thread: one that hangs does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    running: asyncio.Future[Result] = loop.create_future()

    def work() -> None:
        told: Callable[[], None]
        try:
            told = partial(running.set_result, act())
        except BaseException as error:
            told = partial(running.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended: nobody waits
            loop.call_soon_threadsafe(told)

    threading.Thread(target=work, name="store", daemon=True).start()
    return running
