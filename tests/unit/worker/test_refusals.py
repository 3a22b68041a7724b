"""A job of which wrong bits were computed is refused: on disk first, through every restart, until it is cleared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given

from lockstep.execution.jobs import ClaimRun, Job
from lockstep.market.acts import Action
from lockstep.protocol.errors import WrongBits
from lockstep.protocol.types import ClaimId, Seconds
from lockstep.runtime import refusals
from lockstep.runtime.refusals import Refusals
from lockstep.storage import ContentStore
from tests.support.workers import CLAIM, bare_parts, put_at_stake, taken_of
from tests.support.wrong import WrongRun
from tests.unit.worker.test_decide import selves, views
from worker import decide
from worker.computing import Trained, check_of
from worker.decide import CLAIMING, JobView, WorkerFacts
from worker.notes import of_refusal
from worker.parts import WorkerParts
from worker.progress import WorkFolder, clear
from worker.service import Worker
from worker.training import Training

ATTEMPT = 0
WRONG = WrongBits("self-check: step 3 gives another state", "hint")


@pytest.fixture
def parts(tmp_path: Path, toy_store: ContentStore) -> WorkerParts:
    return bare_parts(tmp_path, toy_store)


@pytest.fixture
def worker(parts: WorkerParts) -> Iterator[Worker]:
    made = Worker(parts)
    yield made
    made._handlers.close()


def failed(training: Training, claim: ClaimId) -> None:
    """Wait until the worker thread has given the claim up."""
    deadline = time.monotonic() + 60
    while training.trained(claim) is None and claim not in training._failed:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_refusal_is_in_force_for_the_build_that_computed(
    tmp_path: Path, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Refusals(tmp_path)
    assert kept.all() == {}
    kept.record(toy.id, WRONG, CLAIM)
    found = Refusals(tmp_path).of(toy.id)
    assert found is not None
    assert "step 3 gives another state" in of_refusal(found).message
    assert kept.all() == {toy.id: found}
    monkeypatch.setattr(refusals, "build_name", lambda: "a mended one")
    assert (kept.of(toy.id), kept.all()) == (None, {}), "another build tries again"


def test_a_refusal_that_cannot_be_read_is_in_force(tmp_path: Path, toy: Job) -> None:
    kept = Refusals(tmp_path)
    kept.record(toy.id, WRONG)
    for damaged in (b"", b"{}", b'{"message": 1}', b"\xff"):
        next((tmp_path / "refused").iterdir()).write_bytes(damaged)
        assert kept.of(toy.id) is not None, damaged


def test_a_cleared_job_starts_its_claim_anew(tmp_path: Path, toy: Job, honest_run: ClaimRun) -> None:
    kept, work = Refusals(tmp_path), WorkFolder(tmp_path, CLAIM)
    state = honest_run.advance(1, honest_run.start)
    work.save_step(honest_run, state, [honest_run.root(1, state)])
    kept.record(toy.id, WRONG, CLAIM)
    found = kept.of(toy.id)
    assert found is not None
    clear(tmp_path, found)
    assert kept.of(toy.id) is None
    assert work.resume(honest_run)[1] == [], "what a wrong executor left is not gone on with"


def begin(training: Training, parts: WorkerParts, toy: Job, run: ClaimRun) -> None:
    def work() -> Trained:
        return training.compute(taken_of(toy), run, CLAIM, ATTEMPT, check_of(CLAIM, run.seed))

    training.begin(CLAIM, work)
    failed(training, CLAIM)


def test_a_failed_self_check_is_on_disk_and_ends_neither_the_worker_nor_other_jobs(
    worker: Worker, parts: WorkerParts, toy: Job, honest_run: ClaimRun
) -> None:
    training = worker._handlers.training
    begin(training, parts, toy, WrongRun.like(honest_run))
    found = Refusals(parts.home).of(toy.id)
    assert found is not None
    assert "self-check: step " in of_refusal(found).message
    assert "round 0, slot 1" in of_refusal(found).message
    assert training.busy(CLAIM, Seconds(1000)), "it is not tried at once, and nothing is raised"
    assert WorkFolder(parts.home, CLAIM).material() is None


def test_who_is_killed_between_the_failure_and_its_record_fails_again(
    worker: Worker, parts: WorkerParts, toy: Job, honest_run: ClaimRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = worker._handlers.training

    def killed(*_: object) -> None:
        raise OSError("the disk went away")

    for now in (1000, 2000, 3000):
        with monkeypatch.context() as patched:
            patched.setattr(Refusals, "record", killed)
            begin(training, parts, toy, WrongRun.like(honest_run))
        with pytest.raises(OSError, match="went away"):
            training.busy(CLAIM, Seconds(now))
        assert WorkFolder(parts.home, CLAIM).material() is None, "no retry makes a claim of it"
    begin(training, parts, toy, WrongRun.like(honest_run))
    assert Refusals(parts.home).of(toy.id) is not None


@given(views(), selves)
def test_a_refused_job_is_left_and_nothing_is_claimed_or_opened_in_it(view: JobView, me: WorkerFacts) -> None:
    refusing = WorkerFacts(me.address, me.free, me.place, True, me.trained, False, me.base, me.relied, refuses=True)
    honest = decide.acts(view, WorkerFacts(me.address, me.free, me.place, True, me.trained, False, me.base, me.relied))
    found = decide.acts(view, refusing)
    assert found == [act for act in honest if act.kind not in CLAIMING], "what others wait for is done as ever"
    assert decide.ahead(view, refusing, frozenset[Action]()) == []


def test_a_worker_refuses_a_job_as_soon_as_it_stands_on_disk_and_takes_it_back_when_cleared(
    worker: Worker, parts: WorkerParts, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = worker._jobs.taken[toy.id] = taken_of(toy)
    worker._ledger.jobs[toy.id] = job.ledger
    job.staked = True
    monkeypatch.setattr(worker._handlers.admission, "fits", lambda *_: True)
    monkeypatch.setattr(type(worker._ledger), "place", lambda *_: 0)
    assert not worker._self(job).refuses
    parts.refusals.record(toy.id, WRONG, CLAIM)
    me = worker._self(job)
    assert (me.refuses, me.fit, me.draining) == (True, False, True)
    assert parts.notes.jobs[toy.id].code == "wrong_bits"
    found = parts.refusals.of(toy.id)
    assert found is not None
    clear(parts.home, found)
    me = worker._self(job)
    assert (me.refuses, me.fit, me.draining) == (False, True, False)
    assert toy.id not in parts.notes.jobs


def test_a_refused_job_is_loaded_only_where_a_stake_must_be_defended(
    worker: Worker, parts: WorkerParts, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[object] = []
    monkeypatch.setattr(worker._jobs, "_load", lambda known, *_: loaded.append(known.id))
    worker._ledger.jobs[toy.id] = taken_of(toy).ledger
    parts.refusals.record(toy.id, WRONG)
    worker._jobs.take(worker._ledger, decide.Wei(0), True, Seconds(1000))
    assert (loaded, parts.notes.jobs[toy.id].code) == ([], "wrong_bits")
    put_at_stake(worker._ledger, toy.id)
    worker._jobs.take(worker._ledger, decide.Wei(0), True, Seconds(1000))
    assert loaded == [toy.id]


def test_the_draws_of_a_check_are_the_claims_own(honest_run: ClaimRun) -> None:
    first, again = (check_of(CLAIM, honest_run.seed) for _ in range(2))
    assert [first.random() for _ in range(5)] == [again.random() for _ in range(5)]
    assert isinstance(first, Random)
    assert check_of(ClaimId(b"d" * 32), honest_run.seed).random() != check_of(CLAIM, honest_run.seed).random()
