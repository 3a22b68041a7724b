"""Escapes control characters in text for terminals and logs, part of which may be untrusted.

>>> legible("x\\x1b]52;c;cm0=\\x07 and\\n\\x1b[32mok")
'x\\\\x1b]52;c;cm0=\\\\x07 and\\n\\x1b[32mok'
>>> on_one_line("x\\x1b[2K\\r\\nok: the claim is right")
'x\\\\x1b[2K\\\\r\\\\nok: the claim is right'
"""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;]{0,32}m"
_CONTROL = re.compile(f"({_COLOUR})|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Colours, or control characters and sequences: cursor, title, clipboard, direction of writing."""
_ANY = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def legible(text: str) -> str:
    """Returns the text with its lines and colours; all other control characters are escaped."""
    # INVARIANT: no text of a stranger commands a terminal.
    return _CONTROL.sub(lambda found: found[1] or _spelled(found[0]), text)


def on_one_line(text: str) -> str:
    """Returns the text with every control character escaped, so that it is a single line."""
    return _ANY.sub(lambda found: _spelled(found[0]), text)


def indented(text: str) -> str:
    """Returns the text with control characters escaped and later lines indented, so that none resembles Lockstep's own
    output.
    """
    return legible(text).replace("\n", "\n    ")


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
