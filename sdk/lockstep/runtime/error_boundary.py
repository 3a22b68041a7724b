"""Isolates the parts of a loop: a part's error is logged once, and the loop continues."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from lockstep.base.log import Logger
from lockstep.base.machine import room_on_disk
from lockstep.execution.box.handle import Cancelled
from lockstep.protocol.errors import LockstepError, TryLater, Unreachable

log = Logger(__name__)


class ErrorBoundary:
    """Runs parts of a loop; a part's error is logged once and stops no other part."""

    def __init__(self) -> None:
        self._logged: set[tuple[object, str]] = set()

    def run(self, part: Callable[[], None], about: Hashable, **fields: object) -> Exception | None:
        """Runs a part and returns its exception, if any, which is logged with `fields` once for each `about` and
        reason.

        Raises Unreachable: without chain or disk no part can continue.
        """
        try:
            with room_on_disk():
                part()
        except Unreachable:
            raise
        except Exception as error:
            self.log(error, about, **fields)
            return error
        return None

    def log(self, error: Exception, about: Hashable, **fields: object) -> None:
        """Logs an error, unless one of the same kind was logged for the same `about`."""
        reason = error.code if isinstance(error, LockstepError) else type(error).__name__
        if (about, reason) in self._logged:
            return
        self._logged.add((about, reason))
        if isinstance(error, TryLater):
            log.warning(
                "work on a job or a game failed for now and is tried again later",
                code=error.code,
                message=error.message,
                **fields,
            )
        elif isinstance(error, Cancelled):
            log.info("this process stopped the one that runs a job's Programs", **fields)
        elif isinstance(error, LockstepError):
            log.error(
                "work on a job or a game failed: the others continue",
                code=error.code,
                message=error.message,
                hint=error.hint,
                **fields,
            )
        else:
            log.error("a bug interrupted work on a job or a game: the others continue", exc_info=error, **fields)
