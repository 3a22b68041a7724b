"""Jobs are loaded beside the loop, checked, taken or refused; what hangs on them is defended whatever they are."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.base.machine import Memory, readable
from lockstep.execution import footprint
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.execution.invalidity import Undefendable
from lockstep.execution.jobs import Job
from lockstep.market.ledger import JobLedger, Ledger
from lockstep.numerics import cuda
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.protocol.errors import (
    BlobCorrupt,
    BlobMissing,
    Crashed,
    DoctorError,
    Mismatch,
    ProgramInvalid,
    RowMissing,
    TryLater,
)
from lockstep.protocol.programs.defects import Rule
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.runtime.refusals import Refusals
from lockstep.storage import ContentStore
from tests.support.waiting import PATIENCE
from tests.support.workers import OTHER, bare_parts, put_at_stake
from worker import notes
from worker.parts import WorkerParts
from worker.policy import Policy
from worker.taking import RETRY_SECONDS, Jobs

NOTHING = Wei(0)


@pytest.fixture
def parts(tmp_path: Path, toy_store: ContentStore) -> WorkerParts:
    return bare_parts(tmp_path, toy_store)


@pytest.fixture
def jobs(parts: WorkerParts) -> Iterator[Jobs]:
    made = Jobs(parts, SimpleNamespace(), lambda: None, None)  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture
def ledger(parts: WorkerParts, toy: Job) -> Ledger:
    parts.watcher.ledger.jobs[toy.id] = JobLedger(toy.id, OTHER, 0)
    return parts.watcher.ledger


def take(jobs: Jobs, ledger: Ledger, now: int = 1000, joins: bool = True) -> None:
    """Begin to load what is new, wait for it, take it."""
    jobs.take(ledger, NOTHING, joins, Seconds(now))
    deadline = time.monotonic() + PATIENCE
    both = (jobs._loader, jobs._urgent)
    while not all(executor.over(job) for executor in both for job in ledger.jobs if job in executor):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    jobs.take(ledger, NOTHING, joins, Seconds(now))


def raising(error: Exception) -> Any:
    def read(job: object, at_stake: bool) -> Job:
        raise error

    return read


@pytest.mark.parametrize(
    "error", [RecursionError(), TypeError("dataset: []"), ProgramInvalid("no", ""), Mismatch("", "")]
)
def test_a_job_that_cannot_be_loaded_is_refused(
    jobs: Jobs, ledger: Ledger, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "_read", raising(error))
    for now in (1000, 100_000):
        take(jobs, ledger, now)
    assert jobs.taken == {}
    assert capsys.readouterr().out.count('"refused"') == 1, "once and for good"


def test_a_machine_that_cannot_work_is_told_so_unless_something_hangs_on_the_job(
    jobs: Jobs, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_read", raising(DoctorError("no", "")))
    with pytest.raises(DoctorError):
        take(jobs, ledger)
    put_at_stake(ledger, toy.id)
    take(jobs, ledger)
    assert jobs.taken == {}


def test_what_is_missing_is_looked_for_again(
    jobs: Jobs, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_read", raising(BlobMissing("not there", "")))
    take(jobs, ledger, 1000)
    monkeypatch.setattr(jobs, "_read", lambda job, at_stake: toy)
    take(jobs, ledger, 1000 + RETRY_SECONDS - 1)
    assert jobs.taken == {}, "it rests"
    take(jobs, ledger, 1000 + RETRY_SECONDS)
    assert jobs.loaded(toy.id) is toy


@pytest.mark.parametrize("staked", [False, True])
def test_what_stays_missing_is_looked_for_ever_more_rarely_unless_something_hangs_on_it(
    jobs: Jobs, ledger: Ledger, toy: Job, staked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []

    def read(job: object, at_stake: bool) -> Job:
        looked.append(now)
        raise BlobMissing("not there", "")

    monkeypatch.setattr(jobs, "_read", read)
    if staked:
        put_at_stake(ledger, toy.id)
    for now in range(1000, 1070, RETRY_SECONDS):
        take(jobs, ledger, now)
    assert looked == (list(range(1000, 1070, RETRY_SECONDS)) if staked else [1000, 1002, 1006, 1014, 1030, 1062])


def test_jobs_whose_content_is_nowhere_are_noted_once_a_look(
    jobs: Jobs, parts: WorkerParts, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(5):
        ledger.jobs[JobId(bytes([i]) * 32)] = JobLedger(JobId(bytes([i]) * 32), OTHER, 0)
    monkeypatch.setattr(jobs, "_read", raising(BlobMissing("not there", "")))
    written: list[object] = []
    write = notes.write_atomically
    monkeypatch.setattr(notes, "write_atomically", lambda *given: (written.append(1), write(*given))[1])
    for now in (1000, 2000):
        take(jobs, ledger, now)
        for _ in range(3):
            parts.notes.is_in(notes.WORKING)
    assert len(written) == 2
    assert notes.read(parts.home).jobs == parts.notes.jobs
    assert len(parts.notes.jobs) == 6


def test_a_job_that_does_not_fit_is_refused_once_with_the_figure_and_others_go_on(
    jobs: Jobs, parts: WorkerParts, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    need = footprint.worker(toy.programs, toy.params.role.slots).total
    parts.contracts.market = SimpleNamespace(params=lambda job: toy.params)  # type: ignore[misc, assignment]
    parts.party = SimpleNamespace(settings=SimpleNamespace(threads=1, path="auto"))  # type: ignore[misc, assignment]
    monkeypatch.setattr(footprint, "memory", lambda: Memory(need - 1, need - 1))
    for now in (1000, 1000 + AGAIN_SECONDS, 1000 + 2 * AGAIN_SECONDS):
        take(jobs, ledger, now)
        assert jobs.taken == {}
    told = capsys.readouterr().out
    assert told.count('"refused"') == 1, "said once"
    assert f"needs {readable(need)} of memory, this machine has" in told
    monkeypatch.setattr(footprint, "memory", lambda: Memory(need, need))
    assert jobs._read(toy.id, False).params == toy.params, "when there is room, it is taken"
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1, 1))
    assert jobs._read(toy.id, True).params == toy.params, "what hangs on it is defended, room or not"


def test_a_job_that_a_device_cannot_hold_is_refused_with_the_figure_and_defended_all_the_same(
    jobs: Jobs, parts: WorkerParts, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.contracts.market = SimpleNamespace(params=lambda job: toy.params)  # type: ignore[misc, assignment]
    parts.party = SimpleNamespace(settings=SimpleNamespace(threads=1, path="emulated"))  # type: ignore[misc, assignment]
    device = Emulator(size=1000)
    monkeypatch.setattr(cuda, "open_device", lambda label: device)
    take(jobs, ledger)
    assert jobs.taken == {}
    share = footprint.Fitting(footprint.worker, path="emulated").share(toy.programs, toy.params)
    assert share is not None
    note = parts.notes.jobs[toy.id]
    told = f"needs {readable(share.total)} of memory, emulated has 1.0 kB (1.0 kB available)"
    assert (note.code, note.message, note.next) == ("unfit", told, 1000 + AGAIN_SECONDS)
    defended = jobs._read(toy.id, True)
    assert defended.executable(toy.programs.step).place == "cpu"


def test_a_job_that_ends_what_runs_it_is_refused_on_disk_and_not_looked_at_again(
    jobs: Jobs, parts: WorkerParts, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_read", raising(Crashed("it was ended: SIGSEGV", "")))
    take(jobs, ledger)
    told = Refusals(parts.home).of(toy.id)
    assert told is not None
    assert (told.code, told.message.partition(":")[0]) == ("crashed", "it was ended")
    looked: list[object] = []
    for another in (jobs, Jobs(parts, SimpleNamespace(), lambda: None, None)):  # type: ignore[arg-type]
        monkeypatch.setattr(another, "_read", lambda job, at_stake: looked.append(job))
        take(another, ledger, 100_000)
    assert looked == []
    assert parts.notes.jobs[toy.id].code == "crashed"
    Refusals(parts.home).forget(told.job)
    monkeypatch.setattr(jobs, "_read", lambda job, at_stake: toy)
    take(jobs, ledger, 100_001)
    assert jobs.loaded(toy.id) is toy, "its owner has it tried again"


def test_a_job_that_ends_what_runs_it_is_tried_again_while_something_of_ours_hangs_on_it(
    jobs: Jobs, parts: WorkerParts, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_at_stake(ledger, toy.id)
    monkeypatch.setattr(jobs, "_read", raising(Crashed("it was ended: SIGKILL", "")))
    take(jobs, ledger)
    assert Refusals(parts.home).of(toy.id) is None
    monkeypatch.setattr(jobs, "_read", lambda job, at_stake: toy)
    take(jobs, ledger, 1000 + AGAIN_SECONDS)
    assert jobs.loaded(toy.id) is toy


@pytest.mark.parametrize(
    "error",
    [BlobCorrupt("a gateway's", ""), OSError(errno.EMFILE, "too many open files"), PermissionError(), KeyError("x")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("before", [True, False], ids=["at stake before", "at stake after"])
def test_a_job_on_which_something_of_ours_hangs_is_loaded_after_whatever_went_wrong(
    jobs: Jobs, ledger: Ledger, toy: Job, error: Exception, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_read", raising(error))
    if before:
        put_at_stake(ledger, toy.id)
    take(jobs, ledger)
    monkeypatch.setattr(jobs, "_read", lambda job, at_stake: toy)
    take(jobs, ledger, 1000 + RETRY_SECONDS)
    assert (toy.id in jobs.taken) == before
    put_at_stake(ledger, toy.id)
    take(jobs, ledger, 1000 + RETRY_SECONDS)
    assert jobs.loaded(toy.id) is toy


def test_a_job_that_breaks_a_rule_is_looked_at_once_whatever_hangs_on_it(
    jobs: Jobs, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_at_stake(ledger, toy.id)
    broken = Undefendable(ProgramInvalid("a rule"), None, next(iter(Rule)))  # type: ignore[arg-type]
    looked: list[object] = []

    def read(job: object, at_stake: bool) -> Job:
        looked.append(job)
        raise broken

    monkeypatch.setattr(jobs, "_read", read)
    for now in (1000, 100_000):
        take(jobs, ledger, now)
    assert looked == [toy.id]
    assert jobs._undefendable == {toy.id: broken}


def test_a_done_job_is_loaded_again_if_something_of_ours_hangs_on_it(
    jobs: Jobs, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_read", lambda job, at_stake: toy)
    ledger.jobs[toy.id].done = True
    take(jobs, ledger)
    assert jobs.taken == {}
    put_at_stake(ledger, toy.id)
    take(jobs, ledger, joins=False)
    assert not jobs.taken[toy.id].joins, "for its claims alone"


def test_what_lies_here_of_a_job_that_is_over_is_named_once(jobs: Jobs, ledger: Ledger, toy: Job) -> None:
    ledger.jobs[toy.id].done = True
    jobs.kept = {toy.id}
    assert jobs.take(ledger, NOTHING, True, Seconds(1000)) == [toy.id]
    assert jobs.take(ledger, NOTHING, True, Seconds(1001)) == []


def test_a_stranger_s_job_is_not_even_loaded_where_the_owner_names_others(
    parts: WorkerParts, jobs: Jobs, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    monkeypatch.setattr(jobs, "_read", lambda job, at_stake: (looked.append(job), toy)[1])
    parts.policy = Policy(jobs_from=frozenset({Address("0x" + "11" * 20)}))  # type: ignore[misc]
    take(jobs, ledger)
    assert (looked, jobs.taken) == ([], {})
    assert parts.notes.jobs[toy.id].code == "policy"
    put_at_stake(ledger, toy.id)
    take(jobs, ledger)
    assert looked == [toy.id], "but for what hangs on it"


def test_nothing_new_is_loaded_while_it_drains(jobs: Jobs, ledger: Ledger, toy: Job) -> None:
    take(jobs, ledger, joins=False)
    assert toy.id not in jobs._loader


def test_a_demand_that_waits_for_a_lower_fee_holds_up_no_job(
    jobs: Jobs, ledger: Ledger, toy: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried, high = list[str](), True

    def submit(key: str, call: Any) -> bool:
        tried.append(key)
        if high:
            raise TryLater("the base fee is high", "", code="try_later.fee")
        return True

    contracts: Any = jobs._parts.contracts
    contracts.market = SimpleNamespace(params=lambda job: toy.params)
    contracts.demands = SimpleNamespace(row_bond_of=lambda job, row: NOTHING)
    monkeypatch.setattr(jobs, "_sender", SimpleNamespace(submit=submit))
    monkeypatch.setattr(jobs._asks, "row", lambda *_: ("demand/row", None))
    monkeypatch.setattr(jobs, "_read", raising(RowMissing(BlobMissing("it is not here", ""), 3)))
    take(jobs, ledger)
    assert jobs._missing.in_backoff(toy.id, Seconds(1000)), "it is looked at again, as without a fee"
    assert (tried, "demanded" in capsys.readouterr().out) == (["demand/row"], False)
    high = False
    take(jobs, ledger, 1000 + RETRY_SECONDS)
    assert (tried, "demanded" in capsys.readouterr().out) == (["demand/row"] * 2, True)
