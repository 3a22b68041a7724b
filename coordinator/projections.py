"""The market's rows: jobs, rounds, claims, games and nodes, folded from events (coordinator.folds)."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.folds import GAME, MARKET, VAULT, added, on
from coordinator.models import ClaimRow, EventRow, GameRow, JobRow, NodeRow, RoundRow
from lockstep.protocol.dispute.game import PARTIES, unpacked
from lockstep.protocol.dispute.moves import COMBINED
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, JobId

VERDICTS = ("none", "fraud", "timeout", "rejected", "void")
WRONGS = ("op", "alias", "padding")
"""The faults that a proof can find in a game; two signatures (3) need no game."""
GAME_MOVES = (
    "Argued", "Defended", "Revealed", "Picked", "TensorRevealed", "LeafPosted", "ElementPicked", "PartialsPosted",
    "PartialPicked",
)  # fmt: skip

LARGEST_INTEGER = (1 << 63) - 1
"""SQL's; a number beyond it is shown as this one."""
SPEAKERS = 256
"""Bits of a word: nobody beyond them gives receipts."""

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
    session.merge(
        JobRow(
            id=event.args["job"], requester=event.args["requester"], spec_digest=event.args["spec_digest"],
            params=params, aggregator=params["merge"]["aggregator"], state="active", attempt=0, block=event.block,
            time=event.time, paid="0", refunded="0",
        )
    )  # fmt: skip


@on(MARKET, "JobCancelled")
def _job_cancelled(session: Session, event: EventRow) -> None:
    job = session.get_one(JobRow, event.args["job"])
    job.state, job.refunded = "cancelled", added(job.refunded, event.args["refunded"])


@on(MARKET, "JobVoid")
def _job_void(session: Session, event: EventRow) -> None:
    session.get_one(JobRow, event.args["job"]).state = "void"


@on(MARKET, "JobDone")
def _job_done(session: Session, event: EventRow) -> None:
    job = session.get_one(JobRow, event.args["job"])
    job.state, job.paid, job.refunded = "done", event.args["paid"], event.args["refunded"]


@on(MARKET, "RoundStarted")
def _round(session: Session, event: EventRow) -> None:
    args = event.args
    session.merge(
        RoundRow(
            job=args["job"], number=args["round"], attempt=args["attempt"], state="joining", base=args["base"],
            outer=args["outer"], seed=None, attested=None, mask=None, merge_in=None, started=event.time,
            updated=event.time,
        )
    )  # fmt: skip


@on(MARKET, "Joined")
def _joined(session: Session, event: EventRow) -> None:
    args = event.args
    attempt = _round_of(session, event).attempt
    session.merge(
        ClaimRow(
            id=claim_id_hex(args["job"], args["round"], attempt, args["slot"]), job=args["job"], round=args["round"],
            attempt=attempt, slot=args["slot"], worker=args["worker"], state="joined", paid="0", slashed="0",
            block=event.block, time=event.time, commitment=None, trace_root=None, out=None, out2=None, trace_cid=None,
            payload_cid=None,
        )
    )  # fmt: skip


@on(MARKET, "Left")
def _left(session: Session, event: EventRow) -> None:
    session.delete(_slot_claim(session, event))


@on(MARKET, "Sealed")
def _sealed(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    row.state, row.seed = "training", event.args["seed"]


@on(MARKET, "Committed")
def _committed(session: Session, event: EventRow) -> None:
    claim = _slot_claim(session, event)
    claim.state, claim.commitment = "committed", event.args["commitment"]


@on(MARKET, "Revealed")
def _revealed(session: Session, event: EventRow) -> None:
    args = event.args
    claim = session.get_one(ClaimRow, args["claim"])
    claim.state, claim.trace_root, claim.out, claim.out2 = "revealed", args["trace_root"], args["out"], args["out2"]
    claim.trace_cid, claim.payload_cid = args["trace_cid"], args["payload_cid"]
    _round_of(session, event)


@on(MARKET, "Attested")
def _attested(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    if event.args["who"] >= SPEAKERS:
        raise ValueError(f"speaker {event.args['who']} has no bit in a word")
    row.state, row.attested = "attested", str(int(row.attested or 0) | 1 << event.args["who"])


@on(MARKET, "Frozen")
def _frozen(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    row.state, row.merge_in, row.mask = "merging", event.args["merge_in"], event.args["mask"]
    accepted = int(event.args["mask"])
    for claim in _claims_of(session, row):
        if claim.state == "revealed":
            claim.state = "accepted" if accepted >> claim.slot & 1 else "excluded"
        elif claim.state in ("joined", "committed"):
            claim.state = "absent"


@on(MARKET, "Merged")
def _merged(session: Session, event: EventRow) -> None:
    args = event.args
    row = _round_of(session, event)
    row.state = "lead"
    job = session.get_one(JobRow, args["job"])
    for claim in _claims_of(session, row):
        # Nobody backed it: another merge, with the same outputs, takes its place.
        if claim.slot == MERGE_SLOT and claim.state == "merged":
            claim.state = "void"
            job.attempt += 1
    session.merge(
        ClaimRow(
            id=args["claim"], job=args["job"], round=args["round"], attempt=job.attempt, slot=MERGE_SLOT,
            worker=args["worker"], state="merged", out=args["out"], out2=args["out2"],
            payload_cid=args["checkpoint_cid"], paid="0", slashed="0", block=event.block, time=event.time,
            commitment=None, trace_root=None, trace_cid=None,
        )
    )  # fmt: skip


@on(MARKET, "RoundFinal")
def _round_final(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    # A round that failed stays so: its claims are paid, and nothing was merged.
    row.state = "failed" if row.state == "failed" else "final"
    for claim in _claims_of(session, row):
        if claim.state in ("accepted", "merged"):
            claim.state = "final"


@on(MARKET, "RoundFailed")
def _round_failed(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    row.state = "failed"
    for claim in _claims_of(session, row):
        # With a seed the freeze has said what each claim is.
        if claim.state == "joined":
            claim.state = "void"


@on(MARKET, "RoundVoid")
def _round_void(session: Session, event: EventRow) -> None:
    row = _round_of(session, event)
    row.state = "void"
    for claim in _claims_of(session, row):
        if claim.state != "convicted":
            claim.state = "void"


@on(MARKET, "Paid")
def _paid(session: Session, event: EventRow) -> None:
    args = event.args
    claims = session.scalars(
        select(ClaimRow)
        .where(ClaimRow.job == args["job"], ClaimRow.round == args["round"], ClaimRow.slot == args["slot"])
        .where(ClaimRow.worker == args["account"], ClaimRow.state.not_in(("convicted", "void")))
        .order_by(ClaimRow.attempt.desc())
    )
    claim = claims.first()
    if claim is not None:
        claim.paid = added(claim.paid, args["amount"])
    job = session.get_one(JobRow, args["job"])
    job.paid = added(job.paid, args["amount"])


@on(MARKET, "Convicted")
def _convicted(session: Session, event: EventRow) -> None:
    args = event.args
    claim = session.get(ClaimRow, args["claim"])
    if claim is not None:
        claim.state = "convicted"
    if args["slot"] == MERGE_SLOT:
        session.get_one(JobRow, args["job"]).attempt += 1
        _round_of(session, event).state = "merging"


# -- the game -------------------------------------------------------------------------------------------


@on(GAME, "Opened")
def _opened(session: Session, event: EventRow) -> None:
    args = event.args
    session.merge(
        GameRow(
            id=args["game"], claim=args["claim"], challenger=args["challenger"], step=args["t"], verdict=None, moves=1,
            block=event.block, time=event.time, closed=None, wrong=None, position=None, element=None, chunk=None,
            claimed_bits=None, contract_bits=None,
        )
    )  # fmt: skip


@on(GAME, *GAME_MOVES)
def _move(session: Session, event: EventRow) -> None:
    game = session.get_one(GameRow, event.args["game"])
    if event.name == "Argued":
        # Opening a game with t argues it in the same transaction: one move, two events.
        game.moves += int(event.block != game.block or game.step == 0)
        game.step = unpacked(int(event.args["standing"]["parties"]), PARTIES)["t"]
    else:
        game.moves += 1


@on(GAME, "Convicted")
def _proved(session: Session, event: EventRow) -> None:
    found = event.args["finding"]
    if found["wrong"] >= len(WRONGS):
        return
    game = session.get_one(GameRow, event.args["game"])
    game.moves += 1
    game.step, game.wrong, game.position = found["t"], WRONGS[found["wrong"]], _integer(found["position"])
    game.element = _integer(found["element"])
    game.chunk = None if found["chunk"] == COMBINED else _integer(found["chunk"])
    game.claimed_bits, game.contract_bits = found["claimed_bits"], found["contract_bits"]


@on(GAME, "Resolved")
def _resolved(session: Session, event: EventRow) -> None:
    game = session.get_one(GameRow, event.args["game"])
    game.verdict, game.closed = VERDICTS[event.args["verdict"]], event.time


# -- rows -----------------------------------------------------------------------------------------------


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
    return "0x" + claim_id(JobId(_bytes(job)), number, attempt, slot).hex()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _integer(value: int | str) -> int:
    """As SQL can hold it."""
    return min(int(value), LARGEST_INTEGER)
