"""Announced claims: a worker's EIP-712 signature over its claim, kept as a hint where to fetch early.

Nothing follows from an announcement but an early look: what counts is revealed on chain.
"""

from __future__ import annotations

from eth_account import Account
from eth_account.messages import encode_typed_data
from sqlalchemy.orm import Session

from coordinator.auth import SignedRequest
from coordinator.context import Context
from coordinator.models import Announcement, Cursor, Job
from coordinator.models import Claim as ClaimRow
from coordinator.projections import claim_id_hex
from coordinator.schema import ClaimIn
from lockstep.protocol.claims import typed_data
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.jobs import Body, Claim
from lockstep.protocol.types import MERGE_SLOT, Address, JobId, Seed, StateRoot, TraceRoot


def accept(context: Context, request: SignedRequest, announced: ClaimIn) -> str:
    """Check and keep an announcement; returns its ClaimId. Raises Mismatch or NotFoundError."""
    signer = _signer(announced, context.chain_id, context.market)
    # INVARIANT: a claim is announced by the account that makes it, through the node that this account registered.
    if not signer == announced.worker.lower() == request.account.lower():
        raise Mismatch(
            f"the claim is signed by {signer}, names {announced.worker} and came from {request.account}",
            hint="sign with the staking key of this node, for this chain and market",
        )
    claim = announced.claim
    key = claim_id_hex(claim.job, claim.round, claim.attempt, claim.slot)
    with context.database.session() as session:
        _require_known(session, announced, key)
        cursor = session.get_one(Cursor, 1)
        session.merge(
            Announcement(
                claim=key,
                worker=announced.worker,
                node="0x" + request.node.hex(),
                body=announced.model_dump(),
                time=cursor.time,
            )
        )
    return key


def _signer(announced: ClaimIn, chain_id: int, market: Address) -> str:
    said = announced.claim
    claim = Claim(
        job=JobId(_bytes(said.job)),
        round=said.round,
        attempt=said.attempt,
        slot=said.slot,
        transitions=said.transitions,
    )
    body = Body(TraceRoot(_bytes(said.traceRoot)), StateRoot(_bytes(said.out)), StateRoot(_bytes(said.out2)))
    message = typed_data(chain_id, market, claim, body, Seed(_bytes(said.seed)), StateRoot(_bytes(said.base)))
    try:
        recovered: str = Account.recover_message(
            encode_typed_data(full_message=message), signature=_bytes(announced.signature)
        )
    except Exception as error:  # eth-keys raises several unrelated families for bytes that are no signature
        raise Mismatch(f"that is no signature: {error}", hint="65 bytes r ‖ s ‖ v of the EIP-712 claim") from error
    return recovered.lower()


def _require_known(session: Session, announced: ClaimIn, key: str) -> None:
    if session.get(Job, announced.claim.job) is None:
        raise NotFoundError(f"no job {announced.claim.job}", hint="the index follows the chain by a block or two")
    claim = session.get(ClaimRow, key)
    # INVARIANT: one announces one's own slot.
    if announced.claim.slot == MERGE_SLOT or claim is None or claim.worker.lower() != announced.worker.lower():
        raise Mismatch("the announced slot is not the signer's", hint="join the slot first, and name its attempt")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])
