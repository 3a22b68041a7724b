"""The coordinator's looks: one job's failure keeps no other, and a job is not closed while a stake can be lost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import reading, service
from coordinator.decide import AggregatorJob, AggregatorRound
from coordinator.service import Coordinator
from lockstep.base.machine import Memory
from lockstep.base.shelf import Shelf
from lockstep.execution import footprint
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.node.player import NotAtHand, Seat
from lockstep.protocol.errors import ChainError, Unreachable
from lockstep.protocol.jobs import JobState, JobStatus, Phase, Round
from lockstep.protocol.types import Address, ClaimId, JobId, Seconds
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.unit.coordinator.test_decide import PARAMS, WORLD

JOB = JobId(b"j" * 32)
NAME = reading.hex32(JOB)
ME = Address("0x" + "44" * 20)


class Held:
    """In the place of an aggregator: every claim is in memory but those that are `far`."""

    def __init__(self) -> None:
        self.far: set[ClaimId] = set()
        self.made: list[ClaimId] = []
        self.forgotten: list[ClaimId] = []
        self.needed: list[ClaimId] = []

    def at_hand(self, claim: ClaimId) -> Any:
        return None if claim in self.far else claim

    def held(self, claim: ClaimId, *_: Any) -> Any:
        self.made.append(claim)
        return claim

    def need(self, claims: list[ClaimId]) -> None:
        self.needed = list(claims)

    def forget(self, claim: ClaimId) -> None:
        self.forgotten.append(claim)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: Any = object.__new__(Coordinator)
    made._parts = SimpleNamespace(database=SimpleNamespace(reading=nullcontext), me=ME)
    made._rests, made._logged, made._closed, made._idle = {}, set(), set(), {}
    made._aggregators = {JOB: Held()}
    made._contracts = SimpleNamespace(market=SimpleNamespace(round=lambda job, r: Round()))
    made.sent, made.open = [], []
    made._submit = lambda call, key: made.sent.append(key)
    made._mined = lambda key: True
    monkeypatch.setattr(reading, "my_open_games", lambda session, job, me: made.open)
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    monkeypatch.setattr(reading, "merge_inputs", lambda *_: ((), []))
    return made


def claim(n: int) -> Any:
    return SimpleNamespace(id=reading.hex32(bytes([n]) * 32), job=NAME, round=n)


def game(n: int) -> tuple[Any, Any]:
    return SimpleNamespace(id=reading.hex32(bytes([0x80 + n]) * 32)), claim(n)


def test_a_look_that_fails_rests_longer_each_time_and_is_told_once(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, fails = [100.0], [], {NAME}
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def looked(job: str) -> None:
        looks.append(job)
        if job in fails:
            raise RuntimeError("a defect")

    coordinator._looked = looked
    for job in (NAME, NAME, "another"):
        coordinator.look(job)
    assert looks == [NAME, "another"], "it rests, and no other job does"
    first = coordinator._rests[NAME][1]
    now[0] += 2 * first
    coordinator.look(NAME)
    assert coordinator._rests[NAME][1] == 2 * first
    assert coordinator._logged == {(NAME, "RuntimeError")}
    fails.clear()
    now[0] += 1000
    coordinator.look(NAME)
    assert NAME not in coordinator._rests, "what goes well does not rest"


def test_a_clock_that_runs_does_not_rest(coordinator: Any) -> None:
    for _ in range(8):
        coordinator._rest(NAME, RuntimeError("a defect"))
    far = coordinator._rests[NAME][0]
    coordinator.open = [game(1)]
    coordinator._rest(NAME, RuntimeError("a defect"))
    assert coordinator._rests[NAME][0] < far - 10


def test_nobody_answering_is_no_jobs_fault(coordinator: Any) -> None:
    def looked(job: str) -> None:
        raise Unreachable("nobody", "")

    coordinator._looked = looked
    with pytest.raises(Unreachable):
        coordinator.look(NAME)
    assert coordinator._rests == {}


def test_moves_at_hand_come_first_then_the_earliest_deadline_and_a_failure_keeps_no_other(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = {1: 10, 2: 40, 3: 30, 4: 20}
    coordinator.open = [game(n) for n in (1, 2, 3, 4, 5)]
    coordinator._aggregators[JOB].far = {ClaimId(bytes([1]) * 32), ClaimId(bytes([3]) * 32)}
    played: list[int] = []

    def stored(own: bytes) -> Any:
        n = own[0] - 0x80
        if n == 5:
            raise ChainError("a node that lost it", "")
        return SimpleNamespace(deadline=deadlines[n])

    def due(seat: Seat, now: Seconds, state: Any) -> Any:
        n = seat.game[0] - 0x80
        if getattr(seat.held, "known", True) is None:
            raise NotAtHand
        if n == 4:
            raise RuntimeError("a defect")
        played.append(n)
        return SimpleNamespace(call=None, key=f"move/{n}", move=SimpleNamespace())

    coordinator._table = SimpleNamespace(game=stored)
    monkeypatch.setattr(Seat, "due", due)
    assert coordinator._defend(JOB, PARAMS, WORLD)
    assert played == [2, 1, 3], "at hand; then by deadline what had to be made"
    assert len(coordinator._aggregators[JOB].needed) == 5
    assert coordinator.sent == ["move/2", "move/1", "move/3"]
    coordinator.open = []
    assert not coordinator._defend(JOB, PARAMS, WORLD)


def test_a_job_that_does_not_fit_is_refused_for_a_while_unless_a_merge_of_ours_is_there(
    coordinator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toyjob.load(DirectoryStore(tmp_path / "store"))
    coordinator._refused, coordinator._too_large, coordinator._aggregators = set(), {}, {}
    coordinator._cheat, coordinator._shelf = None, Shelf(1)
    coordinator._party = SimpleNamespace(store=DirectoryStore(tmp_path / "store"))
    coordinator._parts.guard = None
    coordinator._parts.settings = SimpleNamespace(home=tmp_path, shared=SimpleNamespace(threads=1, path="auto"))
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1, 1))
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [])
    for now in (1000, 1001, 1000 + AGAIN_SECONDS):
        assert not coordinator._prepared(toy.id, toy.params, Seconds(now))
    assert not coordinator._refused, "it is looked at again, in case memory comes free"
    assert coordinator._too_large[toy.id] == 1000 + 2 * AGAIN_SECONDS
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    assert coordinator._prepared(toy.id, toy.params, Seconds(9999)), "what may be challenged is defended"


def test_a_done_job_is_closed_once_nothing_of_ours_is_at_stake(coordinator: Any) -> None:
    books = JobState(ME, JobStatus.DONE, started=1, settled=1)
    void = AggregatorRound(1, Phase.VOID, Round(), mine=True)
    seen = AggregatorJob(PARAMS, books, False, (void,))
    aggregator = coordinator._aggregators[JOB]
    coordinator._close_job(JOB, seen)
    assert NAME not in coordinator._closed, "a stake is locked in a void round"
    free = replace(seen, views=(replace(void, mine=False),))
    coordinator.open = [game(1)]
    coordinator._close_job(JOB, free)
    assert NAME not in coordinator._closed, "a game about its merge is open"
    coordinator.open = []
    coordinator._close_job(JOB, free)
    assert NAME in coordinator._closed
    assert aggregator.forgotten == [ClaimId(bytes([1]) * 32)], "its archive goes"
