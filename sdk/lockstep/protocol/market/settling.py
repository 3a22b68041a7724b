"""Settles rounds: pays claims and unlocks or burns stakes.

Twin of contracts/libraries/Settling.sol: same names, same order, same sentences.
"""

from __future__ import annotations

from lockstep.protocol.jobs import (
    NEVER,
    NO_CLAIM,
    NO_SEED,
    NOTHING,
    Claim,
    ClaimStatus,
    JobParams,
    JobState,
    JobStatus,
    Phase,
    Round,
)
from lockstep.protocol.market import vault
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.state import Draft, checked
from lockstep.protocol.market.types import BURN
from lockstep.protocol.market.views import is_settled, is_voided, over_at, params, turn
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, ClaimId, JobId, Wei

# -- anyone


def finalize(d: Draft, sender: Address, job: JobId, r: int) -> None:
    """Settles a round that can no longer be overturned; or fails a round that no entitled account has merged in its
    turn.
    """
    j, ro = d.jobs.edit(job), d.rounds.edit((job, r))
    # INVARIANT: a void job's rounds are not settled but released.
    if j.status == JobStatus.VOID:
        raise revert("WrongJobStatus", job)
    if ro.phase == Phase.MERGING and turn(params(d, job), ro, d.block.time) > ro.accepted:
        if j.lingering:
            raise revert("GamesOpen", j.lingering)
        return fail(d, job, r)
    # INVARIANT: final iff the challenge window is over, no game is open and the base is final.
    if ro.phase not in (Phase.LEAD, Phase.FAILED) or r != j.settled:
        raise revert("WrongPhase", job, r)
    p = params(d, job)
    _require_over(d, job, p, r)
    if ro.open_games:
        raise revert("GamesOpen", ro.open_games)

    ro.phase = Phase.FINAL

    _emit(d, "RoundFinal", job, r)

    paid, burned = 0, 0
    for s in range(p.role.slots):
        claim, c = claim_at(d, job, r, ro, s)
        if c.status == ClaimStatus.EXCLUDED:
            burned += p.role.slot_price
        paid += _judged(d, claim, c, p.role.slot_price)
    if ro.merge_claim != NO_CLAIM:
        paid += _pay(d, ro.merge_claim, d.claims.edit(ro.merge_claim), ClaimStatus.FINAL, p.merge.price)
    if burned:
        vault.credit(d, d.at.market, BURN, burned)
    j.paid = Wei(j.paid + paid + burned)
    _settle(d, job, j)
    d.rounds.edit((job, j.settled - 1)).merge_opens = d.block.time
    return None


def release(d: Draft, sender: Address, job: JobId, r: int) -> None:
    """Unlocks the stakes of a void round; for a void job also pays the claims of the first unsettled round."""
    j, ro = d.jobs.edit(job), d.rounds.edit((job, r))
    voided = is_voided(j)
    if ro.phase == Phase.VOID:
        # INVARIANT: stakes under open games stay locked until the games are over.
        if not voided and ro.open_games:
            raise revert("GamesOpen", ro.open_games)
        return release_all(d, job, r)
    # INVARIANT: a void job's rounds are released in order, each once: what is left of the deposit is then known.
    if not voided or r != j.settled or r >= j.started:
        raise revert("WrongPhase", job, r)

    ro.phase = Phase.VOID

    _emit(d, "RoundVoid", job, r, ro.attempt)

    # No claim of the void job could have been defended.
    j.deposit = Wei(checked(j.deposit - _end_all(d, job, r, params(d, job), ro, pays=True)))
    j.settled = r + 1
    _settle(d, job, j)
    return None


# -- the rounds


def fail(d: Draft, job: JobId, r: int) -> None:
    """Fails a round: the next round starts from the same checkpoint.

    Revealed claims are judged and paid as in any round; without a seed all stakes are unlocked.
    """
    j, ro, p = d.jobs.edit(job), d.rounds.edit((job, r)), params(d, job)

    ro.phase = Phase.FAILED
    ro.next_shared, ro.next_outer = ro.base, ro.outer
    # INVARIANT: what was revealed is judged, whatever becomes of its round.
    ro.merged_at = d.block.time if ro.revealed else NEVER
    ro.merge_opens = d.block.time
    j.failed += 1

    _emit(d, "RoundFailed", job, r)

    if ro.seed == NO_SEED:
        for s in range(p.role.slots):
            claim, c = claim_at(d, job, r, ro, s)
            if c.status == ClaimStatus.JOINED:
                give_back(d, claim, c, ClaimStatus.VOID)
    _settle(d, job, j)


def release_all(d: Draft, job: JobId, r: int) -> None:
    """Unlocks every stake that a void round still holds; after a rewind also pays the work that the slash owes."""
    ro, p = d.rounds.edit((job, r)), params(d, job)
    due, ro.due = ro.due, False
    paid = _end_all(d, job, r, p, ro, pays=due)
    # INVARIANT: what a slash owes to work is paid to that work or burned.
    if due:
        vault.credit(d, d.at.market, BURN, checked(worth(p, ro) - paid))


# -- inside: rounds


def _settle(d: Draft, job: JobId, j: JobState) -> None:
    """Advances past every leading round that can no longer be voided."""
    while j.settled < j.started and is_settled(d.rounds[job, j.settled]):
        j.settled += 1


def worth(p: JobParams, ro: Round) -> int:
    """Returns the pay of a voided round's work: of every committed claim, and of its merge."""
    return ro.committed * p.role.slot_price + (0 if ro.merge_claim == NO_CLAIM else p.merge.price)


def _require_over(d: Draft, job: JobId, p: JobParams, r: int) -> None:
    """Reverts unless the windows are over for round r and for all rounds whose claims may be based on carries of its
    claims.
    """
    last, over = over_at(p, d.jobs[job].started, r, lambda k: d.rounds[job, k])
    # INVARIANT: no claim is final before the windows of its whole carry period are over.
    if over == NEVER:
        raise revert("WrongPhase", job, last)
    if d.block.time < over:
        raise revert("TooEarly", over)


# -- inside: claims and stakes


def claim_at(d: Draft, job: JobId, r: int, ro: Round, slot: int) -> tuple[ClaimId, Claim]:
    """Returns the claim of a slot in the round's current attempt, for writing if it exists."""
    claim = claim_id(job, r, ro.attempt, slot)
    c = d.claims[claim]
    return claim, c if c.status == ClaimStatus.NONE else d.claims.edit(claim)


def carried_from(d: Draft, c: Claim) -> Claim:
    """Returns the claim of the same slot in the previous round."""
    return d.claims[claim_id(c.job, c.round - 1, d.rounds[c.job, c.round - 1].attempt, c.slot)]


def give_back(d: Draft, claim: ClaimId, c: Claim, status: ClaimStatus) -> None:
    """Sets a claim's final status and unlocks its stake."""
    c.status = status

    vault.unlock(d, d.at.market, claim)


def _holds_stake(status: ClaimStatus) -> bool:
    return ClaimStatus.JOINED <= status <= ClaimStatus.MISSING


def absent(d: Draft, claim: ClaimId, c: Claim, fine: Wei) -> None:
    """Settles a claim that was not revealed: burns the slot's price out of its stake."""
    c.status = ClaimStatus.ABSENT

    vault.slash_liveness(d, d.at.market, claim, fine)


def _judged(d: Draft, claim: ClaimId, c: Claim, price: Wei) -> int:
    """Settles a slot's claim that can no longer be challenged; returns its pay."""
    # INVARIANT: pay follows from accepted, unconvicted claims, never from what a claimant says.
    if c.status == ClaimStatus.ACCEPTED:
        # INVARIANT: what stands on the carry of a convicted claim is unpaid.
        if not c.carries or carried_from(d, c).status == ClaimStatus.FINAL:
            return _pay(d, claim, c, ClaimStatus.FINAL, price)
        give_back(d, claim, c, ClaimStatus.VOID)
    elif c.status == ClaimStatus.EXCLUDED:
        # INVARIANT: who leaves a claim out of the merge saves nothing by it: its price is burned.
        give_back(d, claim, c, ClaimStatus.FINAL)
    elif c.status == ClaimStatus.MISSING:
        # INVARIANT: a payload that was demanded in vain costs what silence does, and earns nothing.
        c.status = ClaimStatus.FINAL
        vault.slash_liveness(d, d.at.market, claim, price)
    return 0


def _end_all(d: Draft, job: JobId, r: int, p: JobParams, ro: Round, *, pays: bool) -> int:
    """Ends every claim of a round as Void and unlocks its stake; if `pays`, pays for what was committed."""
    paid = 0
    for s in range(p.role.slots):
        claim, c = claim_at(d, job, r, ro, s)
        # INVARIANT: who is silent until revealing is over is not paid.
        counts = c.status != ClaimStatus.COMMITTED or ro.committed != ro.revealed
        paid += _end(d, claim, c, p.role.slot_price if pays and counts else NOTHING)
    if ro.merge_claim != NO_CLAIM:
        paid += _end(d, ro.merge_claim, d.claims.edit(ro.merge_claim), p.merge.price if pays else NOTHING)
    return paid


def _end(d: Draft, claim: ClaimId, c: Claim, price: Wei) -> int:
    if not _holds_stake(c.status):
        return 0
    # INVARIANT: a seat is not work: only what was committed, and was not left out, is paid without a verdict.
    if price and ClaimStatus.COMMITTED <= c.status <= ClaimStatus.ACCEPTED:
        return _pay(d, claim, c, ClaimStatus.VOID, price)
    give_back(d, claim, c, ClaimStatus.VOID)
    return 0


def _pay(d: Draft, claim: ClaimId, c: Claim, status: ClaimStatus, amount: Wei) -> int:
    give_back(d, claim, c, status)

    _emit(d, "Paid", c.job, c.round, c.slot, c.worker, amount)

    vault.credit(d, d.at.market, c.worker, amount)
    return amount


def _emit(d: Draft, name: str, *values: object) -> None:
    d.emit("JobMarket", name, *values)
