"""Records rows before each of the latest events changes them, so that a reorganisation can undo the changes.

with recording(session, event):      # every row that a fold changes is kept as it was
    ...
undone(session, block, gone)         # the rows from before the first event beyond `block`
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Table, and_, delete, event, inspect, select
from sqlalchemy.orm import Session

from coordinator.models import EventRow, IndexTable, UndoRow

KEPT_BLOCKS = 256
"""Number of latest blocks whose events can be undone; after a deeper reorganisation all rows are rebuilt."""
IMAGES = "images"
"""The session's: {(table, key): the row before, or None}, while a fold is recorded."""

Image = tuple[str, tuple[Any, ...]]


def near(block: int, head: int) -> bool:
    """Tells if the events of a block are recorded so that they can be undone."""
    return block > head - KEPT_BLOCKS


@contextmanager
def recording(session: Session, row: EventRow) -> Iterator[UndoRow]:
    """Records the previous state of every row that is changed within the block; the caller sets whether the event was
    skipped."""
    kept = UndoRow(block=row.block, log_index=row.log_index, skipped=False, rows=[])
    images: dict[Image, dict[str, Any] | None] = {}
    session.info[IMAGES] = images
    try:
        yield kept
        session.flush()
    finally:
        del session.info[IMAGES]
    kept.rows = [[table, list(key), before] for (table, key), before in images.items()]
    session.add(kept)


def undone(session: Session, block: int, gone: int) -> int | None:
    """Restores the rows to their state after `block`; returns how many of the `gone` later events had been skipped, or
    None without a change if not all of them can be undone."""
    kept = session.scalars(
        select(UndoRow).where(UndoRow.block > block).order_by(UndoRow.block, UndoRow.log_index)
    ).all()
    if len(kept) != gone:
        return None
    first: dict[Image, dict[str, Any] | None] = {}
    for undo in kept:
        for table, key, before in undo.rows:
            first.setdefault((table, tuple(key)), before)
    for (name, key), before in first.items():
        table = IndexTable.metadata.tables[name]
        session.execute(delete(table).where(_is(table, key)))
        if before is not None:
            session.execute(table.insert().values(**before))
    session.execute(delete(UndoRow).where(UndoRow.block > block))
    session.expire_all()
    return sum(undo.skipped for undo in kept)


def forget(session: Session, head: int) -> None:
    """Drops the records of events that are far behind `head`."""
    session.execute(delete(UndoRow).where(UndoRow.block <= head - KEPT_BLOCKS))


@event.listens_for(Session, "before_flush")
def _keep(session: Session, context: Any, instances: Any) -> None:
    """Records the stored state of every row that the flush is about to change."""
    images: dict[Image, dict[str, Any] | None] | None = session.info.get(IMAGES)
    if images is None:
        return
    for row in (*session.new, *session.dirty, *session.deleted):
        mapper = inspect(type(row))
        table = mapper.local_table
        assert isinstance(table, Table)
        image = table.name, tuple(mapper.primary_key_from_instance(row))
        if image not in images:
            found = session.connection().execute(select(table).where(_is(table, image[1]))).mappings().first()
            images[image] = None if found is None else dict(found)


def _is(table: Table, key: tuple[Any, ...]) -> Any:
    return and_(*(column == value for column, value in zip(table.primary_key, key, strict=True)))
