"""Two providers: whoever of them lies delays a reader, and is not believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lockstep.chain import rpc
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.crosscheck import TELL_SECONDS, CrossCheck
from lockstep.chain.devnet import deploy
from lockstep.chain.events import Event, EventReader
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.market.ledger import Watcher
from lockstep.protocol.errors import TryLater, Unreachable
from lockstep.protocol.types import Address, Wei
from tests.support.memory.devnet import MemoryDevnet
from tests.support.rpc_proxy import RpcProxy


class Pair:
    """A chain, two providers of it, a reader that believes neither alone."""

    def __init__(self, folder: Path) -> None:
        self.devnet = MemoryDevnet()
        account = self.devnet.account("saver")
        self.addresses: Addresses = deploy(self.devnet.w3, account)
        contracts = Contracts.at(self.devnet.w3, self.addresses)
        self.outbox, self.vault = Outbox(folder / "outbox.sqlite", self.devnet.w3, account), contracts.vault
        self.outbox.send(contracts.token.mint(Address(account.address), Wei(99)), "mint")
        self.outbox.send(contracts.token.approve(self.vault.address, Wei(99)), "yes")
        self.first, self.second = RpcProxy(self.devnet.url), RpcProxy(self.devnet.url, 5)
        self.now = 0.0
        self.check = CrossCheck(connect(self.second.url), self.first.url, self.second.url, lambda: self.now)
        self.watcher = Watcher(EventReader(connect(self.first.url), self.addresses, check=self.check))

    def deposit(self, amount: int) -> None:
        self.outbox.send(self.vault.deposit(Wei(amount)), f"deposit/{amount}")

    def read(self) -> list[int]:
        found: list[Event] = self.watcher.poll()
        return [event.amount for event in found if event.name == "Deposited"]

    def close(self) -> None:
        self.outbox.close()
        self.first.close()
        self.second.close()
        self.devnet.stop()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(rpc, "WAIT_SECONDS", (0.01, 0.05))
    made = Pair(tmp_path)
    yield made
    made.close()


def test_who_agrees_is_read(pair: Pair) -> None:
    pair.deposit(1)
    pair.devnet.mine(20)
    pair.deposit(2)
    assert pair.read() == [1, 2]
    assert pair.second.refused, "the second one has a limit of its own"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lie", ["drops_logs", "other_hashes"])
@pytest.mark.parametrize("liar", ["first", "second"])
def test_a_lie_of_either_delays_and_is_not_believed(pair: Pair, liar: str, lie: str) -> None:
    pair.deposit(1)
    assert pair.read() == [1]
    pair.deposit(2)
    setattr(getattr(pair, liar), lie, True)
    with capture_logs() as said:
        for pair.now in (0.0, 1.0, TELL_SECONDS + 1):
            with pytest.raises(TryLater, match="differently") as caught:
                pair.read()
    assert pair.first.url in caught.value.message
    assert pair.second.url in caught.value.message
    assert len(said) == 2, "once a minute"
    setattr(getattr(pair, liar), lie, False)
    pair.deposit(3)
    assert pair.read() == [2, 3], "nothing was lost"


def test_who_is_behind_sets_the_pace(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.deposit(1)
    behind = pair.devnet.w3.eth.block_number
    pair.deposit(2)
    head = pair.check.head
    monkeypatch.setattr(pair.check, "head", lambda: behind)
    assert pair.read() == [1]
    monkeypatch.setattr(pair.check, "head", head)
    assert pair.read() == [2]


def test_who_is_gone_is_an_outage(pair: Pair) -> None:
    pair.deposit(1)
    pair.second.down = True
    with pytest.raises(Unreachable, match=pair.second.url):
        pair.read()
    pair.second.down = False
    assert pair.read() == [1]
