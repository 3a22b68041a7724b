"""The progress of a run, from its events: the round, its stage, who has acted, what ends when. A pure fold.

progress = Progress(params.schedule.rounds, params.role.slots, windows_of(params))
progress.see(event.name, event.args, event.time)
progress.lines(now)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lockstep.market.narrator import STRONG, Line, countdown
from lockstep.protocol.types import MERGE_SLOT

if TYPE_CHECKING:
    from lockstep.protocol.jobs import JobParams

BAR = 20
"""Characters of a progress bar."""
JOINING, TRAINING, REVEALING, ATTESTING, MERGING, WAITING = (
    "workers join", "workers train", "claims are revealed", "payloads are attested", "the payloads are merged",
    "claims can be challenged",
)  # fmt: skip
_AFTER = {"RoundStarted": JOINING, "Sealed": TRAINING, "Frozen": MERGING, "Merged": WAITING}
_COUNTED = {"Joined": JOINING, "Committed": TRAINING, "Revealed": REVEALING, "Attested": ATTESTING}
_ENDED = frozenset({"RoundFinal", "RoundFailed", "RoundVoid"})


def windows_of(params: JobParams) -> dict[str, int]:
    """Returns the longest duration of each stage of a round, in seconds."""
    role = params.role
    return {
        JOINING: params.windows.join_seconds, TRAINING: role.train_seconds, REVEALING: role.reveal_seconds,
        ATTESTING: role.attest_seconds, MERGING: params.merge.turn_seconds, WAITING: params.windows.challenge_seconds,
    }  # fmt: skip


@dataclass
class _Round:
    stage: str
    since: int
    """Chain time at which the stage began."""
    done: int = 0
    """Number of slots that have done the stage's act."""


@dataclass
class Progress:
    """The progress of a run: the rounds in flight, and the number of merged ones."""

    rounds: int
    slots: int
    windows: Mapping[str, int]
    merged: int = 0
    settled: int = 0
    over: bool = False
    _open: dict[int, _Round] = field(default_factory=dict)

    def see(self, name: str, args: Mapping[str, Any], time: int) -> None:
        """Applies one event of the job, in the chain's order."""
        if name in ("JobDone", "JobVoid"):
            self.over = True
            self._open.clear()
        number = args.get("round")
        if number is None:
            return
        if name in _ENDED:
            self._open.pop(number, None)
            self.settled += name == "RoundFinal"
        elif name in _AFTER:
            again = number in self._open and self._open[number].stage == _AFTER[name]
            self._open[number] = _Round(_AFTER[name], time)
            self.merged += name == "Merged" and not again
        elif name in _COUNTED and number in self._open and args.get("slot") != MERGE_SLOT:
            self._count(self._open[number], _COUNTED[name], time)

    def _count(self, round_: _Round, stage: str, time: int) -> None:
        if round_.stage != stage:
            round_.stage, round_.since, round_.done = stage, time, 0
        round_.done = min(round_.done + 1, self.slots)

    def lines(self, now: int) -> list[Line]:
        """Returns a bar for the whole run, then a line with its clock for each round in flight."""
        if self.over:
            return []
        filled = BAR * min(self.merged, self.rounds) // max(self.rounds, 1)
        head = f"{'━' * filled}{'─' * (BAR - filled)}  {self.merged} of {self.rounds} rounds merged"
        return [Line(f"{head}, {self.settled} final", STRONG), *(self._line(n, now) for n in sorted(self._open))]

    def _line(self, number: int, now: int) -> Line:
        at = self._open[number]
        left = at.since + self.windows[at.stage] - now
        count = f", {at.done} of {self.slots} slots" if at.stage in _COUNTED.values() else ""
        ends = f"{countdown(left)} left" if left > 0 else "the window is over"
        return Line(f"round {number}: {at.stage}{count}, {ends}")
