"""Signals of a process that is through."""

from __future__ import annotations

import signal


def ignore_stops() -> None:
    """Ignore SIGTERM and SIGINT from here to the exit.

    While the interpreter ends it puts the defaults back, and whoever said stop twice would see a process that was
    through end as if killed. What is ignored stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
