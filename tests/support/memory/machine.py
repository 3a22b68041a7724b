"""Executes a transaction on the twin's contracts: creation code or calldata in; the next state, returned bytes and logs
out.

The contracts are the twin's (protocol/transition.py). A contract is created from its own creation code, so
`chain.deployment.deploy` finds the addresses here as it does on any chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from eth_abi.abi import decode

from lockstep.chain import artifacts
from lockstep.protocol import transition
from lockstep.protocol.dispute.game import Arbiter
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market.calls import Block, Emitted
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.state import Deployment, NoArbiter, State, Table
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import Address, Seconds
from tests.support.memory import abi

TRANSACTION_GAS, CREATION_GAS = 21_000, 32_000
BYTE_GAS, ZERO_GAS = 16, 4
FLOOR_TOKEN_GAS = 10
"""EIP-7623: calldata pays at least this per token; a zero byte is one, any other four."""

EXECUTION_GAS: Mapping[str, int] = {
    "DisputeGame.adjacent": 57_000, "DisputeGame.defend": 47_000, "DisputeGame.open": 204_000,
    "DisputeGame.pick": 16_000, "DisputeGame.pickElement": 14_000, "DisputeGame.pickPartial": 15_000,
    "DisputeGame.postLeaf": 28_000, "DisputeGame.postPartials": 26_000, "DisputeGame.proveAlias": 121_000,
    "DisputeGame.proveOp": 285_000, "DisputeGame.provePadding": 118_000, "DisputeGame.resolve": 88_000,
    "DisputeGame.reveal": 13_000, "DisputeGame.revealTensor": 27_000, "DisputeGame.stage": 280_000,
    "JobMarket.cancel": 78_000, "JobMarket.commit": 37_000, "JobMarket.create": 510_000,
    "JobMarket.finalize": 125_000, "JobMarket.finish": 42_000, "JobMarket.freeze": 145_000,
    "JobMarket.join": 131_000, "JobMarket.merge": 255_000, "JobMarket.reveal": 28_000, "JobMarket.seal": 71_000,
    "JobMarket.startRound": 136_000, "StakeVault.burn": 37_000, "StakeVault.deposit": 66_000,
    "TestToken.approve": 25_000, "TestToken.transfer": 30_000, "TestToken.mint": 47_000,
}  # fmt: skip
"""Contract.function -> what its execution takes (tests/vectors/gas.json, calldata and the intrinsic gas taken off).

INVARIANT: an estimate decides what a transaction costs and whether its limit suffices, never what it does.
"""
EXECUTION_DEFAULT = 50_000
BYTES_PER_GAS = 8
"""Gas per byte of calldata, added for hashing and copying it."""

FIELDS = {
    "TestToken": "token", "StakeVault": "vault", "JobMarket": "market", "DisputeGame": "game",
    "Validator": "validator", "Availability": "availability", "Witnesses": "witnesses", "Arbiter": "arbiter_address",
}  # fmt: skip
"""By contract: its field of `Deployment`."""


@dataclass(frozen=True)
class Created:
    """A created contract: its name and its constructor's arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The constructor's arguments, by Solidity's names."""


@dataclass(frozen=True)
class ChainState:
    """Everything that the chain stores, as an immutable value: balances, nonces and the contracts' states."""

    coins: Table[Address, int] = field(default_factory=lambda: Table(0))
    nonces: Table[Address, int] = field(default_factory=lambda: Table(0))
    created: Table[Address, Created | None] = field(default_factory=lambda: Table(None))
    states: Table[Address, State | None] = field(default_factory=lambda: Table(None))
    """By the token of a deployment: the state of its contracts."""


@dataclass(frozen=True)
class TransactionLog:
    """One entry that a transaction logged."""

    address: Address
    topics: tuple[bytes, ...]
    data: bytes


@dataclass(frozen=True)
class MessageResult:
    """The result of executing a message."""

    world: ChainState
    """The state afterwards; unchanged if `succeeded` is False."""
    succeeded: bool
    returned: bytes
    """The returned bytes; the revert data if `succeeded` is False."""
    gas: int
    logs: tuple[TransactionLog, ...] = ()
    events: tuple[Emitted, ...] = ()


@dataclass(frozen=True)
class Message:
    """A call or a creation."""

    sender: Address
    to: Address | None
    """The called contract; None if `data` is creation code."""
    data: bytes
    gas: int
    value: int = 0
    metered: int | None = None
    """The gas that the contract's own meter adds to a game in this move, if known; otherwise the estimate is used."""


@dataclass(frozen=True)
class Machine:
    """Executes the contracts of one chain. It is stateless."""

    chain_id: int
    arbiter: Arbiter = field(default_factory=NoArbiter)
    recover: Any = None
    """(digest, signature) -> the signer or ZERO_ADDRESS; None: `chain.signatures`."""

    def run(self, world: ChainState, block: Block, message: Message, new: Address | None = None) -> MessageResult:
        """Executes a message; a revert leaves the state unchanged. `new` is the address of a created contract."""
        needed = intrinsic_gas(message.data, message.to is None)
        if message.value and not self._pays(world, message.sender, message.value):
            return MessageResult(world, False, b"", needed)
        if message.to is None:
            assert new is not None
            return self._create(world, message, new)
        created = world.created[message.to]
        if created is None:
            floor = max(needed, floor_gas(message.data))
            return MessageResult(self._transferred(world, message), True, b"", floor)
        return self._call(world, block, message, created)

    def _call(self, world: ChainState, block: Block, message: Message, created: Created) -> MessageResult:
        assert message.to is not None
        price = max(self.price(created.name, message.data), floor_gas(message.data))
        if price > message.gas:
            return MessageResult(world, False, b"", message.gas)
        token = token_of(world, message.to)
        state = world.states[token] if token is not None else None
        whole = state is not None and getattr(state.at, FIELDS.get(created.name, ""), None) == message.to
        if not whole or message.value:
            return MessageResult(world, False, b"", price)
        assert state is not None
        assert token is not None
        try:
            metered = message.metered if message.metered is not None else execution_gas(created.name, message.data)
            call = abi.call_of(created.name, message.sender, message.data, metered)
            if (call.contract, call.function) in transition.VIEWS:
                answer = transition.view(state, block, call.contract, call.function, *call.arguments)
                return MessageResult(world, True, abi.returned(call.contract, call.function, answer), price)
            after, events, answer = transition.execute(state, block, call)
        except abi.NoFunction:
            return MessageResult(world, False, b"", price)
        except Reverted as broken:
            return MessageResult(world, False, abi.reverted(broken), price)
        logs = tuple(self._log(state, event) for event in events)
        next_world = replace(world, states=world.states.with_({token: after}))
        return MessageResult(next_world, True, abi.returned(call.contract, call.function, answer), price, logs, events)

    def price(self, contract: str, data: bytes) -> int:
        """Estimates the gas of a call: intrinsic, calldata and execution."""
        return intrinsic_gas(data) + execution_gas(contract, data)

    def _log(self, state: State, event: Emitted) -> TransactionLog:
        topics, data = abi.log_of(event)
        return TransactionLog(getattr(state.at, FIELDS[event.contract]), tuple(topics), data)

    # -- creation

    def _create(self, world: ChainState, message: Message, new: Address) -> MessageResult:
        found = created_by(message.data)
        gas = intrinsic_gas(message.data, creates=True) + len(message.data) * 200
        if found is None or gas > message.gas:
            return MessageResult(world, False, b"", min(gas, message.gas))
        changed = replace(world, created=world.created.with_({new: found}))
        deployment = self._deployed(changed, new, found)
        if deployment is not None:
            old = changed.states[deployment.token]
            state = State.empty(deployment) if old is None else replace(old, at=deployment)
            changed = replace(changed, states=changed.states.with_({deployment.token: state}))
        return MessageResult(changed, True, b"", gas)

    def _deployed(self, world: ChainState, new: Address, created: Created) -> Deployment | None:
        """Returns the deployment that a new contract's state refers to; None if it refers to none."""
        arguments = created.arguments
        if created.name == "TestToken":
            return Deployment(
                self.chain_id, new, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS, ZERO_ADDRESS,
                ZERO_ADDRESS, Seconds(0), recover=self.recover or _recovered, arbiter=self.arbiter,
            )  # fmt: skip
        token = token_of(world, new)
        state = world.states[token] if token is not None else None
        if state is None:
            return None
        if created.name == "JobMarket":
            vault = world.created[arguments["vault_"]]
            unbond = Seconds(vault.arguments["unbondSeconds_"]) if vault is not None else Seconds(0)
            named = {name: arguments[f"{name}_"] for name in FIELDS.values() if f"{name}_" in arguments}
            times = ChainTimes(Seconds(arguments["inclusionSeconds_"]), Seconds(arguments["censorSeconds_"]))
            return replace(state.at, **named, market=new, unbond_seconds=unbond, chain=times)
        if created.name == "DisputeGame" and state.at.game == new:
            return replace(state.at, arbiter_address=arguments["arbiter_"])
        return None

    # -- the coin

    @staticmethod
    def _pays(world: ChainState, sender: Address, value: int) -> bool:
        return world.coins[sender] >= value

    @staticmethod
    def _transferred(world: ChainState, message: Message) -> ChainState:
        if not message.value:
            return world
        assert message.to is not None
        less = world.coins.with_({message.sender: world.coins[message.sender] - message.value})
        return replace(world, coins=less.with_({message.to: less[message.to] + message.value}))


def token_of(world: ChainState, address: Address) -> Address | None:
    """Returns the token of the deployment to which a contract belongs; None if it belongs to none."""
    created = world.created[address]
    if created is None:
        return None
    if created.name == "TestToken":
        return address
    if "token_" in created.arguments:
        return Address(created.arguments["token_"])
    market = created.arguments.get("market_")
    return token_of(world, market) if market is not None else None


def created_by(data: bytes) -> Created | None:
    """Identifies the contract that this creation code, with any libraries, and these constructor arguments create."""
    for name in artifacts.NAMES:
        code, holes, inputs = _code(name)
        if len(data) < len(code) or _masked(data[: len(code)], holes) != code:
            continue
        values = decode([part["type"] for part in inputs], data[len(code) :])
        named = zip(inputs, values, strict=True)
        return Created(name, {part["name"]: _checksummed(part, value) for part, value in named})
    return None


@cache
def _code(name: str) -> tuple[bytes, tuple[int, ...], tuple[dict[str, Any], ...]]:
    """Returns (creation code with zeros for libraries, the offsets of these, the constructor's inputs)."""
    artifact = artifacts.load(name)
    holes = tuple(at for places in artifact.links.values() for at in places)
    code = bytes.fromhex(artifact.linked(dict.fromkeys(artifact.links, "0x" + 40 * "0"))[2:])
    constructors = [entry for entry in artifact.abi if entry["type"] == "constructor"]
    return code, holes, tuple(constructors[0]["inputs"]) if constructors else ()


def _masked(code: bytes, holes: tuple[int, ...]) -> bytes:
    for at in holes:
        code = code[:at] + bytes(20) + code[at + 20 :]
    return code


def _checksummed(part: dict[str, Any], value: Any) -> Any:
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address(value)) if part["type"] == "address" else value


def _recovered(digest: Any, signature: bytes) -> Address:
    from lockstep.chain.signatures import recovered

    return recovered(digest, signature) or ZERO_ADDRESS


# -- gas


def intrinsic_gas(data: bytes, creates: bool = False) -> int:
    """Returns the gas that a transaction costs before its execution."""
    zeros = data.count(0)
    words = (len(data) + 31) // 32
    creation = CREATION_GAS + 2 * words if creates else 0
    return TRANSACTION_GAS + creation + ZERO_GAS * zeros + BYTE_GAS * (len(data) - zeros)


def floor_gas(data: bytes) -> int:
    """Returns the gas that a transaction costs at least (EIP-7623)."""
    zeros = data.count(0)
    return TRANSACTION_GAS + FLOOR_TOKEN_GAS * (zeros + 4 * (len(data) - zeros))


def execution_gas(contract: str, data: bytes) -> int:
    """Estimates the gas of a call's execution."""
    entry = artifacts.functions(contract).get(data[:4])
    label = f"{contract}.{entry['name']}" if entry is not None else ""
    return EXECUTION_GAS.get(label, EXECUTION_DEFAULT) + BYTES_PER_GAS * len(data)
