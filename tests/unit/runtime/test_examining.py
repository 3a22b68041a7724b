"""A role's doctor on a chain in memory: everything fit, then one thing after the other that is not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.base import machine
from lockstep.base.settings import Settings, resolve
from lockstep.chain.addresses import Addresses
from lockstep.chain.keys import KEYSTORE, NODE_KEY, create_account
from lockstep.protocol.types import Address
from lockstep.runtime import examining
from lockstep.runtime.examining import Examination, Result
from lockstep.runtime.guard import lock
from tests.support.memory.server import Server
from tests.support.world import World

ALL = {
    "home", "key", "node key", "device", "memory", "disk", "storage", "deployment", "chain", "contracts", "clock",
    "gas", "stake",
}  # fmt: skip


@pytest.fixture(scope="module")
def world() -> World:
    return World.start()


@pytest.fixture
def settings(world: World, tmp_path: Path) -> Iterator[Settings]:
    """Of a worker that lacks nothing."""
    server = Server(world.devnet.w3.provider)
    world.contracts.addresses.save(tmp_path / "deployment.json")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    create_account(home / KEYSTORE, "right", bytes(world.accounts["worker-0"].key), work=2)
    (tmp_path / "password").write_text("right")
    yield resolve(
        "worker", rpc=server.url, storage=f"dir://{tmp_path}/blocks", deployment=str(tmp_path / "deployment.json"),
        home=str(home), password_file=str(tmp_path / "password"), device="cpu",
    )  # fmt: skip
    server.close()


def run(settings: Settings, role: str = "worker") -> dict[str, Result]:
    return {result.check: result for result in Examination(settings, role).run()}


def failed(settings: Settings, role: str = "worker") -> set[str]:
    """The checks that fail, each with a hint."""
    bad = {name: r for name, r in run(settings, role).items() if not r.ok}
    assert all(r.hint for r in bad.values()), bad
    return set(bad)


def test_a_machine_that_lacks_nothing_passes_every_check(settings: Settings) -> None:
    found = run(settings)
    assert set(found) == ALL
    assert [r.line() for r in found.values() if not r.ok] == []
    assert set(run(settings, "verifier")) == ALL - {"node key"}
    assert not (settings.home_path / NODE_KEY).exists(), "a doctor makes no keys"


def test_each_thing_that_is_wrong_is_named_by_its_check(settings: Settings, tmp_path: Path) -> None:
    assert failed(replace(settings, home=str(tmp_path / "none"))) == {"home", "key"}
    (tmp_path / "wrong").write_text("wrong")
    assert failed(replace(settings, password_file=str(tmp_path / "wrong"))) == {"key"}
    assert failed(replace(settings, password_file="")) == {"key"}
    (settings.home_path / NODE_KEY).write_bytes(b"short")
    assert failed(settings) == {"node key"}
    (settings.home_path / NODE_KEY).unlink()
    assert failed(replace(settings, storage="http://127.0.0.1:9")) == {"storage"}
    assert failed(replace(settings, storage="gateway+http://127.0.0.1:9")) == {"storage"}
    assert failed(replace(settings, deployment=str(tmp_path / "none.json"))) == {"deployment"}
    assert failed(replace(settings, coordinator="http://127.0.0.1:9")) == {"coordinator http://127.0.0.1:9"}
    assert failed(replace(settings, rpc_check="http://127.0.0.1:9")) == {"second provider"}
    assert failed(replace(settings, rpc="http://127.0.0.1:9")) == {"chain"}
    settings.home_path.chmod(0o777)
    assert failed(settings) == {"home"}


def test_a_home_that_another_program_uses_is_refused_and_its_own_is_not(settings: Settings) -> None:
    with lock.held(settings.home_path, "coordinator"):
        assert failed(settings) == {"home"}
    with lock.held(settings.home_path, "worker"):
        assert failed(settings) == set()
        assert str(os.getpid()) in run(settings)["home"].message


def test_another_chain_and_a_chain_without_the_contracts(settings: Settings, world: World, tmp_path: Path) -> None:
    own = world.contracts.addresses
    Addresses(**{**own.__dict__, "chain_id": 5}).save(tmp_path / "deployment.json")
    assert failed(settings) == {"chain"}
    Addresses(**{**own.__dict__, "game": Address("0x" + "99" * 20)}).save(tmp_path / "deployment.json")
    found = run(settings)
    assert not found["contracts"].ok
    assert "game" in found["contracts"].message
    assert "stake" not in found, "no view is asked of a contract that is not there"


def test_an_account_without_coin_or_tokens_is_told_what_to_send(settings: Settings, tmp_path: Path) -> None:
    poor = tmp_path / "poor"
    poor.mkdir(mode=0o700)
    create_account(poor / KEYSTORE, "right", bytes([9]) * 32, work=2)
    assert failed(replace(settings, home=str(poor))) == {"gas", "stake"}


def test_a_clock_that_differs_is_wrong_but_on_a_local_chain(
    settings: Settings, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(examining, "CHAIN_ID", 0)
        for ahead, bad in ((0, set()), (-3600, {"clock"}), (3600, {"clock"}), (600, set())):
            elsewhere.setattr(time, "time", lambda ahead=ahead: float(world.now + ahead))
            assert failed(settings) == bad, ahead
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert failed(settings) == set()


def test_a_machine_without_memory_or_room(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "memory", lambda: machine.Memory(1 << 30, 1 << 20))
    monkeypatch.setattr(examining, "DISK_BYTES", 1 << 60)
    assert failed(settings) == {"memory", "disk"}
