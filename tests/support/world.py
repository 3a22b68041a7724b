"""A market in memory for tests of roles: deployed, all accounts funded and staked, with a job that plays to any phase.

    world = World.start(slots=2)     # a job of support/constant.py; parameters by the names of support/params.py
    world.to(Phase.ATTESTING)        # joined, sealed, committed, revealed by its workers
    world.ledger()                   # what the events say; world.contracts: what the contracts do

Nothing here is a double: calls, events and answers are the chain's bytes (tests.support.memory).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from eth_account.signers.local import LocalAccount

from lockstep.chain.addresses import Addresses
from lockstep.chain.contracts import Call, Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.devnet import Local
from lockstep.chain.events import EventReader
from lockstep.market.ledger import Ledger, Watcher
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus, JobParams, Phase, Receipt, Reveal
from lockstep.protocol.market import ids
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, Wei
from lockstep.storage.cid import cid_of_block
from tests.support.constant import ConstantClaim, Lie
from tests.support.market.wander import params_of
from tests.support.memory.chain import MemoryChain
from tests.support.memory.devnet import MemoryDevnet
from tests.support.params import amended
from tests.support.sending import transact

NAMES = ("requester", "aggregator", "worker-0", "worker-1", "worker-2", "verifier", "witness", "mallory")
WALLET, DEPOSIT = Wei(10**9), Wei(10**6)
CHECKPOINT = cid_of_block(b"a checkpoint")
QUIET: dict[str, Any] = {
    "slots": 2, "min_slots": 1, "rounds": 2, "max_lead": 1, "max_fail": 1, "witnesses": 0, "witness_fee": 0,
    "witness_stake": 0, "audit_seconds": 0,
}  # fmt: skip
"""Parameters of the job unless a test changes them."""


def _founded(devnet: Local, wealth: int = 1) -> tuple[Addresses, Mapping[str, LocalAccount]]:
    """Deploys the contracts; all accounts get coins, tokens and a stake, `wealth` times the usual."""
    devnet._request("anvil_autoImpersonateAccount", [True])
    contracts = Contracts.at(devnet.w3, deploy(devnet.w3, devnet.account("deployer")))
    accounts = {name: devnet.account(name) for name in NAMES}
    for account in accounts.values():
        me = Address(account.address)
        for call in (
            contracts.token.mint(me, Wei(wealth * WALLET)),
            contracts.token.approve(contracts.vault.address, Wei(wealth * WALLET)),
            contracts.vault.deposit(Wei(wealth * DEPOSIT)),
        ):
            transact(devnet, call, me)
    return contracts.addresses, accounts


@cache
def _founded_once() -> tuple[MemoryChain, Addresses, Mapping[str, LocalAccount]]:
    """Returns a chain in memory with which every other one begins: its setup takes a tenth of a second."""
    devnet = MemoryDevnet(arbiter=ReferenceArbiter())
    return devnet.chain, *_founded(devnet)


@dataclass
class World:
    """A chain, its contracts, its accounts and one job."""

    devnet: Any
    """A `Local`: in memory, or Anvil."""
    contracts: Contracts
    accounts: Mapping[str, LocalAccount]
    params: JobParams
    job: JobId = field(init=False)
    held: dict[ClaimId, ConstantClaim] = field(default_factory=dict)
    """Claims made so far."""
    watcher: Watcher = field(init=False)

    @staticmethod
    def start(devnet: Local | None = None, *, terms: JobParams | None = None, wealth: int = 1, **changes: Any) -> World:
        """Deploys, funds and stakes all accounts, and creates the job; on a chain in memory, or on a running one.

        `terms`: those of another job than the constant one, for which accounts may need `wealth` times as much.
        """
        if devnet is None:
            devnet = MemoryDevnet(arbiter=ReferenceArbiter())
        if isinstance(devnet, MemoryDevnet):
            devnet._request("anvil_autoImpersonateAccount", [True])
        if wealth == 1 and isinstance(devnet, MemoryDevnet):
            chain, addresses, accounts = _founded_once()
            devnet.chain.blocks[:] = chain.blocks
            devnet.chain.known |= chain.known
        else:
            addresses, accounts = _founded(devnet, wealth)
        contracts = Contracts.at(devnet.w3, addresses)
        aggregator = Address(accounts["aggregator"].address)
        drawn = params_of(random.Random(0), aggregator) if terms is None else amended(terms, aggregator=aggregator)
        world = World(devnet, contracts, accounts, amended(drawn, **(QUIET | changes)))
        me, market = world.address("requester"), contracts.market
        world.job = ids.job_id(devnet.w3.eth.chain_id, market.address, me, 1, world.params)
        world.send(market.create(world.params, 1, world.params.escrow), "requester")
        world.watcher = Watcher(EventReader(devnet.w3, contracts.addresses))
        return world

    def address(self, name: str) -> Address:
        """Returns an account's address."""
        return Address(self.accounts[name].address)

    # -- sending

    def send(self, call: Call, name: str) -> Any:
        """Sends one transaction, which is mined; returns the receipt. Raises the rule that it breaks."""
        return transact(self.devnet, call, self.address(name))

    def refused(self, call: Call, name: str) -> str:
        """Returns the rule by which a transaction is refused; fails if it is not."""
        try:
            self.send(call, name)
        except LockstepError as error:
            return error.code.rpartition(".")[2]
        raise AssertionError(f"{call.label} of {name} was not refused")

    # -- reading

    @property
    def head(self) -> int:
        """Returns the latest block."""
        return int(self.devnet.w3.eth.block_number)

    @property
    def now(self) -> Seconds:
        """Returns the chain's time."""
        return Seconds(self.devnet.w3.eth.get_block("latest")["timestamp"])

    def ledger(self) -> Ledger:
        """Returns the ledger of the events so far."""
        self.watcher.poll()
        return self.watcher.ledger

    def phase(self, r: int = 0) -> Phase:
        """Returns a round's current phase."""
        return self.contracts.market.phase(self.job, r)

    def claim_id(self, slot: int, r: int = 0) -> ClaimId:
        """Returns the id of a slot's claim in the round's current attempt."""
        return self.contracts.market.claim_id_of(self.job, r, slot)

    # -- a round

    def to(self, phase: Phase, r: int = 0, lies: Mapping[int, Lie] | None = None) -> None:
        """Brings a round to a phase: each slot acts by its worker, open acts by the requester."""
        for _ in range(64):
            try:
                present = self.phase(r)
            except LockstepError:
                present = Phase.NONE
            if present == phase:
                return
            self._step(present, r, lies or {})
        raise AssertionError(f"round {r} stays in {present!r}")

    def _step(self, phase: Phase, r: int, lies: Mapping[int, Lie]) -> None:
        market, slots = self.contracts.market, range(self.params.role.slots)
        match phase:
            case Phase.NONE:
                self.send(market.start_round(self.job, r), "requester")
            case Phase.JOINING:
                for slot in slots:
                    self.send(market.join(self.job, r, slot), f"worker-{slot}")
            case Phase.SEALING:
                self.devnet.mine(2)
                self.send(market.seal(self.job, r), "requester")
            case Phase.TRAINING:
                base, steps = market.round(self.job, r).base, r * self.params.role.inner_steps
                for slot in slots:
                    claim, lie = self.claim_id(slot, r), lies.get(slot, Lie.NONE)
                    self.held[claim] = ConstantClaim.of_slot(base, self.params.role.zero_carry, steps, lie)
                    name = f"worker-{slot}"
                    bound = ids.commitment(claim, self.address(name), self.opened(claim))
                    self.send(market.commit(self.job, r, slot, bound), name)
            case Phase.REVEALING:
                for slot in slots:
                    opened = self.opened(self.claim_id(slot, r))
                    self.send(market.reveal(self.job, r, slot, opened), f"worker-{slot}")
            case Phase.ATTESTING:
                for slot in slots:
                    revealed = market.claim(self.claim_id(slot, r)).status == ClaimStatus.REVEALED
                    if revealed and not market.round(self.job, r).spoke >> slot & 1:
                        self.send(market.attest(self.job, r, [self.receipt(slot, r)]), f"worker-{slot}")
                self.pass_to(market.round(self.job, r).attest_ends)
            case Phase.FREEZING:
                bodies = [self.held[self.claim_id(slot, r)].body for slot in slots]
                self.send(market.freeze(self.job, r, bodies), "requester")
            case Phase.MERGING:
                made = ConstantClaim.of_merge(market.round(self.job, r).merge_in)
                self.send(market.merge(self.job, r, made.body.out, made.body.out2, CHECKPOINT, 0), "aggregator")
                self.held[market.claim_id_of(self.job, r)] = made
            case _:
                self.pass_to(self.now + self.params.windows.challenge_seconds)
                self.send(market.finalize(self.job, r), "requester")

    def opened(self, claim: ClaimId) -> Reveal:
        """Returns the reveal of a claim, with published list and payload; it starts from a carry where possible."""
        made, period = self.held[claim], self.params.role.carry_period
        carries = bool(period and self.contracts.market.claim(claim).round % period)
        proof = tuple(merkle.proof(made.levels, 1))
        return Reveal(made.body, Digest(keccak(claim + b"n")), proof, "", "", carries)

    def receipt(self, slot: int, r: int = 0, mask: int | None = None) -> Receipt:
        """Returns a slot's receipt, for all slots unless a mask is given."""
        market, mask = self.contracts.market, (1 << self.params.role.slots) - 1 if mask is None else mask
        attempt = market.round(self.job, r).attempt
        digest = ids.receipt_hash(self.devnet.w3.eth.chain_id, market.address, self.job, r, attempt, slot, mask)
        signed = self.accounts[f"worker-{slot}"].unsafe_sign_hash(digest)  # type: ignore[arg-type]
        return Receipt(slot, mask, bytes(signed.signature))

    def pass_to(self, time: int) -> None:
        """Advances to a block at that time, unless the chain is past it."""
        if time > self.now:
            self.devnet._request("evm_setNextBlockTimestamp", [int(time)])
            self.devnet._request("evm_mine", [])
