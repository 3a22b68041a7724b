"""Jobs take turns on a verifier's thread, on a clock of this test: nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.market.ledger import ClaimRecord
from lockstep.protocol.types import Address, Cid, ClaimId, Digest, JobId, Seconds, TraceRoot
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.keyed_executor import Stopped
from lockstep.runtime.refusals import Refusals
from verifier import decide, replaying
from verifier.choosing import TURN_SECONDS, Backlog, Task
from verifier.decide import Candidate
from verifier.replaying import Replayer, budget

WINDOW = 7200
SLOW = float("inf")
LOOK = 5.0


def claim(number: int, at: int = 0) -> ClaimRecord:
    """The one claim of a job."""
    return ClaimRecord(
        ClaimId(bytes([number]) * 32), JobId(bytes([number]) * 32), 0, 0, 0, Address("0x" + "11" * 20),
        TraceRoot(bytes([number]) * 32), Digest(bytes(32)), Digest(bytes(32)), None, Cid(""), Seconds(at),
    )  # fmt: skip


@dataclass
class Bench:
    """In the place of the executor: work takes what the test says, on the test's clock."""

    day: Day

    def begin(self, task: Task, work: Callable[[], Any]) -> None:
        self.task, self.began, self.cancelled = task, self.day.now, False
        self.day.begun.append(task.claim.job)

    def over(self, task: Task) -> bool:
        return self.cancelled or self.day.now - self.began >= self.day.takes[task.claim.job]

    def cancel(self, task: Task) -> None:
        self.cancelled = True

    def take(self, task: Task) -> Any:
        if self.cancelled:
            raise Stopped
        return SimpleNamespace(task=task)


@dataclass
class Day:
    """A verifier's executor and backlog over jobs of one claim each."""

    home: Path
    takes: dict[JobId, float] = field(default_factory=dict)
    """Seconds of a replay, by job."""
    claims: list[ClaimRecord] = field(default_factory=list)
    now: float = 0.0
    begun: list[JobId] = field(default_factory=list)
    done: dict[JobId, float] = field(default_factory=dict)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        printer = SimpleNamespace(
            print_event=lambda event, **more: self.told.append((event, more)), audited=lambda *given, **more: None
        )
        journal = SimpleNamespace(remember=lambda *given: None, matched=lambda *given: False)
        self.backlog = Backlog(
            journal,
            printer,
            Backoff(1.0),
            Refusals(self.home),
            volunteers=True,
            witnesses=False,  # type: ignore[arg-type]
        )
        seats = SimpleNamespace(unplayed=lambda view: [])
        jobs = SimpleNamespace(stop=lambda *given: None)
        nothing: Any = None
        self.replayer = Replayer(
            nothing, jobs, nothing, nothing, self.backlog, seats, nothing, nothing  # type: ignore[arg-type]
        )  # fmt: skip

    def adds(self, number: int, takes: float) -> JobId:
        """One job more, with a claim that is public now."""
        record = claim(number, int(self.now))
        self.claims.append(record)
        self.takes[record.job] = takes
        return record.job

    @property
    def view(self) -> Any:
        windows = SimpleNamespace(challenge_seconds=WINDOW)
        by_id = {record.id: (None, None, record) for record in self.claims}
        return SimpleNamespace(
            now=Seconds(int(self.now)), draining=False, ledger=SimpleNamespace(find=by_id.get, claims=self.claims),
            params={record.job: SimpleNamespace(windows=windows) for record in self.claims},
        )  # fmt: skip

    def passes(self, seconds: float) -> None:
        """Looks every few seconds, as the loop does."""
        ends = self.now + seconds
        while self.now < ends:
            view = self.view
            if self.replayer.done and (found := self.replayer.take(view)) is not None:
                self.backlog.matched(found.task.claim, 0.0, None)
                self.done[found.task.claim.job] = self.now
            self.replayer.step(view)
            self.now += LOOK


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Day:
    monkeypatch.setattr(
        decide, "candidates",
        lambda ledger, params: [Candidate(c, Seconds(c.claimed_at + WINDOW), True) for c in ledger.claims],
    )  # fmt: skip
    made = Day(tmp_path)
    monkeypatch.setattr(replaying.time, "monotonic", lambda: made.now)
    made.replayer._executor.close()
    made.replayer._executor = Bench(made)  # type: ignore[assignment]
    return made


def most(day: Day) -> float:
    """The budget of a replay."""
    return budget(next(iter(day.view.params.values())))


def test_two_jobs_of_endless_steps_leave_the_thread_to_an_honest_one(day: Day) -> None:
    day.adds(1, SLOW), day.adds(2, SLOW)
    honest = day.adds(3, 45.0)
    day.passes(most(day))
    assert honest in day.done, "within one budget, though the windows of the others end first"
    assert day.done[honest] <= 3 * (TURN_SECONDS + 2 * LOOK)


@pytest.mark.parametrize("hours", [0, 1])
def test_whenever_an_honest_claim_comes_it_is_replayed_within_one_budget(day: Day, hours: int) -> None:
    day.adds(1, SLOW), day.adds(2, SLOW)
    day.passes(3600.0 * hours + 300.0)
    honest, came = day.adds(3, 45.0), day.now
    day.passes(most(day))
    assert day.done[honest] - came <= TURN_SECONDS + 2 * LOOK, "it has had no turn yet"


def test_a_heavy_honest_claim_is_replayed_beside_two_endless_ones(day: Day) -> None:
    day.adds(1, SLOW), day.adds(2, SLOW)
    honest = day.adds(3, 700.0)
    day.passes(WINDOW)
    assert honest in day.done, "turns double until one is long enough"


def test_a_claim_that_waits_for_nobody_has_its_whole_budget_at_once(day: Day) -> None:
    honest = day.adds(1, 1700.0)
    day.passes(1750.0)
    assert (day.begun, list(day.done)) == ([honest], [honest])


def test_a_job_that_used_up_its_budget_rests_twice_as_long_each_time(day: Day) -> None:
    job = day.adds(1, SLOW)
    day.passes(most(day) + 2 * LOOK)
    rests = []
    for _ in range(3):
        begun, ended = len(day.begun), day.now
        while len(day.begun) == begun:
            day.claims[:] = [claim(1, int(day.now))]
            day.passes(LOOK)
        rests.append(day.now - ended)
        day.passes(most(day))
    assert rests == pytest.approx([AGAIN_SECONDS * 2**k for k in range(3)], abs=4 * LOOK)
    assert [event for event, _ in day.told] == ["refused"], "it is told of once"
    for _ in range(40):
        day.backlog.late(job, replaying._dear(), Seconds(0), Seconds(WINDOW))
    assert day.backlog._late[job][1] == WINDOW, "no rest is longer than a claim's window"
