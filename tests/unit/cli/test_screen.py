"""Lines where they are read: plain in a pipe, in colours on a terminal, without keys everywhere."""

from __future__ import annotations

from io import StringIO

import pytest

from lockstep.base.redaction import hide
from lockstep.cli.screen import Screen
from lockstep.market.narrator import BAD, STRONG, Line

LIE = Line("worker-0 lies [bold]not markup[/bold]", BAD)


class Terminal(StringIO):
    """A stream that says that somebody looks at it."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_a_pipe_gets_the_text_alone() -> None:
    pipe = StringIO()
    with Screen(lambda: [Line("below")], pipe) as screen:
        screen.tell(LIE)
    assert pipe.getvalue() == f"{LIE.text}\n"


def test_a_terminal_gets_colours_and_what_stands_below() -> None:
    terminal = Terminal()
    with Screen(lambda: [Line("0:42 left", STRONG)], terminal) as screen:
        screen.tell(LIE)
        screen.tell(Line("x" * 300))
    said = terminal.getvalue()
    assert "\x1b[1;31m" in said
    assert LIE.text in said, "brackets are no markup"
    assert "0:42 left" in said
    assert "x" * 300 in said, "a line is not broken"


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    Screen(stream=terminal).tell(LIE)
    assert "31m" not in terminal.getvalue()
    assert LIE.text in terminal.getvalue()


@pytest.mark.parametrize("stream", [StringIO, Terminal])
def test_no_key_of_a_url_is_shown(stream: type[StringIO]) -> None:
    hide("https://rpc.example/v3/0123456789abcdef")
    where = stream()
    Screen(stream=where).tell(Line("asks https://rpc.example/v3/0123456789abcdef"))
    assert "0123456789abcdef" not in where.getvalue()
    assert "rpc.example" in where.getvalue()
