"""Reports an outage of the chain or the store: at its beginning, at growing intervals while it lasts, and at its
end.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lockstep.base.log import Logger
from lockstep.protocol.errors import LockstepError

PAUSE_SECONDS = (0.5, 5.0)
"""First and longest pause between two tries, in machine seconds: a game's player must notice the end of an outage
soon.
"""
TELL_SECONDS = (60.0, 3_600.0)
"""First and longest pause between two log lines, in machine seconds."""

log = Logger(__name__)


class Outage:
    """Tracks one loop's outages of the chain or the store, by this machine's clock."""

    def __init__(self, tell: Callable[..., None], clock: Callable[[], float] = time.monotonic) -> None:
        """`tell(event, **fields)` prints an event."""
        self._tell = tell
        self._clock = clock
        self._since: float | None = None
        self._pause = PAUSE_SECONDS[0]
        self._reported_at, self._wait = 0.0, TELL_SECONDS[0]

    def failed(self, error: LockstepError) -> float:
        """Records that the chain or the store did not answer; returns the seconds to wait before the next try."""
        now = self._clock()
        if self._since is None:
            self._since, self._pause, self._reported_at, self._wait = now, PAUSE_SECONDS[0], now, TELL_SECONDS[0]
            log.warning(
                "the chain or the store does not answer: the process waits and retries",
                code=error.code,
                message=error.message,
            )
            self._tell("unreachable", code=error.code, message=error.message)
            return self._pause
        if now - self._reported_at >= self._wait:
            self._reported_at, self._wait = now, min(2 * self._wait, TELL_SECONDS[1])
            log.warning(
                "the chain or the store still does not answer: the process waits and retries",
                seconds=round(now - self._since),
                message=error.message,
            )
        self._pause = min(2 * self._pause, PAUSE_SECONDS[1])
        return self._pause

    def over(self) -> None:
        """Records that the chain and the store have answered."""
        if self._since is None:
            return
        seconds, self._since = round(self._clock() - self._since, 1), None
        log.warning("the chain and the store answer again", after_seconds=seconds)
        self._tell("reachable", seconds=seconds)
