"""A stranger's text commands no terminal, and forges no line of Lockstep's."""

import io
import json
import logging
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator

import pytest
import structlog
from rich.table import Table

from lockstep.base.escaping import indented, legible, on_one_line
from lockstep.cli import output
from lockstep.cli.dispute_text import rendered
from lockstep.cli.screen import Screen
from lockstep.market.narrator import Line
from lockstep.protocol.errors import LockstepError
from lockstep.runtime import logs

EVIL = "x\x1b[2K\r\x1b[32mok: the claim is right\x1b[0m\x1b]52;c;cm0gLXJmIH4K\x07\x9b5m\u202e\nok: all is well"
FORGED = "ok: all is well"


def ways() -> dict[str, Callable[[], object]]:
    """All that leaves for a terminal: results, errors, progress, lines, tables, logs of both kinds."""
    table = Table()
    table.add_row(EVIL)
    error = LockstepError(f"the op {EVIL} is wrong", f"look at {EVIL}")
    return {
        "error": lambda: output.fail(error, as_json=False),
        "error as JSON": lambda: output.fail(error, as_json=True),
        "line": lambda: Screen().tell(Line(EVIL, "")),
        "log": lambda: structlog.get_logger().warning("look", name=EVIL),
        "log of a library": lambda: logging.getLogger("library").warning("look at %s", EVIL),
        "table": lambda: output.emit({}, as_json=False, text=rendered(table)),
    }


@pytest.fixture
def quiet_logs() -> Iterator[None]:
    """Puts the configuration of the logs back."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:], root.level = handlers, level


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("way", ways())
def test_no_text_of_a_stranger_commands_a_terminal(
    way: str, terminal: bool, monkeypatch: pytest.MonkeyPatch, quiet_logs: None
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure()
    ways()[way]()
    told = stream.getvalue()
    assert "52;c;cm0gLXJmIH4K" in told.replace("\n", "").replace(" ", ""), "it is shown"
    # Colours are all that may stay, of the renderers or of the stranger.
    plain = re.sub(r"\x1b\[[0-9;]*m", "", told)
    assert not [c for c in plain if unicodedata.category(c) in ("Cc", "Cf") and c != "\n"]
    assert not any(line.startswith(FORGED) for line in told.splitlines())


def test_lines_stay_lines_where_a_text_has_several() -> None:
    assert legible("a\n\tb") == "a\n\tb"
    assert on_one_line("a\nb") == "a\\nb"
    assert indented("a\nb") == "a\n    b"


def test_what_is_not_shown_is_spelled() -> None:
    assert on_one_line("a\u200bb\u200e\u061c\ufeff\U000e0041") == r"a\u200bb\u200e\u061c\ufeff\U000e0041"
    assert legible("in\xadvoice") == r"in\xadvoice"


def test_letters_of_all_alphabets_stay() -> None:
    text = "größe 重さ вес وزن 🙂 می\u200cخواهم 👩\u200d💻"
    assert on_one_line(text) == text
    assert json.loads(json.dumps(on_one_line("\ud800"))) == "\\ud800"
