"""A game's log from a provider that gives few blocks at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import Local
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import Unreachable
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Wei
from tests.support.rpc_proxy import RpcProxy
from tests.unit.chain.conftest import OpenOutbox

pytestmark = pytest.mark.chain

LIMIT = 20
DEPOSITED = bytes(keccak(b"Deposited(address,uint256)"))


def deposits(contracts: Contracts, devnet: Local, open_outbox: OpenOutbox, name: str) -> tuple[int, list[Any]]:
    """(first block, topics) of three deposits of an account, many blocks apart."""
    account = devnet.account(name)
    outbox, token, vault = open_outbox(account), contracts.token, contracts.vault
    outbox.send_all(
        [("mint", token.mint(Address(account.address), Wei(9))), ("yes", token.approve(vault.address, Wei(9)))]
    )
    first = devnet.w3.eth.block_number
    for amount in (1, 3, 5):
        outbox.send(vault.deposit(Wei(amount)), f"deposit/{amount}")
        devnet.mine(3 * LIMIT)
    return int(first), [None, "0x" + account.address[2:].lower().rjust(64, "0")]


def amounts(logs: list[Any]) -> list[int]:
    return [int.from_bytes(bytes(entry["data"]), "big") for entry in logs if entry["topics"][0] == DEPOSITED]


@pytest.mark.sampled(1)
def test_logs_are_read_in_parts_from_the_end_and_come_in_order(
    contracts: Contracts, devnet: Local, open_outbox: OpenOutbox, tmp_path: Path
) -> None:
    first, topics = deposits(contracts, devnet, open_outbox, "saver")
    proxy = RpcProxy(devnet.url, LIMIT)
    try:
        limited = Contracts.at(connect(proxy.url), contracts.addresses)
        found = games._logs(limited.vault, first, topics)  # type: ignore[arg-type]
        assert amounts(found) == [1, 3, 5]
        assert proxy.refused, "the first request was too large"
        asked = proxy.refused
        last = games._logs(limited.vault, first, topics, DEPOSITED)  # type: ignore[arg-type]
        assert amounts(last) == [5], "nothing before the first entry is asked for"
        assert proxy.refused == asked, "its limit is known by now"
    finally:
        proxy.close()


@pytest.mark.sampled(1)
def test_a_provider_that_gives_no_block_is_named(
    contracts: Contracts, devnet: Local, open_outbox: OpenOutbox, tmp_path: Path
) -> None:
    first, topics = deposits(contracts, devnet, open_outbox, "another saver")
    proxy = RpcProxy(devnet.url, 0)
    try:
        limited = Contracts.at(connect(proxy.url), contracts.addresses)
        with pytest.raises(Unreachable, match="refuses the logs of block"):
            games._logs(limited.vault, first, topics)  # type: ignore[arg-type]
    finally:
        proxy.close()
