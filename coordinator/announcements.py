"""Announced claims: a worker's EIP-712 signature over its claim, and the CIDs from which to fetch early.

Only the latest CIDs are kept. Signed claims are all kept and served, since two different ones for one slot convict
their signer (DisputeGame.equivocate). Anybody may search for such pairs; verifiers do.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.auth import SignedRequest
from coordinator.context import ApiContext
from coordinator.models import AnnouncementRow, ClaimRow, CursorRow, JobRow, SignedClaimRow
from coordinator.projections import claim_id_hex
from coordinator.schema import ClaimIn, SignedClaimBody
from lockstep.market.signed import SignedClaim
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.types import MERGE_SLOT, Digest

KEPT_SIGNED = 16
"""Number of different signed claims kept for one slot; two suffice to convict."""


def accept(context: ApiContext, request: SignedRequest, announced: ClaimIn) -> str:
    """Check and keep an announcement; returns its ClaimId. Raises Mismatch or NotFoundError."""
    market = context.published.addresses
    signed = SignedClaim.parse(announced.model_dump())
    signer = signed.signer(market.chain_id, market.market).lower()
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
        cursor = session.get_one(CursorRow, 1)
        _keep(session, announced, key, signed.digest(market.chain_id, market.market), cursor.time)
        session.merge(
            AnnouncementRow(
                claim=key,
                worker=announced.worker,
                node="0x" + request.node.hex(),
                body=announced.model_dump(),
                time=cursor.time,
            )
        )
    return key


def _keep(session: Session, announced: ClaimIn, key: str, digest: Digest, now: int) -> None:
    """Keeps a signed claim in addition to earlier ones for its slot."""
    known = session.scalars(select(SignedClaimRow.digest).where(SignedClaimRow.claim == key)).all()
    if "0x" + digest.hex() in known:
        return
    if len(known) >= KEPT_SIGNED:
        raise Mismatch(
            f"{KEPT_SIGNED} different claims are signed for this slot",
            hint="sign one claim for a slot",
            code="claims_full",
        )
    body = SignedClaimBody.model_validate(announced.model_dump(include=set(SignedClaimBody.model_fields))).model_dump()
    session.add(SignedClaimRow(claim=key, digest="0x" + digest.hex(), body=body, time=now))


def _require_known(session: Session, announced: ClaimIn, key: str) -> None:
    if session.get(JobRow, announced.claim.job) is None:
        raise NotFoundError(f"no job {announced.claim.job}", hint="the index follows the chain by a block or two")
    claim = session.get(ClaimRow, key)
    # INVARIANT: one announces one's own slot.
    if announced.claim.slot == MERGE_SLOT or claim is None or claim.worker.lower() != announced.worker.lower():
        raise Mismatch("the announced slot is not the signer's", hint="join the slot first, and name its attempt")
