"""One claim with what its job, its round and its disputes say of it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import queries, views
from coordinator.context import ApiContext
from coordinator.disputes import role_of
from coordinator.models import AnnouncementRow, ClaimRow, EventRow, GameRow, JobRow, MentionRow
from coordinator.schema import ClaimDetailOut, DisputeOut
from lockstep.protocol.types import MERGE_SLOT

REVEALS = 64
"""The most events of a worker that are looked through for a reveal."""


def claim(context: ApiContext, claim: str, url: str) -> ClaimDetailOut:
    """One claim: its steps, rows and seconds, and a sentence on what became of it."""
    plain = queries.claim(context.database, claim)
    detail = ClaimDetailOut.model_validate(plain.model_dump())
    with context.database.reading() as session:
        row, job = session.get_one(ClaimRow, claim), session.get_one(JobRow, plain.job)
        if plain.slot != MERGE_SLOT:
            described = context.descriptions.of(job)
            detail.steps = int(role_of(job).get("inner_steps", 0))
            detail.rows = None if described is None else detail.steps * described.tokens_per_step
            detail.seconds = _seconds(session, row)
            announced = session.get(AnnouncementRow, claim)
            detail.machine = (announced and announced.body.get("machine")) or None
        convicting = session.scalars(
            select(GameRow.id).where(GameRow.claim == claim, GameRow.verdict.in_(("fraud", "timeout")))
        ).first()
    detail.why = views.REASONS[views.reason_of(plain.state, plain.paid)]
    if plain.state == "convicted":
        detail.why = _convicted(None if convicting is None else views.dispute(context, convicting, url))
    if plain.slot == MERGE_SLOT and plain.state in ("merged", "final"):
        detail.why = "it stands: the next rounds start from its weights"
    return detail


def _seconds(session: Session, claim: ClaimRow) -> int | None:
    of_worker = (
        select(EventRow)
        .join(MentionRow, (MentionRow.block == EventRow.block) & (MentionRow.log_index == EventRow.log_index))
        .where(MentionRow.account == claim.worker, MentionRow.block >= claim.block)
        .where(MentionRow.name == "Revealed", EventRow.job == claim.job)
        .order_by(MentionRow.block)
    )
    revealed = next((e for e in session.scalars(of_worker.limit(REVEALS)) if e.args.get("claim") == claim.id), None)
    if revealed is None:
        return None
    between = select(EventRow).where(
        EventRow.job == claim.job, EventRow.name == "Sealed", EventRow.block.between(claim.block, revealed.block)
    )
    sealed = next((e for e in session.scalars(between) if e.args["round"] == claim.round), None)
    return None if sealed is None else revealed.time - sealed.time


def _convicted(game: DisputeOut | None) -> str:
    if game is None:
        return "its worker signed two different claims for the slot, and both signatures were shown to the contract"
    if game.verdict == "timeout":
        return "its worker did not answer a challenge in time, which counts as a false claim"
    place = f"step {game.step}" if game.step else "its trace"
    if game.op is None or game.claimed_bits is None:
        return f"it was proved wrong at {place}" + (f": {game.wrong}" if game.wrong else "")
    claimed, right = (
        bits if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)
        for value, bits in ((game.claimed_value, game.claimed_bits), (game.contract_value, game.contract_bits))
    )
    named = f" ({game.op.name})" if game.op.name else ""
    where = f"{place}, op {game.op.index}{named}, element {game.element}"
    return f"{where}: it claimed {claimed}, the contract computed {right}"
