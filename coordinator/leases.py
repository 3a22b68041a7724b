"""The row is the lock: a task acts on a job only while it holds the job's row."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import delete
from sqlalchemy.orm import Session

from coordinator.db import Database
from coordinator.models import LeaseRow

LEASE_SECONDS = 600
"""Of this machine's time: longer than any task; a process that dies loses its leases at the next start."""


def take(session: Session, name: str, holder: str, now: int) -> bool:
    """Take the row unless another holds it; the session's transaction is the write lock."""
    row = session.get(LeaseRow, name)
    if row is not None and row.holder != holder and row.until > now:
        return False
    session.merge(LeaseRow(name=name, holder=holder, until=now + LEASE_SECONDS))
    return True


@contextmanager
def held(database: Database, name: str, holder: str) -> Iterator[bool]:
    """Whether `name` could be taken; given back at the end."""
    with database.session() as session:
        taken = take(session, name, holder, int(time.time()))
    try:
        yield taken
    finally:
        if taken:
            with database.session() as session:
                session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.holder == holder))


def clear(database: Database) -> None:
    """Drop every lease: called by the one process that works in this home, when it starts."""
    with database.session() as session:
        session.execute(delete(LeaseRow))
