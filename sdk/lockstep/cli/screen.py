"""Prints lines: plain text to a pipe; on a terminal in colours, above a part that is redrawn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from lockstep.base.escaping import on_one_line
from lockstep.base.lines import narrate
from lockstep.base.redaction import scrubbed

if TYPE_CHECKING:
    from lockstep.market.narrator import Line

REFRESH = 2
"""Redraws of the lower part per second."""


class Screen:
    """Prints lines to a stream; rich handles NO_COLOR and TERM=dumb."""

    def __init__(self, below: Callable[[], list[Line]] | None = None, stream: TextIO | None = None) -> None:
        """`below` returns the lines under the output, at each redraw."""
        self._stream = sys.stdout if stream is None else stream
        self.below = below
        self._terminal = self._stream.isatty()
        self._console = Console(file=self._stream, highlight=False) if self._terminal else None
        self._live: Live | None = None

    def tell(self, line: Line) -> None:
        """Prints one line, with the keys in URLs redacted."""
        if self._console is None:
            print(on_one_line(scrubbed(line.text)), file=self._stream, flush=True)
        else:
            self._console.print(_drawn(line), soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._lower, console=self._console, refresh_per_second=REFRESH, transient=True
            )
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def _lower(self) -> Text:
        lines = [] if self.below is None else self.below()
        return Text("\n").join(_drawn(line) for line in lines)


def speak(who: str, as_json: bool) -> None:
    """Makes this process print its events as sentences if stdout is a terminal and JSON is not requested."""
    if as_json or not sys.stdout.isatty():
        return
    from lockstep.market.narrator import clock, of_program

    screen = Screen()

    def tell(fields: dict[str, Any]) -> None:
        at = f"{clock(int(fields['time']))}  " if fields.get("time") else ""
        screen.tell(of_program(who, fields).after(at))

    narrate(tell)


def show(lines: Iterable[Line]) -> None:
    """Prints a command's result as text."""
    screen = Screen()
    for line in lines:
        screen.tell(line)


def _drawn(line: Line) -> Text:
    return Text(on_one_line(scrubbed(line.text)), style=line.style)
