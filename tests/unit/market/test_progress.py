"""How far a run is: a fold over its events, with a clock for each round that is under way."""

from __future__ import annotations

from lockstep.market.progress import ATTESTING, JOINING, MERGING, REVEALING, TRAINING, WAITING, Progress
from lockstep.protocol.types import MERGE_SLOT

WINDOWS = {JOINING: 30, TRAINING: 60, REVEALING: 20, ATTESTING: 10, MERGING: 15, WAITING: 900}


def progress() -> Progress:
    return Progress(rounds=2, slots=3, windows=WINDOWS)


def told(at: Progress, now: int) -> list[str]:
    return [line.text for line in at.lines(now)]


def test_each_stage_says_who_has_acted_and_what_is_left_of_its_window() -> None:
    at = progress()
    assert told(at, 0) == ["─" * 20 + "  0 of 2 rounds merged, 0 final"]
    at.see("JobCreated", {}, 90)
    at.see("RoundStarted", {"round": 0}, 100)
    at.see("Joined", {"round": 0, "slot": 2}, 101)
    assert told(at, 110)[1] == "round 0: workers join, 1 of 3 slots, 0:20 left"
    at.see("Sealed", {"round": 0}, 115)
    assert told(at, 116)[1] == "round 0: workers train, 0 of 3 slots, 0:59 left"
    for slot in range(3):
        at.see("Committed", {"round": 0, "slot": slot}, 120)
    assert told(at, 175)[1] == "round 0: workers train, 3 of 3 slots, the window is over"
    at.see("Revealed", {"round": 0, "slot": 1}, 125)
    assert told(at, 130)[1] == "round 0: claims are revealed, 1 of 3 slots, 0:15 left"
    at.see("Frozen", {"round": 0}, 140)
    at.see("Revealed", {"round": 0, "slot": MERGE_SLOT}, 141)
    assert told(at, 141)[1] == "round 0: the payloads are merged, 0:14 left"
    at.see("Merged", {"round": 0}, 150)
    assert told(at, 150) == [
        "━" * 10 + "─" * 10 + "  1 of 2 rounds merged, 0 final", "round 0: claims can be challenged, 15:00 left",
    ]  # fmt: skip


def test_rounds_run_side_by_side_and_end() -> None:
    at = progress()
    for number in (0, 1):
        at.see("RoundStarted", {"round": number}, 100)
    assert len(told(at, 100)) == 3
    at.see("RoundFailed", {"round": 1}, 120)
    at.see("Merged", {"round": 0}, 120)
    at.see("Merged", {"round": 0}, 130)
    assert told(at, 130)[1] == "round 0: claims can be challenged, 15:00 left", "its window begins anew"
    at.see("RoundFinal", {"round": 0}, 1_100)
    assert told(at, 1_100) == ["━" * 10 + "─" * 10 + "  1 of 2 rounds merged, 1 final"]
    at.see("JobDone", {}, 1_200)
    assert at.lines(1_200) == []
