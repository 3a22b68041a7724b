"""The twin of the contracts as a mutable object: a market and its vault, with verbs as methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.protocol.dispute.game import Arbiter
from lockstep.protocol.jobs import (
    ZERO_ADDRESS,
    Body,
    Claim,
    ClaimStatus,
    Facts,
    GameTerms,
    JobParams,
    JobState,
    Phase,
    Receipt,
    Reveal,
    Round,
)
from lockstep.protocol.market import availability, views
from lockstep.protocol.market.calls import MAX_UINT, Block, Emitted, MarketCall
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.state import Deployment, NoArbiter, State, Table
from lockstep.protocol.market.types import Asked, Demand, Duty, Keeper, Lock, Outcome, Row, Shown, Unbond, Word
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.transition import execute, view
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, Seconds, StateRoot, Wei

GENESIS = Block(1, Seconds(1))
"""Default block of acts for which the block does not matter."""
MARKET = Address("0x" + "aa" * 20)
UNBOND = Seconds(10_000)


def address(number: int) -> Address:
    """Returns a contract's address, for tests that do not need a specific one."""
    return Address(f"0x{0xC0FFEE00 + number:040x}")


def nobody(digest: Digest, signature: bytes) -> Address:
    """Recovers no signer: there are no keys."""
    return ZERO_ADDRESS


def deployment(
    unbond_seconds: Seconds,
    chain_id: int = 1,
    market: Address = MARKET,
    recover: Callable[[Digest, bytes], Address] = nobody,
    chain: ChainTimes | None = None,
    arbiter: Arbiter | None = None,
) -> Deployment:
    """Returns a deployment with made-up addresses."""
    token, vault, game, validator, witnesses, availability = (address(i) for i in range(6))
    return Deployment(
        chain_id, token, vault, market, game, validator, witnesses, availability, unbond_seconds,
        chain=chain or ChainTimes(), recover=recover, arbiter=arbiter or NoArbiter(),
    )  # fmt: skip


@dataclass
class Ledger:
    """A state, and the events of the last act."""

    state: State
    events: tuple[Emitted, ...] = ()
    block: Block = GENESIS
    """Block of the last act; also of the next act unless one is given."""

    def do(self, contract: str, function: str, sender: Address, *arguments: Any, **rest: Any) -> Any:
        """Makes one call and returns its result. A revert raises the contract's error and changes nothing."""
        self.block = rest.pop("block", None) or self.block
        call = MarketCall(contract, function, sender, arguments, **rest)
        self.state, self.events, returned = execute(self.state, self.block, call)
        return returned

    def ask(self, contract: str, function: str, *arguments: Any, block: Block | None = None) -> Any:
        """Returns the answer of a view."""
        return view(self.state, block or self.block, contract, function, *arguments)

    def fund(self, account: Address, amount: int) -> None:
        """Gives an account tokens that the vault may transfer."""
        self.do("TestToken", "mint", account, account, amount)
        self.do("TestToken", "approve", account, self.state.at.vault, MAX_UINT)


@dataclass
class Books:
    """The vault alone."""

    ledger: Ledger

    @staticmethod
    def of(unbond_seconds: Seconds) -> Books:
        """Creates an empty vault, with a market that is never called."""
        return Books(Ledger(State.empty(deployment(unbond_seconds))))

    @property
    def unbond_seconds(self) -> Seconds:
        return self.ledger.state.at.unbond_seconds

    @property
    def free(self) -> Table[Address, int]:
        return self.ledger.state.free

    @property
    def credits(self) -> Table[Address, int]:
        return self.ledger.state.credits

    @property
    def unbonding(self) -> Table[Address, Unbond]:
        return self.ledger.state.unbonding

    @property
    def locks(self) -> Table[bytes, Lock]:
        return self.ledger.state.locks

    @property
    def total_escrow(self) -> int:
        return self.ledger.state.total_escrow

    @property
    def tokens(self) -> int:
        """Returns the vault's token balance."""
        return self.ledger.state.balances[self.ledger.state.at.vault]

    @property
    def owed(self) -> int:
        return self.ledger.state.owed

    def deposit(self, sender: Address, amount: int) -> None:
        """Mints tokens and deposits them as free stake."""
        self.ledger.fund(sender, amount)
        self._do("deposit", sender, amount)

    def delegate(self, sender: Address, actor: Address) -> None:
        self._do("setDelegate", sender, actor)

    def request_unbond(self, sender: Address, amount: int, now: Seconds) -> None:
        self._do("requestUnbond", sender, amount, block=Block(1, now))

    def withdraw(self, sender: Address) -> int:
        paid: int = self._do("withdraw", sender)
        return paid

    def lock(self, account: Address, key: bytes, amount: int, keeper: Keeper = Keeper.MARKET) -> None:
        self._do("lock", self._keeper(keeper), account, key, amount)

    def unlock(self, key: bytes, keeper: Keeper = Keeper.MARKET) -> None:
        self._do("unlock", self._keeper(keeper), key)

    def take_bond(self, key: bytes, defender: Address, amount: int = MAX_UINT, keeper: Keeper = Keeper.GAME) -> None:
        self._do("takeBond", self._keeper(keeper), key, defender, amount)

    def slash(
        self,
        key: bytes,
        owed: int,
        winners: Sequence[Address],
        refunds: Sequence[tuple[Address, int]],
        requester: Address,
    ) -> None:
        self._do("slash", self._keeper(Keeper.MARKET), key, owed, winners, refunds, requester)

    def _do(self, function: str, sender: Address, *arguments: Any, block: Block | None = None) -> Any:
        return self.ledger.do("StakeVault", function, sender, *arguments, block=block)

    def _keeper(self, keeper: Keeper) -> Address:
        at = self.ledger.state.at
        return (at.market, at.game, at.witnesses, at.availability)[keeper]


class Market:
    """A market with its vault, witnesses and demands, under the names of the Python twin."""

    def __init__(
        self,
        chain_id: int = 1,
        address: Address = MARKET,
        unbond_seconds: Seconds = UNBOND,
        recover: Callable[[Digest, bytes], Address] = nobody,
        chain: ChainTimes | None = None,
        at: Deployment | None = None,
    ) -> None:
        at = at or deployment(unbond_seconds, chain_id, address, recover, chain)
        self.ledger = Ledger(State.empty(at))
        self.books = Books(self.ledger)

    # -- what is stored

    @property
    def at(self) -> Deployment:
        return self.ledger.state.at

    @property
    def chain_id(self) -> int:
        return self.at.chain_id

    @property
    def address(self) -> Address:
        return self.at.market

    @property
    def jobs(self) -> Table[JobId, JobState]:
        return self.ledger.state.jobs

    @property
    def params(self) -> Any:
        return self.ledger.state.params

    @property
    def rounds(self) -> Table[tuple[JobId, int], Round]:
        return self.ledger.state.rounds

    @property
    def claims(self) -> Table[ClaimId, Claim]:
        return self.ledger.state.claims

    @property
    def base_fees(self) -> int:
        return self.ledger.state.base_fees

    @property
    def barred(self) -> Table[tuple[JobId, Address], bool]:
        return self.ledger.state.barred

    @property
    def rewound(self) -> Table[AuditId, bool]:
        return self.ledger.state.rewound

    # -- the requester

    def create(self, sender: Address, p: JobParams, nonce: int, escrow: int) -> JobId:
        """Creates a job, minting the requester's tokens."""
        before = self.ledger.state
        self.ledger.fund(sender, max(0, escrow) + p.deposit)
        try:
            job: JobId = self._do("create", sender, p, nonce, escrow)
        except Exception:
            self.ledger.state = before
            raise
        return job

    def cancel(self, sender: Address, job: JobId) -> None:
        self._do("cancel", sender, job)

    # -- anyone

    def start_round(self, block: Block, job: JobId, r: int) -> None:
        self._do("startRound", ZERO_ADDRESS, job, r, block=block)

    def seal(self, block: Block, job: JobId, r: int) -> None:
        self._do("seal", ZERO_ADDRESS, job, r, block=block)

    def attest(self, block: Block, job: JobId, r: int, given: Sequence[Receipt]) -> None:
        self._do("attest", ZERO_ADDRESS, job, r, given, block=block)

    def freeze(self, block: Block, job: JobId, r: int, bodies: Sequence[Body]) -> None:
        self._do("freeze", ZERO_ADDRESS, job, r, bodies, block=block)

    def finalize(self, block: Block, job: JobId, r: int) -> None:
        self._do("finalize", ZERO_ADDRESS, job, r, block=block)

    def release(self, job: JobId, r: int) -> None:
        self._do("release", ZERO_ADDRESS, job, r)

    def finish(self, job: JobId) -> None:
        self._do("finish", ZERO_ADDRESS, job)

    # -- workers, aggregator

    def join(self, block: Block, sender: Address, job: JobId, r: int, slot: int) -> None:
        self._do("join", sender, job, r, slot, block=block)

    def leave(self, block: Block, sender: Address, job: JobId, r: int, slot: int) -> None:
        self._do("leave", sender, job, r, slot, block=block)

    def commit(self, block: Block, sender: Address, job: JobId, r: int, slot: int, commitment: Digest) -> None:
        self._do("commit", sender, job, r, slot, commitment, block=block)

    def reveal(self, block: Block, sender: Address, job: JobId, r: int, slot: int, opened: Reveal) -> None:
        self._do("reveal", sender, job, r, slot, opened, block=block)

    def merge(
        self, block: Block, sender: Address, job: JobId, r: int, out: StateRoot, out2: StateRoot, rounds: int = 0
    ) -> ClaimId:
        """Merges; returns the merge's claim."""
        self._do("merge", sender, job, r, out, out2, "checkpoint", rounds, block=block)
        return self.rounds[job, r].merge_claim

    def back(self, block: Block, sender: Address, job: JobId, r: int, rounds: int) -> None:
        self._do("back", sender, job, r, rounds, block=block)

    # -- the other contracts

    def on_open(self, block: Block, claim: ClaimId, body: Body) -> GameTerms:
        terms: GameTerms = self._do("onOpen", self.at.game, claim, body, block=block)
        return terms

    def on_convicted(
        self, block: Block, claim: ClaimId, t: int, winners: Sequence[Address], refunds: Sequence[tuple[Address, int]]
    ) -> None:
        self._do("onConvicted", self.at.game, claim, t, winners, refunds, block=block)

    def on_rejected(self, claim: ClaimId) -> None:
        self._do("onRejected", self.at.game, claim)

    def on_witnessed(self, job: JobId, account: Address) -> None:
        self._do("onWitnessed", self.at.witnesses, job, account)

    # -- views

    def phase(self, block: Block, job: JobId, r: int) -> Phase:
        return views.phase(self.ledger.state, block, job, r)

    def status(self, claim: ClaimId) -> ClaimStatus:
        """Returns the effective status."""
        return views.claim(self.ledger.state, claim).status

    def live(self, claim: ClaimId) -> bool:
        return views.live(self.ledger.state, claim)

    def window_open(self, block: Block, claim: ClaimId) -> bool:
        return views.window_open(self.ledger.state, block, claim)

    def merger_of(self, block: Block, job: JobId, r: int) -> Address:
        return views.merger_of(self.ledger.state, block, job, r)

    def bond_of(self, job: JobId) -> Wei:
        return views.bond_of(self.ledger.state, job)

    def facts_of(self, claim: ClaimId, t: int, carried: Sequence[bytes] = ()) -> Facts:
        return views.facts_of(self.ledger.state, claim, t, carried)

    # -- what the other contracts are said to have stored

    def draw(self, job: JobId, r: int, accounts: Sequence[Address]) -> None:
        """Makes the accounts the round's witnesses, as if the contract Witnesses had drawn them."""
        state = self.ledger.state
        audit = AuditId(views.audit_id(job, r, state.rounds[job, r].attempt))
        drawn = {(audit, i): Duty(account) for i, account in enumerate(accounts)}
        self.ledger.state = replace(state, duties=state.duties.with_(drawn))

    def miss(self, claim: ClaimId) -> None:
        """Marks the claim's payload as demanded and not posted."""
        state = self.ledger.state
        self.ledger.state = replace(state, asked=state.asked.with_({claim: Asked(missing=True)}))

    def _do(self, function: str, sender: Address, *arguments: Any, block: Block | None = None) -> Any:
        return self.ledger.do("JobMarket", function, sender, *arguments, block=block)


@dataclass
class Witnesses:
    """The contract Witnesses of a `Market`."""

    market: Market

    @property
    def audits(self) -> Any:
        return self.market.ledger.state.audits

    @property
    def duties(self) -> Table[tuple[AuditId, int], Duty]:
        return self.market.ledger.state.duties

    @property
    def lists(self) -> Table[JobId, tuple[Address, ...]]:
        return self.market.ledger.state.lists

    @property
    def witnesses(self) -> Any:
        return self.market.ledger.state.enrolled

    def enrol(self, block: Block, sender: Address, job: JobId, head: Digest) -> None:
        self._do("enrol", block, sender, job, head)

    def retire(self, block: Block, sender: Address, job: JobId) -> None:
        self._do("retire", block, sender, job)

    def commit(self, block: Block, sender: Address, audit: AuditId, i: int, commitment: Digest) -> None:
        self._do("commit", block, sender, audit, i, commitment)

    def reveal(self, block: Block, sender: Address, audit: AuditId, i: int, opened: Word) -> None:
        self._do("reveal", block, sender, audit, i, opened)

    def publish(self, block: Block, sender: Address, job: JobId, r: int, slot: int) -> None:
        self._do("publish", block, sender, job, r, slot, "trace")

    def draw(self, block: Block, job: JobId, r: int) -> None:
        self._do("draw", block, ZERO_ADDRESS, job, r)

    def settle(self, block: Block, audit: AuditId, i: int) -> Outcome:
        outcome: Outcome = self._do("settle", block, ZERO_ADDRESS, audit, i)
        return outcome

    def witness_of(self, job: JobId, r: int, i: int) -> Address:
        return views.witness_of(self.market.ledger.state, job, r, i)

    def _do(self, function: str, block: Block, sender: Address, *arguments: Any) -> Any:
        return self.market.ledger.do("Witnesses", function, sender, *arguments, block=block)


@dataclass
class Availability:
    """The contract Availability of a `Market`."""

    market: Market

    @property
    def demands(self) -> Table[Digest, Demand]:
        return self.market.ledger.state.demands

    def unavailable(self, block: Block, sender: Address, job: JobId, r: int, slot: int, wanted: int) -> Digest:
        demand: Digest = self._do("unavailable", block, sender, job, r, slot, wanted)
        return demand

    def carry_unavailable(self, block: Block, sender: Address, job: JobId, r: int, slot: int, wanted: int) -> Digest:
        demand: Digest = self._do("carryUnavailable", block, sender, job, r, slot, wanted)
        return demand

    def answer(self, block: Block, demand: Digest, body: Body, code: Code, shown: Sequence[Shown]) -> None:
        self._do("answer", block, ZERO_ADDRESS, demand, body, code, shown)

    def settle(self, block: Block, demand: Digest) -> None:
        self._do("settle", block, ZERO_ADDRESS, demand)

    def demand_row(self, block: Block, sender: Address, job: JobId, row: int) -> Digest:
        demand: Digest = self._do("demandRow", block, sender, job, row)
        return demand

    def answer_row(
        self, block: Block, sender: Address, data: bytes, job: JobId, row: int, tree: Digest, begin: int,
        rows: Sequence[Row],
    ) -> None:  # fmt: skip
        """Posts a part of a row; `data` is the transaction's data."""
        self._do("answerRow", block, sender, job, row, tree, begin, rows, data=data)

    def void_for_row(self, block: Block, job: JobId, row: int) -> None:
        self._do("voidForRow", block, ZERO_ADDRESS, job, row)

    def commit(self, block: Block, sender: Address, digests: Sequence[Digest]) -> None:
        self._do("commit", block, sender, digests)

    def missing(self, claim: ClaimId) -> bool:
        """Returns the view's answer in the block of the last act."""
        return views.missing(self.market.ledger.state, self.market.ledger.block, claim)

    def seed_of(self, block: Block, demand: Digest) -> Digest:
        return availability.seed_of(self.market.ledger.state, block, demand)

    def row_bond_of(self, job: JobId, row: int) -> Wei:
        return availability.row_bond_of(self.market.ledger.state, job, row)

    def _do(self, function: str, block: Block, sender: Address, *arguments: Any, data: bytes = b"") -> Any:
        return self.market.ledger.do("Availability", function, sender, *arguments, block=block, data=data)
