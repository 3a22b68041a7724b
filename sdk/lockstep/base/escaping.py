"""Escapes control characters in text for terminals and logs, part of which may be untrusted.

>>> legible("x\\x1b]52;c;cm0=\\x07 and\\n\\x1b[32mok")
'x\\\\x1b]52;c;cm0=\\\\x07 and\\n\\x1b[32mok'
>>> on_one_line("x\\x1b[2K\\r\\nok: the claim is right")
'x\\\\x1b[2K\\\\r\\\\nok: the claim is right'
"""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;]{0,32}m"
_UNSEEN = r"\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
"""Characters that change the direction of writing, or are not shown; those that join letters stay."""
_CONTROL = re.compile(rf"({_COLOUR})|[\x00-\x08\x0b-\x1f{_UNSEEN}\U000e0000-\U000e007f]")
"""Colours, or control characters and sequences: cursor, title, clipboard, direction of writing."""
_ANY = re.compile(rf"[\x00-\x1f{_UNSEEN}\U000e0000-\U000e007f]")


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
