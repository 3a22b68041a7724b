"""Parses and formats durations, 90, 90s, 10m, 2h, 14d, and formats chain times.

>>> seconds_of("2h", "TIME")
7200
>>> readable_seconds(7260)
'2 h 1 min'
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Seconds

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,9})\s*([smhd]?)", re.ASCII)


def seconds_of(text: str, name: str) -> Seconds:
    """Parses a duration, given for `name`; raises UsageError."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(
            f"{name} is {text!r}, which is not a duration", hint="give seconds, or write 90s, 10m, 2h or 14d"
        )
    return Seconds(int(found[1]) * _UNITS[found[2]])


def readable_seconds(seconds: float) -> str:
    """Formats a duration in its two largest units: 3 d 4 h, 12 min 5 s, 0.8 s."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)


def moment(time: int) -> str:
    """Formats a chain time: 2026-03-01 12:00:00 UTC."""
    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M:%S} UTC"
