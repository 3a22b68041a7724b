"""Writes a program's output: JSON on stdout, one object per line; messages for people on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from lockstep.base.escaping import legible
from lockstep.base.redaction import scrubbed


def event(name: str, /, **fields: Any) -> None:
    """Prints one event as a line of JSON (docs/processes.md)."""
    write({"event": name, **fields})


def write(line: dict[str, Any]) -> None:
    """Prints one line of JSON; `lockstep schema` prints its schema."""
    put(json.dumps(line, default=str))


def put(text: str) -> None:
    """Prints text on stdout."""
    # INVARIANT: no key of a URL reaches stdout or stderr.
    print(legible(scrubbed(text)), flush=True)


def say(message: str) -> None:
    """Prints a message about progress on stderr."""
    print(legible(scrubbed(message)), file=sys.stderr, flush=True)
