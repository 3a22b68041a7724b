"""Handles reports of the other contracts to the market: games, proofs of invalidity, witnesses, demands.

Twin of contracts/JobMarket.sol, sections "the game" and "the validator, the witnesses, demands", with Rounds.sol.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.protocol.jobs import (
    NO_CLAIM,
    ZERO_ADDRESS,
    Body,
    Claim,
    ClaimStatus,
    GameTerms,
    JobParams,
    JobState,
    JobStatus,
    Phase,
    Round,
)
from lockstep.protocol.market import ids, prices, requester, rounds, settling, vault
from lockstep.protocol.market.state import Draft
from lockstep.protocol.market.vault import Refund
from lockstep.protocol.market.views import bond, live, params, phase_of, window_open
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, ClaimId, JobId, Wei

# -- the game


def on_open(d: Draft, sender: Address, claim: ClaimId, body: Body) -> GameTerms:
    """Counts a game that opens on a claim; returns its terms."""
    # INVARIANT: claims are challenged in the game alone.
    _only(sender, d.at.game)
    if not window_open(d, d.block, claim):
        raise revert("WindowClosed", claim)
    c = d.claims.edit(claim)
    # INVARIANT: what is challenged is what was claimed.
    if c.digest != ids.body_hash(body):
        raise revert("CommitmentMismatch")
    p, number = params(d, c.job), c.games

    c.open_games, c.games = c.open_games + 1, number + 1
    d.rounds.edit((c.job, c.round)).open_games += 1

    return GameTerms(c.worker, c.transitions, number, p.windows.clock_seconds, p.windows.step_seconds, bond(d, p))


def on_convicted(
    d: Draft, sender: Address, claim: ClaimId, t: int, winners: Sequence[Address], refunds: Sequence[Refund]
) -> None:
    """Convicts a claim and slashes its stake; `t` is the wrong step, or 0 if a demand was not answered.

    A convicted merge voids the later rounds; the slash pays their work before the prizes. `refunds` are in gas.
    """
    # INVARIANT: verdicts come from games, of which a demand for a carry is one.
    _only(sender, d.at.game, d.at.availability)
    if not live(d, claim):
        raise revert("ClaimClosed", claim)
    c = d.claims.edit(claim)
    j, ro = d.jobs.edit(c.job), d.rounds.edit((c.job, c.round))

    c.status = ClaimStatus.CONVICTED
    c.convicted_at = t
    ro.open_games -= c.open_games
    if ro.phase == Phase.VOID:
        j.lingering -= c.open_games
    c.open_games = 0

    d.emit("JobMarket", "Convicted", claim, c.job, c.round, c.slot, c.worker, winners[0])

    p, owed = params(d, c.job), 0
    if c.is_merge and ro.phase == Phase.LEAD:
        # Nothing is based on a merge of a void round any more.
        owed = _rewind(d, p, c, j, ro)
    elif not c.is_merge and not ro.spoke >> c.slot & 1:
        # A convicted speaker's receipt is not waited for.
        ro.silent += 1
    # Gas is paid at its current, capped price.
    fee = d.block.base_fee
    gas_price, cap = p.prices.gas_price, p.prices.fee_cap
    costs = [Refund(account, prices.gas_cost(gas, gas_price, cap, fee)) for account, gas in refunds]
    vault.slash(d, d.at.market, claim, owed, winners, costs, j.requester)


def on_rejected(d: Draft, sender: Address, claim: ClaimId) -> None:
    """Counts out a game whose challenge failed, or a demand whose carry was shown."""
    # INVARIANT: verdicts come from games, of which a demand for a carry is one.
    _only(sender, d.at.game, d.at.availability)
    if not live(d, claim):
        raise revert("ClaimClosed", claim)
    c = d.claims.edit(claim)
    ro = d.rounds.edit((c.job, c.round))

    c.open_games -= 1
    ro.open_games -= 1
    # The stakes of a void round are unlocked together (`release`).
    if ro.phase == Phase.VOID:
        d.jobs.edit(c.job).lingering -= 1


# -- the validator, the witnesses, demands


def on_invalid(d: Draft, sender: Address, job: JobId, prover: Address) -> None:
    """Ends a job that was proven invalid, or that lacks a row which no one has."""
    # INVARIANT: a job is void by a proof that it could not be defended, or by a row that nobody has.
    _only(sender, d.at.validator, d.at.availability)
    j = d.jobs.edit(job)
    if j.status not in (JobStatus.ACTIVE, JobStatus.CANCELLED):
        raise revert("WrongJobStatus", job)

    j.status = JobStatus.VOID
    j.prover = prover
    # INVARIANT: who can still reveal when its job becomes void is paid, and who was silent until then is not.
    for k in range(j.settled, j.started):
        _drop_silent(d, d.rounds.edit((job, k)))

    d.emit("JobMarket", "JobVoid", job, prover)


def on_drawn(d: Draft, sender: Address, job: JobId, r: int, count: int) -> int:
    """Notes the number of witnesses drawn for the round and reserves their fees; returns how many the job pays."""
    # INVARIANT: the witnesses' contract alone says who was drawn.
    _only(sender, d.at.witnesses)
    p, ro = rounds.in_phase(d, job, r, Phase.ATTESTING)
    # INVARIANT: witnesses are drawn once a round, no more than the job pays.
    if ro.drawn or count > p.role.witnesses:
        raise revert("AlreadyDone")
    j = d.jobs.edit(job)
    # INVARIANT: witnesses are paid from what slots and merges leave over, should rounds be run again.
    ahead = (p.schedule.rounds if j.status == JobStatus.ACTIVE else j.started) - j.settled
    needed = ahead * (p.role.slots * p.role.slot_price + p.merge.price)
    left = max(0, j.escrow - j.paid - j.refunded - j.fees_due - needed)
    if count * p.role.witness_fee > left:
        count = left // p.role.witness_fee

    ro.drawn = True
    ro.witnesses = count
    j.fees_due = Wei(j.fees_due + count * p.role.witness_fee)
    return count


def on_witnessed(d: Draft, sender: Address, job: JobId, account: Address) -> None:
    """Pays one drawn duty's fee, or forfeits it (the zero address)."""
    # INVARIANT: a drawn duty's fee is paid once or given up once.
    _only(sender, d.at.witnesses)
    p = d.params[job]
    j, fee = d.jobs.edit(job), Wei(p.role.witness_fee if p else 0)
    if fee > j.fees_due:
        raise revert("EscrowTooLow", fee, j.fees_due)

    j.fees_due = Wei(j.fees_due - fee)
    if account != ZERO_ADDRESS:
        j.paid = Wei(j.paid + fee)
        vault.credit(d, d.at.market, account, fee)
    elif j.status == JobStatus.DONE:
        requester.refund(d, j, fee)


def on_demanded(d: Draft, sender: Address, job: JobId, r: int, slot: int, carry: bool) -> None:
    """Records a demand for a slot's payload or for the carry from which its claim starts; `freeze` checks whether it
    was answered.

    A demand for a carry counts as a game.
    """
    # INVARIANT: the demands' contract alone says what was demanded.
    _only(sender, d.at.availability)
    # INVARIANT: payloads are demanded while receipts are given, of those who have revealed.
    _, ro = rounds.in_phase(d, job, r, Phase.ATTESTING)
    claim = ids.claim_id(job, r, ro.attempt, slot)
    if d.claims[claim].status != ClaimStatus.REVEALED:
        raise revert("NoSuchSlot", slot)

    ro.demands += 1
    # INVARIANT: a demand for a carry is a game of one move: while it is open, no stake is free and no round final.
    if carry:
        c = d.claims.edit(claim)
        c.open_games, ro.open_games = c.open_games + 1, ro.open_games + 1


# -- inside


def _rewind(d: Draft, p: JobParams, c: Claim, j: JobState, ro: Round) -> int:
    """Rewinds after a convicted merge: rounds based on it become void without fault, and its round is merged again from
    the same mergeIn.

    Returns the amount that the slash owes the void rounds' work and witnesses; `release` pays it out.
    """
    owed = 0
    for k in range(c.round + 1, j.started):
        later = d.rounds.edit((c.job, k))
        j.lingering += later.open_games
        if later.phase == Phase.FAILED:
            j.failed -= 1
        _drop_silent(d, later)
        fees = later.witnesses * p.role.witness_fee
        if fees:
            d.rewound[ids.audit_id(c.job, k, later.attempt)] = True
        # Duties are paid from escrow, so their cost is returned to it.
        j.escrow = Wei(j.escrow + fees)
        owed += fees + settling.worth(p, later)
        later.due = True
        later.phase = Phase.VOID
        d.emit("JobMarket", "RoundVoid", c.job, k, later.attempt)
    # INVARIANT: no two claims share an id: what is claimed after a rewind carries a higher attempt.
    j.attempt += 1
    j.started = c.round + 1
    d.barred[c.job, c.worker] = True
    ro.phase = Phase.MERGING
    ro.merge_claim = NO_CLAIM
    ro.turn += 1
    ro.merge_opens = d.block.time
    return owed


def _drop_silent(d: Draft, ro: Round) -> None:
    """Forfeits the pay of slots that did not reveal, once revealing is over."""
    if phase_of(ro, d.block.time) >= Phase.ATTESTING:
        ro.committed = ro.revealed


def _only(sender: Address, *allowed: Address) -> None:
    if sender not in allowed:
        raise revert("Unauthorized", sender)
