"""Handing receipts over to a job's coordinator, which sends all of a round's in one transaction.

What came of it the chain says: a coordinator that refuses, is silent or keeps them costs the round half a window.
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
    """A taker of receipts: `announcing.Announcer`."""

    def give(self, job: JobId, r: int, attempt: int, receipt: Receipt, now: Seconds) -> Future[ReceiptAnswer]:
        """Returns at once."""


class Handover:
    """One worker's receipts on their way to its coordinator."""

    def __init__(self, taker: Taker) -> None:
        self._taker = taker
        self._given: dict[ClaimId, Future[ReceiptAnswer]] = {}
        self._again_at: dict[ClaimId, Seconds] = {}
        self._kept: set[ClaimId] = set()

    def keep(self, claim: ClaimId) -> None:
        """Give this claim's receipt to nobody."""
        self._kept.add(claim)

    def entrusted(self, view: JobView, r: RoundView, receipt: Receipt) -> bool:
        """Returns True while the coordinator is to send a receipt that is not on chain; hands it the receipt."""
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
