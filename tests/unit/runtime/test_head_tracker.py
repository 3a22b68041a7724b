"""The latest block is asked for as often as the chain is worth, and no more."""

from __future__ import annotations

import pytest

from lockstep.protocol.types import Seconds
from lockstep.runtime.party import LOOK_SECONDS, Head, HeadTracker


def requests(block_seconds: float, hours: float = 1.0, tick: float = 0.25) -> tuple[int, float]:
    """In so many hours of ticks, after a minute: how often the chain is asked, and how late a block is seen at most."""
    now, asked, late = 0.0, 0, 0.0

    def ask() -> Head:
        nonlocal asked
        asked += 1
        return Head(int(now / block_seconds), Seconds(0))

    tracker, seen, start = HeadTracker(ask, tick, lambda: now), 0, 0
    while now < 60 + 3600 * hours:
        number = tracker.poll().number
        if number != seen:
            late = max(late, now - number * block_seconds)
            seen = number
        if now < 60:
            start = asked
        now += tick
    return asked - start, late


@pytest.mark.parametrize(
    ("block_seconds", "most", "latest"),
    [(12.0, 1_201, 3.0), (2.0, 7_201, 0.75), (1.0, 14_401, 0.5), (600.0, 1_201, 3.0)],
)
def test_requests_of_an_hour(block_seconds: float, most: int, latest: float) -> None:
    asked, late = requests(block_seconds)
    assert asked <= most
    assert late <= latest + 0.01


def test_a_chain_whose_pace_is_unknown_is_asked_ever_more_rarely() -> None:
    now = 0.0
    tracker = HeadTracker(lambda: Head(7, Seconds(0)), 0.25, lambda: now)
    waits = []
    for now in (0.0, 2.0, 6.0, 10_000.0):
        tracker.poll()
        waits.append(tracker._next - now)
    assert waits == [0.25, 0.5, 1.5, LOOK_SECONDS]


def test_another_block_of_the_same_height_is_another_head() -> None:
    assert Head(7, Seconds(1), "a") != Head(7, Seconds(1), "b")
