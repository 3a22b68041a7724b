"""Sends notifications on a thread, so that a slow or unreachable broker delays no request."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Notifications:
    """Passes jobs to `send` on a thread; a job that is waiting already is not added again."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._waiting: dict[str, None] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
        self._thread.start()

    def __call__(self, job: str) -> None:
        """Queues a notification about a job, without waiting."""
        with self._changed:
            self._waiting[job] = None
            self._changed.notify()

    def close(self) -> None:
        """Sends nothing more; the periodic schedule notifies every job anyway."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = next(iter(self._waiting))
                del self._waiting[job]
            self._send(job)
