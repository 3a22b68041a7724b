"""Hands receipts to a job's coordinator, which submits all of a round's in one transaction.

The chain shows if it did. A coordinator that refuses receipts, does not answer or withholds them delays the round by
half a window.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from lockstep.protocol.jobs import ZERO_ADDRESS, Receipt
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.receipts import own_way
from lockstep.protocol.types import ClaimId, JobId, Seconds
from worker.announcing import ReceiptAnswer
from worker.decide import JobView, RoundView

RETRY_SECONDS = 1


class Taker(Protocol):
    """Interface of a receiver of receipts, which `announcing.Announcer` implements."""

    def give(self, job: JobId, r: int, attempt: int, receipt: Receipt, now: Seconds) -> Future[ReceiptAnswer]:
        """Hands a receipt over; returns a future without waiting."""


class Handover:
    """Tracks one worker's receipts on their way to its coordinator."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._given: dict[ClaimId, Future[ReceiptAnswer]] = {}
        self._again_at: dict[ClaimId, Seconds] = {}
        self._kept: set[ClaimId] = set()

    def keep(self, claim: ClaimId) -> None:
        """Withholds a claim's receipt from every coordinator."""
        self._kept.add(claim)

    def entrusted(self, view: JobView, r: RoundView, receipt: Receipt) -> bool:
        """Hands a receipt to the coordinator, and returns True while the coordinator is expected to submit it."""
        params, now = view.params, view.now
        claim = claim_id(view.id, r.number, r.state.attempt, receipt.who)
        # INVARIANT: what is not on chain by half of the window is sent by who gave it, whoever else has it.
        if own_way(r.state.attest_ends, params.role.attest_seconds, now):
            return False
        if params.merge.aggregator == ZERO_ADDRESS or claim in self._kept:
            return False
        if claim not in self._given and self._again_at.get(claim, now) <= now:
            self._given[claim] = self._taker.give(view.id, r.number, r.state.attempt, receipt, now)
        given = self._given.get(claim)
        if given is not None and given.done() and given.result() is ReceiptAnswer.LATER:
            del self._given[claim]
            self._again_at[claim] = Seconds(now + RETRY_SECONDS)
        return given is None or not given.done() or given.result() is not ReceiptAnswer.REFUSED
