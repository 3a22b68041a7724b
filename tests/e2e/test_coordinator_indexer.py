"""The index follows a real chain: each event once, whatever is interrupted, repeated or reorganised."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from coordinator import folds
from coordinator import indexer as module
from coordinator.db import Database
from coordinator.indexer import Indexer
from coordinator.models import ClaimRow, EventRow, IndexTable, JobRow, NodeRow, RoundRow
from lockstep.chain.addresses import Addresses
from lockstep.chain.ranges import CHUNK_BLOCKS
from lockstep.execution.jobs import Job as LoadedJob
from lockstep.protocol.errors import DoctorError

from .byhand import Market

pytestmark = [pytest.mark.slow, pytest.mark.chain]
FROM_CHAIN = ("events", "jobs", "rounds", "claims", "games", "nodes", "accounts", "locks", "flows")


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    market = Market.build(tmp_path_factory.mktemp("market"))
    yield market
    market.close()


@pytest.fixture(scope="module")
def job(market: Market) -> LoadedJob:
    """A job whose first round all workers joined."""
    job = market.submit()
    market.workers[0].send(market.contracts.market.start_round(job.id, 0), "start")
    for worker in market.workers:
        worker.join(job, 0)
    return job


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'index.sqlite'}")
    database.migrate()
    yield database
    database.close()


def indexer(database: Database, market: Market) -> Indexer:
    return Indexer(database, market.devnet.w3, market.contracts.addresses)


def rows(database: Database) -> dict[str, list[dict[str, object]]]:
    """Everything that comes from the chain."""
    found = {}
    with database.reading() as session:
        for table in IndexTable.metadata.sorted_tables:
            if table.name in FROM_CHAIN:
                found[table.name] = sorted((dict(r._mapping) for r in session.execute(select(table))), key=repr)
    return found


def count(session: Session) -> int:
    return len(session.scalars(select(EventRow)).all())


def test_events_become_rows_once(database: Database, market: Market, job: LoadedJob) -> None:
    first = indexer(database, market)
    assert first.catch_up() > 0
    before = rows(database)
    assert indexer(database, market).catch_up() == 0, "another indexer finds nothing new"
    assert rows(database) == before
    with database.reading() as session:
        stored = session.get_one(JobRow, "0x" + job.id.hex())
        assert stored.params["roles"][0]["slot_price"] == str(job.params.role.slot_price)
        assert stored.aggregator == job.params.merge.aggregator
        assert session.get_one(RoundRow, (stored.id, 0)).state == "joining"
        claims = session.scalars(select(ClaimRow).order_by(ClaimRow.slot)).all()
        assert [(c.slot, c.worker, c.state) for c in claims] == [
            (w.slot, w.account.address, "joined") for w in market.workers
        ]
        nodes = {n.account: n.key for n in session.scalars(select(NodeRow))}
        assert nodes == {w.account.address: "0x" + w.node.public.hex() for w in market.workers}


def test_a_step_that_fails_midway_leaves_nothing(
    database: Database, market: Market, job: LoadedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = 0

    def crash(session: Session, event: EventRow, head: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 5:
            raise KeyboardInterrupt
        folds.apply(session, event, head)

    with monkeypatch.context() as patch:
        patch.setattr(module, "apply", crash)
        with pytest.raises(KeyboardInterrupt):
            indexer(database, market).catch_up()
    with database.reading() as session:
        assert count(session) == 0
    indexer(database, market).catch_up()
    whole = rows(database)
    indexer(database, market).reindex()
    assert rows(database) == whole


def test_two_indexers_in_turn_store_each_event_once(database: Database, market: Market, job: LoadedJob) -> None:
    one, other = indexer(database, market), indexer(database, market)
    one.catch_up()
    market.workers[0].send(market.contracts.vault.register_node(market.workers[0].node.public), "node/again")
    assert len(one.step().events) + len(other.step().events) == 1


def test_a_long_chain_is_read_in_chunks(database: Database, market: Market, job: LoadedJob) -> None:
    market.devnet.mine(CHUNK_BLOCKS + 10)
    follower = indexer(database, market)
    assert follower.step().behind > 0
    follower.catch_up()
    assert follower.step().behind == 0


def test_a_reorganised_chain_leaves_what_a_fresh_index_would_have(
    database: Database, market: Market, job: LoadedJob, tmp_path: Path
) -> None:
    follower = indexer(database, market)
    follower.catch_up()
    mark = market.devnet.snapshot()
    worker = market.workers[1]
    worker.send(market.contracts.vault.register_node(bytes([5]) * 32), "node/dropped")
    follower.catch_up()
    with database.reading() as session:
        assert session.get_one(NodeRow, worker.account.address).key == "0x" + "05" * 32
    market.devnet.revert(mark)
    market.devnet.mine(4)
    follower.catch_up()
    with database.reading() as session:
        assert session.get_one(NodeRow, worker.account.address).key == "0x" + worker.node.public.hex()
    fresh = Database(f"sqlite:///{tmp_path / 'fresh.sqlite'}")
    fresh.migrate()
    indexer(fresh, market).catch_up()
    assert rows(database) == rows(fresh)
    fresh.close()


def test_an_index_of_another_market_is_refused(database: Database, market: Market, job: LoadedJob) -> None:
    indexer(database, market).step()
    addresses = market.contracts.addresses
    elsewhere = Addresses(**{**addresses.__dict__, "market": addresses.vault, "vault": addresses.market})
    with pytest.raises(DoctorError, match="the index is of market"):
        Indexer(database, market.devnet.w3, elsewhere).step()


def test_every_table_of_the_chain_is_compared_here(database: Database) -> None:
    others = {
        "cursor", "losses", "announcements", "signed_claims", "receipts", "payloads", "leases", "alembic_version",
    }  # fmt: skip
    assert set(inspect(database.engine).get_table_names()) == set(FROM_CHAIN) | others
