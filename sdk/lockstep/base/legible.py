"""Text for terminals and logs, in which a stranger may have had a word: no control character does anything there.

>>> legible("x\\x1b]52;c;cm0=\\x07 and\\n\\x1b[32mok")
'x\\\\x1b]52;c;cm0=\\\\x07 and\\n\\x1b[32mok'
>>> on_one_line("x\\x1b[2K\\r\\nok: the claim is right")
'x\\\\x1b[2K\\\\r\\\\nok: the claim is right'
"""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;]{0,32}m"
_CONTROL = re.compile(f"({_COLOUR})|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Colours, or what moves the cursor, sets a title, fills a clipboard, turns the direction of writing."""
_ANY = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def legible(text: str) -> str:
    """The text with its lines and colours; every other control character is spelled out."""
    # INVARIANT: no text of a stranger commands a terminal.
    return _CONTROL.sub(lambda found: found[1] or _spelled(found[0]), text)


def on_one_line(text: str) -> str:
    """The text with every control character spelled out: nothing in it looks like a line of its own."""
    return _ANY.sub(lambda found: _spelled(found[0]), text)


def indented(text: str) -> str:
    """Legible, its second and later lines set in, so that none looks like a line of Lockstep's."""
    return legible(text).replace("\n", "\n    ")


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()
