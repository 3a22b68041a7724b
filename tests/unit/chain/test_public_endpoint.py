"""A reader and an outbox behind a public endpoint: short ranges of logs, small transactions, requests refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from eth_account.signers.local import LocalAccount

from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import CHAIN_ID, Local
from lockstep.chain.events import EventReader
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.market.ledger import Watcher
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.types import Wei
from tests.support.rpc_proxy import PUBLIC_LOG_BLOCKS, PUBLIC_TRANSACTION_BYTES, RpcProxy

pytestmark = pytest.mark.chain

KEY = "deadbeefcafe0123"


@pytest.fixture
def proxy(devnet: Local) -> Iterator[RpcProxy]:
    """A public endpoint with a key in its path, which refuses one request in fifty."""
    with RpcProxy.public(devnet.url, busy=0.02, seed=7, path=f"/v3/{KEY}") as made:
        yield made


def test_a_reader_and_an_outbox_work_behind_a_public_endpoint(
    devnet: Local, addresses: Addresses, rich: LocalAccount, proxy: RpcProxy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    w3, truth = connect(proxy.url, CHAIN_ID), Watcher(EventReader(devnet.w3, addresses))
    contracts = Contracts.at(w3, addresses)
    outbox = Outbox(tmp_path_factory.mktemp("sender") / "sender.sqlite", w3, rich)
    for i in range(3):
        assert outbox.send(contracts.token.approve(contracts.vault.address, Wei(i)), f"approve/{i}").succeeded
        assert outbox.send(contracts.vault.deposit(Wei(i)), f"deposit/{i}").succeeded
    devnet.mine(20)
    found = Watcher(EventReader(w3, addresses)).poll()
    assert found == truth.poll()
    assert max(proxy.ranges) <= PUBLIC_LOG_BLOCKS
    reader = EventReader(devnet.w3, addresses)
    deposits = [e for e in reader.poll(reader.start()).events if e.name == "Deposited"]
    assert [e.amount for e in deposits if e.account == rich.address] == list(range(3))
    outbox.close()


def test_a_transaction_that_the_endpoint_finds_too_large_is_an_error_and_no_bug(
    addresses: Addresses, rich: LocalAccount, proxy: RpcProxy, tmp_path_factory: pytest.TempPathFactory
) -> None:
    proxy.busy = 0.0
    w3 = connect(proxy.url, CHAIN_ID)
    contracts = Contracts.at(w3, addresses)
    outbox = Outbox(tmp_path_factory.mktemp("sender") / "sender.sqlite", w3, rich)
    approve = contracts.token.approve(contracts.vault.address, Wei(1))
    sent = outbox.send(approve, "small")
    assert sent.succeeded
    with pytest.raises(LockstepError) as refused:
        outbox.send(replace(approve, data=approve.data + bytes(PUBLIC_TRANSACTION_BYTES), gas=5_000_000), "large")
    assert "oversized" in refused.value.message
    assert refused.value.exit_code != 1, "no bug of ours"
    assert min(proxy.oversized) > PUBLIC_TRANSACTION_BYTES >= max(proxy.transactions)
    outbox.close()
