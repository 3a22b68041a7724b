"""A witness's decisions: pure functions of the chain's events."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from lockstep.market.ledger import AuditLedger, JobLedger, Ledger, RoundLedger
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.types import AuditStatus, Duty, DutyStatus
from lockstep.protocol.types import Address, Seconds, StateRoot
from verifier.decide import ENDED


class DutyAct(Enum):
    """The next act for a duty."""

    LOOK = auto()
    """Replay to t* and commit to the result, while commitments are accepted."""
    SPEAK = auto()
    """Compare the result with the published list, and reveal the verdict."""
    SETTLE = auto()
    NOTHING = auto()


def next_act(audit: AuditLedger, duty: Duty, decided: bool, now: Seconds) -> DutyAct:
    """Returns the next act for a duty at `now`; `decided`: the function of that name returns True for it."""
    a = audit.state
    ended = DutyAct.SETTLE if decided else DutyAct.NOTHING
    if duty.status == DutyStatus.DRAWN:
        return DutyAct.LOOK if now < a.commit_ends else ended
    if duty.status == DutyStatus.COMMITTED:
        if now >= a.reveal_ends:
            return ended
        return DutyAct.SPEAK if now >= a.commit_ends else DutyAct.NOTHING
    if duty.status in (DutyStatus.AGREED, DutyStatus.DIFFERED):
        return ended
    return DutyAct.NOTHING


def agrees(seen: tuple[StateRoot, ...], published: tuple[StateRoot, ...]) -> bool:
    """Returns True if the published roots up to t* are the witness's own."""
    return published[: len(seen)] == seen


def to_draw(ledger: Ledger, job: JobLedger, block: int) -> Iterator[int]:
    """Yields rounds of a job whose audit may have to be opened or drawn; the caller checks the market's phase."""
    for r, round_ in job.rounds.items():
        if not round_.claims or round_.merge_in is not None or round_.phase in ENDED:
            continue
        known = ledger.audits.get(ids.audit_id(job.id, r, round_.attempt))
        # A transaction sent now is executed in the next block at the earliest.
        if known is None or (known.state.status == AuditStatus.DRAWING and block >= known.state.beacon_block):
            yield r


def round_of(ledger: Ledger, audit: AuditLedger) -> tuple[JobLedger, RoundLedger]:
    """Returns the job and the round of an audit, in the audit's attempt."""
    job = ledger.jobs[audit.state.job]
    found = (r for r in job.all_rounds() if (r.number, r.attempt) == (audit.state.round, audit.state.attempt))
    return job, next(found)


def decided(ledger: Ledger, audit: AuditLedger, duty: Duty) -> bool:
    """Returns True if a duty can be closed, which for one without a verdict needs its time to be over.

    Either its round ended or restarted; or its verdict agreed with a claim that was convicted; or it has no verdict on
    a claim without a carry, or on one of which the merge shows if it was excluded.
    """
    job, round_ = round_of(ledger, audit)
    claim = round_.claims[duty.slot]
    over = job.done or round_.phase in ENDED or job.rounds[round_.number] is not round_
    if duty.status in (DutyStatus.DRAWN, DutyStatus.COMMITTED):
        return over or not claim.carries or round_.merge_in is not None
    return over or (duty.status == DutyStatus.AGREED and claim.convicted)


def left_out(round_: RoundLedger, slot: int) -> bool:
    """Returns True if a slot's claim has a carry and the merge excludes it: no witness owes a verdict on it."""
    return round_.claims[slot].carries and round_.merge_in is not None and not round_.mask >> slot & 1


def owes(ledger: Ledger, me: Address, now: Seconds) -> bool:
    """Returns True if leaving now could fail a duty of this account."""
    waits = (DutyAct.LOOK, DutyAct.SPEAK)
    return any(
        next_act(audit, duty, False, now) in waits or duty.status == DutyStatus.COMMITTED
        for audit in ledger.audits.values()
        for duty in audit.duties
        if duty.account == me and now < audit.state.reveal_ends
    )


def staked(ledger: Ledger, me: Address) -> bool:
    """Returns True if a stake of this account is still locked in a job that is done."""
    done = (job.id for job in ledger.jobs.values() if job.done)
    return any(draws.stake_key(job, me) in ledger.locks for job in done)
