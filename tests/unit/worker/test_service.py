"""The loop outlives what goes wrong about one job, and stays as long as something is at stake."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.base.machine import Memory, readable
from lockstep.execution import footprint
from lockstep.execution.capacity import AGAIN_SECONDS, Pace
from lockstep.execution.jobs import Job
from lockstep.node.ledger import GameRecord, JobLedger, Ledger
from lockstep.node.party import Head
from lockstep.protocol.errors import DoctorError, FundsError, Mismatch, ProgramInvalid, TryLater, Unfit, Unreachable
from lockstep.protocol.types import Address, ClaimId, GameId, JobId, Seconds, Wei
from lockstep.storage import ContentStore
from worker.parts import Taken
from worker.service import Worker

ME, OTHER = (Address("0x" + c * 40) for c in "ab")
CLAIM = ClaimId(b"c" * 32)


@pytest.fixture
def worker(tmp_path: Path, toy_store: ContentStore) -> Iterator[Worker]:
    contracts: Any = SimpleNamespace(market=None, game=None, demands=None, vault=None, token=None)
    contracts.addresses = SimpleNamespace(block=0)
    parts = SimpleNamespace(
        contracts=contracts, store=toy_store, home=tmp_path, announcer=SimpleNamespace(close=lambda: None), outbox=None,
        memory_bytes=None, disk_bytes=1 << 30, address=ME, watcher=SimpleNamespace(ledger=Ledger()),
    )  # fmt: skip
    made = Worker(parts)  # type: ignore[arg-type]
    made._head = Head(1, Seconds(1000))
    yield made
    made._claimant.close()


def taken(worker: Worker, job: Job, pace: Pace | None = None) -> Taken:
    ledger = JobLedger(job.id, OTHER, 0)
    worker._ledger.jobs[job.id] = ledger
    trial: Future[Pace] = Future()
    trial.set_result(pace or Pace(0.001, 0.001))
    worker._taken[job.id] = Taken(ledger, job.params, job, trial)
    return worker._taken[job.id]


def at_stake(worker: Worker, job: JobId) -> None:
    worker._ledger.places[CLAIM] = job, 0
    worker._ledger.locks[CLAIM] = ME


def failing(error: Exception) -> Any:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    "error", [RuntimeError("a defect"), KeyError("x"), DoctorError("no", ""), FundsError("no", "")]
)
def test_what_goes_wrong_about_one_job_does_not_end_who_defends_another(
    worker: Worker, toy: Job, error: Exception
) -> None:
    job = taken(worker, toy)
    at_stake(worker, toy.id)
    worker._guarded(job, failing(error))
    assert not job.joins, "nothing more of it is joined"


def test_a_machine_that_cannot_work_is_told_so_where_nothing_is_at_stake(worker: Worker, toy: Job) -> None:
    with pytest.raises(DoctorError):
        worker._guarded(taken(worker, toy), failing(DoctorError("no", "")))
    worker._guarded(taken(worker, toy), failing(RuntimeError("a defect")))
    worker._guarded(taken(worker, toy), failing(Mismatch("a stranger's job", "")))
    worker._guarded(taken(worker, toy), failing(TryLater("the fee is high", "")))
    assert worker._taken[toy.id].joins, "what passes is tried again"
    at_stake(worker, toy.id)
    with pytest.raises(Unreachable):
        worker._guarded(taken(worker, toy), failing(Unreachable("nobody answers", "")))


@pytest.mark.parametrize(
    "error", [RecursionError(), TypeError("dataset: []"), ProgramInvalid("no", ""), Mismatch("", "")]
)
def test_a_job_that_cannot_be_loaded_is_refused(
    worker: Worker, toy: Job, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded: Future[Any] = Future()
    loaded.set_exception(error)
    worker._take(JobLedger(toy.id, OTHER, 0), loaded)
    assert toy.id in worker._refused
    assert '"refused"' in capsys.readouterr().out


def test_a_job_that_does_not_fit_is_refused_once_with_the_figure_and_others_go_on(
    worker: Worker, toy: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    need = footprint.worker(toy.programs, toy.params.role.slots).total
    worker._market = SimpleNamespace(params=lambda job: toy.params)  # type: ignore[assignment]
    worker.parts.party = SimpleNamespace(settings=SimpleNamespace(threads=1, path="auto"))  # type: ignore[misc, assignment]
    monkeypatch.setattr(footprint, "memory", lambda: Memory(need - 1, need - 1))
    ledger = worker._ledger.jobs[toy.id] = JobLedger(toy.id, OTHER, 0)
    for now in (1000, 1000 + AGAIN_SECONDS, 1000 + 2 * AGAIN_SECONDS):
        worker._head = Head(1, Seconds(now))
        worker._take_jobs()
        with pytest.raises(Unfit, match=f"needs {readable(need)} of memory, this machine has"):
            worker._loading[toy.id].result(10)
        worker._take_jobs()
        assert toy.id not in worker._loading, "it rests"
    assert capsys.readouterr().out.count('"refused"') == 1, "said once"
    monkeypatch.setattr(footprint, "memory", lambda: Memory(need, need))
    assert worker._load(toy.id, False)[1].params == toy.params, "when there is room, it is taken"
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1, 1))
    assert worker._load(toy.id, True)[1].params == toy.params, "what hangs on it is defended, room or not"
    assert ledger.id not in worker._refused


def test_it_stays_until_nothing_is_at_stake(worker: Worker, toy: Job, capsys: pytest.CaptureFixture[str]) -> None:
    worker._once = True
    assert not worker._finished()
    worker._done.add(toy.id)
    at_stake(worker, toy.id)
    assert not worker._finished(), "a stake is locked"
    game = GameId(b"g" * 32)
    worker._ledger.games[game] = GameRecord(game, CLAIM, OTHER, ME, 0, 1)
    worker._ledger.locks.clear()
    assert not worker._finished(), "a game about its claim is open"
    assert capsys.readouterr().out.count('"staying"') == 1, "said once"
    worker._ledger.games.clear()
    assert worker._finished()


def test_a_second_signal_leaves_at_once(worker: Worker, toy: Job) -> None:
    at_stake(worker, toy.id)
    worker.drain()
    assert not worker._finished()
    worker.drain()
    assert worker._finished()


def test_a_done_job_is_loaded_again_if_something_of_ours_hangs_on_it(
    worker: Worker, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = JobLedger(toy.id, OTHER, 0, done=True)
    worker._ledger.jobs[toy.id] = ledger
    monkeypatch.setattr(worker, "_load", lambda job, at_stake: (toy.params, toy))
    worker._take_jobs()
    assert not worker._loading
    at_stake(worker, toy.id)
    worker._draining.set()
    worker._take_jobs()
    worker._loading[toy.id].result(10)
    worker._take_jobs()
    assert not worker._taken[toy.id].joins, "for its claims alone"
    assert worker._taken[toy.id].trial.exception() is not None


def test_who_cannot_stake_a_merge_refuses_the_job_and_looks_again_later(
    worker: Worker, toy: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job, sent = taken(worker, toy), []
    balance = toy.params.role.slot_stake + toy.params.merge.stake - 1
    token = SimpleNamespace(balance_of=lambda account: Wei(balance), sign_permit=lambda *a: ())
    worker.parts.contracts.token = token  # type: ignore[misc]
    worker._vault = SimpleNamespace(address="", deposit_with_permit=lambda *a: "deposit")  # type: ignore[assignment]
    worker.parts.party = SimpleNamespace(account=None)  # type: ignore[misc]
    worker._sender = SimpleNamespace(known=lambda key: False, submit=lambda key, call: sent.append(key))  # type: ignore[assignment]
    worker._stake(job)
    worker._stake(job)
    assert (job.staked, sent) == (False, [])
    assert capsys.readouterr().out.count('"funds"') == 1, "said once"
    balance += 1
    worker._stake(job)
    assert not job.staked, "it rests"
    worker._head = Head(2, Seconds(10_000))
    worker._stake(job)
    assert (job.staked, len(sent)) == (True, 1)


def test_a_deposit_that_could_not_be_sent_is_sent_later(worker: Worker, toy: Job) -> None:
    job, tries = taken(worker, toy), iter([Unreachable("nobody answers", ""), None])

    def submit(key: str, call: object) -> None:
        error = next(tries)
        if error is not None:
            raise error

    token = SimpleNamespace(balance_of=lambda account: Wei(10**30), sign_permit=lambda *a: ())
    worker.parts.contracts.token = token  # type: ignore[misc]
    worker._vault = SimpleNamespace(address="", deposit_with_permit=lambda *a: "deposit")  # type: ignore[assignment]
    worker.parts.party = SimpleNamespace(account=None)  # type: ignore[misc]
    worker._sender = SimpleNamespace(known=lambda key: False, submit=submit)  # type: ignore[assignment]
    with pytest.raises(Unreachable):
        worker._stake(job)
    assert not job.staked
    worker._stake(job)
    assert job.staked
    assert next(tries, "sent") == "sent"


def test_no_more_is_joined_than_could_be_defended_at_once(
    worker: Worker, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker._chain_at = Seconds(1 << 40)
    slow = taken(worker, toy, Pace(toy.params.windows.clock_seconds / toy.params.role.transitions / 2, 1.0))
    assert worker._has_room(slow)
    at_stake(worker, toy.id)
    worker._ledger.locks[ClaimId(b"d" * 32)] = ME
    worker._ledger.places[ClaimId(b"d" * 32)] = toy.id, 0
    assert not worker._has_room(slow)
    assert worker._has_room(taken(worker, toy))
