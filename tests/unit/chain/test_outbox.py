"""The outbox: once per key, through kill -9, reverts, stuck fees and nonces that others took."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from eth_account.signers.local import LocalAccount
from web3.types import RPCEndpoint

from lockstep.base.machine import is_full
from lockstep.chain import outbox as outbox_module
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.devnet import Local, key_of
from lockstep.chain.outbox import Outbox
from lockstep.protocol.errors import ChainError, FundsError, TryLater
from lockstep.protocol.market.prices import MAX_FEE_CAP
from lockstep.protocol.types import Address, Seconds, Wei
from tests.support.memory.chain import GENESIS_TIME, Manners
from tests.support.memory.devnet import MemoryDevnet
from tests.support.waiting import wait
from tests.unit.chain.conftest import OpenOutbox

pytestmark = pytest.mark.chain

STRANGER = "0x" + "44" * 20


def test_one_key_is_one_transaction(contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox) -> None:
    outbox = open_outbox(rich)
    first = outbox.send(contracts.vault.deposit(Wei(10)), "stake")
    again = outbox.send(contracts.vault.deposit(Wei(10)), "stake")
    assert first == again
    assert contracts.vault.free(rich.address) == 10, "deposited once"
    assert first.gas_used > 21_000
    assert first.label == "StakeVault.deposit"
    assert open_outbox(rich).receipt("stake") == first, "also after a restart"


def test_dependent_calls_go_out_together(contracts: Contracts, devnet: Local, open_outbox: OpenOutbox) -> None:
    account = devnet.account("dependent")
    token, vault = contracts.token, contracts.vault
    receipts = open_outbox(account).send_all(
        [
            ("mint", token.mint(account.address, Wei(9))),
            ("approve", token.approve(vault.address, Wei(9))),
            ("stake", vault.deposit(Wei(9))),
        ]
    )
    assert all(receipt.succeeded for receipt in receipts)
    assert vault.free(account.address) == 9


def test_a_call_that_would_revert_is_refused_unsigned(
    contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    outbox = open_outbox(rich)
    with pytest.raises(FundsError, match="StakeTooLow"):
        outbox.send(contracts.vault.request_unbond(Wei(1)), "unbond")
    assert outbox.receipt("unbond") is None
    assert outbox.recover() == []
    outbox.send(contracts.vault.deposit(Wei(1)), "stake")
    assert outbox.send(contracts.vault.request_unbond(Wei(1)), "unbond").succeeded, "the key is still free"


def test_a_mined_revert_names_its_rule_and_keeps_its_key(
    contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox
) -> None:
    outbox = open_outbox(rich)
    with pytest.raises(FundsError, match=r"StakeTooLow\(.*, 2, 0\)"):
        outbox.send(contracts.vault.request_unbond(Wei(2)), "unbond", check=False)
    with pytest.raises(FundsError, match="StakeTooLow"):
        outbox.send(contracts.vault.deposit(Wei(1)), "unbond")
    outbox.forget("unbond")
    assert outbox.send(contracts.vault.deposit(Wei(1)), "unbond").succeeded


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["before broadcasting", "after broadcasting"])
def test_kill_loses_nothing_and_repeats_nothing(
    when: str, devnet: Local, contracts: Contracts, tmp_path: Path, open_outbox: OpenOutbox
) -> None:
    name = f"killed {when}"
    account = devnet.account(name)
    program = f"""
import os, signal, sys
from pathlib import Path
from eth_account import Account
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.outbox import Outbox
from lockstep.base.machine import is_full
from lockstep.chain.rpc import connect
from lockstep.protocol.types import Address, Wei

w3 = connect({devnet.url!r})
addresses = Addresses.load(Path({str(tmp_path / "addresses.json")!r}))
account = Account.from_key({key_of(devnet.seed, name)!r})
outbox = Outbox(Path({str(tmp_path / "killed.db")!r}), w3, account)
broadcast = outbox._wire.broadcast
def die(raw):
    if {when == "after broadcasting"}:
        broadcast(raw)
    os.kill(os.getpid(), signal.SIGKILL)
outbox._wire.broadcast = die
outbox.submit(Contracts.at(w3, addresses).token.mint(account.address, Wei(1)), "mint")
"""
    contracts.addresses.save(tmp_path / "addresses.json")
    run = subprocess.run([sys.executable, "-c", program], check=False)
    assert run.returncode == -signal.SIGKILL

    outbox = open_outbox(account, "killed.db")
    receipt = outbox.send(contracts.token.mint(account.address, Wei(1)), "mint")

    assert receipt.succeeded
    assert contracts.token.balance_of(account.address) == 1, "minted exactly once"
    assert devnet.w3.eth.get_transaction_count(account.address) == 1
    assert os.path.exists(tmp_path / "killed.db")


class Died(BaseException):
    """In place of a process's death."""


@pytest.mark.parametrize("when", ["before broadcasting", "after broadcasting"])
def test_an_end_in_the_middle_of_a_send_loses_nothing_and_repeats_nothing(
    when: str, devnet: Local, contracts: Contracts, open_outbox: OpenOutbox
) -> None:
    account = devnet.account(f"died {when}")
    call, outbox = contracts.token.mint(account.address, Wei(1)), open_outbox(account)
    broadcast = outbox._wire.broadcast

    def dies(raw: bytes) -> None:
        if when == "after broadcasting":
            broadcast(raw)
        raise Died

    outbox._wire.broadcast = dies  # type: ignore[method-assign]
    with pytest.raises(Died):
        outbox.submit(call, "mint")
    assert open_outbox(account).send(call, "mint").succeeded
    assert contracts.token.balance_of(account.address) == 1, "minted exactly once"
    assert devnet.w3.eth.get_transaction_count(account.address) == 1


def test_what_was_never_broadcast_does_not_block_what_follows(
    devnet: Local, contracts: Contracts, open_outbox: OpenOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = devnet.account("gap")
    outbox = open_outbox(account)
    monkeypatch.setattr(outbox._wire, "broadcast", lambda raw: None)
    outbox.submit(contracts.token.mint(account.address, Wei(1)), "first")
    outbox.close()
    again = open_outbox(account)
    again.send(contracts.token.mint(account.address, Wei(2)), "second")
    assert contracts.token.balance_of(account.address) == 3, "recover broadcast the first"


@pytest.mark.slow
def test_a_nonce_that_another_transaction_took_is_signed_anew(
    devnet: Local, contracts: Contracts, open_outbox: OpenOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = devnet.account("taken")
    outbox = open_outbox(account)
    with monkeypatch.context() as patch:
        patch.setattr(outbox._wire, "broadcast", lambda raw: None)
        outbox.submit(contracts.token.mint(account.address, Wei(5)), "mint")
    open_outbox(account, "same-key-elsewhere.db").send(contracts.token.mint(account.address, Wei(70)), "other")
    monkeypatch.setattr(outbox_module, "STUCK_SECONDS", 0.2)
    assert outbox.wait("mint").succeeded
    assert contracts.token.balance_of(account.address) == 75


def test_a_stuck_transaction_is_sent_with_a_higher_fee(
    contracts: Contracts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "STUCK_SECONDS", 0.0)
    with MemoryDevnet(manners=Manners(automine=False, pace=4)) as chain:
        account = chain.account("stuck")
        outbox = Outbox(tmp_path / "stuck.db", chain.w3, account)
        monkeypatch.setattr(outbox._wire, "fees", lambda: (1, chain.w3.eth.get_block("latest")["baseFeePerGas"] // 2))
        outbox.submit(outbox_module.Call(STRANGER, b"", 21_000, "coin", 7), "coin", check=False)
        monkeypatch.undo()
        monkeypatch.setattr(outbox_module, "STUCK_SECONDS", 0.0)
        receipt = outbox.wait("coin")
        assert chain.w3.eth.get_balance(STRANGER) == 7, "paid once"
        assert chain.w3.eth.get_transaction_count(account.address) == 1, "the replacement used the same nonce"
        assert receipt.succeeded


def test_an_account_without_coin_is_told_so_and_its_nonce_stays_free(
    devnet: Local, contracts: Contracts, open_outbox: OpenOutbox
) -> None:
    from eth_account import Account

    poor = Account.from_key(key_of(devnet.seed, "poor"))
    outbox = open_outbox(poor)
    for check in (True, False):
        with pytest.raises(FundsError, match="gas"):
            outbox.send(contracts.token.mint(poor.address, Wei(1)), "mint", check=check)
    devnet.account("poor")
    assert outbox.send(contracts.token.mint(poor.address, Wei(1)), "mint").succeeded


def test_a_move_goes_out_at_every_fee_that_a_job_refunds(devnet: Local, open_outbox: OpenOutbox) -> None:
    outbox = open_outbox(devnet.account("dear"))
    for base, label in ((501 * 10**9, "beyond the old bound"), (MAX_FEE_CAP, "at the cap: the tip gives way")):
        devnet.w3.provider.make_request(RPCEndpoint("anvil_setNextBlockBaseFeePerGas"), [hex(base)])
        devnet.mine(1)
        devnet.w3.provider.make_request(RPCEndpoint("anvil_setNextBlockBaseFeePerGas"), [hex(base)])
        assert outbox.send(outbox_module.Call(STRANGER, b"", 21_000, "move", 1), label).gas_price >= base, label
    devnet.w3.provider.make_request(RPCEndpoint("anvil_setNextBlockBaseFeePerGas"), [hex(10**9)])
    devnet.mine(1)


def test_a_fee_above_the_bound_is_not_paid(contracts: Contracts, rich: LocalAccount, open_outbox: OpenOutbox) -> None:
    outbox = open_outbox(rich, "cheap.db", max_fee_wei=1)
    with pytest.raises(TryLater, match="base fee"):
        outbox.send(contracts.vault.deposit(Wei(1)), "stake")
    assert outbox.recover() == []


def test_a_tip_stays_within_its_bound_however_often_it_is_raised(devnet: Local, open_outbox: OpenOutbox) -> None:
    outbox = open_outbox(devnet.account("tight"), max_tip_wei=10**8)
    devnet.w3.provider.make_request(RPCEndpoint("evm_setAutomine"), [False])
    try:
        outbox.submit(Call(Address(STRANGER), b"", 21_000, "move", 1), "move", check=False)
        bids = []
        for _ in range(6):
            row = outbox._known("move")
            found = devnet.w3.eth.get_transaction(json.loads(row["hashes"])[0])
            bids.append((found["maxPriorityFeePerGas"], found["maxFeePerGas"]))
            outbox._send_again("move")
        assert outbox._known("move")["hashes"] == row["hashes"], "without room it waits as it is"
    finally:
        devnet.w3.provider.make_request(RPCEndpoint("evm_setAutomine"), [True])
        devnet.mine(1)
    dearer = [bid for bid, before in zip(bids[1:], bids, strict=False) if bid != before]
    assert len(dearer) == 3, "the node took each of them, from half of the bound on"
    for before, bid in zip(bids, dearer, strict=False):
        assert all(10 * new >= 11 * old for old, new in zip(before, bid, strict=True)), (before, bid)
    assert max(tip for tip, _ in bids) <= 10**8
    assert outbox.wait("move", 20).succeeded


def test_what_the_bound_holds_back_is_told_until_it_is_sent(devnet: Local, open_outbox: OpenOutbox) -> None:
    outbox = open_outbox(devnet.account("held"), "held.db", max_fee_wei=5 * 10**9)
    call = Call(Address(STRANGER), b"", 21_000, "Market.join", 1)
    assert outbox.held() == ""
    devnet.w3.provider.make_request(RPCEndpoint("anvil_setNextBlockBaseFeePerGas"), [hex(9 * 10**9)])
    devnet.mine(1)
    with pytest.raises(TryLater, match="above the bound of 5 gwei") as held:
        outbox.submit(call, "join")
    assert held.value.code == "try_later.fee"
    assert "lower" in held.value.hint
    assert outbox.held().startswith("Market.join waits: the base fee is 9 gwei")
    devnet.w3.provider.make_request(RPCEndpoint("anvil_setNextBlockBaseFeePerGas"), [hex(10**9)])
    devnet.mine(1)
    assert outbox.send(call, "join").gas_price <= 5 * 10**9
    assert outbox.held() == ""


def test_a_full_disk_is_said_to_be_one_and_takes_no_nonce(
    contracts: Contracts, devnet: Local, open_outbox: OpenOutbox
) -> None:
    account = devnet.account("full disk")
    outbox, mint = open_outbox(account), contracts.token.mint(account.address, Wei(1))
    (pages,) = outbox._journal._database.execute("PRAGMA page_count").fetchone()
    outbox._journal._database.execute(f"PRAGMA max_page_count = {pages}")
    sent: list[str] = []

    def fill() -> None:
        for i in range(100):
            outbox.submit(mint, f"mint {i}")
            sent.append(f"mint {i}")

    with pytest.raises(sqlite3.Error) as full:
        fill()
    assert is_full(full.value), "SQLite has taken the transaction back by itself"
    assert not outbox._journal._database.in_transaction
    outbox._journal._database.execute(f"PRAGMA max_page_count = {pages + 100}")
    sent.append("after")
    outbox.submit(mint, "after")
    assert all(outbox.wait(key).succeeded for key in sent)
    assert contracts.token.balance_of(account.address) == len(sent)


def test_threads_share_one_outbox(devnet: Local, contracts: Contracts, open_outbox: OpenOutbox) -> None:
    account = devnet.account("threads")
    outbox = open_outbox(account)
    failures: list[BaseException] = []

    def mint(i: int) -> None:
        try:
            outbox.send(contracts.token.mint(account.address, Wei(10**i)), f"mint {i}")
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=mint, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contracts.token.balance_of(account.address) == 111_111


def test_another_chain_with_the_same_id_has_its_own_rows(devnet: Local, contracts: Contracts, tmp_path: Path) -> None:
    account = devnet.account("two chains")
    here = Outbox(tmp_path / "shared.db", devnet.w3, account)
    here.send(outbox_module.Call(STRANGER, b"", 21_000, "coin", 1), "coin")
    here.close()
    with MemoryDevnet(seed=devnet.seed, genesis_time=Seconds(GENESIS_TIME + 1)) as chain:
        there = Outbox(tmp_path / "shared.db", chain.w3, chain.account("two chains"))
        if chain.w3.eth.get_block(0)["hash"] != devnet.w3.eth.get_block(0)["hash"]:
            assert there.receipt("coin") is None
        assert there.send(outbox_module.Call(STRANGER, b"", 21_000, "coin", 1), "coin 2").succeeded


def test_waiting_for_what_was_not_submitted_is_an_error(rich: LocalAccount, open_outbox: OpenOutbox) -> None:
    with pytest.raises(ChainError, match="nothing was submitted"):
        open_outbox(rich).wait("never")


def _gift(wei: int) -> Call:
    """A transfer of the chain's own coin."""
    return Call(Address(STRANGER), b"", 21_000, "gift", wei)


def test_what_a_reorganisation_took_off_the_chain_is_sent_again(tmp_path: Path) -> None:
    with MemoryDevnet() as devnet:
        outbox = Outbox(tmp_path / "outbox.sqlite", devnet.w3, devnet.account("giver"))
        first = outbox.send(_gift(1), "first")
        outbox.send(_gift(10), "second")
        devnet._request("anvil_reorg", [1, []])
        assert devnet.w3.eth.get_balance(STRANGER) == 1, "its block is another now, and empty"
        outbox.submit(_gift(10), "second")
        assert outbox.wait("second", 20).succeeded
        assert devnet.w3.eth.get_balance(STRANGER) == 11, "whoever asks for it again has it done"
        assert outbox.receipt("first") == first, "what stands is left alone"

        outbox.send(_gift(100), "third")
        devnet._request("anvil_reorg", [1, []])
        assert outbox.send(_gift(1000), "fourth", timeout=20).succeeded
        assert outbox.wait("third", 20).succeeded
        assert devnet.w3.eth.get_balance(STRANGER) == 1111, "and so has whoever asks for something later"
        outbox.close()


def test_a_receipt_counts_as_long_as_its_transaction_is_on_the_chain(tmp_path: Path) -> None:
    with MemoryDevnet() as devnet:
        outbox = Outbox(tmp_path / "outbox.sqlite", devnet.w3, devnet.account("giver"))
        first, second = outbox.send(_gift(1), "first"), outbox.send(_gift(10), "second")
        devnet._request("anvil_reorg", [1, []])
        assert outbox.receipt("first") == first
        assert outbox.receipt("second") != second, "it is not done: whoever asks has it sent again"
        assert outbox.wait("second", 20).block > second.block
        assert devnet.w3.eth.get_balance(STRANGER) == 11
        outbox.close()


def test_what_a_reorganisation_took_and_nobody_waits_for_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MemoryDevnet() as devnet:
        outbox = Outbox(tmp_path / "outbox.sqlite", devnet.w3, devnet.account("giver"))
        for key, value in (("first", 1), ("second", 10)):
            outbox.submit(_gift(value), key)
        while devnet.w3.eth.get_balance(STRANGER) < 11:
            time.sleep(0.02)
        # Nobody has looked: to the outbox they are sent, to the node they have never been.
        devnet._request("anvil_reorg", [2, []])
        outbox.submit(_gift(100), "third")
        assert devnet.w3.eth.get_balance(STRANGER) == 0, "it stands behind what the node has lost"
        monkeypatch.setattr(outbox, "_push_at", 0.0)
        wait(lambda: outbox.receipt("third") is not None, "the third receipt")
        assert devnet.w3.eth.get_balance(STRANGER) == 111
        assert outbox.recover() == []
        outbox.close()


def test_an_account_that_sends_nothing_more_has_what_was_undone_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MemoryDevnet() as devnet:
        outbox = Outbox(tmp_path / "outbox.sqlite", devnet.w3, devnet.account("giver"))
        outbox.send(_gift(1), "first")
        devnet._request("anvil_reorg", [1, []])
        assert devnet.w3.eth.get_balance(STRANGER) == 0
        outbox.tend()
        assert _balance_of(devnet, 1), "nobody asked for it"
        # Once more, and the node loses what was sent again as well.
        devnet._request("anvil_reorg", [1, []])
        monkeypatch.setattr(outbox._wire, "broadcast", _refused)
        outbox.tend()
        monkeypatch.undo()
        assert devnet.w3.eth.get_balance(STRANGER) == 0
        monkeypatch.setattr(outbox, "_push_at", 0.0)
        outbox.tend()
        assert _balance_of(devnet, 1), "what waits for long is sent again"
        outbox.close()


def _balance_of(devnet: Local, wanted: int) -> bool:
    """True once the stranger has that much."""
    wait(lambda: devnet.w3.eth.get_balance(STRANGER) == wanted, f"a balance of {wanted}", every=0.02)
    return True


def _refused(*_: object) -> None:
    raise ChainError("not now")


def test_a_nonce_that_nobody_remembers_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "STUCK_SECONDS", 0.3)
    with MemoryDevnet() as devnet:
        outbox = Outbox(tmp_path / "outbox.sqlite", devnet.w3, devnet.account("giver"))
        outbox.send(_gift(1), "forgotten")
        outbox.send(_gift(10), "kept")
        outbox.forget("forgotten")
        devnet._request("anvil_reorg", [2, []])
        outbox.submit(_gift(10), "kept")
        assert outbox.wait("kept", 20).succeeded
        assert devnet.w3.eth.get_balance(STRANGER) == 10
        outbox.close()
