"""Transactions that the bound on fees holds back: told once, in numbers too, and when they are sent; in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.db import Database
from coordinator.indexer import Indexer
from coordinator.models import CursorRow
from lockstep.base.vitals import Vitals
from lockstep.chain.outbox import Outbox
from lockstep.node.feewatch import FeeWatch
from lockstep.protocol.errors import TryLater
from tests.support.world import World

GWEI = 10**9


@pytest.fixture
def world() -> World:
    return World.start()


@pytest.fixture
def outbox(world: World, tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path / "outbox.sqlite", world.devnet.w3, world.accounts["verifier"], max_fee_wei=5 * GWEI)
    yield made
    made.close()


def base_fee(world: World, gwei: int) -> None:
    world.devnet.chain.next_base_fee = gwei * GWEI
    world.devnet.mine(1)
    world.devnet.chain.next_base_fee = gwei * GWEI


def test_a_fee_above_the_bound_is_told_at_both_ends(world: World, outbox: Outbox) -> None:
    told, now, vitals = list[tuple[str, dict[str, Any]]](), [10.0], Vitals()
    watch = FeeWatch(outbox, lambda name, **fields: told.append((name, fields)), lambda: now[0], vitals)
    assert (watch.look(world.head), told, vitals.held) == ("", [], "")
    base_fee(world, 9)
    call = world.contracts.vault.request_unbond(1)  # type: ignore[arg-type]
    with pytest.raises(TryLater):
        outbox.submit(call, "unbond", check=False)
    held = watch.look(world.head)
    assert watch.look(world.head) == held, "asked once a head"
    assert held.endswith("waits: the base fee is 9 gwei a unit of gas, above the bound of 5 gwei")
    assert watch.look(world.head) == held == vitals.held
    assert told == [("held", {"message": held})], "once"
    now[0] += 7
    base_fee(world, 2)
    assert (watch.look(world.head), vitals.held) == ("", "")
    outbox.submit(call, "unbond", check=False)
    assert watch.look(world.head) == ""
    assert told[1:] == [("released", {"seconds": 7.0})], "once"


def test_a_coordinator_writes_it_down_for_its_api(world: World, tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/index.db")
    database.migrate()
    indexer = Indexer(database, world.devnet.w3, world.contracts.addresses)
    indexer.note("nothing is indexed yet")
    indexer.catch_up()
    for held in ("Market.freeze waits: the base fee is 9 gwei", ""):
        indexer.note(held)
        world.devnet.mine(1)
        indexer.catch_up()
        with database.reading() as session:
            assert session.get_one(CursorRow, 1).held == held, "the next block's cursor keeps it"
