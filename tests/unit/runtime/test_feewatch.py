"""Transactions that the bound on fees holds back: told once, in numbers too, and when they are sent; in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.db import Database
from coordinator.indexer import Indexer
from coordinator.models import CursorRow
from lockstep.base.vitals import Vitals
from lockstep.chain import outbox as outbox_module
from lockstep.chain.outbox import Outbox
from lockstep.protocol.errors import TryLater
from lockstep.runtime.feewatch import FeeWatch
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
    assert (watch.poll(world.head), told, vitals.held) == ("", [], "")
    base_fee(world, 9)
    call = world.contracts.vault.request_unbond(1)  # type: ignore[arg-type]
    with pytest.raises(TryLater):
        outbox.submit(call, "unbond", check=False)
    held = watch.poll(world.head)
    assert watch.poll(world.head) == held, "asked once a head"
    assert held.endswith("waits: the base fee is 9 gwei per unit of gas, above the bound of 5 gwei")
    assert watch.poll(world.head) == held == vitals.held
    assert told == [("held", {"message": held})], "once"
    now[0] += 7
    base_fee(world, 2)
    assert (watch.poll(world.head), vitals.held) == ("", "")
    outbox.submit(call, "unbond", check=False)
    assert watch.poll(world.head) == ""
    assert told[1:] == [("released", {"seconds": 7.0})], "once"


def test_what_nobody_asks_for_any_more_is_told_no_more(
    world: World, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, vault = [100.0], world.contracts.vault
    monkeypatch.setattr(outbox_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    wanted, given_up = vault.withdraw(), vault.register_node(bytes(32))
    base_fee(world, 9)
    for call in (given_up, wanted):
        with pytest.raises(TryLater):
            outbox.submit(call, call.label, check=False)
    assert all(call.label in outbox.held() for call in (given_up, wanted))
    now[0] += outbox_module.ASKED_SECONDS
    with pytest.raises(TryLater):
        outbox.submit(wanted, wanted.label, check=False)
    assert given_up.label in outbox.held(), "its caller may rest for so long"
    now[0] += 1
    assert outbox.held().startswith(f"{wanted.label} waits: "), "what is asked for again alone"
    now[0] += outbox_module.ASKED_SECONDS
    assert outbox.held() == "", "while the fee is as high as it was"


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
