"""Writes a program's output: JSON on stdout, one object per line; messages for people on stderr.

On a terminal a program's events are sentences instead: `narrate` takes who tells them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from lockstep.base.escaping import legible
from lockstep.base.redaction import scrubbed

Narrator = Callable[[dict[str, Any]], None]
_narrator: Narrator | None = None


def narrate(narrator: Narrator | None) -> None:
    """Has this process's events told by `narrator` from now on; None: as JSON."""
    global _narrator
    _narrator = narrator


def narrates() -> bool:
    """Returns True if events are told by a narrator."""
    return _narrator is not None


def event(name: str, /, **fields: Any) -> None:
    """Prints one event: as a line of JSON (docs/processes.md), or as the narrator tells it."""
    _pass_on({"event": name, **fields})


def relay(stream: Iterable[bytes]) -> None:
    """Tells the events that a child process prints as lines of JSON; other lines pass as they are."""
    for line in stream:
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if isinstance(fields, dict):
            _pass_on(fields)
        else:
            put(line.decode(errors="replace").rstrip("\n"))


def _pass_on(line: dict[str, Any]) -> None:
    if _narrator is None:
        write(line)
    else:
        _narrator(line)


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
