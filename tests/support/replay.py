"""Replays a chain in the twin, transaction by transaction, and compares refusals, events and storage.

Everything that a test did on Anvil with the contracts of one deployment is compared: all contracts, refused calls, and
the bytes of every event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from web3 import Web3

from lockstep.chain import reverts
from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Contract
from lockstep.chain.signatures import recovered
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market.calls import Block, Emitted, MarketCall
from lockstep.protocol.market.court import TRANSACTION_GAS, data_gas
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.state import Deployment, State
from lockstep.protocol.transition import execute, view
from lockstep.protocol.types import Address, Digest, Seconds
from tests.support.memory.abi import call_of, data_of, log_of, returned
from tests.support.memory.machine import FIELDS

METERED = ("open", "pick", "adjacent", "pickElement", "pickPartial", "stage")


def recover(digest: Digest, signature: bytes) -> Address:
    """Recovers the signer as the EVM does."""
    return recovered(digest, signature) or ZERO_ADDRESS


# -- the replay


class _Hashes(dict[int, bytes]):
    def __init__(self, w3: Web3) -> None:
        super().__init__()
        self._w3 = w3

    def __missing__(self, number: int) -> bytes:
        self[number] = bytes(self._w3.eth.get_block(number)["hash"])
        return self[number]


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


@dataclass
class Replay:
    """One deployment, with the twin that replays it."""

    w3: Web3
    addresses: Addresses
    state: State = field(init=False)
    calls: Counter[str] = field(default_factory=Counter)
    """Replayed calls by contract and function."""
    refused: Counter[str] = field(default_factory=Counter)
    """Refused calls by broken rule."""
    events: int = 0
    differences: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        at = self.addresses
        market, vault = (self._contract(name) for name in ("JobMarket", "StakeVault"))
        self.state = State.empty(
            Deployment(
                at.chain_id, at.token, at.vault, at.market, at.game, at.validator, at.witnesses, at.availability,
                Seconds(vault.read("unbondSeconds")), at.arbiter,
                ChainTimes(*(Seconds(market.read(name)) for name in ("inclusionSeconds", "censorSeconds"))),
                recover, ReferenceArbiter(),
            )
        )  # fmt: skip
        self._names = {
            getattr(at, name).lower(): contract for contract, name in FIELDS.items() if contract != "Arbiter"
        }
        self._hashes = _Hashes(self.w3)

    def run(self) -> Replay:
        """Replays from the deployment to the latest block."""
        last = self.w3.eth.block_number
        for number in range(self.addresses.block, last + 1):
            found = self._ask("eth_getBlockByNumber", hex(number), True)
            block = Block(
                number, Seconds(int(found["timestamp"], 16)), self._hashes, int(found.get("baseFeePerGas", "0x0"), 16)
            )
            for transaction, receipt in zip(
                found["transactions"], self._ask("eth_getBlockReceipts", hex(number)), strict=True
            ):
                if transaction["to"] in self._names:
                    self._replay(block, transaction, receipt)
        for what, said, mine in self._stored(last):
            if said != mine:
                self.differences.append(f"{what}: the contract has {said.hex()}, the twin {mine.hex()}")
        return self

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Returns a node's raw answer: web3's conversion would take most of a replay's time."""
        answer = self.w3.provider.make_request(method, list(arguments))  # type: ignore[arg-type]
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def _replay(self, block: Block, transaction: Any, receipt: Any) -> None:
        contract, data = self._names[transaction["to"]], _bytes(transaction["input"])
        call = call_of(contract, Address(Web3.to_checksum_address(transaction["from"])), data)
        succeeded = int(receipt["status"], 16) == 1
        if contract == "DisputeGame" and call.function in METERED and succeeded:
            call = call_of(contract, call.sender, data, self._metered(call, block.number))
        name = f"{contract}.{call.function}"
        self.calls[name] += 1
        said = "" if succeeded else self._revert(transaction["hash"])
        mine, events = "", tuple[Emitted, ...]()
        try:
            self.state, events, _ = execute(self.state, block, call)
        except LockstepError as error:
            mine = error.message
        if said != mine:
            self.differences.append(f"block {block.number}, {name}: the contract says {said!r}, the twin {mine!r}")
            return
        self.refused[said.partition("(")[0]] += bool(said)
        logs = [
            (self._names.get(log["address"], ""), [_bytes(topic) for topic in log["topics"]], _bytes(log["data"]))
            for log in receipt["logs"]
        ]
        self.events += len(logs)
        for log, event in zip(logs, events, strict=False):
            if log != (event.contract, *log_of(event)):
                self.differences.append(f"block {block.number}, {name}: {event} is logged otherwise")
        if len(logs) != len(events):
            self.differences.append(f"block {block.number}, {name}: {len(logs)} logs, {len(events)} events")

    def _metered(self, call: MarketCall, number: int) -> int:
        """Returns the gas that the chain's own meter added to a game in a block, without intrinsic gas."""
        games = self._contract("DisputeGame")
        if call.function == "open":
            id_ = games.read("gameIdOf", call.arguments[0], call.sender, call.arguments[2])
        else:
            id_ = call.arguments[0]
        _, spent, _ = games.read("game", id_, block=number)
        return int(spent) - self.state.games[id_].spent - TRANSACTION_GAS - data_gas(call.data)

    def _revert(self, hash_: str) -> str:
        """Returns the rule that a transaction broke, in the twin's words."""
        quiet = {"disableStack": True, "disableMemory": True, "disableStorage": True}
        answer = self._ask("debug_traceTransaction", hash_, quiet)
        return reverts.decode(_bytes(answer["returnValue"])).message

    def _stored(self, last: int) -> Iterator[tuple[str, bytes, bytes]]:
        """Yields every entry of the twin's tables with the contract's answer and the twin's."""
        s = self.state
        keys: list[tuple[str, str, tuple[Any, ...]]] = [
            *(("TestToken", "balanceOf", (a,)) for a in s.balances),
            *(("StakeVault", f, (a,)) for a in {*s.free, *s.credits} for f in ("free", "credits", "unbonding")),
            *(("StakeVault", "lockOf", (key,)) for key in {*s.locks, *s.claims, *s.games, *s.demands}),
            ("StakeVault", "totalEscrow", ()),
            *(("JobMarket", f, (job,)) for job in s.jobs for f in ("job", "params", "bondOf")),
            *(("JobMarket", f, key) for key in s.rounds for f in ("round", "phase", "mergerOf")),
            *(("JobMarket", f, (c,)) for c in s.claims for f in ("claim", "live", "windowOpen", "convictedAt")),
            *(("Witnesses", "witness", key) for key in s.enrolled),
            *(("Witnesses", "accounts", (job,)) for job in s.jobs),
            *(("Witnesses", "audit", (audit,)) for audit in s.audits),
            *(("Witnesses", "duty", key) for key in s.duties),
            *(("Availability", "demand", (demand,)) for demand in s.demands),
            *(("Availability", "asked", (claim,)) for claim in s.asked),
            *((contract, "committedAt", (digest,)) for contract, digest in s.committed_at),
            *(("DisputeGame", "game", (id_,)) for id_ in s.games),
            *(("DisputeGame", "defending", (c.worker,)) for c in s.claims.values()),
        ]
        found = self.w3.eth.get_block(last)
        block = Block(found["number"], Seconds(found["timestamp"]), self._hashes, found.get("baseFeePerGas", 0))
        for contract, function, key in keys:
            data = data_of(MarketCall(contract, function, ZERO_ADDRESS, key, b"", 0))
            said = self.w3.eth.call({"to": getattr(self.addresses, FIELDS[contract]), "data": data}, last)
            yield (
                f"{contract}.{function}{key}",
                said,
                returned(contract, function, view(s, block, contract, function, *key)),
            )

    @cache  # noqa: B019 - as long as the replay
    def _contract(self, name: str) -> Contract:
        return Contract(self.w3, Address(Web3.to_checksum_address(getattr(self.addresses, FIELDS[name]))), name)

    def __hash__(self) -> int:
        return id(self)


def replayed(w3: Web3, addresses: Addresses) -> Replay:
    """Replays the whole chain in the twin; fails at any difference."""
    replay = Replay(w3, addresses).run()
    assert not replay.differences, "\n".join(replay.differences[:9])
    return replay
