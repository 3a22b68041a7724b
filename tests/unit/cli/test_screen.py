"""Lines where they are read: plain in a pipe, in colours on a terminal, without keys everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import StringIO

import pytest

from lockstep.base import lines
from lockstep.base.redaction import hide
from lockstep.cli.screen import Screen, speak
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


@pytest.fixture
def stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[StringIO], StringIO]]:
    """Puts a stream in the place of stdout, in the test itself: pytest sets it anew before that."""

    def placed(stream: StringIO) -> StringIO:
        monkeypatch.setattr("sys.stdout", stream)
        return stream

    monkeypatch.setenv("NO_COLOR", "1")
    yield placed
    lines.narrate(None)


PAID = {"time": 1_800_000_000, "job": "ab" * 32, "round": 2, "slot": "merge", "amount": str(3 * 10**18)}


def test_events_are_sentences_on_a_terminal(stdout: Callable[[StringIO], StringIO]) -> None:
    terminal = stdout(Terminal())
    speak("worker", as_json=False)
    lines.event("paid", **PAID)
    assert terminal.getvalue() == "08:00:00  worker is paid 3 LST for round 2, the merge\n"


def test_a_child_s_events_are_told_as_the_parent_s(stdout: Callable[[StringIO], StringIO]) -> None:
    terminal = stdout(Terminal())
    speak("coordinator", as_json=False)
    lines.relay([b'{"event": "indexed", "time": 1800000000, "block": 7, "events": 3}\n', b"a library's line\n"])
    assert "08:00:00  coordinator indexed 3 events up to block 7" in terminal.getvalue()
    assert terminal.getvalue().endswith("\na library's line\n")


@pytest.mark.parametrize(("stream", "as_json"), [(StringIO, False), (Terminal, True)], ids=["piped", "asked"])
def test_events_are_json_in_a_pipe_and_where_json_is_asked_for(
    stdout: Callable[[StringIO], StringIO], stream: type[StringIO], as_json: bool
) -> None:
    shown = stdout(stream())
    speak("worker", as_json=as_json)
    assert not lines.narrates()
    lines.event("paid", **PAID)
    assert json.loads(shown.getvalue()) == {"event": "paid", **PAID}
