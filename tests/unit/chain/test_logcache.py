"""A copy of final logs on disk: a restart asks for new blocks alone; what does not fit is not believed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lockstep.chain import logcache
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import deploy
from lockstep.chain.events import Event, EventReader
from lockstep.chain.logcache import LogCache, users_cache
from lockstep.chain.rpc import connect
from lockstep.market.ledger import Watcher
from lockstep.protocol.types import Address, Wei
from tests.support.memory.chain import Manners
from tests.support.memory.devnet import MemoryDevnet
from tests.support.rpc_proxy import PUBLIC_LOG_BLOCKS, RpcProxy
from tests.support.sending import transact

FINAL = 8
"""Blocks that the chain may take back."""

EMPTY = 40
"""Blocks behind the deposits."""


@pytest.fixture(scope="module")
def chain() -> Iterator[tuple[MemoryDevnet, Contracts]]:
    """Two deposits of the saver that are final."""
    with MemoryDevnet(manners=Manners(finalized=FINAL)) as devnet:
        contracts = Contracts.at(devnet.w3, deploy(devnet.w3, devnet.account("deployer")))
        devnet._request("anvil_autoImpersonateAccount", [True])
        saver, vault = Address(devnet.account("saver").address), contracts.vault
        for call in (
            contracts.token.mint(saver, Wei(99)), contracts.token.approve(vault.address, Wei(99)),
            vault.deposit(Wei(1)), vault.deposit(Wei(2)),
        ):  # fmt: skip
            transact(devnet, call, saver)
        devnet.mine(EMPTY)
        yield devnet, contracts


class Scene:
    """The chain, an endpoint that counts, a copy."""

    def __init__(self, folder: Path, devnet: MemoryDevnet, contracts: Contracts) -> None:
        self.devnet, self.contracts, self.addresses = devnet, contracts, contracts.addresses
        self.path = folder / "home" / "logs.sqlite"
        self.proxy = RpcProxy(self.devnet.url, PUBLIC_LOG_BLOCKS)

    def deposit(self, amount: int) -> None:
        transact(self.devnet, self.contracts.vault.deposit(Wei(amount)), Address(self.devnet.account("saver").address))

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


@pytest.fixture
def scene(tmp_path: Path, chain: tuple[MemoryDevnet, Contracts]) -> Iterator[Scene]:
    made, mark = Scene(tmp_path, *chain), chain[0].snapshot()
    yield made
    made.proxy.close()
    chain[0].revert(mark)


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
    assert sum(scene.proxy.ranges) <= first - EMPTY + 3 * FINAL, "blocks that are final are not asked for again"
    assert scene.proxy.requests["eth_getBlockByNumber"] <= 4 * len(scene.proxy.ranges) + 8


def test_blocks_that_are_not_final_are_not_written(scene: Scene) -> None:
    mark = scene.devnet.snapshot()
    scene.deposit(3)
    assert amounts(scene.start()) == [1, 2, 3]
    scene.devnet.revert(mark)
    scene.deposit(4)
    with capture_logs() as said:
        assert scene.start() == scene.truth(), "the third deposit is in another block now"
    assert said == [], "nothing of the copy was wrong"


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


def test_a_copy_that_was_changed_is_dropped(scene: Scene) -> None:
    scene.start()
    with sqlite3.connect(scene.path) as file:
        file.execute("DELETE FROM logs WHERE block=(SELECT MAX(block) FROM logs)")
    with capture_logs() as said:
        assert amounts(scene.start()) == [1, 2]
    assert [line["why"] for line in said] == ["it was changed"]


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


def test_a_damaged_page_is_dropped(scene: Scene) -> None:
    scene.start()
    with sqlite3.connect(scene.path) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(scene.path.read_bytes())
    content[-4096:] = b"\xff" * 4096
    scene.path.write_bytes(content)
    assert scene.start() == scene.truth()


def test_a_place_where_nothing_can_be_written_costs_the_copy_alone(scene: Scene) -> None:
    scene.path.parent.parent.joinpath("home").write_text("a file, and no folder")
    with capture_logs() as said:
        assert scene.start() == scene.truth()
    assert said


def test_deployments_do_not_mix(scene: Scene) -> None:
    scene.start()
    other = deploy(scene.devnet.w3, scene.devnet.account("other"))
    assert amounts(scene.start(other)) == []
    assert scene.start() == scene.truth()


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


# -- the copy of a user's commands -------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's copies, on a machine where ten blocks are many."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(logcache, "WORTH_BLOCKS", 10)
    return tmp_path / "cache" / logcache.FOLDER


def commanded(scene: Scene, rpc: str) -> tuple[list[Event], int]:
    """Returns the events that a command reads, and the number of blocks that it asks for."""
    w3 = connect(scene.proxy.url)
    scene.proxy.ranges.clear()
    with users_cache(rpc, w3, scene.addresses) as cache:
        return Watcher(EventReader(w3, scene.addresses, cache=cache)).poll(), sum(scene.proxy.ranges)


def test_a_command_asks_for_no_final_block_again(scene: Scene, kept: Path) -> None:
    found, first = commanded(scene, "here")
    assert found == scene.truth()
    again, second = commanded(scene, "here")
    assert (again, second <= first - EMPTY + 3 * FINAL) == (found, True)
    assert commanded(scene, "elsewhere") == (found, first), "what one provider has told is no other one's"
    assert len(list(kept.glob("*.sqlite"))) == 2


def test_a_short_chain_is_not_kept(scene: Scene, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logcache, "WORTH_BLOCKS", 10**6)
    assert commanded(scene, "here")[0] == scene.truth()
    assert not kept.exists()


def test_a_cache_that_cannot_be_used_costs_a_command_nothing(scene: Scene, kept: Path) -> None:
    kept.parent.mkdir(mode=0o755)
    kept.parent.chmod(0o755)
    assert commanded(scene, "here")[0] == scene.truth()
    assert not kept.exists()


def test_copies_that_nobody_reads_are_deleted(scene: Scene, kept: Path) -> None:
    commanded(scene, "here")
    (old,) = kept.glob("*.sqlite")
    os.utime(old, (0, 0))
    commanded(scene, "here")
    assert old.stat().st_mtime > 0, "it is in use"
    os.utime(old, (0, 0))
    commanded(scene, "elsewhere")
    assert not old.exists()
    assert len(list(kept.glob("*.sqlite"))) == 1
