"""Names that people type: what is unknown is refused with the nearest name that is known.

>>> refuse_unknown({"thread": 2}, ["threads", "device"], "lockstep.toml")
Traceback (most recent call last):
    ...
lockstep.protocol.errors.UsageError: lockstep.toml: nothing is called 'thread'
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

from lockstep.protocol.errors import NotFoundError, UsageError

LEAST_DIGITS = 6
"""The fewest hex digits by which people name an id."""
JOBS_SHOWN = "`lockstep train list` shows every job"
CLAIMS_SHOWN = "`lockstep train watch JOB` shows the claims of a job"
GAMES_SHOWN = "`lockstep dispute list --all` shows every game"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint: the known name nearest to a mistyped `name`, or all known names."""
    names = sorted(known)
    found = get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {found[0]!r}?" if found else f"known: {', '.join(names)}"


def digits_of(text: str, what: str, hint: str) -> str:
    """Parses a person's id as lower-case hex digits; raises UsageError if it is none."""
    digits = text.lower().removeprefix("0x")
    if not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", digits):
        raise UsageError(f"{text!r} is no {what}", hint=f"{LEAST_DIGITS} hex digits of its id at least; {hint}")
    return digits


def identified(text: str, known: Iterable[bytes], what: str, hint: str) -> bytes:
    """The id of 32 bytes that a person named by its first hex digits; raises UsageError, NotFoundError.

    `what` it is an id of, `hint`: where ids are shown.
    """
    digits = digits_of(text, what, hint)
    found = sorted({value for value in known if value.hex().startswith(digits)})
    if not found:
        raise NotFoundError(f"no {what} begins with {digits}", hint=hint)
    if len(found) > 1:
        some = ", ".join(value.hex()[: len(digits) + 6] for value in found[:4])
        raise UsageError(f"{len(found)} of them begin with {digits}: {some}", hint="give more digits")
    return found[0]


def refuse_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises UsageError for the first name that is not known, `where` it stands, with the nearest one."""
    for name in given:
        if name not in known:
            raise UsageError(f"{where}: nothing is called {name!r}", hint=nearest(name, known))
