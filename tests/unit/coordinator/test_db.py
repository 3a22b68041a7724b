"""The index's database: migrations give the models' tables, a session is a transaction."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from coordinator.db import Database
from coordinator.models import IndexTable, LeaseRow
from lockstep.protocol.errors import DoctorError, TryLater


def lease(number: int) -> LeaseRow:
    """Any row."""
    return LeaseRow(name=str(number), holder="", until=0)


def test_migrations_give_the_models_tables(database: Database) -> None:
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), IndexTable.metadata) == []


def test_migrating_twice_changes_nothing(database: Database) -> None:
    assert database.migrate() == database.migrate()
    database.check()


def test_an_unmigrated_database_is_a_doctors_error(tmp_path: Path) -> None:
    fresh = Database(f"sqlite:///{tmp_path / 'empty.sqlite'}")
    with pytest.raises(DoctorError) as refused:
        fresh.check()
    assert "coordinator migrate" in refused.value.hint


def test_an_unusable_path_is_a_doctors_error(tmp_path: Path) -> None:
    with pytest.raises(DoctorError, match="cannot be used"):
        Database(f"sqlite:///{tmp_path / 'no' / 'folder' / 'x.sqlite'}").migrate()


def test_an_error_rolls_a_session_back(database: Database) -> None:
    def fail_midway() -> None:
        with database.session() as session:
            session.add(lease(1))
            session.flush()
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError):
        fail_midway()
    with database.reading() as session:
        assert session.get(LeaseRow, "1") is None


def test_writers_wait_for_each_other_and_readers_for_nobody(database: Database) -> None:
    def write(start: int) -> None:
        for number in range(start, start + 20):
            with database.session() as session:
                session.add(lease(number))

    threads = [threading.Thread(target=write, args=(100 * k,)) for k in range(3)]
    with database.session() as held:
        held.add(lease(9999))
        held.flush()
        for thread in threads:
            thread.start()
        with database.reading() as reader:
            assert reader.get(LeaseRow, "9999") is None, "a reader sees what is committed, at once"
    for thread in threads:
        thread.join()
    with database.reading() as reader:
        assert reader.query(LeaseRow).count() == 61


def test_a_server_that_does_not_answer_is_to_be_asked_later_and_its_password_is_not_told() -> None:
    nobody = Database("postgresql://me:hush@127.0.0.1:1/index")
    for use in (nobody.session, nobody.reading):
        with pytest.raises(TryLater) as refused, use() as session:
            session.get(LeaseRow, "1")
        assert "hush" not in refused.value.message + refused.value.hint
    with pytest.raises(DoctorError) as unfit:
        nobody.migrate()
    assert "hush" not in unfit.value.message + nobody.name


def test_a_view_does_not_change_while_others_write(database: Database) -> None:
    with database.reading() as reader:
        assert reader.get(LeaseRow, "1") is None
        with database.session() as writer:
            writer.add(lease(1))
        assert reader.query(LeaseRow).count() == 0
