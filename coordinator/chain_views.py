"""Queries over the events themselves: pages of them, one transaction, and what an id or an address names."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from coordinator.context import ApiContext
from coordinator.models import ClaimRow, CursorRow, EventRow, GameRow, JobRow, MentionRow, RoleRow
from coordinator.roles import ANY, accounts_in
from coordinator.schema import ChainOut, EventOut, FoundOut, TransactionOut
from coordinator.stream import position_of
from lockstep.base.naming import nearest
from lockstep.chain.events import event_names
from lockstep.protocol.errors import NotFoundError, UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market.events import AMOUNTS

EVENT_BYTES = 4096
"""The most bytes of an event's arguments that are sent; longer ones, such as a leaf, are on chain."""
LEAST_DIGITS = 4
"""The fewest digits by which anything is looked for."""
FOUND = 20
"""The most things of one kind that a search returns."""
DIGITS = re.compile("[0-9a-f]+")
BEFORE = re.compile("([0-9]{1,18})-([0-9]{1,9})")
PAGES = {"run": "runs", "claim": "claims", "dispute": "disputes", "account": "accounts", "transaction": "transactions"}


def chain(
    context: ApiContext, limit: int, before: str | None = None, event: str | None = None, account: str | None = None
) -> ChainOut:  # fmt: skip
    """The chain as far as it is indexed, with its latest events, newest first: all, those of one name, those that name
    an account."""
    query, of = select(EventRow), EventRow if account is None else MentionRow
    if account is not None:
        from eth_utils.address import to_checksum_address

        named = (MentionRow.block == EventRow.block) & (MentionRow.log_index == EventRow.log_index)
        query = query.join(MentionRow, named).where(MentionRow.account == to_checksum_address(account))
    if event is not None:
        if event not in event_names():
            raise UsageError(f"event {event!r} is unknown", hint=nearest(event, event_names()))
        query = query.where(of.name == event)
    if before is not None:
        found = BEFORE.fullmatch(before)
        if found is None:
            raise UsageError("`before` is not a position", hint="use `next` of the previous page")
        query = query.where(tuple_(of.block, of.log_index) < tuple_(*map(int, found.groups())))
    with context.database.reading() as session:
        cursor = session.get(CursorRow, 1)
        # INVARIANT: a page costs what it holds: each filter is a range of one index, in the order of the page.
        ordered = query.order_by(of.block.desc(), of.log_index.desc()).limit(limit + 1)
        rows = session.scalars(ordered).all()
        last = rows[limit - 1] if len(rows) > limit else None
        return ChainOut(
            chain_id=cursor.chain_id if cursor else None, market=cursor.market if cursor else None,
            block=cursor.block if cursor else None, head=cursor.head if cursor else None,
            time=cursor.time if cursor else None, unreadable=cursor.unreadable if cursor else 0,
            unprojected=cursor.unprojected if cursor else 0, events=[event_of(row) for row in rows[:limit]],
            next=None if last is None else f"{last.block}-{last.log_index}",
        )  # fmt: skip


def transaction(context: ApiContext, tx: str) -> TransactionOut:
    """One transaction; raises NotFoundError if no event of the contracts is of it."""
    with context.database.reading() as session:
        rows = session.scalars(
            select(EventRow).where(EventRow.tx == tx).order_by(EventRow.block, EventRow.log_index)
        ).all()
        if not rows:
            raise NotFoundError(f"no event is of transaction {tx}", hint="the index has what the contracts have logged")
        gas = next((row.gas for row in rows if row.gas is not None), None)
        events = [event_of(row) for row in rows]
        return TransactionOut(tx=tx, block=rows[0].block, time=rows[0].time, gas=gas, events=events)


def search(context: ApiContext, text: str) -> list[FoundOut]:
    """Runs, claims, disputes, transactions and accounts whose ids begin with these digits."""
    digits = text.strip().lower().removeprefix("0x")
    if len(digits) < LEAST_DIGITS or not DIGITS.fullmatch(digits):
        raise UsageError(
            f"{text[:80]!r} is not an id",
            hint=f"give at least the first {LEAST_DIGITS} hex digits of an id or an address",
        )
    with context.database.reading() as session:
        accounts = select(RoleRow.account).where(
            RoleRow.role == ANY, func.lower(RoleRow.account).between(f"0x{digits}", f"0x{digits}g")
        )
        ids = {
            "account": session.scalars(accounts.limit(FOUND)).all(),
            "run": _beginning(session, JobRow.id, digits), "claim": _beginning(session, ClaimRow.id, digits),
            "dispute": _beginning(session, GameRow.id, digits),
            "transaction": _beginning(session, EventRow.tx, digits),
        }  # fmt: skip
        return [
            FoundOut.model_validate({"kind": kind, "id": name, "path": f"/{PAGES[kind]}/{name}"})
            for kind, names in ids.items()
            for name in names
        ]


def _beginning(session: Session, column: Any, digits: str) -> list[str]:
    # No digit follows "g": a range of the index.
    query = select(column).where(column.between(f"0x{digits}", f"0x{digits}g")).distinct().order_by(column)
    return list(session.scalars(query.limit(FOUND)))


def event_of(row: EventRow) -> EventOut:
    """Returns an event in the form of the stream and the chain's page."""
    amounts = AMOUNTS.get((row.contract, row.name), ())
    amount = row.args.get(amounts[0]) if amounts else None
    return EventOut(
        id=str(position_of(row)), block=row.block, index=row.log_index, time=row.time, contract=row.contract,
        name=row.name, job=row.job, game=row.game, tx=row.tx, args=_cut(row.args),
        accounts=_named(row),
        amount=None if amount is None else str(amount), claim=row.args.get("claim"),
    )  # fmt: skip


def _named(row: EventRow) -> list[str]:
    plain = {name: value for name, value in row.args.items() if name != "params"}
    return [account for account in dict.fromkeys(accounts_in(plain)) if account != ZERO_ADDRESS]


def _cut(args: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:EVENT_BYTES] if isinstance(value, str) else value for name, value in args.items()}
