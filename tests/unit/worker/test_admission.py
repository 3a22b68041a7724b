"""A job is joined if this machine keeps up with it beside all that it may have to defend, and the account backs it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep.execution import capacity, comparing, footprint
from lockstep.execution.box import loading
from lockstep.execution.box.handle import Cancelled, Overdue
from lockstep.execution.capacity import AGAIN_SECONDS, ChainPace, Pace
from lockstep.execution.jobs import Job
from lockstep.protocol.errors import FundsError, Unfit, Unreachable, WrongBits
from lockstep.protocol.types import JobId, Seconds, Wei
from lockstep.runtime.refusals import Refusals
from lockstep.storage import ContentStore
from tests.support.params import amended
from tests.support.waiting import PATIENCE, wait
from tests.support.workers import OTHER, bare_parts, taken_of
from worker import admission as admission_module
from worker.admission import FIRST_SECONDS, Admission
from worker.parts import TrackedJob, WorkerParts
from worker.policy import Policy
from worker.requesters import FORGIVEN, RequesterHistory

NOW = Seconds(1000)


class FakeFunds:
    """An account's tokens and what it sent; what fails is said beforehand."""

    def __init__(self, balance: int) -> None:
        self.balance = balance
        self.fails: list[Exception] = []
        self.sent: list[str] = []

    def known(self, key: str) -> bool:
        return False

    def submit(self, key: str, call: object) -> None:
        if self.fails:
            raise self.fails.pop()
        self.sent.append(key)


@pytest.fixture
def parts(tmp_path: Path, toy_store: ContentStore) -> WorkerParts:
    made = bare_parts(tmp_path, toy_store)
    made.party = SimpleNamespace(  # type: ignore[misc, assignment]
        chain_pace=ChainPace, base_fee=lambda: 0, deposit=lambda amount, now: "deposit"
    )
    return made


@pytest.fixture
def funds(parts: WorkerParts, toy: Job) -> FakeFunds:
    made = FakeFunds(toy.params.role.slot_stake + toy.params.merge.stake)
    parts.contracts.token = SimpleNamespace(balance_of=lambda account: Wei(made.balance))  # type: ignore[misc, assignment]
    return made


@pytest.fixture
def admission(parts: WorkerParts, funds: FakeFunds) -> Iterator[Admission]:
    made = Admission(parts, funds)  # type: ignore[arg-type]
    yield made
    made.close()


def fits(admission: Admission, taken: TrackedJob, live: list[TrackedJob], now: int) -> bool:
    """As looked at until the pace is measured."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = admission.fits(taken, live, Seconds(now))
        if taken.ledger.id not in admission._executor:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_who_cannot_stake_a_merge_refuses_the_job_and_looks_again_later(
    admission: Admission, funds: FakeFunds, toy: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    job = taken_of(toy)
    funds.balance -= 1
    for _ in range(2):
        admission.stake(job, Wei(0), False, NOW)
    assert (job.staked, funds.sent) == (False, [])
    funds.balance += 1
    admission.stake(job, Wei(0), False, NOW)
    assert not job.staked, "it rests"
    admission.stake(job, Wei(0), False, Seconds(NOW + AGAIN_SECONDS))
    assert (job.staked, len(funds.sent)) == (True, 1)
    assert capsys.readouterr().out.count('"funds"') == 1, "said once"


def test_who_has_nothing_and_nothing_at_stake_is_told_so(admission: Admission, funds: FakeFunds, toy: Job) -> None:
    funds.balance = 0
    with pytest.raises(FundsError, match="has 0"):
        admission.stake(taken_of(toy), Wei(0), False, NOW)
    admission.stake(taken_of(toy), Wei(0), True, NOW)
    assert funds.sent == [], "who must defend a claim goes on"


def test_a_deposit_that_could_not_be_sent_is_sent_later(admission: Admission, funds: FakeFunds, toy: Job) -> None:
    job = taken_of(toy)
    funds.fails = [Unreachable("nobody answers", "")]
    with pytest.raises(Unreachable):
        admission.stake(job, Wei(0), False, NOW)
    assert not job.staked
    admission.stake(job, Wei(0), False, NOW)
    assert (job.staked, len(funds.sent)) == (True, 1)


def test_a_machine_that_is_too_slow_is_told_once_and_measured_again(
    admission: Admission, toy: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paces: list[Pace | Unfit] = [Unfit("slow", ""), Unfit("slow", ""), Pace(0.001, 0.001)]

    def keep_up(*_: object) -> Pace:
        found = paces.pop(0)
        if isinstance(found, Unfit):
            raise found
        return found

    monkeypatch.setattr(capacity, "keep_up", keep_up)
    job = taken_of(toy)
    assert not fits(admission, job, [], 1000)
    assert not fits(admission, job, [], 1000 + AGAIN_SECONDS - 1)
    assert len(paces) == 2, "it rests"
    assert not fits(admission, job, [], 1000 + AGAIN_SECONDS)
    assert fits(admission, job, [], 1000 + 2 * AGAIN_SECONDS)
    told = capsys.readouterr().out
    assert (told.count('"refused"'), told.count('"paced"')) == (1, 1)


class SlowBox:
    """In the place of a job's child: its looks end by `stop`, or by the time that they are given."""

    operations = 1

    def __init__(self) -> None:
        self.looks: list[float] = []
        self.cut_short: list[float] = []
        self.stopped, self.late = threading.Event(), threading.Event()

    def measure(self, job: Job, *_: object, at_most: float) -> Pace:
        self.looks.append(at_most)
        deadline = time.monotonic() + 30
        while not self.late.is_set() and time.monotonic() < deadline:
            if self.stopped.wait(0.001):
                self.stopped.clear()
                self.cut_short.append(at_most)
                raise Cancelled
        self.late.clear()
        raise Overdue(f"what runs its Programs was ended: it was not done after {at_most:.0f} s", "")

    def stop(self) -> None:
        self.stopped.set()


def test_a_job_that_takes_long_to_look_at_waits_behind_every_other(
    admission: Admission, parts: WorkerParts, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = SlowBox()
    slow, other = taken_of(replace(toy, box=box)), taken_of(toy)  # type: ignore[arg-type]
    other.ledger = replace(other.ledger, id=JobId(bytes(32)))
    monkeypatch.setattr(capacity, "keep_up", lambda *_: Pace(0.001, 0.001))
    box.late.set()
    assert not fits(admission, slow, [], NOW)
    assert Refusals(parts.home).of(slow.ledger.id) is None, "it is not refused yet"
    assert not admission.fits(slow, [], NOW)
    wait(lambda: box.looks == [FIRST_SECONDS, loading.LOOK_SECONDS], "its second look", every=0.002)
    assert fits(admission, other, [], NOW)
    assert box.cut_short == [loading.LOOK_SECONDS], "its look was ended for the other"
    assert not fits(admission, slow, [], NOW)
    box.late.set()
    assert not fits(admission, slow, [], NOW)
    found = Refusals(parts.home).of(slow.ledger.id)
    assert found is not None
    assert "1800 s" in found.message


def test_a_device_keeps_a_jobs_windows_and_no_processor_need(
    admission: Admission, toy: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[object] = []
    box = SimpleNamespace(operations=1, compare_first=lambda job, at_most: looks.append(at_most))
    monkeypatch.setattr(capacity, "keep_up", lambda *_: Pace(0.001, 0.001, "emulated", "emulated"))
    monkeypatch.setattr(comparing, "check_job", looks.append)
    job = replace(toy, box=box, path="emulated")  # type: ignore[arg-type]
    assert fits(admission, taken_of(job), [], NOW)
    assert looks == [FIRST_SECONDS, job]
    assert '"trains": "emulated"' in capsys.readouterr().out


def test_a_job_that_this_machine_computes_wrongly_is_refused_on_disk_before_anything_is_staked(
    admission: Admission, parts: WorkerParts, funds: FakeFunds, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[object] = []

    def wrong(job: Job) -> None:
        compared.append(job)
        raise WrongBits("comparison of the Program 'step': op 7 (gradient), element 0 is 0x1 in place of 0x2", "")

    monkeypatch.setattr(comparing, "check_job", wrong)
    assert not fits(admission, taken_of(toy), [], NOW)
    found = Refusals(parts.home).of(toy.id)
    assert found is not None
    assert "op 7 (gradient), element 0" in found.message
    assert parts.notes.jobs[toy.id].code == "wrong_bits"
    assert (len(compared), funds.sent) == (1, [])


def test_a_job_whose_payloads_come_too_late_is_not_measured(
    admission: Admission, parts: WorkerParts, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = footprint.fetched_bytes(toy.programs, toy.params, toy.wire_format)
    parts.download_bytes = 2 * fetched // toy.params.role.attest_seconds - 1  # type: ignore[misc]
    monkeypatch.setattr(capacity, "keep_up", lambda *_: pytest.fail("it is measured"))
    assert not fits(admission, taken_of(toy), [], NOW)
    note = parts.notes.jobs[toy.id]
    assert (note.code, "half of attest_seconds" in note.message) == ("unfit", True)
    assert note.next == NOW + AGAIN_SECONDS


def test_a_job_in_which_silence_locks_stakes_for_days_is_refused(
    admission: Admission, parts: WorkerParts, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "keep_up", lambda *_: Pace(0.001, 0.001))
    long = replace(toy, params=amended(toy.params, train_seconds=Seconds(30 * 86_400)))
    assert not fits(admission, taken_of(long), [], NOW)
    note = parts.notes.jobs[toy.id]
    assert (note.code, "train_seconds is 2592000 s" in note.message) == ("unfit", True)


def test_a_requester_whose_rounds_did_not_pay_is_served_no_more_and_after_a_restart_neither(
    parts: WorkerParts, funds: FakeFunds, toy: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.policy = Policy(max_unpaid=2)  # type: ignore[misc]
    had = RequesterHistory(paid=FORGIVEN - 1, unpaid=2)
    monkeypatch.setattr(admission_module, "history_with", lambda ledger, requester, me: had)
    for _ in range(2):
        with closing(Admission(parts, funds)) as fresh:  # type: ignore[arg-type]
            assert not fits(fresh, taken_of(toy), [], NOW)
        note = parts.notes.jobs[toy.id]
        assert (note.code, "--max-unpaid is 2" in note.message, OTHER in note.message) == ("unpaid", True, True)
    had = RequesterHistory(paid=FORGIVEN, unpaid=2)
    with closing(Admission(parts, funds)) as fresh:  # type: ignore[arg-type]
        assert fits(fresh, taken_of(toy), [], NOW), "what was paid forgives"


def test_a_job_whose_bonds_do_not_pay_an_answer_is_refused_while_gas_costs_something(
    admission: Admission, parts: WorkerParts, toy: Job
) -> None:
    fee = 10**9
    parts.party.base_fee = lambda: fee  # type: ignore[method-assign]
    assert toy.params.prices.gas_price == 0
    assert not fits(admission, taken_of(toy), [], NOW)
    note = parts.notes.jobs[toy.id]
    assert (note.code, "pays nothing for gas" in note.message) == ("bond", True)
    assert note.next == NOW + AGAIN_SECONDS, "it is looked at again"
    fee = 0
    assert not fits(admission, taken_of(toy), [], NOW + AGAIN_SECONDS - 1)
    assert fits(admission, taken_of(toy), [], NOW + AGAIN_SECONDS)


def test_no_more_is_joined_than_could_be_defended_at_once(admission: Admission, toy: Job) -> None:
    slow = taken_of(toy)
    admission._paces[toy.id] = Pace(toy.params.windows.clock_seconds / toy.params.role.transitions / 2, 1.0)
    assert fits(admission, slow, [], NOW)
    assert not fits(admission, slow, [slow, slow], NOW)
    admission._paces[toy.id] = Pace(0.001, 0.001)
    assert fits(admission, slow, [slow, slow], NOW)
