"""One look at a job: its books and rounds from the contract's views, its slots from the ledger of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.ledger import JobLedger
from lockstep.protocol.claims import audit_id
from lockstep.protocol.jobs import ZERO_ADDRESS, Claim, ClaimStatus, JobParams, Phase
from lockstep.protocol.types import Seconds
from worker.decide import JobView, RoundView

if TYPE_CHECKING:
    from lockstep.chain.contracts import Market


def look(market: Market, ledger: JobLedger, params: JobParams, now: Seconds, block: int) -> JobView:
    """A job at the latest block: its books, its rounds from the one before the first unsettled one on."""
    books = market.job(ledger.id)
    first = max(books.settled - 1, 0)
    void = [r for r, seen in ledger.rounds.items() if r >= books.started and seen.phase == Phase.VOID]
    numbers = [r for r in (*range(first, books.started), *sorted(void)) if r in ledger.rounds]
    rounds = [_look_at_round(market, ledger, params, r, now) for r in numbers]
    return JobView(ledger.id, params, books, tuple(rounds), now, block)


def _look_at_round(market: Market, ledger: JobLedger, params: JobParams, number: int, now: Seconds) -> RoundView:
    r = ledger.rounds[number]
    state = market.round(ledger.id, number)
    phase = market.phase(ledger.id, number) if state.phase == Phase.JOINING else state.phase
    merger, over = ZERO_ADDRESS, False
    if phase == Phase.MERGING:
        merger = market.merger_of(ledger.id, number)
        turn = state.turn + (now - state.merge_opens) // params.merge_seconds
        over = turn > state.mask.bit_count()
    claims = tuple(
        Claim(ledger.id, worker, status, round=number, attempt=r.attempt, slot=slot)
        for slot in range(params.slots)
        for worker, status in [r.holders.get(slot, (ZERO_ADDRESS, ClaimStatus.NONE))]
    )
    audit = ledger.audits.get(audit_id(ledger.id, number, r.attempt))
    unpublished = frozenset(slot for slot, claim in r.claims.items() if claim.trace_cid == "")
    return RoundView(number, state, phase, claims, merger, over, audit.state if audit else None, unpublished)
