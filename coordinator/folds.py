"""Folds the chain's events into rows, deterministically.

`apply` is called once per event in (block, log index) order, inside the transaction that stores the event. It reads
only the event and the rows of earlier ones, so `rebuild` gives the same rows as a fresh index, and so does a
reorganisation that undoes the changes of its events (coordinator.undoing). An event that contradicts the rows changes
nothing: its savepoint is rolled back, it is counted, logged and skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import delete, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from coordinator.models import (
    AccountFlowRow,
    AccountRow,
    AuditRow,
    ClaimRow,
    EventRow,
    FlowRow,
    GameRow,
    IndexTable,
    JobRow,
    LockRow,
    MentionRow,
    NodeRow,
    RoleRow,
    RoundRow,
    UndoRow,
)
from coordinator.undoing import near, recording
from lockstep.base.log import Logger

MARKET, VAULT, GAME, WITNESSES = "JobMarket", "StakeVault", "DisputeGame", "Witnesses"
PROJECTED = (
    NodeRow, JobRow, RoundRow, ClaimRow, GameRow, AccountRow, LockRow, FlowRow, AccountFlowRow, RoleRow, MentionRow,
    AuditRow,
)  # fmt: skip

log = Logger(__name__)

RowT = TypeVar("RowT", bound=IndexTable)
Projection = Callable[[Session, EventRow], None]
PROJECTIONS: dict[tuple[str, str], list[Projection]] = {}
"""By (contract, event)."""
OF_ALL: list[Projection] = []
"""Applied to every event."""


def apply(session: Session, event: EventRow, head: int | None = None) -> bool:
    """Applies an event to the projections; returns False if it contradicts them and was skipped.

    `head` is the chain's head, near which changes are recorded so that they can be undone.
    """
    if head is None or not near(event.block, head):
        return _applied_by_all(session, event)
    with recording(session, event) as undo:
        done = _applied_by_all(session, event)
        undo.skipped = not done
    return done


def _applied_by_all(session: Session, event: EventRow) -> bool:
    # INVARIANT: the index stops at no event; only a database that fails stops it.
    all_of_it = (*PROJECTIONS.get((event.contract, event.name), ()), *OF_ALL)
    done = [_applied(session, event, one) for one in all_of_it]
    return all(done)


def _applied(session: Session, event: EventRow, projection: Projection) -> bool:
    try:
        with session.begin_nested():
            projection(session, event)
            session.flush()
    except OperationalError:
        raise
    except Exception as failure:
        log.error(
            "an event of the chain contradicts the index and is skipped",
            contract=event.contract, event_name=event.name, block=event.block,
            index=event.log_index, why=f"{type(failure).__name__}: {failure}"[:300],
        )  # fmt: skip
        return False
    return True


def rebuild(session: Session) -> int:
    """Rebuilds all rows from the stored events; returns how many events were skipped."""
    for table in (*PROJECTED, UndoRow):
        session.execute(delete(table))
    session.expire_all()
    events = session.scalars(select(EventRow).order_by(EventRow.block, EventRow.log_index)).all()
    return sum(not apply(session, event, events[-1].block) for event in events)


def on(contract: str, *names: str) -> Callable[[Projection], Projection]:
    """Registers a function for the events of a contract with these names."""

    def register(projection: Projection) -> Projection:
        for name in names:
            PROJECTIONS.setdefault((contract, name), []).append(projection)
        return projection

    return register


def on_all(projection: Projection) -> Projection:
    """Registers a function for every event."""
    OF_ALL.append(projection)
    return projection


def row_of(session: Session, table: type[RowT], **new: Any) -> RowT:
    """Returns the row with these keys; a new one if there is none."""
    row = session.get(table, tuple(new[column.name] for column in table.__table__.primary_key))
    if row is None:
        row = table(**new)
        session.add(row)
    return row


def added(left: str, right: Any) -> str:
    """The sum of two amounts, as a decimal string."""
    return str(int(left) + int(right))
