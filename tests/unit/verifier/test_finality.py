"""The setting `finality` on a chain whose safe block is 32 behind the head and whose finalized one 64."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep.base.settings import resolve
from lockstep.chain.finality import relied_block
from lockstep.chain.outbox import Outbox
from lockstep.client import Network
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.errors import TryLater, Unreachable
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Address, Wei
from lockstep.runtime.idle import IdleSince
from lockstep.runtime.party import Party
from lockstep.runtime.staking import StakingAccount
from lockstep.storage.directory import DirectoryStore
from tests.support.constant import Lie
from tests.support.memory.chain import Manners
from tests.support.memory.devnet import MemoryDevnet
from tests.support.world import World
from tests.unit.verifier.desk import desk_of

__all__ = ["desk_of"]

LIAR, SAFE, FINAL = 1, 32, 64


@pytest.fixture
def world() -> World:
    manners = Manners(safe=SAFE, finalized=FINAL)
    return World.start(MemoryDevnet(manners=manners, arbiter=ReferenceArbiter()))


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
    assert not desk.verifier._at_rest(desk.verifier.poll(True)), "a reorganisation could still bring the game back"
    world.devnet.mine(SAFE)
    assert not desk.verifier._at_rest(desk.verifier.poll(True)), "safe is not final"
    world.devnet.mine(over + FINAL - world.head)
    assert desk.verifier._at_rest(desk.verifier.poll(True))


@pytest.mark.sampled(1)
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
        staking = StakingAccount(world.contracts, account, outbox, finality="safe")
        moved = staking.unstake(Wei(7))
        assert not staking.final(moved)
        world.devnet.mine(SAFE)
        assert staking.final(moved)
        assert StakingAccount(world.contracts, account, outbox).final(moved), "the latest block is relied on there"
    finally:
        outbox.close()
    assert Address(account.address) == staking.key


def test_what_is_at_stake_again_is_settled_anew() -> None:
    idle = IdleSince()
    assert idle.at(-5), "nothing ever was at stake"
    for at_stake, block in ((True, 10), (False, 12), (False, 13)):
        idle.see(at_stake, block)
    assert [idle.at(block) for block in (11, 12, 13)] == [False, True, True]
    idle.see(True, 14)
    assert not idle.at(10**9)
    idle.see(False, 20)
    assert [idle.at(block) for block in (19, 20)] == [False, True]


@pytest.mark.parametrize(("text", "told"), [("3", "3 blocks deep"), ("FINALIZED", "finalized")])
def test_a_finality_as_people_read_it(text: str, told: str) -> None:
    assert resolve(finality=text).finality_text == told


def test_who_has_a_history_knows_nothing_of_it_until_the_first_look() -> None:
    idle = IdleSince(fresh=False)
    assert (idle.always, idle.at(10**9)) == (False, False), "an earlier process may have had a stake"
    idle.see(False, 50)
    assert [idle.at(block) for block in (49, 50)] == [False, True]
    again = IdleSince(fresh=False)
    again.see(True, 50)
    assert not again.at(10**9)


def test_who_had_a_stake_in_another_home_rests_from_the_first_look_on() -> None:
    idle = IdleSince(fresh=True)
    idle.see(False, 50)
    assert idle.at(0), "the account never locked anything"
    idle.see(False, 51, before=True)
    assert [idle.at(block) for block in (50, 51)] == [False, True], "its end may be undone, and nobody saw it"
    idle.see(False, 60, before=True)
    assert idle.at(51), "once"


def test_a_key_that_moves_to_a_new_home_leaves_no_earlier_than_the_old_one(world: World, desk_of: Any) -> None:
    world.to(Phase.ATTESTING, lies={LIAR: Lie.VALUE})
    old = desk_of(world, finality="3")
    old.until("challenged")
    world.pass_to(world.now + 2 * world.params.windows.clock_seconds)
    old.until("won")
    old.until("withdrawn", draining=True)
    old.stop()
    for file in old.home.glob("outbox.sqlite*"):
        file.unlink()
    old.start()
    assert not old.party.outbox.keys("")
    assert not old.verifier._at_rest(old.verifier.poll(True)), "a reorganisation could still bring the game back"
    world.devnet.mine(3)
    assert old.verifier._at_rest(old.verifier.poll(True))


def test_a_verifier_rests_since_the_block_of_its_ledger(
    world: World, desk_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(world, finality="2")
    desk.verifier._idle.see(True, world.head)
    read, late = desk.verifier._market.read, world.head

    def reads_late() -> None:
        world.devnet.mine(4)
        read()

    monkeypatch.setattr(desk.verifier._market, "read", reads_late)
    view = desk.verifier.poll(True)
    assert (view.head.number, view.block) == (late, late + 4), "blocks came between the head and its events"
    assert not desk.verifier._idle.at(late + 3), "up to there something may have been at stake"
    assert desk.verifier._idle.at(late + 4)


def test_a_verifier_that_begins_anew_leaves_no_earlier_than_it_would_have(world: World, desk_of: Any) -> None:
    desk = desk_of(world, finality="3")
    assert desk.verifier._at_rest(desk.verifier.poll(True)), "a home that has sent nothing"
    desk.party.outbox.send(world.contracts.token.mint(desk.party.address, Wei(1)), "mint")
    desk.stop()
    desk.start()
    assert not desk.verifier._at_rest(desk.verifier.poll(True))
    world.devnet.mine(3)
    assert desk.verifier._at_rest(desk.verifier.poll(True))


def test_a_draining_verifier_stays_where_no_final_block_is_named(
    world: World, desk_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def relied(party: Party, head: int) -> int:
        asked.append(head)
        raise (TryLater("no finalized block", "") if len(asked) == 1 else Unreachable("nobody answers", ""))

    monkeypatch.setattr(Party, "relied", relied)
    desk = desk_of(world, finality="finalized")
    desk.verifier._idle.see(True, 1)
    first = world.head
    for _ in range(3):
        assert not desk.verifier._at_rest(desk.verifier.poll(True))
    world.devnet.mine(1)
    assert not desk.verifier._at_rest(desk.verifier.poll(True))
    assert asked == [first, first + 1], "once a head, and no error"


def test_a_watch_goes_on_where_no_final_block_is_named(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in (world.contracts.market.cancel(world.job), world.contracts.market.finish(world.job)):
        world.send(call, "requester")
    asked: list[int] = []

    def named(w3: Any, finality: str, head: int) -> int:
        asked.append(head)
        if len(asked) == 1:
            world.devnet.mine(1)
            raise TryLater("the chain's provider names no finalized block", "")
        return head

    monkeypatch.setattr("lockstep.requester.following.relied_block", named)
    store = DirectoryStore(tmp_path / "blocks")
    net = Network(world.devnet.w3, world.contracts, store, world.accounts["requester"], tmp_path, finality="finalized")
    over = world.head
    assert [e.name for e in net.job(world.job).watch(0.01)] == ["JobCreated", "JobCancelled", "JobDone"]
    assert asked == [over, over + 1], "once a head"
