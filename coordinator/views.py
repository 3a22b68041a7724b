"""Queries over the index for the pages and their scripts: runs, accounts, the economy, the chain and disputes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session, aliased

from coordinator import disputes
from coordinator.context import ApiContext
from coordinator.disputes import role_of
from coordinator.models import (
    AccountRow,
    ClaimRow,
    CursorRow,
    GameRow,
    JobRow,
    LockRow,
    LossRow,
    NodeRow,
    RoleRow,
    RoundRow,
)
from coordinator.money import ACCOUNT_AMOUNTS, GAINED, money_of
from coordinator.queries import counted, found, page
from coordinator.reading import STANDING
from coordinator.roles import ANY, ROLES
from coordinator.schema import (
    AccountOut,
    CellOut,
    ClaimOut,
    CurveOut,
    DisputeOut,
    GridOut,
    InsideOut,
    LockOut,
    LossPoint,
    Page,
    ReasonOut,
    RoleOut,
    RoundPoint,
    RunOut,
    TimelineOut,
    TrainingOut,
)
from coordinator.waiting import waiting
from lockstep.execution.rates import price_of
from lockstep.market.waiting import HALTED_SECONDS
from lockstep.protocol.errors import NotFoundError
from lockstep.protocol.types import MERGE_SLOT, Seconds, Wei

MADE = ("accepted", "final")
"""The states of claims whose payload counts in a merge."""
DECIDED = ("final", "convicted", "absent", "excluded", "void")
FINAL_FIRST = ("final", "merged", "accepted", "revealed", "committed", "joined", "excluded", "absent", "void",
               "convicted")  # fmt: skip
"""States of claims, from the best to the worst."""
REASONS = {
    "paid": "accepted and paid",
    "pending": "accepted; paid once the challenge window is over and the rounds before it are final",
    "training": "joined, not revealed yet",
    "absent": "joined and did not reveal in time: the slot's price was burned",
    "excluded": "left out of the merge: unpaid; a payload that was demanded in vain costs the slot's price",
    "convicted": "a challenger proved the claim wrong: the stake was slashed",
    "round_void": "the round failed before a seed was drawn, fell with a convicted merge or an invalid job, or was "
    "merged again: the stake is returned, without pay",
    "void_paid": "the round does not count, but its work is paid: from the stake that the convicted merge lost, or "
    "from the deposit of the invalid job",
}
"""Reason codes of claims, as `lockstep worker why` has them."""
MERGED = case((ClaimRow.slot == MERGE_SLOT, 1), else_=0)
"""1 for a merge."""
DONE = ("lead", "final", "failed")
"""The states of rounds that nobody trains any more."""
PACED_ROUNDS = 20
"""The latest rounds, whose pace is taken for that of the next."""
RECENT = 20
LOCKS = 100


# -- runs -----------------------------------------------------------------------------------------------


def runs(context: ApiContext, limit: int, cursor: str | None) -> Page[RunOut]:
    """Runs, newest first."""
    with context.database.reading() as session:
        rows, following = page(session, select(JobRow), (JobRow.block, JobRow.id), limit, cursor)
        return Page[RunOut](items=_runs(context, session, rows), next=following)


def run(context: ApiContext, job: str) -> RunOut:
    """One run."""
    with found(context.database, JobRow, job) as (session, row):
        return _runs(context, session, [row])[0]


def version_of(context: ApiContext, job: str) -> Hashable:
    """Returns a value that changes with everything that a run's page shows; raises NotFoundError.

    The chain's part is the block at which the index stands, since its rows are a fold over the events up to there.
    """
    with found(context.database, JobRow, job) as (session, row):
        cursor = session.get(CursorRow, 1)
        read = None if cursor is None else (
            cursor.block, cursor.hash, cursor.reader, cursor.head, cursor.time, cursor.held, cursor.unprojected,
            # How long a chain has stood still is said to the minute.
            (cursor.checked - cursor.time) // 60 if cursor.checked - cursor.time > HALTED_SECONDS else 0,
        )  # fmt: skip
        # Losses come when they are computed, not with a block; their times are the claims'.
        losses = session.scalar(
            select(func.aggregate_strings(LossRow.claim + LossRow.loss, ",")).where(LossRow.job == job)
        )
        described = context.descriptions.of(row)
        return read, losses, None if described is None else described.model_dump_json()


def whole(context: ApiContext, job: str) -> tuple[RunOut, Sequence[LossAt], Sequence[RoundAt]]:
    """Returns `run`, `curve` and `timeline` of a job, with its claims counted and its losses read only once."""
    with found(context.database, JobRow, job) as (session, row):
        tallies, losses = _tallies(session, job), _losses(session, job)
        return (
            _runs(context, session, [row], tallies, losses)[0], _curve(context, row, tallies, losses),
            _timeline(context, session, row, tallies),
        )  # fmt: skip


def _runs(
    context: ApiContext, session: Session, jobs: Sequence[JobRow], tallies: Sequence[Any] | None = None,
    losses: Sequence[Loss] | None = None,
) -> list[RunOut]:  # fmt: skip
    """`tallies`, `losses`: of the one job, if they were read."""
    ids = [job.id for job in jobs]
    claims: dict[str, dict[Any, int]] = defaultdict(dict)
    if tallies is None:
        claims = _counted(session, select(ClaimRow.job, MERGED, ClaimRow.state).where(ClaimRow.job.in_(ids)))
    else:
        for _, state, _, merge, n in tallies:
            claims[ids[0]][merge, state] = claims[ids[0]].get((merge, state), 0) + n
    rounds = _counted(session, select(RoundRow.job, RoundRow.state).where(RoundRow.job.in_(ids)))
    games = _counted(session, select(GameRow.job, func.coalesce(GameRow.verdict, "open")).where(GameRow.job.in_(ids)))
    # A job alone is worth waiting for; a list is not.
    return [
        _run(
            context,
            session,
            job,
            claims[job.id],
            rounds[job.id],
            games[job.id],
            _losses(session, job.id) if losses is None else losses,
            wait=len(jobs) == 1,
        )
        for job in jobs
    ]


def _run(
    context: ApiContext, session: Session, job: JobRow, claims: dict[Any, int], rounds: dict[Any, int],
    games: dict[Any, int], losses: Sequence[Loss], *, wait: bool,
) -> RunOut:  # fmt: skip
    role, params = role_of(job), job.params
    slots = {state: n for (merge, state), n in claims.items() if not merge}
    described = context.descriptions.of(job, wait=wait)
    steps = sum(slots.get(state, 0) for state in MADE) * int(role.get("inner_steps", 0))
    decided = sum(slots.get(state, 0) for state in DECIDED)
    done = sum(rounds.get((state,), 0) for state in DONE)
    schedule, slot_price = int(params.get("schedule", {}).get("rounds", 0)), str(role.get("slot_price", "0"))
    each = None if described is None else described.operations_per_step * int(role.get("inner_steps", 0))
    return RunOut(
        id=job.id, requester=job.requester, aggregator=job.aggregator, state=job.state, time=job.time, block=job.block,
        rounds=schedule, slots=int(role.get("slots", 0)),
        inner_steps=int(role.get("inner_steps", 0)), rounds_started=sum(rounds.values()),
        rounds_by_state={state: n for (state,), n in rounds.items()}, claims=sum(slots.values()), claims_by_state=slots,
        settled_share=slots.get("final", 0) / decided if decided else None, steps=steps,
        tokens=None if described is None else steps * described.tokens_per_step,
        escrow=job.escrow, deposit=job.deposit, paid=job.paid,
        refunded=job.refunded, games=sum(games.values()), games_open=games.get(("open",), 0),
        convicted=sum(n for (_, state), n in claims.items() if state == "convicted"), description=described,
        losses=[found.value for found in losses],
        held=str(max(0, int(job.escrow) - int(job.paid) - int(job.refunded))), slot_price=slot_price,
        operations_price=None if not each else str(price_of(Wei(int(slot_price)), each)), rounds_done=done,
        seconds_to_go=_seconds_to_go(session, job, schedule - done),
        training=_training(session, job.id) if wait else [], inside=_inside(session, job.id),
        waits=waits_for(session, job) if wait else None,
    )  # fmt: skip


def waits_for(session: Session, job: JobRow) -> str | None:
    """Returns what an open job waits for, in the sentence of `lockstep train why`."""
    found = waiting(session, job) if job.state == "active" else None
    return None if found is None else found.sentence()


def _seconds_to_go(session: Session, job: JobRow, left: int) -> int | None:
    begun = session.scalars(
        select(RoundRow.started).where(RoundRow.job == job.id).order_by(RoundRow.number.desc()).limit(PACED_ROUNDS)
    ).all()
    if job.state != "active" or len(begun) < 2:
        return None
    return max(0, left) * (begun[0] - begun[-1]) // (len(begun) - 1)


def _training(session: Session, job: str) -> list[TrainingOut]:
    now = select(ClaimRow).where(
        ClaimRow.job == job, ClaimRow.slot != MERGE_SLOT, ClaimRow.state.in_(("joined", "committed"))
    )
    return [TrainingOut.model_validate(c) for c in session.scalars(now.order_by(ClaimRow.round, ClaimRow.slot))]


def _inside(session: Session, job: str) -> list[InsideOut]:
    """The convicted payloads that merges which stand have taken in."""
    merge = aliased(ClaimRow)
    found = session.execute(
        select(ClaimRow, merge.id, RoundRow.mask)
        .join(RoundRow, (RoundRow.job == ClaimRow.job) & (RoundRow.number == ClaimRow.round))
        .join(merge, (merge.job == ClaimRow.job) & (merge.round == ClaimRow.round) & (merge.slot == MERGE_SLOT))
        .where(ClaimRow.job == job, ClaimRow.slot != MERGE_SLOT, ClaimRow.state == "convicted")
        .where(ClaimRow.attempt == RoundRow.attempt, RoundRow.state != "void", merge.state.in_(STANDING))
        .order_by(ClaimRow.round, ClaimRow.slot)
    )
    return [
        InsideOut(round=claim.round, slot=claim.slot, claim=claim.id, merge=merged)
        for claim, merged, mask in found
        if int(mask or 0) >> claim.slot & 1
    ]


def _counted(session: Session, query: Any) -> dict[str, dict[Any, int]]:
    """Returns the counts of a query's rows, by job and then by the other columns."""
    columns = list(query.selected_columns)
    counts: dict[str, dict[Any, int]] = defaultdict(dict)
    for job, *rest, n in session.execute(query.add_columns(func.count()).group_by(*columns)):
        counts[job][tuple(rest)] = n
    return counts


def grid(context: ApiContext, job: str, before: int | None, count: int) -> GridOut:
    """`count` rounds of a run, the last ones before round `before`, with every claim of theirs."""
    with found(context.database, JobRow, job) as (session, row):
        begun = (session.scalar(select(func.max(RoundRow.number)).where(RoundRow.job == job)) or 0) + 1
        begun = begun if session.get(RoundRow, (job, 0)) is not None else 0
        end = begun if before is None else min(before, begun)
        first = max(0, end - count)
        claims = session.execute(
            select(ClaimRow.round, ClaimRow.attempt, ClaimRow.slot, ClaimRow.state, ClaimRow.id)
            .where(ClaimRow.job == job, ClaimRow.round.between(first, end - 1))
            .order_by(ClaimRow.round, ClaimRow.slot, ClaimRow.attempt)
        )
        holding = {found.merge for found in _inside(session, job)}
        cells = [
            CellOut(round=r, attempt=a, slot=s, state=state, id=i, holds_convicted=i in holding)
            for r, a, s, state, i in claims
        ]
        return GridOut(
            job=job, slots=int(role_of(row).get("slots", 0)), first=first, last=end - 1, rounds=begun, cells=cells
        )  # fmt: skip


def timeline(context: ApiContext, job: str) -> TimelineOut:
    """Every round of a run: when it was, what became of its claims, what it cost."""
    with found(context.database, JobRow, job) as (session, row):
        rounds = _timeline(context, session, row, _tallies(session, job))
        return TimelineOut(job=job, rounds=[RoundPoint(**point._asdict()) for point in rounds])


class RoundAt(NamedTuple):
    """A cheap tuple with the fields of `RoundPoint`, of which a page has a thousand."""

    round: int
    state: str
    started: int
    updated: int
    claims: dict[str, int]
    tokens: int | None
    paid: str


def _timeline(context: ApiContext, session: Session, job: JobRow, tallies: Sequence[Any]) -> Sequence[RoundAt]:
    described = context.descriptions.of(job)
    each = None if described is None else described.tokens_per_step * int(role_of(job).get("inner_steps", 0))
    counted: dict[int, dict[str, int]] = defaultdict(dict)
    spent: dict[int, int] = defaultdict(int)
    made: dict[int, int] = defaultdict(int)
    for number, state, paid, merge, n in tallies:
        spent[number] += int(paid) * n
        if not merge:
            counted[number][state] = counted[number].get(state, 0) + n
            made[number] += n if state in MADE else 0
    rounds = session.execute(
        select(RoundRow.number, RoundRow.state, RoundRow.started, RoundRow.updated)
        .where(RoundRow.job == job.id)
        .order_by(RoundRow.number)
    )
    return [
        RoundAt(
            round=number, state=state, started=started, updated=updated, claims=counted[number],
            paid=str(spent[number]),
            tokens=None if each is None else each * made[number],
        )
        for number, state, started, updated in rounds
    ]  # fmt: skip


def _tallies(session: Session, job: str) -> Sequence[Any]:
    """A job's claims as (round, state, paid, 1 for a merge, number of such claims)."""
    columns = (ClaimRow.round, ClaimRow.state, ClaimRow.paid, MERGED)
    return session.execute(select(*columns, func.count()).where(ClaimRow.job == job).group_by(*columns)).all()


def curve(context: ApiContext, job: str) -> CurveOut:
    """A run's losses, with what was spent until each of them."""
    with found(context.database, JobRow, job) as (session, row):
        losses = _curve(context, row, _tallies(session, job), _losses(session, job))
        return CurveOut(job=job, losses=[LossPoint(**point._asdict()) for point in losses])


class LossAt(NamedTuple):
    """A cheap tuple with the fields of `LossPoint`, of which a page has a thousand."""

    merges: int
    round: int | None
    claim: str
    loss: float | str
    step: int
    tokens: int | None
    time: int
    cost: str


def _curve(
    context: ApiContext, job: JobRow, tallies: Sequence[Any], losses: Sequence[Loss]
) -> Sequence[LossAt]:  # fmt: skip
    described = context.descriptions.of(job)
    inner = int(role_of(job).get("inner_steps", 0))
    made: dict[int, int] = defaultdict(int)
    spent: dict[int, int] = defaultdict(int)
    for number, state, paid, merge, n in tallies:
        spent[number] += int(paid) * n
        made[number] += n if state in MADE and not merge else 0
    points, claims, cost, last = [], 0, 0, -1
    for kept in losses:
        behind = -1 if kept.round is None else kept.round
        for number in range(last + 1, behind + 1):
            claims, cost = claims + made[number], cost + spent[number]
        last = max(last, behind)
        points.append(
            LossAt(
                merges=kept.merges, round=kept.round, claim=kept.claim, loss=kept.value,
                step=kept.merges * inner,
                tokens=None if described is None else claims * inner * described.tokens_per_step,
                time=job.time if kept.time is None else kept.time, cost=str(cost),
            )
        )  # fmt: skip
    return points


class Loss(NamedTuple):
    """The loss of a standing merge, or of the first weights."""

    claim: str
    round: int | None
    merges: int
    time: int | None
    """Chain seconds of the merge."""
    value: float | str
    """As JSON says it."""


def _losses(session: Session, job: str) -> list[Loss]:
    """The losses of merges that stand, in order."""
    rows = session.execute(
        select(LossRow.claim, LossRow.round, LossRow.merges, ClaimRow.time, LossRow.loss)
        .outerjoin(ClaimRow, ClaimRow.id == LossRow.claim)
        .where(LossRow.job == job, (LossRow.claim == "") | ClaimRow.state.in_(STANDING))
        .order_by(LossRow.merges)
    )
    return [Loss(c, r, m, t, float(loss) if math.isfinite(float(loss)) else loss) for c, r, m, t, loss in rows]


# -- accounts -------------------------------------------------------------------------------------------


def accounts(context: ApiContext, limit: int, cursor: str | None, role: str = ANY) -> Page[AccountOut]:
    """Accounts that have acted in a role, the latest to begin first, with their money; without locks and claims."""
    with context.database.reading() as session:
        query = select(RoleRow).where(RoleRow.role == role)
        rows, following = page(session, query, (RoleRow.block, RoleRow.account), limit, cursor)
        return Page[AccountOut](items=[_account(session, row.account, short=True) for row in rows], next=following)


def roles_counted(context: ApiContext) -> dict[str, int]:
    """Returns the number of accounts in each role."""
    with context.database.reading() as session:
        found: dict[str, int] = counted(context, session, "roles", _roles)
        return found


def _roles(session: Session) -> dict[str, int]:
    rows = session.execute(select(RoleRow.role, func.count()).group_by(RoleRow.role))
    return {str(role): int(n) for role, n in rows}


def account(context: ApiContext, account: str) -> AccountOut:
    """An account, in any case of its letters; raises NotFoundError if the index has never seen it."""
    from eth_utils.address import to_checksum_address

    with context.database.reading() as session:
        name = to_checksum_address(account)
        kinds = ((AccountRow, name), (NodeRow, name), (RoleRow, (name, ANY)))
        if all(session.get(kind, key) is None for kind, key in kinds) and not session.scalar(
            select(func.count()).select_from(ClaimRow).where(ClaimRow.worker == name)
        ):
            raise NotFoundError(f"no account {name}", hint="it has not staked, registered or claimed anything yet")
        return _account(session, name, short=False)


def _account(session: Session, name: str, *, short: bool) -> AccountOut:
    row, node = session.get(AccountRow, name), session.get(NodeRow, name)
    amounts = {amount: getattr(row, amount) if row is not None else "0" for amount in ACCOUNT_AMOUNTS}
    states: dict[str, int] = defaultdict(int)
    for state, amount, n in session.execute(
        select(ClaimRow.state, ClaimRow.paid, func.count())
        .where(ClaimRow.worker == name)
        .group_by(ClaimRow.state, ClaimRow.paid)
    ):
        states[reason_of(state, amount)] += n
    recent: list[ClaimOut] = []
    locks: list[LockOut] = []
    if not short:
        newest = select(ClaimRow).where(ClaimRow.worker == name).order_by(ClaimRow.block.desc(), ClaimRow.id)
        recent = [ClaimOut.model_validate(claim) for claim in session.scalars(newest.limit(RECENT))]
        held = select(LockRow).where(LockRow.account == name).order_by(LockRow.block.desc(), LockRow.key)
        locks = [_lock(session, lock) for lock in session.scalars(held.limit(LOCKS))]
    found = {row.role: row for row in session.scalars(select(RoleRow).where(RoleRow.account == name))}
    money = money_of(session, name)
    return AccountOut(
        account=name, key=None if node is None else node.key, claims=sum(states.values()),
        roles=[RoleOut.model_validate(found[role]) for role in ROLES if role in found],
        paid=str(money["slots"] + money["merges"]), gained=str(sum(money[kind] for kind in GAINED)),
        money={kind: str(amount) for kind, amount in money.items()},
        reasons=[ReasonOut(code=code, means=REASONS[code], claims=states[code]) for code in REASONS if states[code]],
        locks=locks, recent=recent, **amounts,
    )  # fmt: skip


def reason_of(state: str, paid: str) -> str:
    """The code of REASONS for a claim in a state, with its pay."""
    known = {"joined": "training", "committed": "training", "revealed": "pending", "accepted": "pending",
             "merged": "pending", "void": "round_void"}  # fmt: skip
    if state == "final":
        return "paid" if int(paid) else "excluded"
    if state == "void" and int(paid):
        return "void_paid"
    return known.get(state, state)


def _lock(session: Session, lock: LockRow) -> LockOut:
    claim = session.get(ClaimRow, lock.key)
    what, until = "other", None
    if claim is not None:
        what = "merge" if claim.slot == MERGE_SLOT else "claim"
        job, number = session.get(JobRow, claim.job), session.get(RoundRow, (claim.job, claim.round))
        if job is not None and number is not None and claim.state in ("revealed", "accepted", "merged", "excluded"):
            until = _last_of_period(session, job, number).updated
            until += int(job.params.get("windows", {}).get("challenge_seconds", 0))
    elif session.get(GameRow, lock.key) is not None:
        what = "game"
    return LockOut(key=lock.key, amount=lock.amount, what=what, until=until)


def _last_of_period(session: Session, job: JobRow, number: RoundRow) -> RoundRow:
    """Returns the last round of a round's carry period, for whose window the claims of earlier rounds wait."""
    period = int(role_of(job).get("carry_period", 0))
    if not period:
        return number
    end = (number.number // period + 1) * period
    later = (
        select(RoundRow)
        .where(RoundRow.job == job.id, RoundRow.number > number.number, RoundRow.number < end)
        .where(RoundRow.state != "void", or_(RoundRow.state != "failed", RoundRow.mask.is_not(None)))
        .order_by(RoundRow.number.desc())
    )
    return session.scalars(later.limit(1)).first() or number


# -- disputes -------------------------------------------------------------------------------------------


def dispute(context: ApiContext, game: str, url: str) -> DisputeOut:
    """A game with everything about it: moves, clocks, bisection, both values and the contract's, money.

    `url`: of this server, for the command that checks it.
    """
    with found(context.database, GameRow, game) as (session, row):
        log = disputes.read_log(session, row)
        if log is None:
            raise NotFoundError(
                f"the log of game {game} is not in the index", hint="run `lockstep coordinator reindex`"
            )
        place = disputes.place_of(log.events)
        position = place.position if place.wrong is not None and place.wrong.name == "OP" else None
        named = context.descriptions.op(log.job, log.program, position)
        cursor = session.get(CursorRow, 1)
        now = Seconds(cursor.time if cursor else row.time)
        return DisputeOut.model_validate(disputes.dispute_out(session, log, named, now, url))
