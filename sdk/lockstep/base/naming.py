"""Names that people type: what is unknown is refused with the nearest name that is known.

>>> refuse_unknown({"thread": 2}, ["threads", "device"], "lockstep.toml")
Traceback (most recent call last):
    ...
lockstep.protocol.errors.UsageError: lockstep.toml: nothing is called 'thread'
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from lockstep.protocol.errors import UsageError


def nearest(name: str, known: Iterable[str]) -> str:
    """What somebody who typed `name` may have meant, as a hint."""
    names = sorted(known)
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"known: {', '.join(names)}"


def refuse_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises UsageError for the first name that is not known, `where` it stands, with the nearest one."""
    for name in given:
        if name not in known:
            raise UsageError(f"{where}: nothing is called {name!r}", hint=nearest(name, known))
