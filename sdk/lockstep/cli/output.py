"""The envelope of a command's output: data on stdout, everything else on stderr, errors with a code and a hint.

`{"schema": "lockstep/1", "ok": true, "data": ...}` or `{"schema", "ok": false, "error": {"code", "message", "hint"}}`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from lockstep.base import lines
from lockstep.base.escaping import indented
from lockstep.protocol.errors import LockstepError, UsageError

SCHEMA = "lockstep/1"


def emit(data: Any, as_json: bool, text: str | None = None) -> None:
    """Print a command's result: one envelope line with `--json`, else `text` (or indented data)."""
    if as_json:
        lines.write({"schema": SCHEMA, "ok": True, "data": data})
    else:
        lines.put(text if text is not None else json.dumps(data, indent=2, default=str))


def interactive() -> bool:
    """Returns True if stdin and stderr are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, agreed: bool = False) -> None:
    """Asks for confirmation before money moves. Without a terminal, running the command counts as confirmation. Raises
    UsageError if the answer is no."""
    import typer

    if agreed or not interactive():
        return
    if not typer.confirm(question, default=False, err=True):
        raise UsageError("the command was not confirmed and did nothing", hint="answer y, or give --yes")


def fail(error: LockstepError, as_json: bool) -> int:
    """Reports an error; returns the exit code for it."""
    if as_json:
        lines.write({"schema": SCHEMA, "ok": False, "error": error.to_dict()})
    else:
        lines.say(f"error: {indented(error.message)}")
        if error.hint:
            lines.say(f"hint: {indented(error.hint)}")
    return error.exit_code
