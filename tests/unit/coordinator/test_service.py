"""The coordinator's looks: one job's failure keeps no other, and a job is not closed while a stake can be lost."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator import reading, service
from coordinator.decide import AggregatorJob, AggregatorRound
from coordinator.defending import MergeDefence
from coordinator.loading import Aggregators
from coordinator.service import REST_SECONDS, Coordinator
from lockstep.base.machine import Memory
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


class Sent:
    """In the place of a sender: what was sent is mined."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def again(self, key: str, call: object) -> None:
        self.keys.append(key)

    def mined(self, key: str) -> bool:
        return True


@pytest.fixture
def games(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The open games about our merges."""
    found: list[Any] = []
    monkeypatch.setattr(reading, "my_open_games", lambda session, job, me: found)
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    monkeypatch.setattr(reading, "merge_inputs", lambda *_: ((), []))
    return found


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    contracts = SimpleNamespace(market=SimpleNamespace(round=lambda job, r: Round()), game=None, demands=None)
    party = SimpleNamespace(
        contracts=contracts, w3=None, addresses=SimpleNamespace(block=0), outbox=None,
        store=DirectoryStore(tmp_path / "store"),
    )  # fmt: skip
    shared = SimpleNamespace(memory_bytes=1 << 30, threads=1, path="auto")
    settings = SimpleNamespace(home=tmp_path, shared=shared)
    database = SimpleNamespace(reading=nullcontext)
    return SimpleNamespace(database=database, me=ME, party=party, settings=settings, guard=None)


@pytest.fixture
def coordinator(parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(service, "Indexer", lambda *_: None)
    made = Coordinator(parts)
    made._aggregators._made[JOB] = Held()  # type: ignore[assignment]
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
    with capture_logs() as logs:
        for job in (NAME, NAME, "another"):
            coordinator.look(job)
        assert looks == [NAME, "another"], "it rests, and no other job does"
        first, most = REST_SECONDS
        rests = first
        for _ in range(12):
            now[0] += rests
            rests = min(2 * rests, most)
            coordinator.look(NAME)
            now[0] += rests - 0.5
            before = len(looks)
            coordinator.look(NAME)
            assert len(looks) == before, "twice as long each time, up to a bound"
            now[0] += 0.5 - rests
    assert len([line for line in logs if line["job"] == NAME]) == 1
    fails.clear()
    now[0] += 1000
    coordinator.look(NAME)
    coordinator.look(NAME)
    assert looks[-2:] == [NAME, NAME], "what goes well does not rest"


def test_a_clock_that_runs_does_not_rest(coordinator: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [100.0], []
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def looked(job: str) -> None:
        looks.append(job)
        raise RuntimeError("a defect")

    coordinator._looked = looked
    games.append(game(1))
    for _ in range(8):
        now[0] += REST_SECONDS[0]
        coordinator.look(NAME)
    assert len(looks) == 8


def test_nobody_answering_is_no_jobs_fault(coordinator: Any) -> None:
    looks = []

    def looked(job: str) -> None:
        looks.append(job)
        raise Unreachable("nobody", "")

    coordinator._looked = looked
    for _ in range(2):
        with pytest.raises(Unreachable):
            coordinator.look(NAME)
    assert len(looks) == 2, "it does not rest"


def test_moves_at_hand_come_first_then_the_earliest_deadline_and_a_failure_keeps_no_other(
    coordinator: Any, parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = {1: 10, 2: 40, 3: 30, 4: 20}
    games += [game(n) for n in (1, 2, 3, 4, 5)]
    aggregator = coordinator._aggregators._made[JOB]
    aggregator.far = {ClaimId(bytes([1]) * 32), ClaimId(bytes([3]) * 32)}
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

    sent = Sent()
    defence = MergeDefence(parts, sent, coordinator._aggregators)  # type: ignore[arg-type]
    defence._table = SimpleNamespace(game=stored)  # type: ignore[assignment]
    monkeypatch.setattr(Seat, "due", due)
    assert defence.defend(JOB, PARAMS, WORLD.now)
    assert played == [2, 1, 3], "at hand; then by deadline what had to be made"
    assert len(aggregator.needed) == 5
    assert sent.keys == ["move/2", "move/1", "move/3"]
    games.clear()
    assert not defence.defend(JOB, PARAMS, WORLD.now)


def test_a_job_that_does_not_fit_is_refused_for_a_while_unless_a_merge_of_ours_is_there(
    parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toyjob.load(parts.party.store)
    aggregators = Aggregators(parts)
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1, 1))
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [])
    with capture_logs() as logs:
        for now in (1000, 1001, 1000 + AGAIN_SECONDS, 1000 + 2 * AGAIN_SECONDS):
            assert not aggregators.prepared(toy.id, toy.params, Seconds(now))
    assert len(logs) == 1, "said once"
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    assert not aggregators.prepared(toy.id, toy.params, Seconds(1001 + 2 * AGAIN_SECONDS)), "it rests"
    later = Seconds(1000 + 3 * AGAIN_SECONDS)
    assert aggregators.prepared(toy.id, toy.params, later), "what may be challenged is defended"


def test_a_done_job_is_closed_once_nothing_of_ours_is_at_stake(coordinator: Any, games: list[Any]) -> None:
    books = JobState(ME, JobStatus.DONE, started=1, settled=1)
    void = AggregatorRound(1, Phase.VOID, Round(), mine=True)
    seen = AggregatorJob(PARAMS, books, False, (void,))
    aggregator = coordinator._aggregators._made[JOB]
    coordinator._close_job(JOB, seen)
    assert NAME not in coordinator._closed, "a stake is locked in a void round"
    free = replace(seen, views=(replace(void, mine=False),))
    games.append(game(1))
    coordinator._close_job(JOB, free)
    assert NAME not in coordinator._closed, "a game about its merge is open"
    games.clear()
    coordinator._close_job(JOB, free)
    assert NAME in coordinator._closed
    assert aggregator.forgotten == [ClaimId(bytes([1]) * 32)], "its archive goes"
