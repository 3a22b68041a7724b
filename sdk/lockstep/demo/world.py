"""Sets up a market: chain, contracts, storage, keys, tokens, processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet, key_of
from lockstep.chain.keys import KEYSTORE, NODE_KEY, create_account, create_node_key
from lockstep.chain.outbox import Outbox
from lockstep.demo.processes import Group, Lie, Process
from lockstep.demo.report import Participant
from lockstep.presets import TOKEN
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Seconds, Wei
from lockstep.storage import ContentStore, open_store

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

READY_SECONDS = 60.0
WALLET = Wei(1_000 * TOKEN)
"""The balance that every party starts with."""

UNBOND_SECONDS = Seconds(3600)
KEYSTORE_WORK = 2
"""Scrypt work of the demo's keystores: their keys follow from a public seed."""


@dataclass
class World:
    """One running market."""

    folder: Path
    devnet: Devnet
    contracts: Contracts
    store: ContentStore
    storage_url: str
    """The storage's RPC as a multiaddr."""
    storage_http: str
    group: Group
    seed: int
    parties: list[Participant] = field(default_factory=list)
    rpc: dict[str, str] = field(default_factory=dict)
    """A party's own RPC URL, if it has one."""

    def account(self, name: str) -> LocalAccount:
        """The funded account of a party."""
        return self.devnet.account(name)

    def home(self, name: str) -> Path:
        """Returns a party's own directory."""
        return self.folder / name

    def join(
        self, name: str, role: str, arguments: list[str], env: Mapping[str, str] | None = None, lie: Lie | None = None
    ) -> Process:
        """Start a party's process, or its lying double, with its own key and home."""
        self.parties.append(Participant(role, Address(self.account(name).address), None if lie is None else lie[0]))
        common = [
            "--rpc", self.rpc.get(name, self.devnet.url), "--storage", self.storage_url,
            "--deployment", str(self.folder / "deployment.json"),
            "--home", str(self.home(name)), "--password-file", str(self.home(name) / "password"),
        ]  # fmt: skip
        # The demo's keys were made for it: there is no other machine to listen for.
        return self.group.start(name, [*arguments, *common], {"LOCKSTEP_LISTEN_SECONDS": "0", **(env or {})}, lie)


def build(
    folder: Path, group: Group, seed: int, devnet: Devnet, names: list[str], unbond: Seconds = UNBOND_SECONDS,
    storage_port: int = 0,
) -> World:  # fmt: skip
    """Deploys the contracts, serves storage, creates every party's keys and funds their accounts."""
    deployer = devnet.account("deployer")
    storage = _serve(folder, group, storage_port)
    addresses = deploy(devnet.w3, deployer, unbond_seconds=unbond)
    addresses.save(folder / "deployment.json")
    contracts = Contracts.at(devnet.w3, addresses)
    accounts = {name: devnet.account(name) for name in names}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: _make_home(folder / name, seed, name), names))
    outbox = Outbox(folder / "deployer.sqlite", devnet.w3, deployer)
    try:
        mints = [
            (f"mint/{name}", contracts.token.mint(Address(account.address), WALLET))
            for name, account in accounts.items()
        ]
        outbox.send_all(mints)
    finally:
        outbox.close()
    return _world(folder, group, seed, devnet, contracts, storage)


def reopen(folder: Path, group: Group, seed: int, devnet: Devnet, storage_port: int = 0) -> World:
    """Opens a market that `build` made, on its own chain; deploys, creates and funds nothing."""
    storage = _serve(folder, group, storage_port)
    contracts = Contracts.at(devnet.w3, Addresses.load(folder / "deployment.json"))
    return _world(folder, group, seed, devnet, contracts, storage)


def _serve(folder: Path, group: Group, port: int) -> Process:
    return group.start("storage", ["storage", "serve", "--home", str(folder / "storage"), "--port", str(port)])


def _world(folder: Path, group: Group, seed: int, devnet: Devnet, contracts: Contracts, storage: Process) -> World:
    ready = storage.wait_for("ready", READY_SECONDS)
    url = ready["multiaddr"]
    return World(folder, devnet, contracts, open_store(url), url, ready["url"], group, seed)


def _make_home(home: Path, seed: int, name: str) -> None:
    home.mkdir(parents=True, mode=0o700)
    password = keccak(f"lockstep devnet password {seed} {name}".encode()).hex()
    descriptor = os.open(home / "password", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password)
    create_account(home / KEYSTORE, password, key_of(seed, name), work=KEYSTORE_WORK)
    create_node_key(home / NODE_KEY, keccak(b"node" + key_of(seed, name)))
