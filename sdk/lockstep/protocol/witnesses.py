"""The verifier market, pure. Twin of contracts/Witnesses.sol: same names, same order, same sentences.

    witness   enrol -> Listed -> Leaving | Slashed -> gone
    audit     Drawing -> Drawn | Skipped
    duty      Drawn -> Committed -> Agreed | Differed -> Closed (Paid | Fined | Slashed | Void)

A block after the last reveal draws who looks at which slot; how far each looks only it knows until it has said what it
saw. Every wait has a default that anybody may call in: `draw` skips an audit that nobody drew in time, `settle` closes
a duty that nobody did.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from lockstep.protocol import claims, merkle
from lockstep.protocol.claims import audit_id
from lockstep.protocol.jobs import (
    NEVER,
    NO_JOB,
    ZERO,
    ZERO_ADDRESS,
    Body,
    Claim,
    ClaimStatus,
    JobStatus,
    Phase,
    Round,
    word,
)
from lockstep.protocol.reverts import revert
from lockstep.protocol.rounds import SEAL_BLOCKS, Block, Market
from lockstep.protocol.stakes import Keeper
from lockstep.protocol.statement import keccak
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, Seconds, StateRoot, Step, Wei

NO_STEP = Step(0)


class Standing(IntEnum):
    """Of a witness in one job."""

    NONE = 0
    LISTED = 1
    LEAVING = 2
    """Drawn no more; its stake is free once its last duty is closed."""
    SLASHED = 3
    """Its stake is gone; its other duties earn nothing."""


class AuditStatus(IntEnum):
    """Of the audit of one round."""

    NONE = 0
    DRAWING = 1
    DRAWN = 2
    SKIPPED = 3


class DutyStatus(IntEnum):
    """Of one witness's duty."""

    NONE = 0
    DRAWN = 1
    COMMITTED = 2
    AGREED = 3
    DIFFERED = 4
    CLOSED = 5


class Outcome(IntEnum):
    """How a duty closed."""

    PAID = 0
    FINED = 1
    SLASHED = 2
    VOID = 3


@dataclass
class Witness:
    """One account in one job."""

    standing: Standing = Standing.NONE
    place: int = 0
    """In the job's list, while LISTED."""
    head: Digest = ZERO
    """The deepest value of its hash chain that is known."""
    spent: int = 0
    """How deep `head` lies: 0 at enrolment."""
    drawn: int = 0
    """Duties drawn so far; each takes the next preimage."""
    open: int = 0
    """Duties not closed."""


@dataclass
class Audit:
    """One round's audit."""

    status: AuditStatus = AuditStatus.NONE
    job: JobId = NO_JOB
    round: int = 0
    attempt: int = 0
    beacon_block: int = 0
    beacon: Digest = ZERO
    commit_ends: Seconds = NEVER
    reveal_ends: Seconds = NEVER
    duties: int = 0
    committed: int = 0


@dataclass
class Duty:
    """What one witness was drawn to do."""

    account: Address = ZERO_ADDRESS
    slot: int = 0
    serial: int = 0
    """Which preimage of the witness's chain it takes: 1, 2, ..."""
    status: DutyStatus = DutyStatus.NONE
    t: Step = NO_STEP
    """t*, once revealed."""
    commitment: Digest = ZERO


@dataclass(frozen=True)
class Word:
    """A witness's verdict, opened."""

    preimage: Digest
    """Of its hash chain: fixed at enrolment, before any beacon."""
    state: StateRoot
    """Its own S_t*."""
    salt: Digest
    agrees: bool
    """Whether every root of the published trace up to t* is its own."""
    body: Body
    proof: tuple[Digest, ...]
    """Agreeing: leaf(state) is at position t* - 1 of the trace. Differing: empty."""


def stake_key(job: JobId, account: Address) -> bytes:
    """keccak(abi.encode(JobId, account)): the lock of a witness's stake."""
    return keccak(job + word(account))


def beacon_of(block_hash: bytes, audit: AuditId) -> Digest:
    """keccak(abi.encode(blockhash(beaconBlock), AuditId))."""
    return keccak(word(block_hash) + audit)


def account_word(beacon: Digest, i: int) -> int:
    """Where in the list the i-th duty's account is looked for, before the remainder."""
    return int.from_bytes(keccak(beacon + word(2 * i)), "big")


def slot_word(beacon: Digest, i: int) -> int:
    """Which of the revealed slots still to be dealt out the i-th duty gets, before the remainder."""
    return int.from_bytes(keccak(beacon + word(2 * i + 1)), "big")


def slot_order(beacon: Digest, slots: list[int], count: int) -> list[int]:
    """The slots of the first `count` duties: each once before any twice (Fisher, Yates 1938; Durstenfeld 1964)."""
    order = list(slots)
    for i in range(min(count, len(order))):
        j = i + slot_word(beacon, i) % (len(order) - i)
        order[i], order[j] = order[j], order[i]
    return [order[i % len(order)] for i in range(count)] if order else []


def pick(accounts: list[Address], beacon: Digest, i: int, owner: Address, drawn: list[Address]) -> Address:
    """The i-th duty's account: not the slot's owner, none twice while others remain; ZERO_ADDRESS if there is none."""
    n = len(accounts)
    if n == 0:
        return ZERO_ADDRESS
    first = account_word(beacon, i) % n
    # At most every account drawn and the owner are passed over.
    for k in range(min(n, len(drawn) + 2)):
        account = accounts[(first + k) % n]
        if account != owner and account not in drawn:
            return account
    for k in range(min(n, 2)):
        account = accounts[(first + k) % n]
        if account != owner:
            return account
    return ZERO_ADDRESS


def step_of(preimage: Digest, beacon: Digest, i: int, transitions: int) -> Step:
    """t* = 1 + keccak(preimage, beacon, i) mod T: how far the i-th duty replays."""
    return Step(1 + int.from_bytes(keccak(preimage + beacon + word(i)), "big") % transitions)


def commitment(claim: ClaimId, account: Address, state: StateRoot, preimage: Digest, salt: Digest) -> Digest:
    """keccak(abi.encode(ClaimId, account, S_t*, preimage, salt))."""
    return keccak(b"".join(word(part) for part in (claim, account, state, preimage, salt)))


def chained(value: Digest, links: int) -> Digest:
    """keccak applied `links` times."""
    for _ in range(links):
        value = keccak(value)
    return value


P = ParamSpec("P")
R = TypeVar("R")


def _verb(act: Callable[Concatenate[Witnesses, P], R]) -> Callable[Concatenate[Witnesses, P], R]:
    """All or nothing, as a transaction; what the market did for it included."""

    @wraps(act)
    def whole(self: Witnesses, /, *args: P.args, **kwargs: P.kwargs) -> R:
        market = self.market
        theirs = copy.deepcopy(market.__dict__)
        own = copy.deepcopy({k: v for k, v in self.__dict__.items() if k != "market"})
        try:
            return act(self, *args, **kwargs)
        except Exception:
            self.__dict__.update(own)
            market.__dict__.update(theirs)
            raise

    return whole


@dataclass
class Witnesses:
    """The verifier market of every job of one market."""

    market: Market
    witnesses: dict[tuple[JobId, Address], Witness] = field(default_factory=dict)
    lists: dict[JobId, list[Address]] = field(default_factory=dict)
    audits: dict[AuditId, Audit] = field(default_factory=dict)
    duties: dict[tuple[AuditId, int], Duty] = field(default_factory=dict)
    drawing: dict[JobId, AuditId] = field(default_factory=dict)
    """The audit whose beacon is fixed and not drawn."""

    # -- witnesses

    @_verb
    def enrol(self, block: Block, sender: Address, job: JobId, head: Digest) -> None:
        """Joins the job's list; locks the stake."""
        j, w = self.market.jobs.get(job), self._witness(job, sender)
        # INVARIANT: witnesses are for jobs that run and draw some.
        if j is None or j.status != JobStatus.ACTIVE or self.market.params[job].role.witnesses == 0:
            raise revert("WrongJobStatus", job)
        if w.standing != Standing.NONE:
            raise revert("AlreadyDone")
        self._catch_up(block, job)

        accounts = self.lists.setdefault(job, [])
        self.witnesses[job, sender] = Witness(Standing.LISTED, len(accounts), head)
        accounts.append(sender)

        self.market.books.lock(
            sender, stake_key(job, sender), self.market.params[job].prices.witness_stake, Keeper.WITNESSES
        )

    @_verb
    def retire(self, block: Block, sender: Address, job: JobId) -> None:
        """Leaves the list; the stake is free once no duty is open."""
        self._catch_up(block, job)
        if self._witness(job, sender).standing != Standing.LISTED:
            raise revert("NotWitness", sender)

        self._unlist(job, sender)
        self._leave(job, sender)

    @_verb
    def commit(self, block: Block, sender: Address, audit: AuditId, i: int, commitment: Digest) -> None:
        """Binds a witness to what it saw without showing it."""
        a, duty = self._duty(audit, i)
        if sender != duty.account:
            raise revert("NotWitness", sender)
        # INVARIANT: a verdict is committed once, before anybody's is revealed.
        if duty.status != DutyStatus.DRAWN:
            raise revert("AlreadyDone")
        if block.time >= a.commit_ends:
            raise revert("WindowClosed", self._claim_of(a, duty))

        duty.status = DutyStatus.COMMITTED
        duty.commitment = commitment
        a.committed += 1
        if a.committed == a.duties:
            self._set_windows(a, block.time)

    @_verb
    def reveal(self, block: Block, sender: Address, audit: AuditId, i: int, opened: Word) -> None:
        """Opens a verdict."""
        a, duty = self._duty(audit, i)
        w, claim = self._witness(a.job, sender), self._claim_of(a, duty)
        if sender != duty.account:
            raise revert("NotWitness", sender)
        if duty.status != DutyStatus.COMMITTED:
            raise revert("AlreadyDone")
        if block.time < a.commit_ends:
            raise revert("TooEarly", a.commit_ends)
        if block.time >= a.reveal_ends:
            raise revert("WindowClosed", claim)
        # INVARIANT: what is revealed is what was committed, by this witness for this claim.
        if duty.commitment != commitment(claim, sender, opened.state, opened.preimage, opened.salt):
            raise revert("CommitmentMismatch")
        # INVARIANT: how far a witness looked was fixed before the beacon: nobody chooses its own t*.
        self._spend(w, duty.serial, opened.preimage)
        c = self.market.claims[claim]
        t = step_of(opened.preimage, a.beacon, i, c.transitions)
        # INVARIANT: who agrees names the state that the claim has at t*.
        if opened.agrees:
            if claims.body_hash(opened.body) != c.digest:
                raise revert("CommitmentMismatch")
            leaf = merkle.leaf(opened.state)
            if len(opened.proof) != merkle.ceil_log2(c.transitions) or not merkle.verify(
                opened.body.trace_root, leaf, t - 1, opened.proof
            ):
                raise revert("ProofInvalid")

        duty.t = t
        duty.status = DutyStatus.AGREED if opened.agrees else DutyStatus.DIFFERED

    # -- workers

    def publish(self, block: Block, sender: Address, job: JobId, r: int, slot: int) -> None:
        """Names the list of a claim's state roots, once no witness can copy from it."""
        ro = self.market.rounds.get((job, r), Round())
        a = self.audits.get(audit_id(job, r, ro.attempt), Audit())
        c = self.market.claims.get(claims.claim_id(job, r, ro.attempt, slot), Claim())
        if c.worker != sender:
            raise revert("NotSlotOwner", slot)
        # INVARIANT: no state root is public while a witness may still commit to one.
        if c.claimed_at == 0 or not self._may_publish(block, a, job, r):
            raise revert("WindowClosed", audit_id(job, r, ro.attempt))

    # -- anyone

    @_verb
    def draw(self, block: Block, job: JobId, r: int) -> None:
        """First call after the reveals: fixes the beacon's block. Call after that block: draws; too late: skips."""
        if (job, r) not in self.market.rounds:
            raise revert("WrongPhase", job, r)
        attempt = self.market.rounds[job, r].attempt
        audit = audit_id(job, r, attempt)
        if self._catch_up(block, job) == audit:
            return
        # INVARIANT: a round is drawn once.
        if audit in self.audits:
            raise revert("AlreadyDone")
        # INVARIANT: witnesses are drawn while receipts are given: a round that nobody draws in time has none.
        if self.market.params[job].role.witnesses == 0 or self.market.phase(block, job, r) != Phase.ATTESTING:
            raise revert("WrongPhase", job, r)

        # INVARIANT: nobody who reveals, enrols or calls knows whom the beacon will name: its block is yet to come.
        self.audits[audit] = Audit(AuditStatus.DRAWING, job, r, attempt, block.number + 1)
        self.drawing[job] = audit

    @_verb
    def settle(self, block: Block, audit: AuditId, i: int) -> Outcome:
        """Closes a duty: pays, fines, slashes, or none of it."""
        a, duty = self._duty(audit, i)
        if duty.status in (DutyStatus.NONE, DutyStatus.CLOSED):
            raise revert("AlreadyDone")
        self._catch_up(block, a.job)
        outcome = self._outcome(block, a, duty)

        duty.status = DutyStatus.CLOSED
        w = self.witnesses[a.job, duty.account]
        w.open -= 1

        if outcome == Outcome.FINED:
            self._take(a.job, duty.account, self.market.params[a.job].role.witness_fee, Standing.LEAVING)
        elif outcome == Outcome.SLASHED:
            self._take(a.job, duty.account, None, Standing.SLASHED)

        self.market.on_witnessed(a.job, duty.account if outcome == Outcome.PAID else ZERO_ADDRESS)
        if w.standing != Standing.LISTED:
            self._leave(a.job, duty.account)
        return outcome

    # -- views

    def witness_of(self, job: JobId, r: int, i: int) -> Address:
        """The account of the i-th duty that was drawn for the round."""
        return self._duty(audit_id(job, r, self.market.rounds[job, r].attempt), i)[1].account

    # -- inside: draws

    def _catch_up(self, block: Block, job: JobId) -> AuditId | None:
        """Draws what is due to be drawn in a job, and says what it was."""
        audit = self.drawing.get(job)
        if audit is None:
            return None
        a = self.audits[audit]
        # INVARIANT: between the fixing of a beacon and its draw the list stands still: nobody moves in it knowing it.
        if block.number <= a.beacon_block:
            raise revert("TooEarly", a.beacon_block + 1)

        del self.drawing[job]
        # INVARIANT: one beacon an audit: one that nobody drew in time is skipped, it is never drawn again.
        late = block.number > a.beacon_block + SEAL_BLOCKS
        moved = self.market.rounds[job, a.round].attempt != a.attempt
        if late or moved or self.market.phase(block, job, a.round) != Phase.ATTESTING:
            a.status = AuditStatus.SKIPPED
            return audit
        a.status = AuditStatus.DRAWN
        a.beacon = beacon_of(block.hashes[a.beacon_block], audit)
        self._deal(block, audit, a)
        # With nobody to wait for, the roots may be published at once.
        wait = self.market.params[job].windows.audit_seconds if a.duties else 0
        self._set_windows(a, block.time + wait)
        return audit

    def _deal(self, block: Block, audit: AuditId, a: Audit) -> None:
        """Gives each duty its slot and its account."""
        p, accounts = self.market.params[a.job], self.lists.get(a.job, [])
        drawn: list[Address] = []
        for slot in slot_order(a.beacon, self._revealed(a), p.role.witnesses):
            owner = self.market.claims[claims.claim_id(a.job, a.round, a.attempt, slot)].worker
            account = pick(accounts, a.beacon, len(drawn), owner, drawn)
            if account == ZERO_ADDRESS:
                continue
            w = self.witnesses[a.job, account]
            w.drawn += 1
            w.open += 1
            self.duties[audit, len(drawn)] = Duty(account, slot, w.drawn, DutyStatus.DRAWN)
            drawn.append(account)
        a.duties = len(drawn)

        self.market.on_drawn(block, a.job, a.round, a.duties)

    def _revealed(self, a: Audit) -> list[int]:
        """Slots whose claim was revealed, convicted ones included."""
        ids = (claims.claim_id(a.job, a.round, a.attempt, s) for s in range(self.market.params[a.job].role.slots))
        return [s for s, claim in enumerate(ids) if self.market.claims.get(claim, Claim()).claimed_at]

    def _set_windows(self, a: Audit, commit_ends: int) -> None:
        """Committing ends at `commit_ends`; then owners publish for auditSeconds, and witnesses have as long again."""
        a.commit_ends = Seconds(commit_ends)
        a.reveal_ends = Seconds(commit_ends + 2 * self.market.params[a.job].windows.audit_seconds)

    def _may_publish(self, block: Block, a: Audit, job: JobId, r: int) -> bool:
        if a.status == AuditStatus.DRAWN:
            return block.time >= a.commit_ends
        # Nobody has been drawn: as long as somebody may be, the list stays unpublished.
        over = self.market.phase(block, job, r) > Phase.ATTESTING or a.status == AuditStatus.SKIPPED
        return over or self.market.params[job].role.witnesses == 0

    # -- inside: duties

    def _witness(self, job: JobId, account: Address) -> Witness:
        return self.witnesses.get((job, account), Witness())

    def _duty(self, audit: AuditId, i: int) -> tuple[Audit, Duty]:
        return self.audits.get(audit, Audit()), self.duties.get((audit, i), Duty())

    def _claim_of(self, a: Audit, duty: Duty) -> ClaimId:
        return claims.claim_id(a.job, a.round, a.attempt, duty.slot)

    def _spend(self, w: Witness, serial: int, preimage: Digest) -> None:
        """Checks that a preimage is the `serial`-th of the witness's chain, and keeps the deepest one known."""
        if serial > w.spent:
            if chained(preimage, serial - w.spent) != w.head:
                raise revert("PreimageWrong")
            w.head, w.spent = preimage, serial
        elif chained(w.head, w.spent - serial) != preimage:
            raise revert("PreimageWrong")

    def _outcome(self, block: Block, a: Audit, duty: Duty) -> Outcome:
        """What becomes of a duty; raises while that is open."""
        claim = self._claim_of(a, duty)
        status, convicted_at = self.market.status(claim), self.market.claims[claim].convicted_at
        agreed = duty.status == DutyStatus.AGREED
        # INVARIANT: a word with no stake behind it earns nothing and costs nothing more.
        if self._witness(a.job, duty.account).standing == Standing.SLASHED:
            return Outcome.VOID
        # INVARIANT: a stake is taken for a word that a proof has shown to be false, and for nothing else.
        if agreed and status == ClaimStatus.CONVICTED and 0 < convicted_at <= duty.t:
            return Outcome.SLASHED
        ro = self.market.rounds[a.job, a.round]
        convicted = status == ClaimStatus.CONVICTED
        if self._is_gone(a, ro, status):
            # A game that outlives the round may still show that the word was false.
            if agreed and self.market.live(claim):
                raise revert("DutyOpen", claim)
            # INVARIANT: who looked at work that a convicted merge voided is paid as the work is.
            paid = agreed and not convicted and audit_id(a.job, a.round, a.attempt) in self.market.rewound
            return Outcome.PAID if paid else Outcome.VOID
        # INVARIANT: who was drawn and says nothing pays the fee.
        if duty.status == DutyStatus.DRAWN and block.time >= a.commit_ends:
            return Outcome.FINED
        if duty.status == DutyStatus.COMMITTED and block.time >= a.reveal_ends:
            return Outcome.FINED
        # INVARIANT: fees are paid in final rounds alone: a round that starts again pays no witness twice.
        if duty.status in (DutyStatus.DRAWN, DutyStatus.COMMITTED) or ro.phase != Phase.FINAL:
            raise revert("DutyOpen", claim)
        # INVARIANT: who differs is paid if the claim is convicted, by whatever game, and pays the fee if it stands.
        if not agreed:
            return Outcome.PAID if convicted else Outcome.FINED
        # INVARIANT: who agrees is paid unless the claim was convicted without a proof of where it is wrong.
        return Outcome.PAID if not convicted or convicted_at > duty.t else Outcome.VOID

    @staticmethod
    def _is_gone(a: Audit, ro: Round, status: ClaimStatus) -> bool:
        """The claim is void, or its round is, or started again, or failed under a conviction."""
        if ro.attempt != a.attempt or ro.phase == Phase.VOID:
            return True
        if status == ClaimStatus.CONVICTED:
            return ro.phase == Phase.FAILED
        return status == ClaimStatus.VOID

    def _take(self, job: JobId, account: Address, amount: Wei | None, standing: Standing) -> None:
        """Burns up to `amount` of the stake (None: all), and unlists: who fails a duty is drawn no more."""
        self._unlist(job, account)
        books, stake = self.market.books, stake_key(job, account)
        held = books.locks[stake].amount
        taken = held if amount is None else min(amount, held)

        self.witnesses[job, account].standing = standing
        books.slash_liveness(stake, taken, Keeper.WITNESSES)
        # What is left answers for the duties that are open.
        if standing == Standing.LEAVING:
            books.lock(account, stake, Wei(held - taken), Keeper.WITNESSES)

    def _unlist(self, job: JobId, account: Address) -> None:
        """Takes an account off the list, if it is there; the last one takes its place."""
        w, accounts = self.witnesses[job, account], self.lists.get(job, [])
        if w.standing != Standing.LISTED:
            return
        last = accounts.pop()
        if last != account:
            accounts[w.place] = last
            self.witnesses[job, last].place = w.place
        w.standing = Standing.LEAVING

    def _leave(self, job: JobId, account: Address) -> None:
        """Forgets a witness that is off the list and has nothing left to do; its stake is free."""
        w = self.witnesses[job, account]
        if w.open:
            return
        del self.witnesses[job, account]
        if w.standing == Standing.LEAVING:
            self.market.books.unlock(stake_key(job, account), Keeper.WITNESSES)
