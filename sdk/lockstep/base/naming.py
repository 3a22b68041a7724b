"""Resolves names that people type; an unknown name is refused with a suggestion of the nearest known one.

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
from lockstep.protocol.types import Address

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
LEAST_DIGITS = 6
"""Least hex digits that identify an id on the command line."""
SHOWN_DIGITS = 8
"""Hex digits of an id that messages show."""
JOBS_SHOWN = "`lockstep train list` shows every job"
CLAIMS_SHOWN = "`lockstep train watch JOB` shows the claims of a job"
GAMES_SHOWN = "`lockstep dispute list --all` shows every game"


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint: the known name nearest to a mistyped `name`, or all known names."""
    names = sorted(known)
    # Case is ignored: people write AdamW for adamw.
    plain = {each.lower(): each for each in reversed(names)}
    found = get_close_matches(name.lower(), plain, n=1, cutoff=0.5)
    return f"did you mean {plain[found[0]]!r}?" if found else f"known: {', '.join(names)}"


def short(value: object) -> str:
    """Shortens an id to its first eight digits; returns any other value unchanged.

    >>> short(bytes(range(32))), short("0x90F79bf6EB2c4f870365E785982E1f101E93b906"), short("one")
    ('00010203', '0x90F79bf6', 'one')
    """
    text = "0x" + value.hex() if isinstance(value, bytes) else str(value)
    digits = text.removeprefix("0x")
    if len(digits) < 40 or any(c not in "0123456789abcdefABCDEF" for c in digits):
        return text
    # An address keeps its prefix, by which people recognise addresses.
    return text[: SHOWN_DIGITS + 2] if len(digits) == 40 else digits[:SHOWN_DIGITS]


def digits_of(text: str, what: str, hint: str) -> str:
    """Parses the first digits of an id into lower-case hex; raises UsageError for anything else."""
    digits = text.lower().removeprefix("0x")
    if not re.fullmatch(rf"[0-9a-f]{{{LEAST_DIGITS},64}}", digits):
        raise UsageError(
            f"{text!r} is not the id of a {what}", hint=f"give at least {LEAST_DIGITS} hex digits of the id; {hint}"
        )
    return digits


def identified(text: str, known: Iterable[bytes], what: str, hint: str) -> bytes:
    """Returns the 32-byte id that begins with these hex digits; raises UsageError, NotFoundError.

    `what` is the kind of id, and `hint` tells where ids are listed.
    """
    digits = digits_of(text, what, hint)
    found = sorted({value for value in known if value.hex().startswith(digits)})
    if not found:
        raise NotFoundError(f"no {what} begins with {digits}", hint=hint)
    if len(found) > 1:
        some = ", ".join(value.hex()[: len(digits) + 6] for value in found[:4])
        raise UsageError(f"{len(found)} of them begin with {digits}: {some}", hint="give more digits")
    return found[0]


def address_of(text: str, name: str, *, hint: str = "") -> Address:
    """Parses an address that a person wrote; returns it checksummed. Raises UsageError.

    `name` is the option or field, for the error's text; `hint` names other valid values.

    >>> address_of("0x90f79bf6eb2c4f870365e785982e1f101e93b906", "--to")
    '0x90F79bf6EB2c4f870365E785982E1f101E93b906'
    """
    from eth_utils.address import to_checksum_address

    also = f"; {hint}" if hint else ""
    if _ADDRESS.fullmatch(text) is None:
        raise UsageError(f"{name} is {text!r}, which is not an address", hint=f"write 0x and 40 hex digits{also}")
    checksummed, digits = to_checksum_address(text), text[2:]
    # INVARIANT: an address with a mistyped digit is refused where its capitals are a checksum (EIP-55).
    if text != checksummed and digits not in (digits.lower(), digits.upper()):
        raise UsageError(
            f"{name} is {text!r}, whose capitals are the checksum of another address",
            hint=f"copy it again: a digit is mistyped{also}",
        )
    return Address(checksummed)


def refuse_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """Raises UsageError for the first unknown name, with its place `where` and the nearest known name."""
    for name in given:
        if name not in known:
            raise UsageError(f"{where}: nothing is called {name!r}", hint=nearest(name, known))
