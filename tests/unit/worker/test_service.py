"""The loop outlives what goes wrong about one job, and stays as long as something is at stake."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.base.files import write_atomically
from lockstep.execution.jobs import Job
from lockstep.market.ledger import GameRecord
from lockstep.protocol.errors import DoctorError, FundsError, Mismatch, TryLater, Unreachable
from lockstep.protocol.types import GameId, JobId, Seconds
from lockstep.runtime.party import Head
from lockstep.storage import ContentStore
from tests.support.workers import CLAIM, ME, OTHER, bare_parts, put_at_stake, taken_of
from worker import notes
from worker.parts import TrackedJob
from worker.service import Worker


@pytest.fixture
def worker(tmp_path: Path, toy_store: ContentStore) -> Iterator[Worker]:
    made = Worker(bare_parts(tmp_path, toy_store))
    made._head = Head(1, Seconds(1000))
    yield made
    made._handlers.close()


def taken(worker: Worker, job: Job) -> TrackedJob:
    found = worker._jobs.taken[job.id] = taken_of(job)
    worker._ledger.jobs[job.id] = found.ledger
    return found


def at_stake(worker: Worker, job: JobId) -> None:
    put_at_stake(worker._ledger, job)


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
    assert worker._jobs.taken[toy.id].joins, "what passes is tried again"
    at_stake(worker, toy.id)
    with pytest.raises(Unreachable):
        worker._guarded(taken(worker, toy), failing(Unreachable("nobody answers", "")))


def test_it_stays_until_nothing_is_at_stake(worker: Worker, toy: Job, capsys: pytest.CaptureFixture[str]) -> None:
    worker._once = True
    assert not worker._finished()
    worker._leaving.done.add(toy.id)
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


def test_a_provider_that_names_no_final_block_keeps_nothing_from_being_done(worker: Worker) -> None:
    said: list[int | Exception] = [40, Unreachable("nobody answers", ""), TryLater("no finalized block", ""), 44]
    asked: list[int] = []

    def relied(head: int) -> int:
        asked.append(head)
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    worker.parts.party = SimpleNamespace(relied=relied)  # type: ignore[misc, assignment]
    seen = [worker._finality.poll(number) for number in (100, 100, 101, 102, 103)]
    assert seen == [40, 40, 40, 40, 44], "what was said last stands"
    assert asked == [100, 101, 102, 103], "once a head"


def test_a_fee_above_the_bound_is_no_outage(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    code = "try_later.fee"

    def submit(key: str, call: Any) -> bool:
        tried.append(key)
        raise TryLater("the base fee is high", "", code=code)

    parts = worker.parts
    parts.node = SimpleNamespace(public=b"node")  # type: ignore[misc, assignment]
    parts.contracts.vault = SimpleNamespace(register_node=lambda node: None)  # type: ignore[misc, assignment]
    monkeypatch.setattr(worker._sender, "submit", submit)
    monkeypatch.setattr(worker._answers, "due", lambda *_: [("answer/1", None), ("answer/2", None)])
    worker._register()
    worker._answer()
    assert tried == ["node/6e6f6465/0", "answer/1", "answer/2"], "each is tried, and none holds up the moves"
    code = "try_later"
    with pytest.raises(TryLater):
        worker._answer()


def test_a_fee_that_ends_a_look_is_told_as_a_fee(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted: list[str] = []

    worker.parts.watch = SimpleNamespace(until=None)  # type: ignore[misc, assignment]
    monkeypatch.setattr(worker, "_start", lambda: 0)
    monkeypatch.setattr(worker, "_tick", lambda began: failing(TryLater("", "", code="try_later.fee"))())
    monkeypatch.setattr(worker._fees, "poll", lambda head: "Demands.demand_row waits")
    monkeypatch.setattr(worker._outage, "failed", failing(AssertionError("a fee is no outage")))
    monkeypatch.setattr(worker.parts.notes, "is_in", lambda note: noted.append(note.code))
    monkeypatch.setattr(worker, "_finished", lambda: len(noted) > 0)
    worker.run()
    assert noted == ["fee", "stopped"]
    assert "unreachable" not in capsys.readouterr().out


def test_a_full_disk_ends_no_worker_and_its_notes_go_on_once_there_is_room(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, looks = os.fsync, [True, True, False]

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def tick(began: int) -> None:
        monkeypatch.setattr(os, "fsync", full if looks.pop(0) else sync)
        write_atomically(tmp_path / "material", [b"x"])

    monkeypatch.setattr(worker, "_start", lambda: 0)
    monkeypatch.setattr(worker, "_tick", tick)
    monkeypatch.setattr(worker, "_state", lambda: notes.Note("hours", "it went on"))
    monkeypatch.setattr(worker, "_finished", lambda: not looks)
    monkeypatch.setattr(worker._wake, "wait", lambda seconds: None)
    monkeypatch.setattr(notes.Notes, "ended", failing(AssertionError("it ended")))
    worker.run()
    assert (tmp_path / "material").exists()
    assert notes.read(tmp_path).state == notes.STOPPED
