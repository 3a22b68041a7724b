"""Leases: a task acts on a job only while it holds the job's row.

Several coordinators may share a database. Each renews its leases, so that a job whose coordinator has died passes to
another after LEASE_SECONDS, and at once to its own when that restarts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import delete
from sqlalchemy.orm import Session

from coordinator.db import Database
from coordinator.models import LeaseRow
from lockstep.base.log import Logger
from lockstep.protocol.errors import TryLater

LEASE_SECONDS = 60
"""The life of a lease, in this machine's time."""
RENEW_SECONDS = LEASE_SECONDS / 4

log = Logger(__name__)


def take(session: Session, name: str, holder: str, now: int) -> bool:
    """Take the row unless another holds it; the session's transaction is the write lock."""
    row = session.get(LeaseRow, name)
    if row is not None and row.holder != holder and row.until > now:
        return False
    session.merge(LeaseRow(name=name, holder=holder, until=now + LEASE_SECONDS))
    return True


@contextmanager
def held(database: Database, name: str, holder: str) -> Iterator[bool]:
    """Yields True if the lease `name` could be taken; renews it meanwhile, gives it back at the end."""
    with database.session() as session:
        taken = take(session, name, holder, int(time.time()))
    if not taken:
        yield False
        return
    done = threading.Event()
    renewing = threading.Thread(target=_renew, args=(database, name, holder, done), name="renew-lease", daemon=True)
    renewing.start()
    try:
        yield True
    finally:
        done.set()
        renewing.join()
        with database.session() as session:
            session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.holder == holder))


def clear(database: Database, home: str) -> None:
    """Drop the leases of a home: called by the one process that works in it, when it starts."""
    with database.session() as session:
        session.execute(delete(LeaseRow).where(LeaseRow.holder.startswith(f"{home}/", autoescape=True)))


def _renew(database: Database, name: str, holder: str, done: threading.Event) -> None:
    while not done.wait(RENEW_SECONDS):
        try:
            with database.session() as session:
                if not take(session, name, holder, int(time.time())):
                    log.warning("another coordinator has taken a job over", lease=name)
                    return
        except TryLater as error:
            log.warning("a lease could not be renewed", lease=name, why=error.message)
