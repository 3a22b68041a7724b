"""Reads the state of chain and index into the values that `decide` takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator import receipts
from coordinator.decide import AggregatorJob, AggregatorRound, Decider
from coordinator.models import ClaimRow, EventRow, GameRow, JobRow, PayloadRow, RoundRow, unhex
from lockstep.chain.contracts import Contracts
from lockstep.execution.rounds import Payload as PayloadRef
from lockstep.execution.rounds import RoundRecord
from lockstep.market.ledger import DemandRecord
from lockstep.protocol.jobs import NO_CLAIM, ZERO_ADDRESS, Body, JobParams, Phase, Round
from lockstep.protocol.market import views
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    Cid,
    ClaimId,
    Digest,
    JobId,
    Seconds,
    Seed,
    StateRoot,
    TraceRoot,
    Wei,
)
from lockstep.runtime.party import Party

AVAILABILITY = "Availability"
REPORTED = (Phase.REVEALING, Phase.ATTESTING)
STANDING = ("merged", "final")
"""The states of a merge that stands."""


def hex32(value: bytes) -> str:
    """A root or an id as the index spells it."""
    return "0x" + value.hex()


def read_decider(party: Party, demands: int) -> Decider:
    """Reads time and funds at the head; `demands` is the most payloads of a round to demand."""
    head, me, contracts = party.head(), party.address, party.contracts
    return Decider(
        me=me,
        now=head.time,
        block=head.number,
        free=contracts.vault.free(me),
        balance=contracts.token.balance_of(me),
        credits=contracts.vault.credits(me),
        demands=demands,
    )


def read_job(
    contracts: Contracts, session: Session, job_id: JobId, params: JobParams, decider: Decider
) -> AggregatorJob:
    """Reads a job at the head: its state, every round in flight, the one before, and later voided rounds."""
    job = contracts.market.job(job_id, decider.block)
    barred = contracts.market.barred(job_id, params.merge.aggregator)
    rounds = [
        _round(contracts, session, job_id, params, number, decider, job.started)
        for number in range(max(0, job.settled - 1), job.started)
    ]
    for number in range(job.started, min(job.started + params.schedule.max_lead, params.schedule.rounds)):
        beyond = _round(contracts, session, job_id, params, number, decider, job.started)
        if beyond.phase != Phase.VOID:
            break
        rounds.append(beyond)
    attesting = any(r.phase == Phase.ATTESTING for r in rounds)
    bond = contracts.market.bond_of(job_id) if attesting and decider.demands else Wei(0)
    return AggregatorJob(params, job, barred, tuple(rounds), bond)


def records(session: Session, job: str, before: int) -> tuple[RoundRecord, ...]:
    """Returns the records of the rounds before one, which suffice to recompute its base checkpoint.

    A record is of its round's present attempt: every round before one that merges is merged or failed.
    """
    rows = session.scalars(
        select(RoundRow).where(RoundRow.job == job, RoundRow.number < before).order_by(RoundRow.number)
    ).all()
    return tuple(_record(session, row) for row in rows)


def payload_refs(
    session: Session, job: str, number: int, attempt: int, mask: int, slots: int
) -> list[PayloadRef | None]:
    """Returns references to the accepted payloads of a round, in slot order; None for every other slot."""
    claims = {c.slot: c for c in revealed(session, job, number, attempt)}
    return [payload_of(claims[slot]) if mask >> slot & 1 else None for slot in range(slots)]


def revealed(session: Session, job: str, number: int, attempt: int) -> list[ClaimRow]:
    """The revealed slot claims of a round, in slot order, convicted ones among them."""
    claims = session.scalars(
        select(ClaimRow)
        .where(ClaimRow.job == job, ClaimRow.round == number, ClaimRow.attempt == attempt, ClaimRow.slot != MERGE_SLOT)
        .where(ClaimRow.payload_cid.is_not(None))
        .order_by(ClaimRow.slot)
    )
    return list(claims)


def bodies(session: Session, job: str, number: int, attempt: int) -> list[Body]:
    """Returns the bodies that `freeze` takes: of the revealed slots that nobody has convicted, in order."""
    return [
        Body(TraceRoot(unhex(c.trace_root or "")), StateRoot(unhex(c.out or "")), StateRoot(unhex(c.out2 or "")))
        for c in revealed(session, job, number, attempt)
        if c.state == "revealed"
    ]


def merge_inputs(
    session: Session, job: str, number: int, stored: Round, params: JobParams
) -> tuple[RoundRecord, ...]:  # fmt: skip
    """Returns the inputs of a round's merge: the rounds before it, and the round as the contract froze it."""
    accepted = payload_refs(session, job, number, stored.attempt, stored.mask, params.role.slots)
    frozen = RoundRecord(number, Seed(stored.seed), tuple(accepted), None, Digest(b""), Digest(b""))
    return *records(session, job, number), frozen


def merges_of(session: Session, job: str | None, args: Mapping[str, Any]) -> list[ClaimRow]:
    """Every merge claim of the round that an event names."""
    found = select(ClaimRow).where(ClaimRow.job == job, ClaimRow.round == args["round"], ClaimRow.slot == MERGE_SLOT)
    return list(session.scalars(found))


def my_open_games(session: Session, job: str, me: Address) -> list[tuple[GameRow, ClaimRow]]:
    """Games open on merges that this account made."""
    found = session.execute(
        select(GameRow, ClaimRow)
        .join(ClaimRow, ClaimRow.id == GameRow.claim)
        .where(GameRow.verdict.is_(None), ClaimRow.job == job, ClaimRow.slot == MERGE_SLOT, ClaimRow.worker == me)
        .order_by(GameRow.block, GameRow.id)
    )
    return [(game, claim) for game, claim in found]


def jobs_in_game(session: Session, me: Address) -> list[str]:
    """The jobs in which games are open on merges that this account made."""
    found = select(ClaimRow.job).join(GameRow, ClaimRow.id == GameRow.claim)
    own = found.where(GameRow.verdict.is_(None), ClaimRow.slot == MERGE_SLOT, ClaimRow.worker == me)
    return list(session.scalars(own.distinct().order_by(ClaimRow.job)))


def merges_by(session: Session, job: str, me: str) -> list[ClaimRow]:
    """Every merge of a job that an account made."""
    found = select(ClaimRow).where(ClaimRow.job == job, ClaimRow.slot == MERGE_SLOT, ClaimRow.worker == me)
    return list(session.scalars(found))


def row_demands(session: Session, job: str, now: Seconds) -> list[DemandRecord]:
    """Demands for rows of the job that were not closed and can still be answered."""
    return _open(session, [d for d in _demands(session, job, "RowDemanded") if now <= d.deadline])


def own_demands(session: Session, job: str, me: Address, *, settled: bool = False) -> list[DemandRecord]:
    """This account's demands for payloads of the job that are open; `settled`: the others, too."""
    own = [d for d in _demands(session, job, "PayloadDemanded") if d.asker == me]
    return own if settled else _open(session, own)


def _demands(session: Session, job: str, name: str) -> list[DemandRecord]:
    asked = select(EventRow).where(EventRow.job == job, EventRow.contract == AVAILABILITY, EventRow.name == name)
    return [
        DemandRecord(
            Digest(unhex(a["demand"])), JobId(unhex(job)), ClaimId(unhex(a["claim"])) if "claim" in a else None,
            a.get("row", 0), Address(a["asker"]), Seconds(a["deadline"]),
        )
        for a in (e.args for e in session.scalars(asked))
    ]  # fmt: skip


def _open(session: Session, demands: list[DemandRecord]) -> list[DemandRecord]:
    if not demands:
        return []
    settled = select(EventRow).where(EventRow.contract == AVAILABILITY, EventRow.name == "Settled")
    closed = {e.args["demand"] for e in session.scalars(settled)}
    return [d for d in demands if hex32(d.id) not in closed]


def _round(
    contracts: Contracts,
    session: Session,
    job_id: JobId,
    params: JobParams,
    number: int,
    decider: Decider,
    started: int,
) -> AggregatorRound:
    market = contracts.market
    # INVARIANT: a look is at one block: what is read at two may be of two phases.
    state = market.round(job_id, number, decider.block)
    phase = market.phase(job_id, number, decider.block)
    reports: tuple[tuple[int, Report], ...] = ()
    held: dict[int, int] = {}
    demanded: frozenset[int] = frozenset()
    convicted: frozenset[int] = frozenset()
    if phase in REPORTED:
        claims = revealed(session, hex32(job_id), number, state.attempt)
        reports = _reports(session, claims)
        convicted = frozenset(c.slot for c in claims if c.state == "convicted")
        held = receipts.masks(session, hex32(job_id), number, state.attempt)
        ours = {d.claim for d in own_demands(session, hex32(job_id), decider.me, settled=True)}
        demanded = frozenset(c.slot for c in claims if unhex(c.id) in ours)
    mine = False
    if phase in (Phase.LEAD, Phase.VOID) and state.merge_claim != NO_CLAIM:
        lock = contracts.vault.lock_of(state.merge_claim)
        mine = lock is not None and lock.account == decider.me
    merging = phase == Phase.MERGING
    unbacked = phase == Phase.LEAD and number + state.backed < started
    return AggregatorRound(
        number=number,
        phase=phase,
        state=state,
        reports=reports,
        receipts=held,
        demanded=demanded,
        convicted=convicted,
        merger=market.merger_of(job_id, number, decider.block) if merging or unbacked else ZERO_ADDRESS,
        merge_turns_over=merging and views.turns_over(params, state, decider.now),
        mine=mine,
    )


def _reports(session: Session, claims: list[ClaimRow]) -> tuple[tuple[int, Report], ...]:
    known: Mapping[str, PayloadRow] = {
        p.claim: p for p in session.scalars(select(PayloadRow).where(PayloadRow.claim.in_([c.id for c in claims])))
    }
    return tuple((c.slot, Report(known[c.id].report) if c.id in known else Report.UNKNOWN) for c in claims)


def _record(session: Session, row: RoundRow) -> RoundRecord:
    params = session.get_one(JobRow, row.job).params
    merge = session.scalars(
        select(ClaimRow).where(
            ClaimRow.job == row.job,
            ClaimRow.round == row.number,
            ClaimRow.slot == MERGE_SLOT,
            ClaimRow.state.in_(STANDING),
        )
    ).first()
    mask = int(row.mask or 0) if merge is not None else 0
    return RoundRecord(
        number=row.number,
        seed=Seed(unhex(row.seed or "00" * 32)),
        payloads=tuple(payload_refs(session, row.job, row.number, row.attempt, mask, int(params["roles"][0]["slots"]))),
        checkpoint=Cid(merge.payload_cid) if merge is not None and merge.payload_cid else None,
        out=Digest(unhex(merge.out or "")) if merge is not None else Digest(b""),
        out2=Digest(unhex(merge.out2 or "")) if merge is not None else Digest(b""),
    )


def payload_of(claim: ClaimRow) -> PayloadRef:
    """Returns the reference of a slot's payload, from its claim."""
    out, out2 = (Digest(unhex(root or "")) for root in (claim.out, claim.out2))
    return PayloadRef(Cid(claim.payload_cid or ""), out, out2)
