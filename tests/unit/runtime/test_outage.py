"""An outage is told once when it begins and once when it is over, and ends nothing."""

from __future__ import annotations

from typing import Any

from structlog.testing import capture_logs

from lockstep.protocol.errors import Unreachable
from lockstep.runtime.outage import PAUSE_SECONDS, TELL_SECONDS, Outage

GONE = Unreachable("nobody answers", "wait")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.outage = Outage(lambda name, **fields: self.told.append((name, fields)), lambda: self.now)

    def down(self, seconds: float) -> int:
        """Fail for so long; how often it was tried."""
        end, tries = self.now + seconds, 0
        while self.now < end:
            self.now += self.outage.failed(GONE)
            tries += 1
        return tries


def test_an_outage_of_a_day_is_told_at_both_ends_and_rarely_between() -> None:
    clock = Clock()
    with capture_logs() as said:
        tries = clock.down(86_400)
        clock.outage.over()
        clock.outage.over()
    assert [name for name, _ in clock.told] == ["unreachable", "reachable"]
    assert clock.told[0][1] == {"code": "unreachable", "message": "nobody answers"}
    assert clock.told[1][1]["seconds"] >= 86_400
    assert len(said) < 40, "the log does not fill the disk"
    assert 86_400 / PAUSE_SECONDS[1] <= tries <= 86_400 / PAUSE_SECONDS[1] + 20


def test_the_next_outage_begins_anew() -> None:
    clock = Clock()
    clock.down(TELL_SECONDS[1])
    clock.outage.over()
    assert clock.outage.failed(GONE) == PAUSE_SECONDS[0]
    assert [name for name, _ in clock.told] == ["unreachable", "reachable", "unreachable"]


def test_what_answers_is_not_told() -> None:
    clock = Clock()
    clock.outage.over()
    assert clock.told == []
