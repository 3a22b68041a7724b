"""A chain that mines at once, and a deployment on it, for each test module that asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Devnet, Local, deploy
from lockstep.chain.outbox import Outbox
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.types import Wei
from tests.support.memory.devnet import MemoryDevnet


@pytest.fixture(scope="module", params=["memory", pytest.param("anvil", marks=pytest.mark.slow)])
def devnet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    if request.param == "memory":
        with MemoryDevnet(seed=7, arbiter=ReferenceArbiter()) as chain:
            yield chain
        return
    with Devnet(tmp_path_factory.mktemp("anvil"), seed=7, block_seconds=0) as chain:
        yield chain


@pytest.fixture(scope="module")
def addresses(devnet: Local) -> Addresses:
    return deploy(devnet.w3, devnet.account("deployer"))


@pytest.fixture(scope="module")
def contracts(devnet: Local, addresses: Addresses) -> Contracts:
    return Contracts.at(devnet.w3, addresses)


OpenOutbox = Callable[..., Outbox]


@pytest.fixture
def open_outbox(devnet: Local, tmp_path: Path) -> OpenOutbox:
    """Opens (again) the outbox of an account."""

    def opened(account: LocalAccount, name: str = "outbox.db", **options: int) -> Outbox:
        return Outbox(tmp_path / name, devnet.w3, account, **options)

    return opened


@pytest.fixture
def rich(devnet: Local, contracts: Contracts, open_outbox: OpenOutbox, request: pytest.FixtureRequest) -> LocalAccount:
    """An account of this test alone, with tokens that the vault may pull."""
    account = devnet.account(request.node.name)
    outbox = open_outbox(account, "rich.db")
    amount = Wei(1_000_000)
    outbox.send_all(
        [
            ("mint", contracts.token.mint(account.address, amount)),
            ("approve", contracts.token.approve(contracts.vault.address, amount)),
        ]
    )
    outbox.close()
    return account
