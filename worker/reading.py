"""One look at a job: its books and rounds from the contract's views, its slots and stakes from the ledger of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.market.ledger import JobLedger, Ledger
from lockstep.protocol.jobs import ZERO_ADDRESS, Claim, ClaimStatus, JobParams, JobStatus, Phase
from lockstep.protocol.market.ids import audit_id, claim_id
from lockstep.protocol.market.views import turns_over
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Seconds
from worker.decide import JobView, RoundView

if TYPE_CHECKING:
    from lockstep.chain.contracts import Market


def poll(
    market: Market, known: Ledger, ledger: JobLedger, params: JobParams, me: Address, now: Seconds, block: int
) -> JobView:
    """A job at `block`: its books, its rounds from the one before the first unsettled one on, and every other
    one in which `me` has stake."""
    # INVARIANT: a look is at one block: what is read at two may be of two phases.
    books = market.job(ledger.id, block)
    # A demand for a carry is a game, too: the chain tells it from a payload's.
    asked = {d.claim for d in known.demands.values()}
    in_game = {g.claim for g in known.games_against(me)}
    own = {claim: known.places[claim][1] for claim in known.staked(me) if known.places[claim][0] == ledger.id}
    in_game |= {claim for claim in own if claim in asked and market.claim(claim, block).open_games}
    idle = {claim: r for claim, r in own.items() if claim not in in_game}
    void = {r for r, seen in ledger.rounds.items() if r >= books.started and seen.phase == Phase.VOID}
    numbers = sorted({*range(max(books.settled - 1, 0), books.started), *void, *own.values()})
    seen = [r for r in numbers if r in ledger.rounds]
    rounds = [_look_at_round(market, ledger, params, r, now, block, idle, books.started) for r in seen]
    if books.status == JobStatus.VOID:
        # INVARIANT: in a void job nothing goes on: what was not final or failed is void.
        rounds = [replace(r, phase=Phase.VOID) if r.phase < Phase.FINAL else r for r in rounds]
    return JobView(ledger.id, params, books, tuple(rounds), now, block)


def _look_at_round(
    market: Market,
    ledger: JobLedger,
    params: JobParams,
    number: int,
    now: Seconds,
    block: int,
    idle: Mapping[ClaimId, int],
    started: int,
) -> RoundView:
    r = ledger.rounds[number]
    state = market.round(ledger.id, number, block)
    phase = market.phase(ledger.id, number, block) if state.phase == Phase.JOINING else state.phase
    merger, over = ZERO_ADDRESS, False
    if phase == Phase.MERGING:
        merger = market.merger_of(ledger.id, number, block)
        over = turns_over(params, state, now)
    elif phase == Phase.LEAD and number + state.backed < started:
        merger = market.merger_of(ledger.id, number, block)
    claims = tuple(
        Claim(ledger.id, worker, status, round=number, attempt=r.attempt, slot=slot)
        for slot in range(params.role.slots)
        for worker, status in [r.holders.get(slot, (ZERO_ADDRESS, ClaimStatus.NONE))]
    )
    merge = r.merge
    merged_by = merge.worker if phase == Phase.LEAD and merge is not None else ZERO_ADDRESS
    audit = ledger.audits.get(audit_id(ledger.id, number, r.attempt))
    unpublished = frozenset(slot for slot, claim in r.claims.items() if claim.trace_cid == "")
    slots = {claim_id(ledger.id, number, r.attempt, slot): slot for slot in range(params.role.slots)}
    # What is no slot's of this attempt is a merge's, or a slot's of an earlier one.
    locks = frozenset(slots.get(claim, MERGE_SLOT) for claim, at in idle.items() if at == number)
    return RoundView(
        number, state, phase, claims, merger, over, audit.state if audit else None, unpublished, merged_by, locks,
        r.sealed,
    )  # fmt: skip
