"""Receipts that slot owners have handed over: checked on arrival, kept until the round is frozen, sent together.

One joint transaction costs a slot two thirds of its own. The round does not depend on it: an owner whose receipt is not
on chain by half of the window sends it itself.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Select, delete, exists, func, select
from sqlalchemy.orm import Session

from coordinator.auth import SignedRequest
from coordinator.context import ApiContext
from coordinator.models import ClaimRow, CursorRow, JobRow, ReceiptRow, RoundRow
from coordinator.projections import claim_id_hex
from coordinator.schema import ReceiptIn
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.jobs import Receipt
from lockstep.protocol.market.ids import receipt_hash
from lockstep.protocol.types import Address, JobId

OPEN_ROUNDS = ("joining", "training", "attested")
"""States of a round that is not frozen."""
OPEN_CLAIMS = ("joined", "committed", "revealed")
"""States of a claim whose owner may attest, or may once the index has its reveal."""


def accept(context: ApiContext, request: SignedRequest, given: ReceiptIn) -> None:
    """Checks and keeps a receipt; a repetition changes nothing. Raises Mismatch or NotFoundError."""
    with context.database.reading() as session:
        account = _speaker(context, session, request, given)
    _require_signed(context, account, given)
    with context.database.session() as session:
        # INVARIANT: what was taken is not exchanged: one receipt a speaker.
        row = session.get(ReceiptRow, (given.job, given.round, given.attempt, given.who))
        if row is not None and row.mask != given.mask:
            raise Mismatch(
                f"speaker {given.who} has already given another receipt, of the slots in mask {row.mask}",
                hint="the coordinator keeps the first one; another can only be sent to the contract",
                code="receipt_given",
            )
        if row is None:
            now = session.get_one(CursorRow, 1).time
            session.add(ReceiptRow(**given.model_dump(), account=account, time=now))


def held(session: Session, job: str, number: int, attempt: int, speakers: Collection[int]) -> list[Receipt]:
    """Returns the receipts of these speakers that were handed over, in order."""
    rows = session.scalars(_of_round(job, number, attempt).where(ReceiptRow.who.in_(speakers)).order_by(ReceiptRow.who))
    return [Receipt(row.who, int(row.mask), bytes.fromhex(row.signature[2:])) for row in rows]


def masks(session: Session, job: str, number: int, attempt: int) -> dict[int, int]:
    """Returns, by speaker whose receipt for a round was handed over, the mask of slots that it names."""
    return {row.who: int(row.mask) for row in session.scalars(_of_round(job, number, attempt))}


def count(session: Session, job: str) -> int:
    """Returns the number of receipts for a job that are kept."""
    return session.scalar(select(func.count()).where(ReceiptRow.job == job)) or 0


def forget(session: Session) -> None:
    """Drops the receipts for rounds that are frozen, restarted or over."""
    waiting = (
        exists()
        .where(
            RoundRow.job == ReceiptRow.job, RoundRow.number == ReceiptRow.round, RoundRow.attempt == ReceiptRow.attempt
        )
        .where(RoundRow.state.in_(OPEN_ROUNDS))
        .where(JobRow.id == ReceiptRow.job, JobRow.state.in_(("active", "cancelled")))
    )
    session.execute(delete(ReceiptRow).where(~waiting))


def _of_round(job: str, number: int, attempt: int) -> Select[ReceiptRow]:
    return select(ReceiptRow).where(ReceiptRow.job == job, ReceiptRow.round == number, ReceiptRow.attempt == attempt)


def _speaker(context: ApiContext, session: Session, request: SignedRequest, given: ReceiptIn) -> Address:
    """Returns the account that attests for slot `who`, which must be the request's."""
    job = session.get(JobRow, given.job)
    if job is None:
        raise NotFoundError(f"no job {given.job}", hint="the index follows the chain by a block or two")
    if job.aggregator.lower() != context.aggregator.lower():
        raise Mismatch(
            f"the job's aggregator is {job.aggregator}", hint="send receipts to that aggregator's coordinator"
        )
    row = session.get(RoundRow, (given.job, given.round))
    if row is None or row.attempt != given.attempt:
        hint = "/api/v1/jobs/{id}/rounds lists the current ones"
        raise NotFoundError(f"no round {given.round} of attempt {given.attempt}", hint=hint)
    claim = session.get(ClaimRow, claim_id_hex(given.job, given.round, given.attempt, given.who))
    # INVARIANT: a receipt is handed over by the owner of its slot, through the node that this account registered.
    if claim is None or claim.worker.lower() != request.account.lower():
        raise Mismatch(f"slot {given.who} is not {request.account}'s", hint="name the slot that you hold")
    if claim.state not in OPEN_CLAIMS:
        raise Mismatch(
            f"the claim is {claim.state}: no receipt is taken for its round",
            hint="send receipts while the round accepts them",
        )
    if int(given.mask) >> int(job.params["roles"][0]["slots"]):
        raise Mismatch(
            f"mask {given.mask} names slots beyond {job.params['roles'][0]['slots']}", hint="bit s stands for slot s"
        )
    return Address(claim.worker)


def _require_signed(context: ApiContext, account: Address, given: ReceiptIn) -> None:
    job = JobId(bytes.fromhex(given.job[2:]))
    here = context.published.addresses
    digest = receipt_hash(here.chain_id, here.market, job, given.round, given.attempt, given.who, int(given.mask))
    # INVARIANT: what the contract would refuse is refused here, where it spoils nobody's batch.
    if not context.signed_for(account, digest, bytes.fromhex(given.signature[2:])):
        raise Mismatch(
            f"the receipt is signed by neither {account} nor its delegate",
            hint="sign EIP-712 Receipt for this round, attempt, chain and market",
        )
