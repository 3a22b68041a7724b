"""The row is the lock: one holder at a time, freed at the end, by time, or when its process is known to be gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import leases
from coordinator.db import Database


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'index.sqlite'}")
    database.migrate()
    yield database
    database.close()


def test_one_holder_at_a_time(database: Database) -> None:
    with leases.held(database, "job:1", "a") as first:
        assert first
        with leases.held(database, "job:1", "b") as second, leases.held(database, "job:2", "b") as other:
            assert not second
            assert other
        with leases.held(database, "job:1", "b") as still:
            assert not still, "a refused taker gives nothing back"
    with leases.held(database, "job:1", "b") as freed:
        assert freed


def test_a_lease_is_freed_when_its_task_fails(database: Database) -> None:
    def fail() -> None:
        with leases.held(database, "job:1", "a"):
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError):
        fail()
    with leases.held(database, "job:1", "b") as freed:
        assert freed


def test_a_dead_holders_lease_ends_by_time_or_by_clearing(database: Database) -> None:
    with database.session() as session:
        assert leases.take(session, "job:1", "dead", 1_000)
    with database.session() as session:
        assert not leases.take(session, "job:1", "b", 1_000 + leases.LEASE_SECONDS - 1)
    with database.session() as session:
        assert leases.take(session, "job:1", "b", 1_000 + leases.LEASE_SECONDS)
    leases.clear(database)
    with database.session() as session:
        assert leases.take(session, "job:1", "c", 1_000 + leases.LEASE_SECONDS)
