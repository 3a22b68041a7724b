"""An RPC that is down is Unreachable (exit 9): when connecting, and ever after."""

import socket
from pathlib import Path

import pytest

from lockstep.chain.contracts import Contracts
from lockstep.chain.devnet import CHAIN_ID, Devnet, Local, deploy
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.protocol.errors import ChainError, Unreachable
from lockstep.protocol.types import Wei

pytestmark = pytest.mark.chain


def test_nobody_listening_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unreachable, match="does not answer") as caught:
            connect(url)
    assert caught.value.exit_code == 9
    assert caught.value.hint, "says what to do"


def test_another_scheme_is_refused() -> None:
    with pytest.raises(Unreachable, match="not an http"):
        connect("127.0.0.1:8545")


def test_another_chain_is_refused(devnet: Local) -> None:
    with pytest.raises(ChainError, match=f"is chain {CHAIN_ID}, not 1"):
        connect(devnet.url, chain_id=1)


def test_a_chain_that_goes_down_is_unreachable_everywhere_and_loses_nothing(tmp_path: Path) -> None:
    chain = Devnet(tmp_path / "a", block_seconds=0)
    account = chain.account("x")
    contracts = Contracts.at(chain.w3, deploy(chain.w3, account))
    outbox = Outbox(tmp_path / "outbox.db", chain.w3, account)
    chain.stop()
    with pytest.raises(Unreachable):
        contracts.vault.free(account.address)
    with pytest.raises(Unreachable):
        outbox.send(contracts.token.mint(account.address, Wei(1)), "mint")
    assert outbox._journal.row("mint") is None, "nothing half-written"
