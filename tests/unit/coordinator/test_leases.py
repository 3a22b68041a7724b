"""The row is the lock: one holder at a time, freed at the end, by time, or when its process is known to be gone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from coordinator import leases
from coordinator.db import Database
from coordinator.models import LeaseRow
from tests.support.waiting import PATIENCE, wait


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


def test_a_dead_holders_lease_ends_by_time(database: Database) -> None:
    with database.session() as session:
        assert leases.take(session, "job:1", "here/dead", 1_000)
    with database.session() as session:
        assert not leases.take(session, "job:1", "there/b", 1_000 + leases.LEASE_SECONDS - 1)
    with database.session() as session:
        assert leases.take(session, "job:1", "there/b", 1_000 + leases.LEASE_SECONDS)


def test_a_home_that_starts_drops_its_own_leases_alone(database: Database) -> None:
    with database.session() as session:
        assert leases.take(session, "job:1", "here/dead", 1_000)
    for another in ("there", "her_"):
        leases.clear(database, another)
    with database.session() as session:
        assert not leases.take(session, "job:1", "here/new", 1_001)
    leases.clear(database, "here")
    with database.session() as session:
        assert leases.take(session, "job:1", "here/new", 1_001)


def test_a_lease_is_renewed_while_it_is_held(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    with leases.held(database, "job:1", "a"):
        with database.session() as session:
            session.get_one(LeaseRow, "job:1").until = 0
        wait(lambda: _until(database) != 0, "its renewal", every=0.02)
    assert _until(database) is None, "given back"


def test_many_takers_on_connections_of_their_own_hold_one_at_a_time(database: Database) -> None:
    inside, most, times = 0, 0, [0, 0, 0, 0]

    def work(holder: int) -> None:
        nonlocal inside, most
        own = Database(database.url)
        end = time.monotonic() + PATIENCE
        while times[holder] < 3:
            assert time.monotonic() < end, "a taker that is refused gets its turn"
            with leases.held(own, "job:1", f"home/{holder}") as taken:
                if taken:
                    inside, times[holder] = inside + 1, times[holder] + 1
                    most = max(most, inside)
                    time.sleep(0.01)
                    inside -= 1
            time.sleep(0.01)
        own.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert most == 1, "nobody is inside beside another"


def _until(database: Database) -> int | None:
    with database.reading() as session:
        row = session.get(LeaseRow, "job:1")
        return None if row is None else row.until
