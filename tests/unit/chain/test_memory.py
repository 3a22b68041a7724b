"""The chain in memory is no kinder than a chain: what it refuses, loses, delays and forgets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from eth_account.signers.local import LocalAccount
from web3.exceptions import TransactionNotFound, Web3RPCError

from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.events import EventReader
from lockstep.chain.outbox import Outbox
from lockstep.protocol.errors import ChainError, FundsError, Unreachable
from lockstep.protocol.types import Address, Wei
from tests.support.memory.chain import ELASTICITY, GAS_LIMIT, TRANSACTION_BYTES, Manners
from tests.support.memory.devnet import MemoryDevnet
from tests.support.memory.machine import created_by, floor_gas, intrinsic_gas
from tests.support.world import World

RICH = Wei(10**6)


class Small:
    """A chain with the contracts and an account that has tokens."""

    def __init__(self, manners: Manners | None = None) -> None:
        self.devnet = MemoryDevnet()
        self.contracts = Contracts.at(self.devnet.w3, deploy(self.devnet.w3, self.devnet.account("deployer")))
        self.account: LocalAccount = self.devnet.account("rich")
        self.me = Address(self.account.address)
        self.nonce = 0
        self.sent(self.contracts.token.mint(self.me, RICH))
        self.sent(self.contracts.token.approve(self.contracts.vault.address, RICH))
        if manners is not None:
            self.devnet.chain.manners = manners

    def signed(self, call: Call, nonce: int | None = None, **fields: Any) -> bytes:
        transaction = {
            "type": 2, "chainId": 31_337, "nonce": self.nonce if nonce is None else nonce, "to": call.to,
            "data": call.data, "value": 0, "gas": call.gas, "maxFeePerGas": 10**11, "maxPriorityFeePerGas": 10**9,
        } | fields  # fmt: skip
        return bytes(self.account.sign_transaction(transaction).raw_transaction)

    def sent(self, call: Call, **fields: Any) -> bytes:
        hash_ = self.devnet.w3.eth.send_raw_transaction(self.signed(call, **fields))
        self.nonce += "nonce" not in fields
        return bytes(hash_)

    def deposit(self, amount: int = 1) -> Call:
        return self.contracts.vault.deposit(Wei(amount))

    @property
    def free(self) -> int:
        return self.contracts.vault.free(self.me)

    def status(self, hash_: bytes) -> int:
        return int(self.devnet.w3.eth.get_transaction_receipt(hash_)["status"])  # type: ignore[arg-type]


# -- the pool


def test_a_transaction_waits_until_a_block_takes_it() -> None:
    chain = Small(Manners(automine=False))
    hash_ = chain.sent(chain.deposit(5))
    assert chain.free == 0
    assert chain.contracts.vault.read("free", chain.me, block="pending") == 5
    eth = chain.devnet.w3.eth
    assert (eth.get_transaction_count(chain.me), eth.get_transaction_count(chain.me, "pending")) == (2, 3)
    with pytest.raises(TransactionNotFound):
        chain.status(hash_)
    assert eth.get_transaction(hash_)["blockHash"] is None  # type: ignore[arg-type]
    chain.devnet.mine(1)
    assert (chain.free, chain.status(hash_)) == (5, 1)


def test_a_nonce_that_is_missing_holds_the_later_ones_up() -> None:
    chain = Small(Manners(automine=False))
    chain.sent(chain.deposit(1), nonce=chain.nonce + 1)
    chain.devnet.mine(2)
    assert chain.free == 0
    chain.sent(chain.deposit(2), nonce=chain.nonce)
    chain.devnet.mine(1)
    assert chain.free == 3


def test_a_transaction_gives_way_to_one_that_pays_a_tenth_more() -> None:
    chain = Small(Manners(automine=False))
    chain.sent(chain.deposit(1), nonce=2)
    with pytest.raises(Web3RPCError, match="replacement transaction underpriced"):
        chain.sent(chain.deposit(2), nonce=2, maxFeePerGas=10**11 + 1)
    chain.sent(chain.deposit(3), nonce=2, maxFeePerGas=11 * 10**10, maxPriorityFeePerGas=11 * 10**8)
    chain.devnet.mine(1)
    assert chain.free == 3


def test_a_pool_forgets_and_sorts_as_it_likes() -> None:
    chain = Small(Manners(automine=False, order="fees"))
    dropped = chain.sent(chain.deposit(1), nonce=2)
    assert chain.devnet._request("anvil_dropTransaction", ["0x" + dropped.hex()])
    other = chain.devnet.account("other")
    cheap = chain.sent(chain.deposit(7), nonce=2, maxPriorityFeePerGas=1)
    transfer = {
        "type": 2, "chainId": 31_337, "nonce": 0, "to": chain.me, "data": b"", "value": 5, "gas": 21_000,
        "maxFeePerGas": 10**11, "maxPriorityFeePerGas": 10**10,
    }  # fmt: skip
    dear = bytes(chain.devnet.w3.eth.send_raw_transaction(other.sign_transaction(transfer).raw_transaction))
    chain.devnet.mine(1)
    mined = [bytes(hash_) for hash_ in chain.devnet.w3.eth.get_block("latest")["transactions"]]  # type: ignore[arg-type]
    assert mined == [dear, cheap]
    with pytest.raises(TransactionNotFound):
        chain.status(dropped)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"nonce": 0}, "nonce too low"),
        ({"gas": 21_000}, "intrinsic gas too low"),
        ({"gas": GAS_LIMIT + 1}, "exceeds block gas limit"),
        ({"maxFeePerGas": 1, "maxPriorityFeePerGas": 1}, "less than block base fee"),
        ({"maxPriorityFeePerGas": 10**12}, "higher than max fee"),
        ({"value": 10**23}, "insufficient funds"),
        ({"chainId": 1}, "invalid chain id"),
    ],
)
def test_a_node_takes_no_such_transaction(fields: dict[str, Any], why: str) -> None:
    chain = Small()
    with pytest.raises(Web3RPCError, match=why):
        chain.devnet.w3.eth.send_raw_transaction(chain.signed(chain.deposit(), **fields))
    assert chain.devnet.w3.eth.get_transaction_count(chain.me) == chain.nonce


def test_a_transaction_is_taken_once_and_only_if_it_is_one() -> None:
    chain = Small()
    raw = chain.signed(chain.deposit())
    chain.devnet.w3.eth.send_raw_transaction(raw)
    with pytest.raises(Web3RPCError, match="already imported"):
        chain.devnet.w3.eth.send_raw_transaction(raw)
    for strange, why in ((b"\x01\x02", "type not supported"), (b"\x02\xff", "decode"), (b"", "type not supported")):
        with pytest.raises(Web3RPCError, match=why):
            chain.devnet.w3.eth.send_raw_transaction(strange)


def test_what_is_too_long_to_be_relayed_is_refused() -> None:
    chain = Small()
    call = Call(chain.contracts.vault.address, bytes(TRANSACTION_BYTES), GAS_LIMIT, "long")
    with pytest.raises(Web3RPCError, match="oversized data"):
        chain.devnet.w3.eth.send_raw_transaction(chain.signed(call))


# -- execution


def test_a_limit_that_does_not_suffice_is_spent_and_changes_nothing() -> None:
    chain = Small()
    before = chain.devnet.w3.eth.get_balance(chain.account.address)
    hash_ = chain.sent(chain.deposit(), gas=30_000)
    receipt = chain.devnet.w3.eth.get_transaction_receipt(hash_)  # type: ignore[arg-type]
    assert (receipt["status"], receipt["gasUsed"], receipt["logs"]) == (0, 30_000, [])
    assert chain.free == 0
    spent = before - chain.devnet.w3.eth.get_balance(chain.account.address)
    assert spent == 30_000 * receipt["effectiveGasPrice"]


def test_a_revert_costs_gas_and_undoes_events() -> None:
    chain = Small()
    hash_ = chain.sent(chain.contracts.vault.request_unbond(Wei(5)))
    receipt = chain.devnet.w3.eth.get_transaction_receipt(hash_)  # type: ignore[arg-type]
    assert (receipt["status"], receipt["logs"]) == (0, [])
    assert receipt["gasUsed"] > 21_000


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x02\x03\x04", bytes.fromhex("b6b55f25")], ids=len)
def test_data_that_no_function_takes_revert_with_nothing(data: bytes) -> None:
    chain = Small()
    call = Call(chain.contracts.vault.address, data, 200_000, "strange")
    assert chain.status(chain.sent(call)) == 0
    assert chain.status(chain.sent(replace(chain.deposit(), gas=200_000), value=1)) == 0, "nothing here is payable"


def test_code_of_nobody_knows_what_is_refused() -> None:
    chain = Small()
    transaction = {
        "type": 2, "chainId": 31_337, "nonce": chain.nonce, "data": b"\xfe" * 50, "value": 0, "gas": 10**6,
        "maxFeePerGas": 10**11, "maxPriorityFeePerGas": 0,
    }  # fmt: skip
    raw = chain.account.sign_transaction(transaction).raw_transaction
    receipt = chain.devnet.w3.eth.get_transaction_receipt(chain.devnet.w3.eth.send_raw_transaction(raw))
    assert (receipt["status"], receipt["contractAddress"]) == (0, None)
    assert created_by(b"\xfe" * 50) is None


def test_calldata_pay_their_floor() -> None:
    assert (intrinsic_gas(b""), intrinsic_gas(b"\0\x01"), floor_gas(b"\0\x01")) == (21_000, 21_020, 21_050)


def test_two_deployments_share_a_chain_and_nothing_else() -> None:
    chain = Small()
    other = Contracts.at(chain.devnet.w3, deploy(chain.devnet.w3, chain.devnet.account("another")))
    chain.sent(chain.deposit(9))
    assert (chain.free, other.vault.free(chain.me)) == (9, 0)
    assert other.addresses.vault != chain.contracts.addresses.vault


def test_a_base_fee_follows_how_full_blocks_are() -> None:
    chain = Small(Manners(automine=False))
    first = chain.devnet.chain.head.base_fee
    chain.devnet.mine(1)
    assert chain.devnet.chain.head.base_fee < first, "empty blocks make it cheaper"
    full = GAS_LIMIT // ELASTICITY // 2
    for nonce in range(3):
        call = Call(chain.contracts.vault.address, b"\xff" * 4, full, "burns")
        chain.sent(call, nonce=chain.nonce + nonce)
    before = chain.devnet.chain.head.base_fee
    chain.devnet.mine(1)
    assert chain.devnet.chain.head.gas_used < GAS_LIMIT // ELASTICITY, "an estimate is no limit"
    chain.devnet.mine(1)
    assert chain.devnet.chain.head.base_fee < before


# -- blocks that pass, go back, or do not come


def test_blocks_pass_between_reads() -> None:
    chain = Small(Manners(pace=3))
    seen = [chain.devnet.w3.eth.block_number for _ in range(9)]
    assert seen[-1] - seen[0] in (2, 3)


def test_a_reorganisation_takes_logs_back_and_transactions_may_come_again() -> None:
    chain = Small()
    reader = EventReader(chain.devnet.w3, chain.contracts.addresses)
    cursor = reader.poll(reader.start()).cursor
    hash_ = chain.sent(chain.deposit(4))
    batch = reader.poll(cursor)
    assert [event.name for event in batch.events] == ["Deposited"]
    block = chain.devnet.w3.eth.get_block("latest")
    mark = chain.devnet.snapshot()
    chain.devnet._request("anvil_reorg", [1, []])
    assert chain.devnet.w3.eth.block_number == block["number"]
    assert chain.devnet.w3.eth.get_block("latest")["hash"] != block["hash"]
    assert chain.free == 0
    with pytest.raises(TransactionNotFound):
        chain.status(hash_)
    again = reader.poll(batch.cursor)
    assert (again.rolled_back_to, again.events) == (block["number"] - 1, ())
    chain.devnet.revert(mark)
    assert chain.free == 4
    chain.devnet.chain.reorganise(1, keep=True)
    assert (chain.free, chain.status(hash_)) == (4, 1)
    assert chain.devnet.w3.eth.get_block("latest")["hash"] != block["hash"]


def test_the_first_block_stays() -> None:
    chain = Small()
    with pytest.raises(ChainError, match="cannot replace"):
        chain.devnet._request("anvil_reorg", [10_000, []])
    assert chain.devnet._request("evm_revert", ["0x63"]) is False


def test_slow_blocks_come_with_the_clock() -> None:
    chain = Small()
    now = [float(chain.devnet.chain.head.time)]
    chain.devnet.chain.clock = lambda: now[0]
    chain.devnet.chain.manners = Manners(block_seconds=12)
    first = chain.devnet.w3.eth.block_number
    chain.sent(chain.deposit(3))
    assert (chain.devnet.w3.eth.block_number, chain.free) == (first, 0)
    now[0] += 11
    assert chain.free == 0
    now[0] += 1
    assert chain.free == 3
    now[0] += 60
    assert chain.devnet.w3.eth.block_number == first + 6
    times = [chain.devnet.w3.eth.get_block(first + k)["timestamp"] for k in range(7)]
    assert {b - a for a, b in pairwise(times)} == {12}


def test_a_provider_limits_logs_is_gone_or_is_silent(tmp_path: Path) -> None:
    chain = Small(Manners(log_blocks=5))
    chain.sent(chain.deposit(2))
    chain.devnet.mine(40)
    reader = EventReader(chain.devnet.w3, chain.contracts.addresses)
    cursor, names = reader.start(), list[str]()
    for _ in range(60):
        batch = reader.poll(cursor)
        cursor, names = batch.cursor, [*names, *(event.name for event in batch.events)]
    assert names == ["Deposited"], "asked for in halves"
    outbox = Outbox(tmp_path / "outbox.db", chain.devnet.w3, chain.account)
    for down in ("refused", "silent"):
        chain.devnet.chain.manners = Manners(down=down)
        assert not chain.devnet.w3.is_connected()
        with pytest.raises(Unreachable, match="does not answer"):
            outbox.send(chain.deposit(3), "later")
    chain.devnet.chain.manners = Manners()
    assert outbox.send(chain.deposit(3), "later").succeeded
    with pytest.raises(FundsError):
        outbox.send(chain.contracts.vault.request_unbond(Wei(10**9)), "too much")
    assert chain.free == 5
    outbox.close()


def test_a_server_answers_a_batch_and_goes() -> None:
    import requests

    chain = Small()
    url = chain.devnet.url
    batch = [{"jsonrpc": "2.0", "id": i, "method": m, "params": []} for i, m in enumerate(("eth_chainId", "eth_none"))]
    answers = requests.post(url, json=batch, timeout=10).json()
    assert answers[0] == {"jsonrpc": "2.0", "id": 0, "result": "0x7a69"}
    assert answers[1]["error"]["code"] == -32601
    chain.devnet.chain.manners = Manners(down="refused")
    with pytest.raises(requests.ConnectionError):
        requests.post(url, json=batch[0], timeout=10)
    chain.devnet.stop()
    chain.devnet.stop()
    with pytest.raises(requests.ConnectionError):
        requests.post(url, json=batch[0], timeout=10)


def test_hashes_are_forgotten_after_256_blocks() -> None:
    world = World.start(witnesses=1, witness_fee=11, witness_stake=223, audit_seconds=40)
    block = world.devnet.chain.environment(world.devnet.chain.head)
    world.devnet.mine(300)
    latest = world.devnet.chain.environment(world.devnet.chain.head)
    number = latest.number
    assert latest.hash_of(number - 256) == world.devnet.chain.blocks[number - 256].hash
    assert latest.hash_of(number - 257) == latest.hash_of(number) == bytes(32)
    assert block.hash_of(block.number - 1) == world.devnet.chain.blocks[block.number - 1].hash


def test_a_world_plays_its_job_to_the_end() -> None:
    from lockstep.protocol.jobs import JobStatus, Phase

    world = World.start()
    for r in range(world.params.schedule.rounds):
        world.to(Phase.FINAL, r)
    assert world.refused(world.contracts.market.start_round(world.job, 2), "worker-0") == "RoundNotStartable"
    world.send(world.contracts.market.finish(world.job), "worker-0")
    assert world.contracts.market.job(world.job).status == JobStatus.DONE
    assert world.contracts.vault.credits(world.address("worker-1")) == 2 * world.params.role.slot_price
