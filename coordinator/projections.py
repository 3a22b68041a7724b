"""The market's rows: jobs, rounds, claims, games and nodes, folded from events (coordinator.folds).

What an event changes in a job, a round and its claims is in `protocol/market/effects.py`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from coordinator.folds import GAME, MARKET, VAULT, added, on
from coordinator.models import ClaimRow, EventRow, GameRow, IndexTable, JobRow, NodeRow, RoundRow, unhex
from lockstep.disputes.gamelog import continues
from lockstep.protocol.dispute.game import PARTIES, unpacked
from lockstep.protocol.dispute.moves import COMBINED, Verdict, Wrong
from lockstep.protocol.jobs import ClaimStatus, JobStatus, Phase
from lockstep.protocol.market.effects import EFFECTS, Effect
from lockstep.protocol.market.events import EVENTS
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, JobId

GAME_MOVES = (
    "Argued", "Defended", "Revealed", "Picked", "TensorRevealed", "LeafPosted", "ElementPicked", "PartialsPosted",
    "PartialPicked", "Staged",
)  # fmt: skip

LARGEST_INTEGER = (1 << 63) - 1
"""The largest integer of SQL; larger numbers are stored as this one."""
SPEAKERS = 256
"""Bits of a word, which bounds the accounts that may attest in a round."""

# -- the vault ------------------------------------------------------------------------------------------


@on(VAULT, "NodeRegistered")
def _node(session: Session, event: EventRow) -> None:
    session.merge(NodeRow(account=event.args["account"], key=event.args["key"], block=event.block))


@on(VAULT, "Slashed")
def _slashed(session: Session, event: EventRow) -> None:
    claim = session.get(ClaimRow, event.args["key"])
    if claim is not None:
        claim.slashed = added(claim.slashed, event.args["amount"])


# -- the market -----------------------------------------------------------------------------------------


@on(MARKET, "JobCreated")
def _job(session: Session, event: EventRow) -> None:
    params = event.args["params"]
    _put(
        session, JobRow, id=event.args["job"], params=params, aggregator=params["merge"]["aggregator"], attempt=0,
        block=event.block, time=event.time, escrow=event.args["escrow"], deposit=event.args["deposit"], paid="0",
        refunded="0", **_columns(event),
    )  # fmt: skip


@on(MARKET, "RoundStarted")
def _round(session: Session, event: EventRow) -> None:
    when = {"started": event.time, "updated": event.time}
    _put(session, RoundRow, job=event.args["job"], number=event.args["round"], **when, **_columns(event))


@on(MARKET, "Joined")
def _joined(session: Session, event: EventRow) -> None:
    args, attempt = event.args, _round_of(session, event).attempt
    claim = claim_id_hex(args["job"], args["round"], attempt, args["slot"])
    _put_claim(session, event, id=claim, attempt=attempt, slot=args["slot"], **_columns(event))


@on(MARKET, "Left")
def _left(session: Session, event: EventRow) -> None:
    session.delete(_slot_claim(session, event))


@on(MARKET, "JobCancelled", "JobVoid", "JobDone", "Sealed", "Committed", "Revealed", "Frozen", "RoundFinal",
    "RoundFailed", "RoundVoid")  # fmt: skip
def _changed(session: Session, event: EventRow) -> None:
    effect = _effect(event)
    match effect.state:
        case JobStatus():
            _set(session.get_one(JobRow, event.args["job"]), event)
        case ClaimStatus():
            _set(_slot_claim(session, event), event)
        case Phase():
            row = _round_of(session, event)
            # A round that failed stays so: its claims are paid, and nothing was merged.
            if (row.state, effect.state) != ("failed", Phase.FINAL):
                _set(row, event)
            for claim in _claims_of(session, row) if effect.claims else ():
                status = ClaimStatus.ACCEPTED if claim.state == "merged" else ClaimStatus[claim.state.upper()]
                after = effect.becomes(status, bool(int(row.mask or 0) >> claim.slot & 1))
                # It is shown for good that a payload was left out.
                if after is not status and (status, after) != (ClaimStatus.EXCLUDED, ClaimStatus.FINAL):
                    claim.state = after.name.lower()


@on(MARKET, "Attested")
def _attested(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    if event.args["who"] >= SPEAKERS:
        raise ValueError(f"speaker {event.args['who']} has no bit in a word")
    row.state, row.attested = "attested", str(int(row.attested or 0) | 1 << event.args["who"])


@on(MARKET, "Merged")
def _merged(session: Session, event: EventRow) -> None:
    args, row = event.args, _round_of(session, event)
    _set(row, event)
    job = session.get_one(JobRow, args["job"])
    for claim in _claims_of(session, row):
        # Nobody backed it: another merge, with the same outputs, takes its place.
        if claim.state == "merged":
            claim.state = "void"
            job.attempt += 1
    _put_claim(
        session, event, id=args["claim"], attempt=job.attempt, slot=MERGE_SLOT, state="merged", worker=args["worker"],
        out=args["out"], out2=args["out2"], payload_cid=args["checkpoint_cid"],
    )  # fmt: skip


@on(MARKET, "Convicted")
def _convicted(session: Session, event: EventRow) -> None:
    args = event.args
    claim = session.get(ClaimRow, args["claim"])
    if claim is not None:
        claim.state = "convicted"
    # Nothing stands any more on a merge of a round that is void.
    if args["slot"] == MERGE_SLOT and (row := _round_of(session, event)).state == Phase.LEAD.name.lower():
        session.get_one(JobRow, args["job"]).attempt += 1
        row.state = Phase.MERGING.name.lower()


# -- the game -------------------------------------------------------------------------------------------


@on(GAME, "Opened")
def _opened(session: Session, event: EventRow) -> None:
    args, claim = event.args, session.get(ClaimRow, event.args["claim"])
    _put(
        session, GameRow, id=args["game"], claim=args["claim"], job=None if claim is None else claim.job,
        challenger=args["challenger"], step=args["t"], moves=1, block=event.block, time=event.time,
    )  # fmt: skip


@on(GAME, *GAME_MOVES)
def _move(session: Session, event: EventRow) -> None:
    game = session.get_one(GameRow, event.args["game"])
    if event.name == "Argued":
        game.step = unpacked(int(event.args["standing"]["parties"]), PARTIES)["t"]
    _counted(session, game, event)


@on(GAME, "Convicted")
def _proved(session: Session, event: EventRow) -> None:
    found = event.args["finding"]
    # Two signatures need no game.
    if found["wrong"] >= Wrong.EQUIVOCATION:
        return
    game = session.get_one(GameRow, event.args["game"])
    _counted(session, game, event)
    game.step, game.wrong, game.position = found["t"], Wrong(found["wrong"]).name.lower(), _integer(found["position"])
    game.element = _integer(found["element"])
    game.chunk = None if found["chunk"] == COMBINED else _integer(found["chunk"])
    game.claimed_bits, game.contract_bits = found["claimed_bits"], found["contract_bits"]


@on(GAME, "Resolved")
def _resolved(session: Session, event: EventRow) -> None:
    game = session.get_one(GameRow, event.args["game"])
    _counted(session, game, event)
    game.verdict, game.closed = Verdict(event.args["verdict"]).name.lower(), event.time


def _counted(session: Session, game: GameRow, event: EventRow) -> None:
    before = select(EventRow).where(
        EventRow.game == game.id, EventRow.contract == GAME,
        tuple_(EventRow.block, EventRow.log_index) < tuple_(event.block, event.log_index),
    )  # fmt: skip
    last = session.scalars(before.order_by(EventRow.block.desc(), EventRow.log_index.desc()).limit(1)).first()
    same = last is not None and last.tx == event.tx and continues(event.name, last.name)
    game.moves += int(not same)


# -- rows -----------------------------------------------------------------------------------------------


def _effect(event: EventRow) -> Effect:
    return EFFECTS[EVENTS[event.contract, event.name]]


def _columns(event: EventRow) -> dict[str, Any]:
    """Returns the columns that an event sets in its row."""
    return {"state": _effect(event).state.name.lower(), **_effect(event).stored(event.args)}


def _set(row: JobRow | RoundRow | ClaimRow, event: EventRow) -> None:
    for name, value in _columns(event).items():
        setattr(row, name, value)


def _put(session: Session, kind: type[IndexTable], **given: Any) -> None:
    """Replaces a row; columns that are not given become null."""
    session.merge(kind(**{**dict.fromkeys(kind.__table__.columns.keys()), **given}))


def _put_claim(session: Session, event: EventRow, **given: Any) -> None:
    place = {"job": event.args["job"], "round": event.args["round"], "block": event.block, "time": event.time}
    _put(session, ClaimRow, paid="0", slashed="0", **place, **given)


def _round_of(session: Session, event: EventRow) -> RoundRow:
    row = session.get_one(RoundRow, (event.args["job"], event.args["round"]))
    row.updated = event.time
    return row


def _slot_claim(session: Session, event: EventRow) -> ClaimRow:
    args = event.args
    attempt = _round_of(session, event).attempt
    return session.get_one(ClaimRow, claim_id_hex(args["job"], args["round"], attempt, args["slot"]))


def _claims_of(session: Session, row: RoundRow) -> list[ClaimRow]:
    """The round's slot claims of its current attempt, and its standing merge."""
    claims = session.scalars(select(ClaimRow).where(ClaimRow.job == row.job, ClaimRow.round == row.number))
    return [c for c in claims if c.attempt == row.attempt or (c.slot == MERGE_SLOT and c.state == "merged")]


def claim_id_hex(job: str, number: int, attempt: int, slot: int) -> str:
    """ClaimId as the index spells it."""
    return "0x" + claim_id(JobId(unhex(job)), number, attempt, slot).hex()


def _integer(value: int | str) -> int:
    """Clamps an integer to SQL's range."""
    return min(int(value), LARGEST_INTEGER)
