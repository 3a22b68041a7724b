"""Explains what a job is waiting for: `train why`, and a line of `train status` and, after a silence, `train watch`.

This module needs only the chain, since an unreachable store is one of the possible reasons.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.protocol.errors import LockstepError

if TYPE_CHECKING:
    from lockstep.market.waiting import Waiting
    from lockstep.requester.following import FollowedJob

SILENCE_SECONDS = (30.0, 480.0)
"""Machine seconds without an event after which `train watch` explains the wait: the first and the longest interval."""
POLL_SECONDS = 1.0
TITLE_SECONDS = 3.0
"""Machine seconds without a title after which no more titles are requested from storage."""
AHEAD = 256
"""Events read ahead of the one that is shown."""

T = TypeVar("T")


@dataclass(frozen=True)
class Explanation:
    """The reason why a job waits, and what cannot be reached from this machine."""

    waiting: Waiting
    obstacles: tuple[LockstepError, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON."""
        return {"waiting": self.waiting.to_dict(), "obstacles": [error.to_dict() for error in self.obstacles]}

    def lines(self) -> list[str]:
        """Returns the sentence, then a line for each obstacle."""
        told = [f"{e.message}: the job's parts cannot be read from here; {e.hint}" for e in self.obstacles]
        return [self.waiting.sentence(), *told]


def explained(handle: FollowedJob, still: float = 0.0) -> Explanation:
    """Explains what a job is waiting for. `still`: seconds since the caller last saw a new block. Raises the errors of
    reading the chain."""
    waiting, obstacles = handle.why(still=still), list[LockstepError]()
    try:
        handle.net.store.check()
    except LockstepError as error:
        obstacles.append(error)
    return Explanation(waiting, tuple(obstacles))


def titles_of(handles: Sequence[FollowedJob]) -> list[str]:
    """Returns jobs' titles; empty if a job has none, or if the storage does not answer soon."""

    def read() -> Iterator[str]:
        for handle in handles:
            try:
                yield handle.title
            except LockstepError:
                yield ""

    found: list[str] = []
    for title in impatient(read(), TITLE_SECONDS):
        if title is None:
            break
        found.append(title)
    return [*found, *[""] * (len(handles) - len(found))]


@dataclass
class Silence:
    """Decides when a follower without events explains why: after a while, then less and less often."""

    handle: FollowedJob
    clock: Callable[[], float] = time.monotonic
    _since: float = field(init=False)
    _wait: float = SILENCE_SECONDS[0]
    _block: int = -1
    _came: float = 0.0
    """The time at which the latest block was first seen."""

    def __post_init__(self) -> None:
        self._since = self.clock()

    def broken(self) -> None:
        """Records that an event arrived."""
        self._since, self._wait = self.clock(), SILENCE_SECONDS[0]

    def explanation(self) -> list[str]:
        """Returns the lines that are due, if any; errors of reading the chain become lines, too."""
        now = self.clock()
        if now - self._since < self._wait:
            return []
        self._since, self._wait = now, min(2 * self._wait, SILENCE_SECONDS[1])
        try:
            block = int(self.handle.net.w3.eth.block_number)
            if block != self._block:
                self._block, self._came = block, now
            return explained(self.handle, now - self._came).lines()
        except LockstepError as error:
            return [f"nothing can be read at present: {error.message}; {error.hint}"]


def impatient(found: Iterable[T], seconds: float = POLL_SECONDS) -> Iterator[T | None]:
    """Yields an iterator's values as they arrive, and None whenever none has arrived for that long. Raises its
    errors."""
    queue: Queue[tuple[str, Any]] = Queue(AHEAD)

    def read() -> None:
        try:
            for each in found:
                queue.put(("found", each))
            queue.put(("end", None))
        except BaseException as error:
            queue.put(("error", error))

    Thread(target=read, name="impatient", daemon=True).start()
    while True:
        try:
            kind, each = queue.get(timeout=seconds)
        except Empty:
            yield None
            continue
        if kind == "end":
            return
        if kind == "error":
            raise each
        yield each
