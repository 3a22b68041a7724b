"""Signals that tell a process to stop."""

from __future__ import annotations

import signal
import threading


def stop_by_signals(stop: threading.Event, *numbers: signal.Signals) -> None:
    """These signals set `stop` from here on; a second one raises KeyboardInterrupt."""

    def told_to_stop(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for each in numbers:
        signal.signal(each, told_to_stop)


def ignore_stops() -> None:
    """Ignore SIGTERM and SIGINT from here to the exit.

    While the interpreter ends it puts the defaults back, and whoever said stop twice would see a process that was
    through end as if killed. What is ignored stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
