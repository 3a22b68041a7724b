"""Queries over the index that the API and the pages share."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

from sqlalchemy import Select, exists, func, select, tuple_
from sqlalchemy.orm import Session

from coordinator.context import ApiContext
from coordinator.db import Database
from coordinator.models import (
    AnnouncementRow,
    ClaimRow,
    CursorRow,
    EventRow,
    GameRow,
    JobRow,
    MentionRow,
    NodeRow,
    RoleRow,
    RoundRow,
    SignedClaimRow,
)
from coordinator.projections import LARGEST_INTEGER
from coordinator.roles import ANY
from coordinator.schema import (
    ClaimOut,
    GameOut,
    JobOut,
    NodeOut,
    Page,
    RoundOut,
    SignedClaimBody,
    SignedPage,
    StatusOut,
)
from lockstep.base.decoding import anything, from_json, refusing, several, text, whole
from lockstep.protocol.errors import Malformed, NotFoundError, UsageError

JUDGED_STATES = ("joined", "committed", "revealed", "accepted", "excluded")
"""States in which two signatures may convict a slot's claim, now or after its reveal."""
ONLINE_SECONDS = 1800
"""An account is online that an event of the last so many chain seconds names."""
SEEN_EVENTS = 2000
"""The most events that are looked through for them."""
SEEN_SIGNED = 10_000
"""The most signed claims that are looked through for those that can still be judged."""
CURSOR_CHARACTERS = 200
"""The longest page cursor, which holds a number and an id."""
ID = re.compile("0x[0-9a-fA-F]{1,64}")
_CURSOR, _NUMBER, _KEY = several(anything, 2), whole(-LARGEST_INTEGER, LARGEST_INTEGER), text(66)
VERSION = version("lockstep-compute")
RowT = TypeVar("RowT")


def jobs(database: Database, limit: int, cursor: str | None) -> Page[JobOut]:
    """Jobs, newest first."""
    with database.reading() as session:
        rows, following = page(session, select(JobRow), (JobRow.block, JobRow.id), limit, cursor)
        return Page[JobOut](items=[JobOut.model_validate(row) for row in rows], next=following)


def job(database: Database, job: str) -> JobOut:
    """One job with its parameters."""
    with found(database, JobRow, job) as (_, row):
        return JobOut.model_validate(row)


def rounds(database: Database, job: str, limit: int, cursor: str | None) -> Page[RoundOut]:
    """A job's rounds, newest first, with their claims of every attempt."""
    with found(database, JobRow, job) as (session, _):
        query = select(RoundRow).where(RoundRow.job == job)
        rows, following = page(session, query, (RoundRow.number, RoundRow.job), limit, cursor)
        items = {row.number: RoundOut.model_validate({**_fields(row), "claims": []}) for row in rows}
        # One range of the index on (job, round, slot).
        within = ClaimRow.round.between(min(items, default=0), max(items, default=-1))
        claims = select(ClaimRow).where(ClaimRow.job == job, within).order_by(ClaimRow.attempt, ClaimRow.slot)
        for row in session.scalars(claims):
            if row.round in items:
                items[row.round].claims.append(ClaimOut.model_validate(row))
        return Page[RoundOut](items=list(items.values()), next=following)


def claim(database: Database, claim: str) -> ClaimOut:
    """One claim. Before its reveal is indexed, its CIDs are those that its worker announced."""
    with found(database, ClaimRow, claim) as (session, row):
        announced = session.get(AnnouncementRow, claim)
        out = ClaimOut.model_validate(row)
        if announced is not None and out.payload_cid is None:
            out.trace_cid, out.payload_cid = announced.body["trace_cid"], announced.body["payload_cid"]
        return out


def signed_claims(database: Database, after: int, limit: int) -> SignedPage:
    """Signed claims that were shown and can still be judged, in the order of arrival: of SEEN_SIGNED from number
    `after` on."""
    live = exists().where(ClaimRow.id == SignedClaimRow.claim, ClaimRow.state.in_(JUDGED_STATES))
    end = min(after + SEEN_SIGNED, LARGEST_INTEGER)
    query = select(SignedClaimRow).where(SignedClaimRow.id > after, SignedClaimRow.id <= end, live)
    with database.reading() as session:
        rows = session.scalars(query.order_by(SignedClaimRow.id).limit(limit)).all()
        newest = session.scalar(select(func.max(SignedClaimRow.id))) or 0
        last = rows[-1].id if len(rows) == limit else min(newest, end)
        return SignedPage(items=[SignedClaimBody.model_validate(row.body) for row in rows], last=last)


def games(
    database: Database, limit: int, cursor: str | None, *, open_only: bool = False, claim: str | None = None,
    job: str | None = None,
) -> Page[GameOut]:  # fmt: skip
    """Disputes, newest first: all, those that run, those about a claim or about a job's claims."""
    query = select(GameRow).where(GameRow.verdict.is_(None)) if open_only else select(GameRow)
    if claim is not None:
        query = query.where(GameRow.claim == claim)
    if job is not None:
        query = query.where(GameRow.job == job)
    with database.reading() as session:
        rows, following = page(session, query, (GameRow.block, GameRow.id), limit, cursor)
        return Page[GameOut](items=[GameOut.model_validate(row) for row in rows], next=following)


def nodes(database: Database, limit: int, cursor: str | None) -> Page[NodeOut]:
    """Registered nodes, newest first."""
    with database.reading() as session:
        rows, following = page(session, select(NodeRow), (NodeRow.block, NodeRow.account), limit, cursor)
        return Page[NodeOut](items=[NodeOut.model_validate(row) for row in rows], next=following)


def counted(context: ApiContext, session: Session, what: str, count: Callable[[Session], Any]) -> Any:
    """Returns what is counted over all rows, as JSON has it: once for each state of the index, not for each page."""
    # INVARIANT: one view has the cursor and the rows, so that nothing is kept under a state that it is not of.
    cursor = session.get(CursorRow, 1)
    key = what, None if cursor is None else (cursor.block, cursor.hash, cursor.time, cursor.reader)
    body = context.kept.get(key)
    if body is None:
        body = json.dumps(count(session)).encode()
        context.kept.keep(key, body)
    return json.loads(body)


def status(context: ApiContext) -> StatusOut:
    """Returns how far the index has read the chain, and what it holds."""
    with context.database.reading() as session:
        cursor = session.get(CursorRow, 1)
        return StatusOut(
            version=VERSION,
            chain_id=cursor.chain_id if cursor else None,
            market=cursor.market if cursor else None,
            aggregator=context.aggregator,
            block=cursor.block if cursor else None,
            head=cursor.head if cursor else None,
            time=cursor.time if cursor else None,
            held=(cursor.held if cursor else "") or None,
            **counted(context, session, "status", _contents),
        )


def _contents(session: Session) -> dict[str, Any]:
    cursor = session.get(CursorRow, 1)
    return {
        "jobs": session.scalar(select(func.count()).select_from(JobRow)),
        "claims": session.scalar(select(func.count()).select_from(ClaimRow)),
        "games_open": session.scalar(select(func.count()).select_from(GameRow).where(GameRow.verdict.is_(None))),
        "online": _online(session, cursor.time) if cursor else {},
    }


def _online(session: Session, now: int) -> dict[str, int]:
    latest = session.execute(
        select(EventRow.block, EventRow.time)
        .order_by(EventRow.block.desc(), EventRow.log_index.desc())
        .limit(SEEN_EVENTS)
    )
    since = min((block for block, at in latest if at >= now - ONLINE_SECONDS), default=None)
    if since is None:
        return {}
    named = select(MentionRow.account).where(MentionRow.block >= since)
    roles = select(RoleRow.role, func.count()).where(RoleRow.account.in_(named), RoleRow.role != ANY)
    return {str(role): int(n) for role, n in session.execute(roles.group_by(RoleRow.role))}


# -- pages of rows --------------------------------------------------------------------------------------


@contextmanager
def found(database: Database, kind: type[RowT], key: str) -> Iterator[tuple[Session, RowT]]:
    """Opens a session and finds the row with this key; raises NotFoundError."""
    with database.reading() as session:
        row = session.get(kind, key)
        if row is None:
            raise NotFoundError(
                f"no {kind.__name__.lower()} {key}",
                hint="the index follows the chain by a block or two: see /api/v1/status",
            )
        yield session, row


def page(
    session: Session, query: Select[RowT], order: tuple[Any, Any], limit: int, cursor: str | None
) -> tuple[list[RowT], str | None]:
    """Returns `limit` rows in descending `order`, after the row of `cursor`, and the next page's cursor."""
    # INVARIANT: a page costs what it holds, however long the list is.
    if cursor is not None:
        query = query.where(tuple_(*order) < tuple_(*_decode(cursor)))
    rows = list(session.scalars(query.order_by(*(column.desc() for column in order)).limit(limit + 1)))
    if len(rows) <= limit:
        return rows, None
    last = rows[limit - 1]
    return rows[:limit], _encode([getattr(last, column.key) for column in order])


def _encode(key: list[Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def _decode(cursor: str) -> tuple[int, str]:
    with refusing(UsageError, "a cursor", hint="use `next` of the page before"):
        try:
            data = base64.urlsafe_b64decode(cursor[:CURSOR_CHARACTERS] + "=" * (-len(cursor) % 4))
        except ValueError as error:
            raise Malformed("no base64") from error
        pair = _CURSOR(from_json(data, CURSOR_CHARACTERS), "the cursor")
        if len(pair) != 2:
            raise Malformed("no pair")
        number, key = _NUMBER(pair[0], "its number"), _KEY(pair[1], "its key")
        if not ID.fullmatch(key):
            raise Malformed("no id")
        return number, key


def _fields(row: RoundRow) -> dict[str, Any]:
    return {column.key: getattr(row, column.key) for column in RoundRow.__table__.columns}
