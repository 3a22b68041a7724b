"""Handles signals that stop a process."""

from __future__ import annotations

import signal
import threading


def stop_by_signals(stop: threading.Event, *numbers: signal.Signals) -> None:
    """Makes SIGTERM and SIGINT set `stop`; a second signal raises KeyboardInterrupt."""

    def stop_requested(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for each in numbers:
        signal.signal(each, stop_requested)


def ignore_stops() -> None:
    """Ignores SIGTERM and SIGINT until the process exits.

    The interpreter restores the default handlers at its end, and a second signal then would make a finished process
    look killed. An ignored signal stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
