"""Times as people write them: 90, 90s, 10m, 2h, 14d.

>>> seconds_of("2h", "TIME")
7200
"""

from __future__ import annotations

import re

from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Seconds

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})\s*([smhd]?)", re.ASCII)


def seconds_of(text: str, name: str) -> Seconds:
    """The time that a person wrote for `name`; raises UsageError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"{name} is {text!r}, which is no time", hint="seconds, or 90s, 10m, 2h, 14d")
    return Seconds(int(found[1]) * _UNITS[found[2]])
