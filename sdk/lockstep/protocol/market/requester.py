"""Creates, cancels and finishes jobs. Twin of contracts/libraries/Jobs.sol: same names, same order."""

from __future__ import annotations

from lockstep.protocol.jobs import NOTHING, JobParams, JobState, JobStatus
from lockstep.protocol.market import ids, prices, vault
from lockstep.protocol.market.job_rules import check_params
from lockstep.protocol.market.state import Draft, checked
from lockstep.protocol.market.types import BURN
from lockstep.protocol.market.views import params
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, JobId, Wei

MAX_ESCROW = Wei((1 << 120) - 1)
"""Largest escrow of a new job, so that later additions still fit its field."""


def create(d: Draft, sender: Address, p: JobParams, nonce: int, escrow: int) -> JobId:
    """Creates a job; takes its escrow and deposit."""
    job, pulled = _create(d, sender, p, nonce, escrow)
    vault.escrow(d, d.at.market, sender, pulled)
    return job


def create_with_permit(
    d: Draft, sender: Address, p: JobParams, nonce: int, escrow: int, deadline: int, v: int, r: bytes, s: bytes
) -> JobId:
    """Creates a job as `create`, with an EIP-2612 permit that lets the vault take escrow and deposit."""
    job, pulled = _create(d, sender, p, nonce, escrow)
    vault.escrow_with_permit(d, d.at.market, sender, pulled, deadline, v, r, s)
    return job


def cancel(d: Draft, sender: Address, job: JobId) -> None:
    """Stops new rounds and refunds the escrow that no round in flight has reserved."""
    j = d.jobs.edit(job)
    if sender != j.requester:
        raise revert("Unauthorized", sender)
    if j.status != JobStatus.ACTIVE:
        raise revert("WrongJobStatus", job)
    # INVARIANT: what rounds in flight may still pay stays in escrow, and so do the fees of unsettled duties.
    reserved = (j.started - j.settled) * params(d, job).round_pay
    left = j.escrow - j.paid - j.fees_due
    amount = max(0, left - reserved)

    j.status = JobStatus.CANCELLED

    d.emit("JobMarket", "JobCancelled", job, amount)

    refund(d, j, amount)


def finish(d: Draft, sender: Address, job: JobId) -> None:
    """Refunds the remaining escrow once no round is in flight and none can start."""
    j = d.jobs.edit(job)
    voided, active = j.status == JobStatus.VOID, j.status == JobStatus.ACTIVE
    if not active and j.status != JobStatus.CANCELLED and not voided:
        raise revert("WrongJobStatus", job)
    p = params(d, job)
    startable = active and j.started < p.schedule.rounds and j.failed <= p.schedule.max_fail
    if startable or j.settled != j.started:
        raise revert("JobUnfinished")
    left = j.deposit

    j.status = JobStatus.DONE
    j.deposit = NOTHING
    # INVARIANT: escrow = paid + refunded + fees still due, exactly.
    refund = checked(j.escrow - j.paid - j.refunded - j.fees_due)
    # INVARIANT: what a void job's deposit has not paid goes to the prover and is burned, never to the requester.
    j.refunded = Wei(j.refunded + refund)
    vault.credit(d, d.at.market, j.requester, refund if voided else refund + left)
    if voided:
        to_prover = left * prices.PROVER_PERCENT // 100
        vault.credit(d, d.at.market, j.prover, to_prover)
        vault.credit(d, d.at.market, BURN, left - to_prover)

    d.emit("JobMarket", "JobDone", job, j.paid, j.refunded, 0 if voided else left)


def refund(d: Draft, j: JobState, amount: int) -> None:
    """Returns escrow to the requester."""
    j.refunded = Wei(j.refunded + amount)

    vault.credit(d, d.at.market, j.requester, amount)


def _create(d: Draft, sender: Address, p: JobParams, nonce: int, escrow: int) -> tuple[JobId, int]:
    check_params(p, d.at.unbond_seconds, d.at.chain)
    # INVARIANT: the escrow covers every slot, every merge and every witness of every round.
    if not p.escrow <= escrow <= MAX_ESCROW:
        raise revert("EscrowInsufficient", p.escrow, escrow)
    job = ids.job_id(d.at.chain_id, d.at.market, sender, nonce, p)
    if d.jobs[job].status != JobStatus.NONE:
        raise revert("JobExists", job)

    d.params[job] = p
    # INVARIANT: the deposit pays every round that can be in flight when the job is proven invalid, and one round's pay
    # more, which its requester then loses.
    d.jobs[job] = JobState(sender, JobStatus.ACTIVE, escrow=Wei(escrow), deposit=p.deposit)

    d.emit("JobMarket", "JobCreated", job, sender, p.spec.digest, escrow, p.deposit)
    return job, escrow + p.deposit
