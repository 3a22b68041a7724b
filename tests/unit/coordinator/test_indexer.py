"""The index follows a chain: each event once, whatever is interrupted, repeated or reorganised."""

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
from lockstep.protocol.errors import DoctorError
from tests.support.world import World

FROM_CHAIN = (
    "events",
    "jobs",
    "rounds",
    "claims",
    "games",
    "nodes",
    "accounts",
    "account_flows",
    "audits",
    "locks",
    "flows",
    "mentions",
    "roles",
)
SLOTS = 3


@pytest.fixture
def world() -> World:
    """A job whose first round all workers joined; each has registered its node."""
    made = World.start(slots=SLOTS)
    for slot in range(SLOTS):
        made.send(made.contracts.vault.register_node(bytes([slot + 1]) * 32), f"worker-{slot}")
    made.send(made.contracts.market.start_round(made.job, 0), "requester")
    for slot in range(SLOTS):
        made.send(made.contracts.market.join(made.job, 0, slot), f"worker-{slot}")
    return made


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Database]:
    """Another index, which holds nothing."""
    made = Database(f"sqlite:///{tmp_path / 'fresh.sqlite'}")
    made.migrate()
    yield made
    made.close()


def indexer(database: Database, world: World) -> Indexer:
    return Indexer(database, world.devnet.w3, world.contracts.addresses)


def rows(database: Database) -> dict[str, list[dict[str, object]]]:
    """Everything that comes from the chain."""
    found = {}
    with database.reading() as session:
        for table in IndexTable.metadata.sorted_tables:
            if table.name in FROM_CHAIN:
                found[table.name] = sorted((dict(r._mapping) for r in session.execute(select(table))), key=repr)
    return found


def test_events_become_rows_once(database: Database, world: World) -> None:
    first = indexer(database, world)
    assert first.catch_up() > 0
    before = rows(database)
    assert indexer(database, world).catch_up() == 0, "another indexer finds nothing new"
    assert rows(database) == before
    with database.reading() as session:
        stored = session.get_one(JobRow, "0x" + world.job.hex())
        assert stored.params["roles"][0]["slot_price"] == str(world.params.role.slot_price)
        assert stored.aggregator == world.params.merge.aggregator
        assert session.get_one(RoundRow, (stored.id, 0)).state == "joining"
        claims = session.scalars(select(ClaimRow).order_by(ClaimRow.slot)).all()
        assert [(c.slot, c.worker, c.state) for c in claims] == [
            (slot, world.address(f"worker-{slot}"), "joined") for slot in range(SLOTS)
        ]
        nodes = {n.account: n.key for n in session.scalars(select(NodeRow))}
        assert nodes == {world.address(f"worker-{s}"): "0x" + (bytes([s + 1]) * 32).hex() for s in range(SLOTS)}


def test_a_step_that_fails_midway_leaves_nothing(
    database: Database, world: World, monkeypatch: pytest.MonkeyPatch
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
            indexer(database, world).catch_up()
    with database.reading() as session:
        assert session.scalars(select(EventRow)).all() == []
    indexer(database, world).catch_up()
    whole = rows(database)
    indexer(database, world).reindex()
    assert rows(database) == whole


def test_two_indexers_in_turn_store_each_event_once(database: Database, world: World) -> None:
    one, other = indexer(database, world), indexer(database, world)
    one.catch_up()
    world.send(world.contracts.vault.register_node(bytes([9]) * 32), "worker-0")
    assert len(one.step().events) + len(other.step().events) == 1


def test_a_long_chain_is_read_in_chunks(database: Database, world: World) -> None:
    world.devnet.mine(CHUNK_BLOCKS + 10)
    follower = indexer(database, world)
    assert follower.step().behind > 0
    follower.catch_up()
    assert follower.step().behind == 0


def test_a_reorganised_chain_leaves_what_a_fresh_index_would_have(
    database: Database, fresh: Database, world: World
) -> None:
    follower, account = indexer(database, world), world.address("worker-1")
    follower.catch_up()
    mark = world.devnet.snapshot()
    world.send(world.contracts.vault.register_node(bytes([5]) * 32), "worker-1")
    follower.catch_up()
    with database.reading() as session:
        assert session.get_one(NodeRow, account).key == "0x" + "05" * 32
    world.devnet.revert(mark)
    world.devnet.mine(4)
    follower.catch_up()
    with database.reading() as session:
        assert session.get_one(NodeRow, account).key == "0x" + "02" * 32
    indexer(fresh, world).catch_up()
    assert rows(database) == rows(fresh)


def test_an_index_of_another_market_is_refused(database: Database, world: World) -> None:
    indexer(database, world).step()
    addresses = world.contracts.addresses
    elsewhere = Addresses(**{**addresses.__dict__, "market": addresses.vault, "vault": addresses.market})
    with pytest.raises(DoctorError, match="the index is of market"):
        Indexer(database, world.devnet.w3, elsewhere).step()


def test_every_table_of_the_chain_is_compared_here(database: Database) -> None:
    others = {
        "cursor", "undo", "losses", "announcements", "signed_claims", "receipts", "payloads", "leases",
        "alembic_version",
    }  # fmt: skip
    assert set(inspect(database.engine).get_table_names()) == set(FROM_CHAIN) | others
