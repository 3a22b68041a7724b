"""A run's waiting as the index tells it: the sentence of `lockstep train why`, without a chain (market/waiting.py).

    waiting(session, job)          # None if the index lacks what it takes

The rounds that are not settled are folded anew from their events, by the contracts' own rules for windows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import takewhile
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from coordinator.folds import MARKET
from coordinator.models import ClaimRow, CursorRow, EventRow, GameRow, JobRow, RoundRow, unhex
from lockstep.market.waiting import JobSnapshot, RoundSnapshot, Waiting, waiting_of
from lockstep.protocol.jobs import (
    NEVER,
    ZERO_ADDRESS,
    ClaimStatus,
    Genesis,
    JobParams,
    JobState,
    JobStatus,
    Merging,
    Phase,
    Pricing,
    Role,
    Round,
    RoundSchedule,
    SpecRef,
    Windows,
)
from lockstep.protocol.market import views
from lockstep.protocol.market.rounds import end_commits, set_windows
from lockstep.protocol.types import MERGE_SLOT, Address, JobId, Seconds, Seed

HASH_DIGITS = 66
"""Characters of 32 bytes as the index spells them."""
READ_EVENTS = 100
"""Events that are read at a time."""
NEWEST = (EventRow.block.desc(), EventRow.log_index.desc())
T = TypeVar("T")


def waiting(session: Session, job: JobRow) -> Waiting | None:
    """Returns what a run waits for at the indexed block; None if the index has not all of its terms."""
    at = session.scalar(select(CursorRow))
    if at is None:
        return None
    try:
        found = snapshot(session, job, Seconds(at.time))
        # When the chain last answered, its latest block was so old.
        return waiting_of(replace(found, head_age=Seconds(max(0, at.checked - at.time))))
    except (LookupError, TypeError, ValueError):
        return None


def snapshot(session: Session, job: JobRow, now: Seconds) -> JobSnapshot:
    """Returns a run's snapshot; raises LookupError, TypeError or ValueError if the index lacks a part of it."""
    params = params_of(job.params)
    rows = [
        row
        for row in session.scalars(select(RoundRow).where(RoundRow.job == job.id).order_by(RoundRow.number))
        if row.state != "void"
    ]
    settled = max((row.number + 1 for row in rows if row.state == "final"), default=0)
    live = _folded(session, job, params, rows[max(0, min(settled, len(rows) - 1)) :])
    while settled < len(rows) and views.is_settled(live[settled]):
        settled += 1
    state = JobState(
        Address(job.requester), JobStatus[job.state.upper()], len(rows), settled,
        sum(row.state == "failed" for row in rows), job.attempt,
    )  # fmt: skip
    fallen = select(ClaimRow.id).where(ClaimRow.job == job.id, ClaimRow.state == "void")
    state.lingering = _open_games(session, session.scalars(fallen).all())
    kept = rows[max(0, min(settled, len(rows) - 1)) :]
    rounds = tuple(_round_snapshot(session, job, params, row, live[row.number], now) for row in kept)
    last = session.scalar(select(EventRow.time).where(*_of_market(job)).order_by(*NEWEST).limit(1))
    if state.status == JobStatus.VOID:
        proved = select(EventRow.args).where(*_of_market(job), EventRow.name == "JobVoid").order_by(*NEWEST).limit(1)
        state.prover = Address((session.scalar(proved) or {}).get("prover", ZERO_ADDRESS))
    return JobSnapshot(JobId(unhex(job.id)), params, state, rounds, now, Seconds(last or NEVER))


def params_of(said: Mapping[str, Any]) -> JobParams:
    """Returns a job's parameters from their JSON (`indexer.params_json`)."""
    return JobParams(
        _group(SpecRef, said["spec"]), _group(Genesis, said["genesis"]), _group(RoundSchedule, said["schedule"]),
        _group(Windows, said["windows"]), _group(Merging, said["merge"]), _group(Pricing, said["prices"]),
        tuple(_group(Role, role) for role in said["roles"]),
    )  # fmt: skip


def _group(kind: type[T], said: Mapping[str, Any]) -> T:
    return kind(**{f.name: _value(said[f.name]) for f in fields(kind) if f.name in said})  # type: ignore[arg-type]


def _value(said: Any) -> Any:
    if not isinstance(said, str):
        return said
    if said.isdecimal():
        return int(said)
    return unhex(said) if len(said) == HASH_DIGITS else Address(said)


def _folded(session: Session, job: JobRow, params: JobParams, rows: Sequence[RoundRow]) -> dict[int, Round]:
    """Returns the state of rounds by their numbers, from their events since the first of them began."""
    found = {row.number: Round() for row in rows}
    if not rows:
        return found
    begun = min(row.started for row in rows)
    # From the newest on, and no further back than the first of these rounds.
    newest = session.scalars(select(EventRow).where(*_of_market(job)).order_by(*NEWEST)).yield_per(READ_EVENTS)
    for event in reversed(list(takewhile(lambda event: event.time >= begun, newest))):
        number = event.args.get("round")
        if number in found:
            found[number] = _after(found[number], event, params)
            if event.name == "Merged":
                found[number] = replace(found[number], backed=_backed(session, event, params))
    return found


def _of_market(job: JobRow) -> tuple[ColumnElement[bool], ...]:
    """The market's events of a job."""
    return EventRow.job == job.id, EventRow.contract == MARKET


def _backed(session: Session, merged: EventRow, params: JobParams) -> int:
    """Returns the rounds that a merge backs, by the stake that its transaction locked."""
    # By the block: an index by name has all locks of the market.
    of_tx = EventRow.block == merged.block, EventRow.tx == merged.tx
    locks = session.scalars(select(EventRow.args).where(*of_tx, EventRow.name == "Locked"))
    stake = next((int(args["amount"]) for args in locks if args["key"] == merged.args["claim"]), params.merge.stake)
    return (stake - params.merge.stake) // params.round_pay


def _after(ro: Round, event: EventRow, params: JobParams) -> Round:
    """Returns a round after one of its events, with the fields that its waiting depends on."""
    role, now, args = params.role, Seconds(event.time), event.args
    match event.name:
        case "RoundStarted":
            return Round(Phase.JOINING, int(args["attempt"]), join_ends=Seconds(now + params.windows.join_seconds))
        case "Joined":
            return replace(ro, joined=ro.joined + 1)
        case "Left":
            return replace(ro, joined=ro.joined - 1)
        case "RosterClosed":
            return replace(ro, seed_block=int(args["seed_block"]))
        case "Sealed":
            ro = replace(ro, seed=Seed(unhex(args["seed"])))
            set_windows(ro, now + role.train_seconds, role.reveal_seconds, role.attest_seconds)
        case "Committed":
            ro = replace(ro, committed=ro.committed + 1)
            if ro.committed == ro.joined:
                end_commits(ro, now)
        case "Revealed":
            ro = replace(ro, revealed=ro.revealed + 1)
            if ro.revealed == ro.committed:
                set_windows(ro, ro.commit_ends, now - ro.commit_ends, role.attest_seconds)
        case "Attested":
            return replace(ro, spoke=ro.spoke | 1 << int(args["who"]), receipts=ro.receipts + 1)
        case "Frozen":
            mask, turn = int(args["mask"]), int(params.merge.aggregator == ZERO_ADDRESS)
            return replace(
                ro, mask=mask, accepted=mask.bit_count(), phase=Phase.MERGING, merge_opens=now, turn=turn
            )  # fmt: skip
        case "Merged":
            turn = views.turn(params, ro, now) if ro.phase == Phase.MERGING else ro.turn
            return replace(ro, phase=Phase.LEAD, turn=turn, merged_at=now)
        case "Backed":
            return replace(ro, backed=int(args["rounds"]))
        case "Convicted" if args["slot"] == MERGE_SLOT and ro.phase == Phase.LEAD:
            return replace(ro, phase=Phase.MERGING, merge_opens=now, turn=ro.turn + 1, merged_at=NEVER)
        case "RoundFailed":
            return replace(ro, phase=Phase.FAILED, merge_opens=now, merged_at=now if ro.revealed else NEVER)
        case "RoundFinal":
            return replace(ro, phase=Phase.FINAL)
    return ro


def _round_snapshot(
    session: Session, job: JobRow, params: JobParams, row: RoundRow, ro: Round, now: Seconds
) -> RoundSnapshot:  # fmt: skip
    claims = session.scalars(select(ClaimRow).where(ClaimRow.job == job.id, ClaimRow.round == row.number)).all()
    ro = replace(ro, open_games=_open_games(session, [claim.id for claim in claims]))
    phase = views.phase_of(ro, now)
    if phase == Phase.ATTESTING and not params.role.witnesses and ro.spoke.bit_count() == ro.revealed:
        phase = Phase.FREEZING
    holders = {
        claim.slot: (Address(claim.worker), ClaimStatus[claim.state.upper()])
        for claim in claims
        if claim.attempt == row.attempt and claim.slot != MERGE_SLOT
    }
    merger, over = ZERO_ADDRESS, False
    if phase == Phase.MERGING:
        turn, order = views.turn(params, ro, now), views.seed_order(params, ro)
        over = views.turns_over(params, ro, now)
        if turn == 0:
            merger = params.merge.aggregator
        elif not over and order[turn - 1] in holders:
            merger = holders[order[turn - 1]][0]
    return RoundSnapshot(row.number, ro, phase, merger, over, holders)


def _open_games(session: Session, claims: Sequence[str]) -> int:
    count = select(func.count()).select_from(GameRow).where(GameRow.claim.in_(claims), GameRow.verdict.is_(None))
    return session.scalar(count) or 0
