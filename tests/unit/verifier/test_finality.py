"""The setting `finality` on Anvil, whose safe block is 32 behind the head and whose finalized one 64."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.base.settings import resolve
from lockstep.chain.devnet import Devnet
from lockstep.chain.finality import relied_block
from lockstep.chain.outbox import Outbox
from lockstep.client import Network
from lockstep.node.purse import Purse
from lockstep.node.resting import Resting
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Address, Wei
from lockstep.storage.directory import DirectoryStore
from tests.support.constant import Lie
from tests.support.world import World
from tests.unit.verifier.desk import desk_of

__all__ = ["desk_of"]

LIAR, SAFE, FINAL = 1, 32, 64


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Devnet(tmp_path / "anvil", block_seconds=0) as devnet:
        yield World.start(devnet)


def test_the_block_that_is_relied_on(world: World) -> None:
    world.devnet.mine(100)
    w3, head = world.devnet.w3, world.head
    relied = {said: relied_block(w3, said, head) for said in ("latest", "0", "3", "999", "safe", "finalized")}
    assert relied == {
        "latest": head, "0": head, "3": head - 3, "999": head - 999, "safe": head - SAFE, "finalized": head - FINAL,
    }  # fmt: skip
    assert relied_block(w3, "safe", 5) == 5, "not later than the head that it was asked with"


def test_a_verifier_leaves_once_its_last_game_is_final(world: World, desk_of: Any) -> None:
    world.to(Phase.ATTESTING, lies={LIAR: Lie.VALUE})
    desk = desk_of(world, finality="finalized")
    desk.until("challenged")
    world.pass_to(world.now + 2 * world.params.windows.clock_seconds)
    desk.until("won")
    desk.until("withdrawn", draining=True)
    over = world.head
    assert not desk.verifier._at_rest(desk.verifier.look(True)), "a reorganisation could still bring the game back"
    world.devnet.mine(SAFE)
    assert not desk.verifier._at_rest(desk.verifier.look(True)), "safe is not final"
    world.devnet.mine(over + FINAL - world.head)
    assert desk.verifier._at_rest(desk.verifier.look(True))


@pytest.mark.parametrize(("finality", "depth"), [("latest", 0), ("2", 2), ("safe", SAFE), ("finalized", FINAL)])
def test_a_watch_of_a_job_ends_once_its_end_is_relied_on(
    world: World, tmp_path: Path, finality: str, depth: int
) -> None:
    for call in (world.contracts.market.cancel(world.job), world.contracts.market.finish(world.job)):
        world.send(call, "requester")
    over, seen = world.head, list[str]()
    store = DirectoryStore(tmp_path / "blocks")
    net = Network(
        world.devnet.w3, world.contracts, store, world.accounts["requester"], tmp_path, finality=finality
    )  # fmt: skip
    watch = threading.Thread(target=lambda: seen.extend(e.name for e in net.job(world.job).watch(0.01)), daemon=True)
    watch.start()
    if depth:
        world.devnet.mine(over + depth - 1 - world.head)
        watch.join(0.5)
        assert watch.is_alive(), "a block too few"
        world.devnet.mine(1)
    watch.join(20)
    assert (watch.is_alive(), seen) == (False, ["JobCreated", "JobCancelled", "JobDone"])


def test_who_takes_money_out_is_told_whether_it_is_final(world: World, tmp_path: Path) -> None:
    account = world.accounts["mallory"]
    outbox = Outbox(tmp_path / "outbox.sqlite", world.devnet.w3, account)
    try:
        purse = Purse(world.contracts, account, outbox, finality="safe")
        moved = purse.unstake(Wei(7))
        assert not purse.final(moved)
        world.devnet.mine(SAFE)
        assert purse.final(moved)
        assert Purse(world.contracts, account, outbox).final(moved), "the latest block is relied on there"
    finally:
        outbox.close()
    assert Address(account.address) == purse.key


def test_what_is_at_stake_again_is_settled_anew() -> None:
    resting = Resting()
    assert resting.at(-5), "nothing ever was at stake"
    for at_stake, block in ((True, 10), (False, 12), (False, 13)):
        resting.see(at_stake, block)
    assert [resting.at(block) for block in (11, 12, 13)] == [False, True, True]
    resting.see(True, 14)
    assert not resting.at(10**9)
    resting.see(False, 20)
    assert [resting.at(block) for block in (19, 20)] == [False, True]


@pytest.mark.parametrize(("text", "told"), [("3", "3 blocks deep"), ("FINALIZED", "finalized")])
def test_a_finality_as_people_read_it(text: str, told: str) -> None:
    assert resolve(finality=text).finality_told == told
