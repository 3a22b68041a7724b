"""The checks of a coordinator's doctor in addition to every role's: its database and its broker."""

from __future__ import annotations

from alembic.runtime.migration import MigrationContext
from kombu import Connection
from kombu.exceptions import OperationalError
from sqlalchemy.exc import DBAPIError

from coordinator import queue
from coordinator.db import Database, head_revision
from coordinator.settings import CoordinatorSettings
from lockstep.protocol.errors import DoctorError

BROKER_SECONDS = 5.0


def database(settings: CoordinatorSettings) -> str:
    """Checks that the database answers and has a schema that `up` can migrate to this build's; returns a message."""
    if not settings.database and not (settings.shared.home_path / "index.sqlite").exists():
        return "SQLite in the home, made at the first start"
    index = Database(settings.database_url)
    try:
        with index.engine.connect() as connection:
            found = MigrationContext.configure(connection).get_current_revision()
    except DBAPIError as error:
        raise DoctorError(
            f"the database cannot be used: {error.orig}", hint="check --database, its server and the disk"
        ) from error
    finally:
        index.close()
    if found == head_revision():
        return f"{index.name}, at revision {found}"
    return f"{index.name}, at revision {found or 'none'}: `up` brings it to {head_revision()}"


def broker(settings: CoordinatorSettings) -> str:
    """Checks that the queue's broker accepts a connection; returns a message. Raises DoctorError."""
    if not settings.broker:
        return "a folder of the home"
    queue.check(settings.broker)
    scheme = settings.broker.partition(":")[0]
    try:
        with Connection(settings.broker, connect_timeout=BROKER_SECONDS) as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=BROKER_SECONDS)
    except (OperationalError, OSError) as error:
        # Its words may name the URL, which may hold a password.
        raise DoctorError(
            f"the {scheme} broker does not answer: {type(error).__name__}", "check --broker and its server"
        ) from error
    return f"the {scheme} broker answers"
