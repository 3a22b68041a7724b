"""Lines that a program prints: JSON on stdout, one object each; what a person is told, on stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from lockstep.base.legible import legible
from lockstep.base.redaction import scrubbed


def event(name: str, /, **fields: Any) -> None:
    """Print one line of a stream of events (docs/programs.md)."""
    write({"event": name, **fields})


def write(line: dict[str, Any]) -> None:
    """Print one line of JSON; `lockstep schema` says what may stand in it."""
    put(json.dumps(line, default=str))


def put(text: str) -> None:
    """Print text on stdout."""
    # INVARIANT: no key of a URL reaches stdout or stderr.
    print(legible(scrubbed(text)), flush=True)


def say(message: str) -> None:
    """Tell a person about progress, on stderr."""
    print(legible(scrubbed(message)), file=sys.stderr, flush=True)
