"""The Python twin for building test scenes, with a record of every call.

A `World` is a point in a history: `do` adds a call, `fork` starts another history from there. Accounts have names and
keys; block n has the hash keccak(n).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import IntEnum
from typing import Any

from eth_account import Account
from eth_account.signers.local import LocalAccount

from lockstep.chain.deployment import create_address
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import JobParams, Receipt, Reveal, word
from lockstep.protocol.market import ids
from lockstep.protocol.market.calls import MAX_UINT, Block, Emitted, MarketCall
from lockstep.protocol.market.state import Deployment, State
from lockstep.protocol.transition import VIEWS, execute, view
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Digest, JobId, Seconds
from tests.support.constant import ConstantClaim, Lie
from tests.support.market.wander import params_of
from tests.support.memory import abi
from tests.support.params import amended
from tests.support.replay import recover

CHAIN_ID = 31_337


class BlockHashes(dict[int, bytes]):
    """The hash of block n is keccak(uint256 n)."""

    def __missing__(self, number: int) -> bytes:
        return keccak(word(number))


def actor(number: int) -> Address:
    """Returns the account of a small number, which has no known key."""
    return Address(f"0x{number:040x}")


CONTRACTS = {
    "token": "TestToken", "arbiter": "Arbiter", "vault": "StakeVault", "market": "JobMarket", "game": "DisputeGame",
    "validator": "Validator", "witnesses": "Witnesses", "demands": "Availability",
}  # fmt: skip
"""Short names of the contracts, in order of creation."""
DEPLOYER = Address("0x" + "d0" * 20)
AT = {contract: create_address(DEPLOYER, nonce) for nonce, contract in enumerate(CONTRACTS.values())}
PEOPLE = ("requester", "aggregator", "worker-0", "worker-1", "worker-2", "verifier", "witness", "mallory", "poor")
KEYS: Mapping[str, LocalAccount] = {name: Account.from_key(keccak(name.encode())) for name in PEOPLE}
ACCOUNTS: dict[str, Address] = {name: Address(key.address) for name, key in KEYS.items()} | {
    short: AT[contract] for short, contract in CONTRACTS.items()
}
"""Named accounts that make calls; contracts call each other."""
NAMES = {address: name for name, address in ACCOUNTS.items()}
UNBOND = Seconds(3_600)
WALLET, STAKE = 10**6, 10**5
START = Block(1_000, Seconds(1_700_000_000), BlockHashes(), 7)
PARAMS = amended(
    params_of(random.Random(0), ACCOUNTS["aggregator"]), slots=3, min_slots=2, rounds=3, max_lead=3, max_fail=1,
    carry_period=2, challenge_seconds=300, witnesses=1, witness_fee=11, witness_stake=223, audit_seconds=40,
)  # fmt: skip
DEPLOYMENT = Deployment(
    CHAIN_ID, AT["TestToken"], AT["StakeVault"], AT["JobMarket"], AT["DisputeGame"], AT["Validator"], AT["Witnesses"],
    AT["Availability"], UNBOND, AT["Arbiter"], recover=recover, arbiter=ReferenceArbiter(),
)  # fmt: skip


def job_of(params: JobParams, nonce: int = 1) -> JobId:
    """Returns the id of the job that the requester creates with these parameters."""
    return ids.job_id(CHAIN_ID, AT["JobMarket"], ACCOUNTS["requester"], nonce, params)


JOB = job_of(PARAMS)


@dataclass(frozen=True)
class Said:
    """Result of a call: return value and events."""

    returned: Any
    events: tuple[Emitted, ...]


@dataclass(frozen=True)
class Sent:
    """A call in its block, with its result."""

    block: Block
    call: MarketCall
    said: Said


@dataclass
class World:
    """A point in a history."""

    state: State = field(default_factory=lambda: State.empty(DEPLOYMENT))
    block: Block = START
    sent: list[Sent] = field(default_factory=list)
    """Calls since the previous scene."""
    held: dict[ClaimId, ConstantClaim] = field(default_factory=dict)
    """Claims made so far."""
    logged: list[Emitted] = field(default_factory=list)
    """All events so far."""
    job: JobId = JOB

    # -- acting

    def call(self, sender: str, function: str, *arguments: Any) -> MarketCall:
        """Builds a call from a name such as "market.join"; account arguments may be names."""
        short, _, name = function.partition(".")
        given = tuple(ACCOUNTS.get(a, a) if isinstance(a, str) else a for a in arguments)
        call = MarketCall(CONTRACTS[short], name, ACCOUNTS.get(sender, Address(sender)), given)
        return replace(call, data=abi.data_of(call))

    def ask(self, call: MarketCall) -> tuple[State, Said]:
        """Simulates a call; returns the state after it and its result. A revert raises the contract's error."""
        if (call.contract, call.function) in VIEWS:
            return self.state, Said(view(self.state, self.block, call.contract, call.function, *call.arguments), ())
        after, events, returned = execute(self.state, self.block, call)
        return after, Said(returned, events)

    def do(self, sender: str, function: str, *arguments: Any) -> Any:
        """Makes one call that must succeed; returns its result."""
        call = self.call(sender, function, *arguments)
        self.state, said = self.ask(call)
        self.sent.append(Sent(self.block, call, said))
        self.logged += said.events
        return said.returned

    def then(self, sender: str, function: str, *arguments: Any) -> World:
        """Makes one call that must succeed; returns the world."""
        self.do(sender, function, *arguments)
        return self

    def later(self, seconds: int = 1, blocks: int = 1) -> World:
        """Puts the next call in a later block."""
        self.block = replace(self.block, number=self.block.number + blocks, time=Seconds(self.block.time + seconds))
        return self

    def until(self, time: int) -> World:
        """Sets the time of the next call."""
        return self.later(time - self.block.time)

    def fork(self) -> World:
        """Returns a copy from which another history starts."""
        return replace(self, sent=[], held=dict(self.held), logged=list(self.logged))

    # -- what there is

    @property
    def params(self) -> JobParams:
        """Parameters of the job."""
        found = self.state.params[self.job]
        assert found is not None
        return found

    def round(self, r: int = 0) -> Any:
        """Returns the stored round."""
        return self.state.rounds[self.job, r]

    def claim(self, slot: int, r: int = 0) -> ClaimId:
        """Returns the id of a slot's claim, or of the merge, in the round's current attempt."""
        ro = self.round(r)
        return ro.merge_claim if slot == MERGE_SLOT else ids.claim_id(self.job, r, ro.attempt, slot)

    # -- a round

    def create(self, params: JobParams, nonce: int = 1) -> World:
        """Creates the requester's job, which all later acts are about."""
        self.do("requester", "market.create", params, nonce, params.escrow)
        self.job = job_of(params, nonce)
        return self

    def made(self, slot: int, r: int = 0, lie: Lie = Lie.NONE) -> ConstantClaim:
        """Returns the claim of a slot."""
        role, claim = self.params.role, self.claim(slot, r)
        if claim not in self.held:
            base, steps = self.round(r).base, r * role.inner_steps
            self.held[claim] = ConstantClaim.of_slot(base, role.zero_carry, steps, lie)
        return self.held[claim]

    def opened(self, slot: int, r: int = 0, carries: bool = False, **changed: Any) -> Reveal:
        """Returns the reveal of a slot's claim."""
        made, claim = self.made(slot, r), self.claim(slot, r)
        proof = tuple(merkle.proof(made.levels, made.transitions - 1))
        return replace(
            Reveal(made.body, Digest(keccak(claim + b"nonce")), proof, "trace", "payload", carries), **changed
        )

    def commitment(self, slot: int, r: int = 0, **changed: Any) -> Digest:
        """Returns the commitment of a slot's worker."""
        opened = self.opened(slot, r, **changed)
        return ids.commitment(self.claim(slot, r), ACCOUNTS[f"worker-{slot}"], opened)

    def start(self, r: int = 0, slots: tuple[int, ...] = (0, 1, 2)) -> World:
        """Starts the round; the workers take these slots."""
        self.do("requester", "market.startRound", self.job, r)
        for slot in slots:
            self.do(f"worker-{slot}", "market.join", self.job, r, slot)
        return self

    def seal(self, r: int = 0) -> World:
        """Draws the seed."""
        self.later(2, 2).do("requester", "market.seal", self.job, r)
        return self

    def commit(
        self, r: int = 0, slots: tuple[int, ...] = (0, 1, 2), lies: Mapping[int, Lie] | None = None, **changed: Any
    ) -> World:
        """Lets these slots' workers commit."""
        for slot in slots:
            self.made(slot, r, (lies or {}).get(slot, Lie.NONE))
            self.do(f"worker-{slot}", "market.commit", self.job, r, slot, self.commitment(slot, r, **changed))
        return self

    def reveal(self, r: int = 0, slots: tuple[int, ...] = (0, 1, 2), **changed: Any) -> World:
        """Lets these slots' workers reveal."""
        for slot in slots:
            self.do(f"worker-{slot}", "market.reveal", self.job, r, slot, self.opened(slot, r, **changed))
        return self

    def receipt(self, who: int, mask: int = 7, r: int = 0, by: str = "") -> Receipt:
        """Returns a receipt of a slot's worker, signed by it or by another account."""
        attempt = self.round(r).attempt
        digest = ids.receipt_hash(CHAIN_ID, AT["JobMarket"], self.job, r, attempt, who, mask)
        return Receipt(who, mask, signature(by or f"worker-{who}", digest))

    def attest(self, r: int = 0, slots: tuple[int, ...] = (0, 1, 2), mask: int = 7) -> World:
        """Lets these slots' workers give receipts."""
        given = [self.receipt(slot, mask, r) for slot in slots]
        self.do("poor", "market.attest", self.job, r, given)
        return self

    def bodies(self, r: int = 0, slots: tuple[int, ...] = (0, 1, 2)) -> list[Any]:
        """Returns the argument of `freeze`."""
        return [self.made(slot, r).body for slot in slots]

    def freeze(self, r: int = 0, slots: tuple[int, ...] = (0, 1, 2)) -> World:
        """Freezes the round."""
        self.until(max(self.block.time, self.round(r).attest_ends)).do(
            "poor", "market.freeze", self.job, r, self.bodies(r, slots)
        )
        return self

    def merge(self, r: int = 0, rounds: int = 0, lie: Lie = Lie.NONE, by: str = "aggregator") -> World:
        """Merges the round."""
        made = ConstantClaim.of_merge(self.round(r).merge_in, lie)
        self.do(by, "market.merge", self.job, r, made.body.out, made.body.out2, "checkpoint", rounds)
        self.held[self.claim(MERGE_SLOT, r)] = made
        return self

    def to_revealed(self, r: int = 0, lies: Mapping[int, Lie] | None = None, **changed: Any) -> World:
        """Plays until all slots are revealed."""
        return self.start(r).seal(r).commit(r, lies=lies, **changed).reveal(r, **changed)

    def to_merged(
        self, r: int = 0, rounds: int = 0, lies: Mapping[int, Lie] | None = None, lie: Lie = Lie.NONE, **changed: Any
    ) -> World:
        """Plays until the round is merged."""
        return self.to_revealed(r, lies, **changed).attest(r).freeze(r).merge(r, rounds, lie)

    def finalize(self, r: int = 0) -> World:
        """Finalises the round."""
        self.until(self.round(r).merged_at + self.params.windows.challenge_seconds)
        self.do("poor", "market.finalize", self.job, r)
        return self


def signature(name: str, digest: Digest) -> bytes:
    """Signs a digest with an account's key."""
    return bytes(KEYS[name].unsafe_sign_hash(digest).signature)  # type: ignore[arg-type]


def begun() -> World:
    """Returns a world in which all accounts have tokens, and most have stakes."""
    world = World()
    for name in PEOPLE[:-1]:
        world.do(name, "token.mint", name, WALLET)
        world.do(name, "token.approve", "vault", MAX_UINT)
        world.do(name, "vault.deposit", STAKE)
    return world


def blocks(before: Block, after: Block) -> Iterator[Block]:
    """Yields the blocks whose parents a chain must know between two."""
    passed = range(before.number + 1, after.number + 1)
    for number in sorted({*passed[:3], *passed[-3:]}):
        yield replace(after, number=number)


def shown(value: Any) -> str:
    """Formats a value for people."""
    if isinstance(value, str):
        return NAMES.get(Address(value), value if value.startswith("0x") else repr(value))
    if isinstance(value, bytes):
        return f"0x{value.hex()}" if len(value) <= 8 else f"0x{value[:4].hex()}.."
    if isinstance(value, IntEnum):
        return value.name
    if hasattr(value, "_fields"):
        return type(value).__name__
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown, value))}]"
    if is_dataclass(value) and not isinstance(value, type):
        kind, parts = type(value).__name__, [getattr(value, part.name) for part in fields(value)]
        return kind if len(parts) > 3 else f"{kind}({', '.join(map(shown, parts))})"
    return str(value)
