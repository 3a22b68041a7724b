"""The chain in memory against Anvil: the same transactions, and every byte of what comes of them the same.

Histories of tests/support/market/wander.py, block by block: status, returned data and reverts, every log's address,
topics and data; at the end everything that is stored, asked of both through eth_call. Block hashes, base fees and the
gas that a game's moves were metered at are Anvil's: nothing else is told to the chain in memory.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from eth_account.signers.local import LocalAccount
from web3.middleware import Web3Middleware

from lockstep.chain import reverts
from lockstep.chain.addresses import Addresses
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Devnet
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.market.court import data_gas
from lockstep.protocol.market.state import State
from lockstep.protocol.types import Address, Digest
from tests.support.market.wander import METERED, Wanderer
from tests.support.memory import abi
from tests.support.memory.devnet import MemoryDevnet
from tests.support.memory.machine import FIELDS, TRANSACTION_GAS

GAS = 5_000_000
SHARE = 5
BLOCKS = 60
"""Of a history, those that begin it apart."""
TRACED = {"tracer": "callTracer", "tracerConfig": {"onlyTopCall": True}}
PART = 20
"""Histories of one test of the slow run: Anvil slows down with what its chain holds."""
HISTORIES = int(os.environ.get("LOCKSTEP_HISTORIES", "100"))
NAMES = tuple(f"wanderer {i}" for i in range(8))
SPENT = 1
"""The field of a stored game that Anvil's meter fills."""


@dataclass
class Compared:
    """What was compared so far."""

    calls: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    histories: int = 0
    questions: int = 0
    differences: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How much of each there was."""
        return {
            "histories": self.histories, "calls": sum(self.calls.values()), "functions": len(self.calls),
            "refused": sum(self.refused.values()), "rules": len(self.refused), "events": sum(self.events.values()),
            "kinds of events": len(self.events), "questions": self.questions, "differences": len(self.differences),
        }  # fmt: skip


class OneByOne(Web3Middleware):
    """Every transaction is mined as soon as it is sent."""

    def wrap_make_request(self, make_request: Any) -> Any:
        """Asks the chain for a block after each transaction."""

        def request(method: Any, params: Any) -> Any:
            answer = make_request(method, params)
            if method == "eth_sendRawTransaction":
                make_request("evm_mine", [])
            return answer

        return request


@dataclass
class Both:
    """Two chains that are told the same."""

    anvil: Devnet
    memory: MemoryDevnet
    keys: dict[Address, LocalAccount]
    addresses: Addresses = field(init=False)
    compared: Compared = field(default_factory=Compared)
    http: requests.Session = field(default_factory=requests.Session)
    mirrored: int = 0
    """Blocks whose hashes are the same on both."""
    latest: int = 0
    """The time of the latest block."""

    @staticmethod
    def start(folder: Path, compared: Compared) -> Both:
        """The same deployment at the same addresses on both; what is compared counts in `compared`."""
        anvil = Devnet(folder, seed=9, block_seconds=0, remembered=300)
        memory = MemoryDevnet(seed=9, arbiter=ReferenceArbiter())
        accounts = [anvil.account(name) for name in NAMES]
        for name in NAMES:
            memory.account(name)
        both = Both(anvil, memory, {Address(account.address): account for account in accounts}, compared=compared)
        for chain in (anvil, memory):
            chain._request("anvil_autoImpersonateAccount", [True])
        both.deploy()
        return both

    def deploy(self) -> None:
        """A new deployment on both: what comes does not depend on what was."""
        for chain in (self.anvil, self.memory):
            chain._request("evm_setAutomine", [False])
        at = [self._deployed(chain) for chain in (self.anvil, self.memory)]
        assert at[0] == at[1]
        self.addresses = at[0]
        assert self.memory.chain.head.number == self.anvil.w3.eth.block_number
        blocks = self.memory.chain.blocks
        theirs = self.ask([("eth_getBlockByNumber", [hex(n), False]) for n in range(self.mirrored, len(blocks))])
        for block in theirs:
            number = int(block["number"], 16)
            blocks[number] = replace(blocks[number], hash=bytes.fromhex(block["hash"][2:]))
        self.mirrored = len(blocks)
        self.latest = max(int(theirs[-1]["timestamp"], 16), self.memory.chain.head.time)
        self.play(Wanderer(random.Random(0), self.keys), (), 1)

    @staticmethod
    def _deployed(chain: Devnet | MemoryDevnet) -> Addresses:
        """A deployment of a block for each transaction: a chain that mines by itself may put two into one."""
        onion = chain.w3.middleware_onion
        onion.add(OneByOne, "one by one")
        try:
            return deploy(chain.w3, chain.account("deployer"))
        finally:
            onion.remove("one by one")

    def ask(self, asked: Sequence[tuple[str, list[Any]]]) -> list[Any]:
        """Results of Anvil, in one request; several are reads."""
        if not asked:
            return []
        batch = [{"jsonrpc": "2.0", "id": i, "method": m, "params": p} for i, (m, p) in enumerate(asked)]
        answers = self.http.post(self.anvil.url, json=batch).json()
        for answer in answers:
            assert "error" not in answer, f"{asked[answer['id']]}: {answer['error']}"
        return [answer["result"] for answer in sorted(answers, key=lambda answer: answer["id"])]

    def told(self, method: str, *params: Any) -> Any:
        """The result of the chain in memory."""
        answer = self.memory.provider.make_request(method, list(params))  # type: ignore[arg-type]
        assert "error" not in answer, f"{method}{params}: {answer}"
        return answer["result"]

    @property
    def state(self) -> State:
        """Of the deployment, as the chain in memory has it."""
        found = self.memory.chain.world.states[self.addresses.token]
        assert found is not None
        return found

    # -- blocks

    def play(self, wanderer: Wanderer, calls: Sequence[MarketCall], seconds: int) -> None:
        """One block of calls on both, compared."""
        sent = [self._request_of(call) for call in calls]
        time = self.latest = self.latest + seconds
        # One after the other: Anvil answers the requests of a batch in any order.
        hashes = [self.ask([("eth_sendTransaction", [request])])[0] for request in sent]
        self.ask([("evm_setNextBlockTimestamp", [time])])
        self.ask([("evm_mine", [])])
        block = self.ask([("eth_getBlockByNumber", ["latest", False])])[0]
        receipts = self.ask([("eth_getTransactionReceipt", [hash_]) for hash_ in hashes])
        traces = self.ask([("debug_traceTransaction", [hash_, TRACED]) for hash_ in hashes])
        assert [receipt["transactionIndex"] for receipt in receipts] == [hex(i) for i in range(len(sent))]
        self._mirror_next(block)
        for call, request, receipt in zip(calls, sent, receipts, strict=True):
            hash_ = self.told("eth_sendTransaction", request)
            if call.contract == "DisputeGame" and call.function in METERED and receipt["status"] == "0x1":
                self.memory.chain.metered[bytes.fromhex(hash_[2:])] = self._metered(call, block["number"])
        self.told("evm_mine")
        mined = self.memory.chain.head.receipts
        assert len(mined) == len(sent), "every transaction is mined in its block"
        for call, mine, receipt, trace in zip(calls, mined, receipts, traces, strict=True):
            self._compare(call, mine, receipt, trace)
            wanderer.learn(mine.outcome.events)

    def pass_blocks(self, blocks: int) -> None:
        """Empty blocks on both, a second each."""
        first = self.memory.chain.head.number + 1
        self.ask([("anvil_mine", [hex(blocks), "0x1"])])
        for block in self.ask([("eth_getBlockByNumber", [hex(first + i), False]) for i in range(blocks)]):
            self._mirror_next(block)
            self.told("evm_mine")
        self.latest = self.memory.chain.head.time

    def _request_of(self, call: MarketCall) -> dict[str, str]:
        to = getattr(self.addresses, FIELDS[call.contract])
        return {"from": call.sender, "to": to, "data": "0x" + abi.data_of(call).hex(), "gas": hex(GAS)}

    def _mirror_next(self, block: Any) -> None:
        chain = self.memory.chain
        chain.next_time = int(block["timestamp"], 16)
        chain.next_base_fee = int(block["baseFeePerGas"], 16)
        chain.next_hash = bytes.fromhex(block["hash"][2:])

    def _metered(self, call: MarketCall, number: str) -> int:
        """What Anvil's meter added to a game, the intrinsic gas apart."""
        if call.function == "open":
            asked = MarketCall(
                "DisputeGame", "gameIdOf", call.sender, (call.arguments[0], call.sender, call.arguments[2])
            )
            id_ = Digest(bytes.fromhex(self.ask([("eth_call", [self._request_of(asked), number])])[0][2:]))
        else:
            id_ = call.arguments[0]
        stored = self.ask(
            [("eth_call", [self._request_of(MarketCall("DisputeGame", "game", call.sender, (id_,))), number])]
        )
        spent = int(stored[0][2 + 64 * SPENT : 2 + 64 * (SPENT + 1)], 16)
        return spent - self.state.games[id_].spent - TRANSACTION_GAS - data_gas(abi.data_of(call))  # type: ignore[index]

    # -- comparing

    def _compare(self, call: MarketCall, mine: Any, receipt: Any, trace: Any) -> None:
        name = f"{call.contract}.{call.function}"
        self.compared.calls[name] += 1
        status = receipt["status"] == "0x1"
        if not status:
            self.compared.refused[
                reverts.decode(bytes.fromhex(trace.get("output", "0x")[2:])).message.partition("(")[0]
            ] += 1
        output = trace.get("output") or "0x"
        self._same(f"{name} succeeds", status, mine.outcome.succeeded)
        self._same(f"{name} returns", output, "0x" + mine.outcome.returned.hex())
        said = [(log["address"].lower(), log["topics"], log["data"]) for log in receipt["logs"]]
        logs = [
            (log.address.lower(), [f"0x{topic.hex()}" for topic in log.topics], "0x" + log.data.hex())
            for log in mine.outcome.logs
        ]
        self._same(f"{name} logs", said, logs)
        self.compared.events.update(f"{event.contract}.{event.name}" for event in mine.outcome.events)

    def _same(self, what: str, said: object, mine: object) -> None:
        if said != mine:
            self.compared.differences.append(f"{what}: Anvil {said}, memory {mine}")

    def compare_stored(self) -> None:
        """Everything that is stored, and what follows of it."""
        asked = list(self._questions())
        nobody = next(iter(self.keys))
        sent = [self._request_of(MarketCall(contract, f, nobody, key)) for contract, f, key in asked]
        batch = [{"jsonrpc": "2.0", "id": i, "method": "eth_call", "params": [r, "latest"]} for i, r in enumerate(sent)]
        answers = {answer["id"]: answer for answer in self.http.post(self.anvil.url, json=batch).json()}
        for i, (question, request) in enumerate(zip(asked, sent, strict=True)):
            mine = self.memory.provider.make_request("eth_call", [request, "latest"])  # type: ignore[arg-type]
            self._same(f"{question}", _said(answers[i]), _said(mine))
        self.compared.questions += len(asked)

    def _questions(self) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
        s = self.state
        accounts = (*self.keys, s.at.vault, s.at.market)
        for account in accounts:
            yield "TestToken", "balanceOf", (account,)
            yield "TestToken", "allowance", (account, s.at.vault)
            for f in ("free", "credits", "unbonding", "delegateOf", "ownerOf", "proposedOwnerOf"):
                yield "StakeVault", f, (account,)
            yield "DisputeGame", "defending", (account,)
        yield "StakeVault", "totalEscrow", ()
        yield "TestToken", "totalSupply", ()
        for key in {*s.locks, *s.claims, *s.games, *s.demands}:
            yield "StakeVault", "lockOf", (key,)
        for job in s.jobs:
            for f in ("job", "params", "bondOf"):
                yield "JobMarket", f, (job,)
            yield "Witnesses", "accounts", (job,)
            for account in self.keys:
                yield "Witnesses", "witness", (job, account)
                yield "JobMarket", "barred", (job, account)
        for job, r in s.rounds:
            for f in ("round", "phase", "mergerOf"):
                yield "JobMarket", f, (job, r)
        for claim in s.claims:
            for f in ("claim", "live", "windowOpen", "convictedAt"):
                yield "JobMarket", f, (claim,)
            for t in (0, 1, 2, 3):
                yield "JobMarket", "factsOf", (claim, t, ())
            yield "Availability", "asked", (claim,)
            yield "Availability", "missing", (claim,)
        for audit in s.audits:
            yield "Witnesses", "audit", (audit,)
            yield "JobMarket", "rewound", (audit,)
        for duty in s.duties:
            yield "Witnesses", "duty", duty
        for demand in s.demands:
            yield "Availability", "demand", (demand,)
            yield "Availability", "seedOf", (demand,)
        for contract, digest in s.committed_at:
            yield contract, "committedAt", (digest,)
        for id_ in s.games:
            yield "DisputeGame", "game", (id_,)


def _said(answer: Any) -> str:
    """What a call returned, or reverted with."""
    if "result" in answer:
        return str(answer["result"])
    return f"reverts {answer['error'].get('data') or '0x'}"


def history(both: Both, seed: int) -> None:
    """One history: a few share a deployment, so that jobs that are over lie about."""
    compared = both.compared
    if compared.histories % SHARE == 0:
        both.deploy()
    dice = random.Random(seed)
    wanderer = Wanderer(dice, both.keys)
    before = len(compared.differences)
    for calls in wanderer.first_calls(both.state):
        both.play(wanderer, calls, 1)
    for _ in range(BLOCKS):
        chain = both.memory.chain
        calls = wanderer.calls(both.state, chain.environment(chain.head))
        both.play(wanderer, calls, dice.choice((1, 1, 1, 1, 2, 5, 12, 15, 30, 45)))
        if dice.random() < 0.004:
            both.pass_blocks(dice.choice((3, 260)))
        if len(compared.differences) > before:
            break
    both.compare_stored()
    compared.histories += 1
    if found := compared.differences[before:]:
        raise AssertionError(f"history {seed}:\n" + "\n".join(found[:9]))


@pytest.fixture(scope="module")
def compared() -> Compared:
    return Compared()


@pytest.fixture
def both(tmp_path: Path, compared: Compared) -> Iterator[Both]:
    made = Both.start(tmp_path, compared)
    yield made
    made.anvil.stop()


@pytest.mark.chain
@pytest.mark.slow
def test_some_histories_are_the_same_on_both_chains(both: Both) -> None:
    for seed in range(6):
        history(both, seed)
    assert len(both.compared.calls) > 40
    assert sum(both.compared.refused.values()) > 50


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, HISTORIES, PART))
def test_histories_are_the_same_on_both_chains(both: Both, first: int) -> None:
    for seed in range(1_000 + first, 1_000 + min(first + PART, HISTORIES)):
        history(both, seed)
    print(json.dumps(both.compared.counts()))
    assert min(len(both.compared.calls), len(both.compared.refused)) > 30
