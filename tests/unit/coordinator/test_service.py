"""The coordinator's looks: one job's failure keeps no other, and a job is not closed while a stake can be lost."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator import reading, service
from coordinator.decide import AggregatorJob, AggregatorRound
from coordinator.service import BACKOFF_SECONDS, Coordinator
from lockstep.protocol.errors import Unreachable
from lockstep.protocol.jobs import JobState, JobStatus, Phase, Round
from lockstep.protocol.types import ClaimId
from tests.support.coordinating import JOB, ME, NAME, Held, game
from tests.unit.coordinator.test_decide import PARAMS


@pytest.fixture
def coordinator(parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(service, "Indexer", lambda *_: None)
    made = Coordinator(parts)
    made._aggregators._made[JOB] = Held()  # type: ignore[assignment]
    return made


def test_a_look_that_fails_rests_longer_each_time_and_is_told_once(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks, fails = [100.0], [], {NAME}
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def looked(job: str) -> None:
        looks.append(job)
        if job in fails:
            raise RuntimeError("a defect")

    coordinator._visit = looked
    with capture_logs() as logs:
        for job in (NAME, NAME, "another"):
            coordinator.poll(job)
        assert looks == [NAME, "another"], "it rests, and no other job does"
        first, most = BACKOFF_SECONDS
        rests = first
        for _ in range(12):
            now[0] += rests
            rests = min(2 * rests, most)
            coordinator.poll(NAME)
            now[0] += rests - 0.5
            before = len(looks)
            coordinator.poll(NAME)
            assert len(looks) == before, "twice as long each time, up to a bound"
            now[0] += 0.5 - rests
    assert len([line for line in logs if line["job"] == NAME]) == 1
    fails.clear()
    now[0] += 1000
    coordinator.poll(NAME)
    coordinator.poll(NAME)
    assert looks[-2:] == [NAME, NAME], "what goes well does not rest"


def test_a_clock_that_runs_does_not_rest(coordinator: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now, looks = [100.0], []
    monkeypatch.setattr(service, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def looked(job: str) -> None:
        looks.append(job)
        raise RuntimeError("a defect")

    coordinator._visit = looked
    games.append(game(1))
    for _ in range(8):
        now[0] += BACKOFF_SECONDS[0]
        coordinator.poll(NAME)
    assert len(looks) == 8


def test_nobody_answering_is_no_jobs_fault(coordinator: Any) -> None:
    looks = []

    def looked(job: str) -> None:
        looks.append(job)
        raise Unreachable("nobody", "")

    coordinator._visit = looked
    for _ in range(2):
        with pytest.raises(Unreachable):
            coordinator.poll(NAME)
    assert len(looks) == 2, "it does not rest"


def test_a_done_job_is_closed_once_nothing_of_ours_is_at_stake(
    coordinator: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    books = JobState(ME, JobStatus.DONE, started=1, settled=1)
    void = AggregatorRound(1, Phase.VOID, Round(), mine=True)
    seen = AggregatorJob(PARAMS, books, False, (void,))
    aggregator = coordinator._aggregators._made[JOB]
    coordinator._close_job(JOB, seen)
    assert NAME not in coordinator._closed, "a stake is locked in a void round"
    free = replace(seen, rounds=(replace(void, mine=False),))
    games.append(game(1))
    coordinator._close_job(JOB, free)
    assert NAME not in coordinator._closed, "a game about its merge is open"
    games.clear()
    asked = [object()]
    monkeypatch.setattr(reading, "own_demands", lambda session, job, me: asked)
    coordinator._close_job(JOB, free)
    assert NAME not in coordinator._closed, "a bond is in a demand"
    asked.clear()
    coordinator._close_job(JOB, free)
    assert NAME in coordinator._closed
    assert aggregator.forgotten == [ClaimId(bytes([1]) * 32)], "its archive goes"
