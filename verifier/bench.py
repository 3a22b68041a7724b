"""One thread that computes while the loop talks to the chain: at most one piece of work, its result asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Subject = TypeVar("Subject")
Result = TypeVar("Result")


class Cancelled(Exception):
    """The work was told to stop."""


@dataclass
class Work(Generic[Subject, Result]):
    """A piece of work and what came of it."""

    subject: Subject
    future: Future[Result]
    cancelled: threading.Event
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it was begun."""
        return time.monotonic() - self.started


class Bench(Generic[Subject, Result]):
    """Does one thing at a time, beside its caller."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="replay")
        self._work: Work[Subject, Result] | None = None

    @property
    def subject(self) -> Subject | None:
        """What is being worked on, or is ready to be taken."""
        return None if self._work is None else self._work.subject

    def begin(self, subject: Subject, compute: Callable[[Callable[[], None]], Result]) -> None:
        """Start; `compute` gets a function that raises Cancelled once the work is cancelled. Only when free."""
        assert self._work is None, "one piece of work at a time"
        cancelled = threading.Event()

        def go_on() -> None:
            if cancelled.is_set():
                raise Cancelled

        self._work = Work(subject, self._pool.submit(compute, go_on), cancelled)

    def take(self) -> Work[Subject, Result] | None:
        """The work if it is over (its future holds a result or an error); the bench is then free."""
        if self._work is None or not self._work.future.done():
            return None
        work, self._work = self._work, None
        return work

    def cancel(self) -> None:
        """Tell the work to stop."""
        if self._work is not None:
            self._work.cancelled.set()

    def close(self) -> None:
        """Cancel, and wait until the thread is gone."""
        self.cancel()
        self._pool.shutdown(wait=True)
