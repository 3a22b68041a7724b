"""Handing over: a receipt rests with the coordinator for half of the window, and never longer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import pytest

from lockstep.protocol.jobs import ZERO_ADDRESS, JobState, JobStatus, Phase, Receipt, Round
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import JobId, Seconds
from tests.support.params import amended
from tests.unit.worker.test_decide import OTHER, PARAMS
from worker.announcing import ReceiptAnswer
from worker.decide import JobView, RoundView
from worker.receipt_delivery import Handover

JOB = JobId(b"j" * 32)
RECEIPT = Receipt(1, 0b111, b"s" * 65)
ENDS, WINDOW = 1_030, 30
"""The window of receipts: it began at 1,000."""
R = RoundView(2, Round(attempt=1, attest_ends=Seconds(ENDS)), Phase.ATTESTING, ())


@dataclass
class Taker:
    """A coordinator that says what the test wants; None: nothing yet."""

    says: ReceiptAnswer | None = ReceiptAnswer.TAKEN
    got: list[tuple[JobId, int, int, Receipt, Seconds]] = field(default_factory=list)

    def give(self, job: JobId, r: int, attempt: int, receipt: Receipt, now: Seconds) -> Future[ReceiptAnswer]:
        self.got.append((job, r, attempt, receipt, now))
        answer: Future[ReceiptAnswer] = Future()
        if self.says is not None:
            answer.set_result(self.says)
        return answer


def at(now: int, **changes: object) -> JobView:
    params = amended(PARAMS, **{"attest_seconds": Seconds(WINDOW), **changes})  # type: ignore[arg-type]
    return JobView(JOB, params, JobState(OTHER, JobStatus.ACTIVE, started=3), (R,), Seconds(now), 50)


@pytest.mark.parametrize("says", [ReceiptAnswer.TAKEN, None])
def test_a_receipt_that_was_taken_rests_until_half_of_the_window_and_no_longer(says: ReceiptAnswer | None) -> None:
    taker = Taker(says)
    handover = Handover(taker)
    for now in range(1_000, 1_015):
        assert handover.entrusted(at(now), R, RECEIPT), "the coordinator has time to send it"
    assert taker.got == [(JOB, 2, 1, RECEIPT, 1_000)], "given once"
    for now in range(1_015, 1_030):
        assert not handover.entrusted(at(now), R, RECEIPT), "swallowed, lost or late: its owner sends it"


def test_after_half_of_the_window_nobody_is_asked() -> None:
    taker = Taker()
    assert not Handover(taker).entrusted(at(1_015), R, RECEIPT)
    assert taker.got == []


def test_a_window_that_is_too_short_to_share_is_not_shared() -> None:
    taker = Taker()
    assert not Handover(taker).entrusted(at(ENDS - 2, attest_seconds=Seconds(2)), R, RECEIPT)
    assert taker.got == []


def test_a_receipt_that_is_refused_goes_its_own_way_at_once_and_for_good() -> None:
    taker = Taker(ReceiptAnswer.REFUSED)
    handover = Handover(taker)
    assert not handover.entrusted(at(1_000), R, RECEIPT)
    taker.says = ReceiptAnswer.TAKEN
    assert not handover.entrusted(at(1_001), R, RECEIPT)
    assert len(taker.got) == 1
    again = replace(R, state=replace(R.state, attempt=2))
    assert handover.entrusted(at(1_001), again, RECEIPT), "the round begun anew is another matter"


def test_who_is_not_ready_is_asked_again_each_second() -> None:
    taker = Taker(ReceiptAnswer.LATER)
    handover = Handover(taker)
    for now in (1_000, 1_000, 1_001, 1_001, 1_002):
        assert handover.entrusted(at(now), R, RECEIPT)
    assert [now for *_, now in taker.got] == [1_000, 1_001, 1_002]
    taker.says = ReceiptAnswer.TAKEN
    assert handover.entrusted(at(1_003), R, RECEIPT)
    assert handover.entrusted(at(1_004), R, RECEIPT)
    assert len(taker.got) == 4
    assert not handover.entrusted(at(1_015), R, RECEIPT)


def test_without_an_aggregator_nobody_is_asked() -> None:
    taker = Taker()
    assert not Handover(taker).entrusted(at(1_000, aggregator=ZERO_ADDRESS), R, RECEIPT)
    assert taker.got == []


def test_a_receipt_that_must_follow_a_demand_is_kept() -> None:
    taker = Taker()
    handover = Handover(taker)
    handover.keep(claim_id(JOB, 2, 1, 1))
    assert not handover.entrusted(at(1_000), R, RECEIPT)
    assert taker.got == []
    assert handover.entrusted(at(1_000), R, replace(RECEIPT, who=0)), "that one alone"
