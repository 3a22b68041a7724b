"""The database behind the index: SQLite in WAL mode by default, PostgreSQL by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from coordinator import money, projections, roles  # noqa: F401 - what they fold
from coordinator.folds import rebuild
from lockstep.protocol.errors import DoctorError, TryLater, UsageError

MIGRATIONS = Path(__file__).parent / "migrations"
BUSY_SECONDS = 20
"""The longest that a SQLite writer waits for another."""
CONNECT_SECONDS = 10
REFOLD = "0009"
"""The last revision that added a projection: an older index is folded again after its migration."""
WRITERS = 0x4C4F434B53544550
"""The number of PostgreSQL's advisory lock that a writing transaction holds."""


class Database:
    """A SQL database and its sessions; `session()` is one transaction."""

    def __init__(self, url: str) -> None:
        """`url` is a SQLAlchemy URL; nothing is connected yet."""
        self.url = url
        try:
            self.engine = _engine(url)
        except (ArgumentError, ImportError) as error:
            # The URL may hold a password: it is not told.
            raise UsageError(
                f"the database's URL cannot be used: {error}",
                hint="pass --database sqlite:////absolute/path, or nothing",
            ) from error
        self._sessions = sessionmaker(self.engine, expire_on_commit=False)
        self._readers = sessionmaker(self.engine.execution_options(reading=True), expire_on_commit=False)

    @property
    def name(self) -> str:
        """The database's URL without its password, for logs."""
        return self.engine.url.render_as_string(hide_password=True)

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Opens the one writing transaction: committed at the end, rolled back on any error.

        Raises TryLater if the database does not answer.
        """
        with _answering(), self._sessions.begin() as session:
            yield session

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """Opens one consistent view without a write lock; writes in it are discarded. Raises TryLater."""
        with _answering(), self._readers() as session:
            yield session

    def migrate(self) -> str:
        """Bring the schema to this build's; returns its revision. DoctorError if the database cannot be used."""
        try:
            with self.engine.connect() as connection:
                before = MigrationContext.configure(connection).get_current_revision()
            command.upgrade(alembic_config(self.url), "head")
            if before is not None and before < REFOLD:
                with self.session() as session:
                    rebuild(session)
        except DBAPIError as error:
            raise DoctorError(
                f"the database cannot be used: {error.orig}", hint="check --database, its folder's mode and the disk"
            ) from error
        return head_revision()

    def check(self) -> None:
        """Raise DoctorError unless the database answers and has this build's schema."""
        try:
            with self.engine.connect() as connection:
                current = MigrationContext.configure(connection).get_current_revision()
        except DBAPIError as error:
            raise DoctorError(f"the database cannot be used: {error.orig}", hint="check --database") from error
        if current != head_revision():
            raise DoctorError(
                f"the database is at revision {current}, this build needs {head_revision()}",
                hint="run `lockstep coordinator migrate`",
            )

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def alembic_config(url: str) -> Config:
    """Alembic's configuration without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["url"] = url
    return config


def head_revision() -> str:
    """The revision that this build's tables have."""
    return ScriptDirectory(str(MIGRATIONS)).get_current_head() or ""


@contextmanager
def _answering() -> Iterator[None]:
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        raise TryLater(
            f"the database does not answer: {error.orig}", hint="check --database, its server and the disk"
        ) from error


def _engine(url: str) -> Engine:
    return _sqlite(url) if make_url(url).get_backend_name() == "sqlite" else _server(url)


def _server(url: str) -> Engine:
    options = {"connect_timeout": CONNECT_SECONDS} if make_url(url).get_backend_name() == "postgresql" else {}
    engine = create_engine(url, pool_pre_ping=True, connect_args=options)

    @event.listens_for(engine, "engine_connect")
    def consistent(connection: Any) -> None:
        if connection.get_execution_options().get("reading"):
            connection.execution_options(isolation_level="REPEATABLE READ")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        # INVARIANT: writers take turns, as with SQLite: what one has read still holds when it writes.
        if engine.dialect.name == "postgresql" and not connection.get_execution_options().get("reading"):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({WRITERS})")

    return engine


def _sqlite(url: str) -> Engine:
    engine = create_engine(url, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # The driver's own BEGIN would come too late: it waits for the first write and then fails instead of waiting.
        connection.isolation_level = None
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql(
            "BEGIN IMMEDIATE" if not connection.get_execution_options().get("reading") else "BEGIN"
        )

    return engine
