"""Sending: once per key, never what the pending state refuses, again after a revert; over a real outbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from eth_account import Account

from lockstep.chain.contracts import Call
from lockstep.chain.outbox import Outbox
from lockstep.market.acts import Action, ActionKind
from lockstep.protocol.errors import FundsError
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Wei
from lockstep.runtime.sender import Sender
from tests.support.world import World

ACT = Action(ActionKind.JOIN, 0, 1)


@dataclass
class Desk:
    """A worker's outbox in a round that waits for workers; nothing is mined until somebody mines."""

    world: World
    outbox: Outbox
    sender: Sender[Action]

    def join(self, slot: int = 1, r: int = 0) -> Call:
        return self.world.contracts.market.join(self.world.job, r, slot)

    def mine(self) -> None:
        self.world.devnet._request("evm_mine", [])
        self.sender.settle()

    @property
    def waiting(self) -> int:
        return len(self.world.devnet.chain.pool)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    world = World.start(slots=3)
    world.to(Phase.JOINING)
    world.devnet._request("evm_setAutomine", [False])
    outbox = Outbox(tmp_path / "outbox.db", world.devnet.w3, world.accounts["worker-1"])
    yield Desk(world, outbox, Sender(outbox))
    outbox.close()


def test_a_key_is_sent_once_until_it_is_settled(desk: Desk) -> None:
    sender = desk.sender
    assert sender.submit("k", desk.join(), ACT)
    assert sender.submit("k", desk.join(), ACT), "under way"
    assert desk.waiting == 1
    assert sender.acts() == {ACT}
    sender.settle()
    assert not sender.idle, "not mined yet"
    desk.mine()
    assert sender.idle
    assert sender.known("k")
    assert not sender.submit("k", desk.join(), ACT), "done is done"
    assert desk.waiting == 0


def test_what_reverted_is_sent_again(desk: Desk) -> None:
    market, chain = desk.world.contracts.market, desk.world.devnet
    assert desk.sender.submit("k", desk.join())
    # Somebody else's transaction comes first.
    chain.chain.manners.order = "fees"
    request = {
        "from": desk.world.address("mallory"), "to": market.address, "data": "0x" + desk.join().data.hex(),
        "gas": hex(800_000), "maxPriorityFeePerGas": hex(2 * 10**9), "maxFeePerGas": hex(10**12),
    }  # fmt: skip
    chain._request("eth_sendTransaction", [request])
    desk.mine()
    assert desk.sender.idle
    assert not desk.sender.known("k"), "forgotten, so that the key is free"
    assert desk.sender.submit("k", desk.join(2))
    desk.mine()
    assert market.claim(desk.world.claim_id(2)).worker == desk.world.address("worker-1")


def test_a_rule_that_would_be_broken_is_no_failure(desk: Desk) -> None:
    market, vault = desk.world.contracts.market, desk.world.contracts.vault
    for call in (
        desk.join(7),  # NoSuchSlot
        desk.join(0, r=1),  # WrongPhase
        market.seal(desk.world.job, 0),  # WrongPhase
        vault.request_unbond(Wei(10**12)),  # StakeTooLow, a rule about funds
    ):
        assert not desk.sender.submit("k", call)
    assert desk.sender.idle
    assert desk.waiting == 0


def test_what_depends_on_another_call_is_sent_right_behind_it(desk: Desk) -> None:
    vault, token, me = desk.world.contracts.vault, desk.world.contracts.token, desk.world.address("worker-1")
    mint, deposit = token.mint(me, Wei(10**12)), vault.deposit(Wei(10**12))
    desk.sender.submit("approve", token.approve(vault.address, Wei(10**13)))
    desk.mine()
    assert not desk.sender.submit("alone", deposit), "it has not so much"
    assert desk.sender.submit("behind", deposit, after=("before", mint))
    assert desk.waiting == 2
    assert not desk.sender.done("behind")
    free = vault.free(me)
    desk.mine()
    assert vault.free(me) == free + 10**12
    assert desk.sender.done("behind")
    assert not desk.sender.done("alone")


def test_gas_that_cannot_be_paid_ends_the_worker(desk: Desk, tmp_path: Path) -> None:
    poor = Outbox(tmp_path / "poor.db", desk.world.devnet.w3, Account.create())
    with pytest.raises(FundsError):
        Sender(poor).submit("k", desk.world.contracts.vault.set_delegate(desk.world.address("worker-1")))
    poor.close()


def test_what_is_due_again_is_sent_again_though_it_was_mined(desk: Desk) -> None:
    market, chain = desk.world.contracts.market, desk.world.devnet
    assert desk.sender.try_again("k", desk.join())
    assert desk.sender.try_again("k", desk.join()), "under way"
    assert desk.waiting == 1
    desk.mine()
    assert desk.sender.known("k")
    assert not desk.sender.try_again("k", desk.join()), "it is done: the chain refuses it"
    assert not desk.sender.try_again("another", desk.join(7)), "NoSuchSlot"
    assert desk.sender.try_again("second", desk.join(2))
    desk.mine()
    assert desk.sender.known("second")
    chain._request("anvil_reorg", [1])
    assert market.claim(desk.world.claim_id(2)).worker != desk.world.address("worker-1"), "its block is gone"
    assert desk.sender.try_again("second", desk.join(2))
    desk.mine()
    assert market.claim(desk.world.claim_id(2)).worker == desk.world.address("worker-1")
