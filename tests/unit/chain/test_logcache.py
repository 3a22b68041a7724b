"""A copy of final logs on disk: a restart asks for new blocks alone; what does not fit is not believed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from eth_account.signers.local import LocalAccount
from structlog.testing import capture_logs

from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Devnet, deploy
from lockstep.chain.events import Event, EventReader
from lockstep.chain.logcache import LogCache
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.node.ledger import Watcher
from lockstep.protocol.types import Address, Wei
from tests.support.rpc_proxy import PUBLIC_LOG_BLOCKS, RpcProxy

pytestmark = pytest.mark.chain

EMPTY = 150
"""Blocks behind the deposits: more than a chain may take back."""


class Scene:
    """A chain with some deposits that are final, an endpoint that counts, a copy."""

    def __init__(self, folder: Path) -> None:
        self.devnet = Devnet(folder / "chain", block_seconds=0)
        self.account: LocalAccount = self.devnet.account("saver")
        self.addresses: Addresses = deploy(self.devnet.w3, self.account)
        contracts = Contracts.at(self.devnet.w3, self.addresses)
        self.vault = contracts.vault
        self.outbox = Outbox(folder / "outbox.sqlite", self.devnet.w3, self.account)
        self.outbox.send(contracts.token.mint(Address(self.account.address), Wei(99)), "mint")
        self.outbox.send(contracts.token.approve(self.vault.address, Wei(99)), "yes")
        self.deposit(1)
        self.deposit(2)
        self.devnet.mine(EMPTY)
        self.path = folder / "home" / "logs.sqlite"
        self.proxy = RpcProxy(self.devnet.url, PUBLIC_LOG_BLOCKS)

    def deposit(self, amount: int) -> None:
        self.outbox.send(self.vault.deposit(Wei(amount)), f"deposit/{amount}/{self.devnet.w3.eth.block_number}")

    def start(self, addresses: Addresses | None = None) -> list[Event]:
        """What a process that starts now reads; it is asked what it cost by `proxy.requests`."""
        w3 = connect(self.proxy.url)
        self.proxy.requests.clear()
        self.proxy.ranges.clear()
        cache = LogCache(self.path, w3, addresses or self.addresses)
        found = Watcher(EventReader(w3, addresses or self.addresses, cache=cache)).poll()
        cache.close()
        return found

    def truth(self) -> list[Event]:
        return Watcher(EventReader(self.devnet.w3, self.addresses)).poll()

    def close(self) -> None:
        self.outbox.close()
        self.proxy.close()
        self.devnet.stop()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


def amounts(found: list[Event]) -> list[int]:
    return [event.amount for event in found if event.name == "Deposited"]


def test_a_restart_asks_for_new_blocks_alone(scene: Scene) -> None:
    assert scene.start() == scene.truth()
    first = sum(scene.proxy.ranges)
    assert first > EMPTY, "every block, once"
    scene.deposit(3)
    found = scene.start()
    assert amounts(found) == [1, 2, 3]
    assert found == scene.truth(), "the copy is the chain's own, to the last field"
    assert sum(scene.proxy.ranges) <= first - 60, "blocks that are final are not asked for again"
    assert scene.proxy.requests["eth_getBlockByNumber"] <= 4 * len(scene.proxy.ranges) + 8


@pytest.mark.slow
def test_blocks_that_are_not_final_are_not_written(scene: Scene) -> None:
    mark = scene.devnet.snapshot()
    scene.deposit(3)
    assert amounts(scene.start()) == [1, 2, 3]
    scene.devnet.revert(mark)
    scene.deposit(4)
    with capture_logs() as said:
        assert scene.start() == scene.truth(), "the third deposit is in another block now"
    assert said == [], "nothing of the copy was wrong"


@pytest.mark.slow
def test_a_copy_of_another_chain_is_dropped(scene: Scene, tmp_path: Path) -> None:
    scene.start()
    with sqlite3.connect(scene.path) as file:
        file.execute("UPDATE covered SET hash='00'")
    with capture_logs() as said:
        assert scene.start() == scene.truth()
    assert [line["why"] for line in said] == ["its last block is not on the chain"]
    with capture_logs() as said:
        assert scene.start() == scene.truth()
    assert said == [], "there is a new one"


@pytest.mark.slow
def test_a_copy_that_was_changed_is_dropped(scene: Scene) -> None:
    scene.start()
    with sqlite3.connect(scene.path) as file:
        file.execute("DELETE FROM logs WHERE block=(SELECT MAX(block) FROM logs)")
    with capture_logs() as said:
        assert amounts(scene.start()) == [1, 2]
    assert [line["why"] for line in said] == ["it was changed"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("content", [b"no database", b"", b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_dropped(scene: Scene, content: bytes) -> None:
    scene.start()
    for file in scene.path.parent.iterdir():
        file.write_bytes(content)
    with capture_logs() as said:
        assert scene.start() == scene.truth()
    assert all("damaged" in line["event"] for line in said)
    assert bool(said) == bool(content)
    scene.start()
    assert sum(scene.proxy.ranges) < EMPTY, "it is a copy again"


@pytest.mark.slow
def test_a_damaged_page_is_dropped(scene: Scene) -> None:
    scene.start()
    with sqlite3.connect(scene.path) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(scene.path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    scene.path.write_bytes(content)
    assert scene.start() == scene.truth()


@pytest.mark.slow
def test_a_place_where_nothing_can_be_written_costs_the_copy_alone(scene: Scene) -> None:
    scene.path.parent.parent.joinpath("home").write_text("a file, and no folder")
    with capture_logs() as said:
        assert scene.start() == scene.truth()
    assert said


@pytest.mark.slow
def test_deployments_do_not_mix(scene: Scene) -> None:
    scene.start()
    other = deploy(scene.devnet.w3, scene.devnet.account("other"))
    assert amounts(scene.start(other)) == []
    assert scene.start() == scene.truth()


@pytest.mark.slow
def test_two_processes_on_one_file_write_each_block_once(scene: Scene) -> None:
    w3 = connect(scene.proxy.url)
    caches = [LogCache(scene.path, w3, scene.addresses) for _ in range(2)]
    readers = [Watcher(EventReader(w3, scene.addresses, cache=cache)) for cache in caches]
    assert [amounts(reader.poll()) for reader in readers] == [[1, 2], [1, 2]]
    scene.devnet.mine(EMPTY)
    for reader in readers:
        reader.poll()
    for cache in caches:
        cache.close()
    with capture_logs() as said:
        assert scene.start() == scene.truth()
    assert said == []
