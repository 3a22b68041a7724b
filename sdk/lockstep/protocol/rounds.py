"""The job's state machine, pure. Twin of contracts/JobMarket.sol: same names, same order, same sentences.

A verb looks up, requires, computes, writes and pays; a broken rule raises what the contract would revert with and, as
there, nothing has happened. Time and block come in with each act (`Block`), what other contracts know as functions
(`Beyond`); nothing here reads a clock.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from lockstep.protocol import claims, economics, merkle, receipts, states
from lockstep.protocol.job_rules import ChainTimes, check_params
from lockstep.protocol.jobs import (
    MAX_CID,
    NO_CLAIM,
    NO_SEED,
    NO_STATE,
    NOTHING,
    ZERO_ADDRESS,
    Body,
    Claim,
    ClaimStatus,
    Facts,
    GameTerms,
    Job,
    JobParams,
    JobStatus,
    Phase,
    Receipt,
    Reveal,
    Round,
)
from lockstep.protocol.reverts import revert
from lockstep.protocol.stakes import BURN, Books
from lockstep.protocol.statement import keccak
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    AuditId,
    ClaimId,
    Digest,
    JobId,
    ProgramRoot,
    Seconds,
    StateRoot,
    TensorRoot,
    TraceRoot,
    Wei,
)

SEAL_BLOCKS = 256
"""The EVM's blockhash knows this many blocks."""

JUDGED = (ClaimStatus.REVEALED, ClaimStatus.ACCEPTED, ClaimStatus.EXCLUDED)


@dataclass(frozen=True)
class Block:
    """The block that an act is in."""

    number: int
    time: Seconds
    hashes: Mapping[int, bytes] = field(default_factory=dict)
    """Of earlier blocks; `seal` asks for one."""
    base_fee: int = 0
    """Wei per gas."""


@dataclass(frozen=True)
class Beyond:
    """What the market asks others: keys, the witnesses, the demands."""

    is_signed: Callable[[Address, Digest, bytes], bool] = lambda account, digest, signature: False
    """Whether the account signed the digest (contracts/libraries/Signatures.sol)."""
    witness_of: Callable[[JobId, int, int], Address] = lambda job, r, i: ZERO_ADDRESS
    """The account of the i-th duty that was drawn for the round."""
    missing: Callable[[ClaimId], bool] = lambda claim: False
    """Whether a demand for the claim's payload ended unanswered; raises while one is open."""


def phase_of(ro: Round, now: Seconds) -> Phase:
    """`Market.phase`, but for a void job and for receipts that are complete."""
    if ro.phase != Phase.JOINING:
        return ro.phase
    if ro.commit_ends == 0:
        return Phase.JOINING if ro.seed_block == 0 and now < ro.join_ends else Phase.SEALING
    if now < ro.commit_ends:
        return Phase.TRAINING
    if now < ro.reveal_ends and ro.revealed < ro.committed:
        return Phase.REVEALING
    if now < ro.attest_ends and ro.revealed > 0:
        return Phase.ATTESTING
    return Phase.FREEZING


def turn(p: JobParams, ro: Round, now: Seconds) -> int:
    """The merge turn now: each lasts merge_seconds."""
    return ro.turn + (now - ro.merge_opens) // p.merge.turn_seconds


def seed_order(p: JobParams, ro: Round) -> list[int]:
    """The accepted slots in the order of their merge turns 1, 2, ..."""
    first = int.from_bytes(ro.seed, "big") % p.role.slots
    order = [(first + i) % p.role.slots for i in range(p.role.slots)]
    return [s for s in order if ro.mask >> s & 1]


P = ParamSpec("P")
R = TypeVar("R")


def _verb(act: Callable[Concatenate[Market, P], R]) -> Callable[Concatenate[Market, P], R]:
    """All or nothing, as a transaction."""

    @wraps(act)
    def whole(self: Market, /, *args: P.args, **kwargs: P.kwargs) -> R:
        before = copy.deepcopy(self.__dict__)
        try:
            return act(self, *args, **kwargs)
        except Exception:
            self.__dict__.update(before)
            raise

    return whole


class Market:
    """All jobs of one market, and its vault's books."""

    def __init__(
        self,
        chain_id: int,
        address: Address,
        unbond_seconds: Seconds,
        beyond: Beyond | None = None,
        chain: ChainTimes | None = None,
    ) -> None:
        self.chain_id = chain_id
        self.address = address
        self.beyond = beyond or Beyond()
        self.chain = chain or ChainTimes()
        self.books = Books(unbond_seconds)
        self.jobs: dict[JobId, Job] = {}
        self.params: dict[JobId, JobParams] = {}
        self.rounds: dict[tuple[JobId, int], Round] = {}
        self.claims: dict[ClaimId, Claim] = {}
        self.barred: set[tuple[JobId, Address]] = set()
        """Who was convicted of a merge of the job: it merges there no more."""
        self.rewound: set[AuditId] = set()
        """Audits of rounds that a convicted merge voided: who agreed there is paid."""
        self.base_fees = 0
        """Of the last seals (economics.push)."""

    # -- the requester

    @_verb
    def create(self, sender: Address, p: JobParams, nonce: int, escrow: Wei) -> JobId:
        """Opens a job and takes its escrow and its deposit."""
        check_params(p, self.books.unbond_seconds, self.chain)
        # INVARIANT: the escrow covers every slot, every merge and every witness of every round.
        if not p.escrow <= escrow < 1 << 120:
            raise revert("EscrowInsufficient", p.escrow, escrow)
        job = claims.job_id(self.chain_id, self.address, sender, nonce, p)
        if job in self.jobs:
            raise revert("JobExists", job)

        self.params[job] = p
        # INVARIANT: the deposit pays every round that can be in flight when the job is proven invalid, and one round's
        # pay more, which its requester then loses.
        self.jobs[job] = Job(sender, JobStatus.ACTIVE, escrow=escrow, deposit=p.deposit)
        self.books.escrow(Wei(escrow + p.deposit))
        return job

    @_verb
    def cancel(self, sender: Address, job: JobId) -> None:
        """Stops new rounds and refunds all escrow that no round in flight has reserved."""
        j = self._job(job)
        if sender != j.requester:
            raise revert("Unauthorized", sender)
        if j.status != JobStatus.ACTIVE:
            raise revert("WrongJobStatus", job)
        # INVARIANT: what rounds in flight may still pay stays in escrow, and so do the fees of unsettled duties.
        reserved = (j.started - j.settled) * self.params[job].round_pay
        refund = max(0, j.escrow - j.paid - j.fees_due - reserved)

        j.status = JobStatus.CANCELLED
        self._refund(j, refund)

    # -- anyone

    @_verb
    def start_round(self, block: Block, job: JobId, r: int) -> None:
        """Opens the next round for joining."""
        j, p, ro = self._job(job), self.params.get(job), self._round(job, r)
        if j.status != JobStatus.ACTIVE or p is None:
            raise revert("WrongJobStatus", job)
        # INVARIANT: rounds start in order, on a merged or carried-over base, at most maxLead ahead of the last settled.
        if (
            r != j.started
            or r >= p.schedule.rounds
            or j.failed > p.schedule.max_fail
            or r - j.settled >= p.schedule.max_lead
        ):
            raise revert("RoundNotStartable", r)
        # INVARIANT: what a game on voided work argues about stands still until the game is over.
        if j.lingering:
            raise revert("GamesOpen", j.lingering)
        self._require_backed(job, j.settled, r)
        base, outer = self._base_of(job, p, r)
        if ro.phase == Phase.VOID:
            self._release_all(job, r, ro)

        self.rounds[job, r] = Round(
            Phase.JOINING, j.attempt, join_ends=Seconds(block.time + p.windows.join_seconds), base=base, outer=outer
        )
        j.started = r + 1

    @_verb
    def seal(self, block: Block, job: JobId, r: int) -> None:
        """Closes the roster, or draws the seed, or fails the round."""
        p, ro = self._in_phase(block, job, r, Phase.SEALING)
        if ro.seed_block == 0:
            if ro.joined < p.role.min_slots:
                return self._fail(job, r, ro)
            return self._close_roster(block, ro)
        if block.number <= ro.seed_block:
            raise revert("TooEarly", ro.seed_block + 1)
        # INVARIANT: one seed per roster: a round that nobody sealed in time fails, it is never drawn again.
        if block.number > ro.seed_block + SEAL_BLOCKS:
            return self._fail(job, r, ro)

        ro.seed = claims.seed(block.hashes[ro.seed_block], job, r, ro.attempt)
        self._set_windows(ro, p, block.time + p.role.train_seconds, p.role.reveal_seconds)
        self.base_fees = economics.push(self.base_fees, block.base_fee)
        return None

    @_verb
    def attest(self, block: Block, job: JobId, r: int, given: Sequence[Receipt]) -> None:
        """Hands in receipts; the first of each speaker counts."""
        p, ro = self._in_phase(block, job, r, Phase.ATTESTING)
        for receipt in given:
            # INVARIANT: the first receipt of each counts, and no other.
            if ro.spoke >> receipt.who & 1:
                raise revert("AlreadyDone")
            account = self._speaker(job, r, p, ro, receipt.who)
            digest = claims.receipt_hash(self.chain_id, self.address, job, r, ro.attempt, receipt.who, receipt.mask)
            self._require_signed(account, digest, receipt.signature)

            ro.spoke |= 1 << receipt.who
            ro.receipts += 1
            ro.named = receipts.add(ro.named, receipt.mask, receipt.who)

    @_verb
    def freeze(self, block: Block, job: JobId, r: int, bodies: Sequence[Body]) -> None:
        """Fixes the accepted claims and mergeIn; burns slotPrice of the stakes of absent workers.

        `bodies` are those of the revealed slots, in order.
        """
        p, ro = self._in_phase(block, job, r, Phase.FREEZING)
        mask, payloads = self._accepted(job, r, p, ro, bodies)
        if mask.bit_count() < p.role.min_slots:
            return self._fail(job, r, ro)

        # INVARIANT: the contract computes what is merged: nobody can omit, add or change a payload.
        mask_root = states.mask_tensor(mask, p.role.slots)
        ro.merge_in = states.merge_in(
            ro.base, ro.outer, payloads, mask_root, p.genesis.shared_depth, p.role.payload_depth
        )
        ro.mask = mask
        ro.accepted = mask.bit_count()
        ro.phase = Phase.MERGING
        ro.merge_opens = block.time
        ro.turn = 0 if p.merge.aggregator != ZERO_ADDRESS and (job, p.merge.aggregator) not in self.barred else 1

        for s in range(p.role.slots):
            claim, c = self._claim_at(job, r, ro, s)
            if c.status == ClaimStatus.REVEALED:
                c.status = ClaimStatus.ACCEPTED if mask >> s & 1 else ClaimStatus.EXCLUDED
            elif c.status in (ClaimStatus.JOINED, ClaimStatus.COMMITTED):
                self._absent(claim, c, p.role.slot_price)
        return None

    @_verb
    def finalize(self, block: Block, job: JobId, r: int) -> None:
        """Pays a round that nobody can overturn any more; or fails one that everybody entitled has failed to merge."""
        j, ro = self._job(job), self._round(job, r)
        p = self.params.get(job)
        # INVARIANT: a void job's rounds are not settled but released.
        if j.status == JobStatus.VOID:
            raise revert("WrongJobStatus", job)
        if p is not None and ro.phase == Phase.MERGING and turn(p, ro, block.time) > ro.accepted:
            if j.lingering:
                raise revert("GamesOpen", j.lingering)
            return self._fail(job, r, ro)
        # INVARIANT: final iff the challenge window is over, no game is open and the base is final.
        if p is None or ro.phase != Phase.LEAD or r != j.settled:
            raise revert("WrongPhase", job, r)
        if block.time < ro.merged_at + p.windows.challenge_seconds:
            raise revert("TooEarly", ro.merged_at + p.windows.challenge_seconds)
        if ro.open_games:
            raise revert("GamesOpen", ro.open_games)

        ro.phase = Phase.FINAL

        paid = 0
        for s in range(p.role.slots):
            claim, c = self._claim_at(job, r, ro, s)
            # INVARIANT: pay follows from accepted, unconvicted claims, never from what a claimant says.
            if c.status == ClaimStatus.ACCEPTED:
                paid += self._pay(claim, c, ClaimStatus.FINAL, p.role.slot_price)
            elif c.status == ClaimStatus.EXCLUDED:
                self._give_back(claim, c, ClaimStatus.FINAL)
        paid += self._pay(ro.merge_claim, self.claims[ro.merge_claim], ClaimStatus.FINAL, p.merge.price)
        j.paid = Wei(j.paid + paid)
        self._settle(job, j)
        return None

    @_verb
    def release(self, job: JobId, r: int) -> None:
        """Gives back the stakes of a Void round; of a void job also pays the first unsettled round's claims."""
        j, ro = self._job(job), self._round(job, r)
        voided = _is_voided(j)
        # A failed round of a void job may still hold stakes for games that are void now.
        if ro.phase == Phase.VOID or (voided and ro.phase == Phase.FAILED):
            # INVARIANT: stakes under open games stay locked until the games are over.
            if not voided and ro.open_games:
                raise revert("GamesOpen", ro.open_games)
            return self._release_all(job, r, ro)
        # INVARIANT: a void job's rounds are released in order, each once: what is left of the deposit is then known.
        if not voided or r != j.settled or r >= j.started:
            raise revert("WrongPhase", job, r)

        ro.phase = Phase.VOID
        # None of its claims could be defended.
        j.deposit = Wei(j.deposit - self._end_all(job, r, ro, pays=True))
        j.settled = r + 1
        self._settle(job, j)
        return None

    @_verb
    def finish(self, job: JobId) -> None:
        """Refunds what is left once no round is in flight and none can start."""
        j = self._job(job)
        voided = j.status == JobStatus.VOID
        if j.status not in (JobStatus.ACTIVE, JobStatus.CANCELLED, JobStatus.VOID):
            raise revert("WrongJobStatus", job)
        p = self.params[job]
        startable = j.status == JobStatus.ACTIVE and j.started < p.schedule.rounds and j.failed <= p.schedule.max_fail
        if startable or j.settled != j.started:
            raise revert("JobUnfinished")
        left = j.deposit

        j.status = JobStatus.DONE
        j.deposit = Wei(0)
        # INVARIANT: escrow = paid + refunded + fees still due, exactly.
        refund = j.escrow - j.paid - j.refunded - j.fees_due
        # INVARIANT: what a void job's deposit has not paid goes to the prover and is burned, never to the requester.
        j.refunded = Wei(j.refunded + refund)
        self.books.credit(j.requester, Wei(refund if voided else refund + left))
        if voided:
            to_prover = left * economics.PROVER_PERCENT // 100
            self.books.credit(j.prover, Wei(to_prover))
            self.books.credit(BURN, Wei(left - to_prover))

    # -- workers, aggregator

    @_verb
    def join(self, block: Block, sender: Address, job: JobId, r: int, slot: int) -> None:
        """Takes a slot; locks its stake."""
        p, ro = self._in_phase(block, job, r, Phase.JOINING)
        if slot >= p.role.slots:
            raise revert("NoSuchSlot", slot)
        claim, c = self._claim_at(job, r, ro, slot)
        if c.worker != ZERO_ADDRESS:
            raise revert("SlotTaken", slot)

        self.claims[claim] = Claim(
            job, sender, ClaimStatus.JOINED, p.role.transitions, round=r, attempt=ro.attempt, slot=slot
        )
        ro.joined += 1

        self.books.lock(sender, claim, p.role.slot_stake)
        if ro.joined == p.role.slots:
            self._close_roster(block, ro)

    @_verb
    def leave(self, block: Block, sender: Address, job: JobId, r: int, slot: int) -> None:
        """Gives a slot back in the first half of the join window."""
        p, ro = self._in_phase(block, job, r, Phase.JOINING)
        # INVARIANT: a slot is given back while others have half of the window left to take it.
        if block.time >= ro.join_ends - p.windows.join_seconds // 2:
            raise revert("WrongPhase", job, r)
        claim, _ = self._own_claim(sender, job, r, ro, slot)

        del self.claims[claim]
        ro.joined -= 1

        self.books.unlock(claim)

    @_verb
    def commit(self, block: Block, sender: Address, job: JobId, r: int, slot: int, commitment: Digest) -> None:
        """Binds the sender to its claim without showing it."""
        p, ro = self._in_time(block, job, r, Phase.TRAINING)
        _, c = self._own_claim(sender, job, r, ro, slot)
        # INVARIANT: a commitment is made once: nobody looks at the others' and changes its own.
        if c.status != ClaimStatus.JOINED:
            raise revert("AlreadyDone")

        c.status = ClaimStatus.COMMITTED
        c.digest = commitment
        ro.committed += 1
        if ro.committed == ro.joined:
            self._set_windows(ro, p, block.time, p.role.reveal_seconds)

    @_verb
    def reveal(self, block: Block, sender: Address, job: JobId, r: int, slot: int, opened: Reveal) -> None:
        """Opens the commitment."""
        p, ro = self._in_time(block, job, r, Phase.REVEALING)
        claim, c = self._own_claim(sender, job, r, ro, slot)
        if c.status != ClaimStatus.COMMITTED:
            raise revert("AlreadyDone")
        _require_cid(opened.trace_cid)
        _require_cid(opened.payload_cid)
        # INVARIANT: what is revealed is what was committed, by this worker for this claim.
        if c.digest != claims.commitment(claim, sender, opened):
            raise revert("CommitmentMismatch")
        # INVARIANT: the outputs are those of the last state of the trace.
        said = opened.body
        last = merkle.leaf(merkle.node(said.out, said.out2))
        if len(opened.proof_t) != merkle.ceil_log2(c.transitions) or not merkle.verify(
            said.trace_root, last, c.transitions - 1, opened.proof_t
        ):
            raise revert("ProofInvalid")

        c.status = ClaimStatus.REVEALED
        c.claimed_at = block.time
        c.digest = claims.body_hash(said)
        ro.revealed += 1
        if ro.revealed == ro.committed:
            self._set_windows(ro, p, ro.commit_ends, block.time - ro.commit_ends)

    @_verb
    def merge(
        self, block: Block, sender: Address, job: JobId, r: int, out: StateRoot, out2: StateRoot, rounds: int = 0
    ) -> ClaimId:
        """Claims the merge; locks its stake, and the pay of `rounds` later rounds, which may start on it."""
        j = self._job(job)
        p, ro = self._in_phase(block, job, r, Phase.MERGING)
        # INVARIANT: the aggregator merges until its time is over, then slot owners in seed order; no convicted one.
        merger = self.merger_of(block, job, r)
        if sender != merger:
            raise revert("NotYourTurn", merger)
        claim = claims.claim_id(job, r, j.attempt, MERGE_SLOT)

        said = Body(TraceRoot(merkle.leaf(merkle.node(out, out2))), out, out2)
        self.claims[claim] = Claim(
            job, sender, ClaimStatus.ACCEPTED, 1, block.time, r, j.attempt, MERGE_SLOT, digest=claims.body_hash(said)
        )
        ro.turn = turn(p, ro, block.time)
        ro.phase = Phase.LEAD
        ro.merged_at = block.time
        ro.merge_claim = claim
        ro.next_shared, ro.next_outer = out, out2
        ro.backed = rounds

        self.books.lock(sender, claim, Wei(p.merge.stake + rounds * p.round_pay))
        return claim

    @_verb
    def back(self, block: Block, sender: Address, job: JobId, r: int, rounds: int) -> None:
        """The merger locks the pay of `rounds` more later rounds."""
        p, ro = self._in_phase(block, job, r, Phase.LEAD)
        merger = self.claims[ro.merge_claim].worker
        # INVARIANT: who merged answers for its merge, and nobody else.
        if sender != merger:
            raise revert("NotYourTurn", merger)

        ro.backed += rounds

        self.books.increase(ro.merge_claim, Wei(rounds * p.round_pay))

    # -- the game

    @_verb
    def on_open(self, block: Block, claim: ClaimId, body: Body) -> GameTerms:
        """Counts a game in."""
        if not self.window_open(block, claim):
            raise revert("WindowClosed", claim)
        c = self.claims[claim]
        # INVARIANT: what is challenged is what was claimed.
        if c.digest != claims.body_hash(body):
            raise revert("CommitmentMismatch")
        p = self.params[c.job]
        number = c.games

        c.open_games, c.games = c.open_games + 1, number + 1
        self.rounds[c.job, c.round].open_games += 1

        return GameTerms(
            c.worker, c.transitions, number, p.windows.clock_seconds, p.windows.step_seconds, self._bond(p)
        )

    @_verb
    def on_convicted(
        self, block: Block, claim: ClaimId, t: int, winners: Sequence[Address], refunds: Sequence[tuple[Address, int]]
    ) -> None:
        """The claim is wrong, at step `t` or (0) for want of an answer: slashes its stake; a merge's later rounds are
        Void, and their work is paid from the slash before anybody shares it. `refunds` are gas."""
        if not self.live(claim):
            raise revert("ClaimClosed", claim)
        c = self.claims[claim]
        j, ro = self.jobs[c.job], self.rounds[c.job, c.round]

        c.status = ClaimStatus.CONVICTED
        c.convicted_at = t
        ro.open_games -= c.open_games
        if ro.phase == Phase.VOID:
            j.lingering -= c.open_games
        c.open_games = 0

        p, owed = self.params[c.job], 0
        if c.is_merge and ro.phase == Phase.LEAD:
            # A merge of a void round has nothing standing on it any more.
            owed = self._rewind(block, p, c, j, ro)
        elif not c.is_merge:
            # Nobody waits for a receipt of the convicted.
            ro.spoke |= 1 << c.slot
        # Gas is paid at what it costs now, capped.
        costs = [
            (account, economics.gas_cost(gas, p.prices.gas_price, p.prices.fee_cap, block.base_fee))
            for account, gas in refunds
        ]
        self.books.slash(claim, Wei(owed), winners, costs, j.requester)

    @_verb
    def on_rejected(self, claim: ClaimId) -> None:
        """The challenge failed: counts the game out."""
        if not self.live(claim):
            raise revert("ClaimClosed", claim)
        c = self.claims[claim]
        ro = self.rounds[c.job, c.round]

        c.open_games -= 1
        ro.open_games -= 1
        # A void round's stakes are given back together (`release`).
        if ro.phase == Phase.VOID:
            self.jobs[c.job].lingering -= 1
        # A failed round kept this stake for its games alone.
        if ro.phase == Phase.FAILED and c.open_games == 0:
            self._give_back(claim, c, ClaimStatus.VOID)

    # -- the validator, the witnesses, demands

    @_verb
    def on_invalid(self, job: JobId, prover: Address) -> None:
        """The job could not be defended, or lacks a row that nobody has: ends it."""
        j = self._job(job)
        if j.status not in (JobStatus.ACTIVE, JobStatus.CANCELLED):
            raise revert("WrongJobStatus", job)

        j.status = JobStatus.VOID
        j.prover = prover

    @_verb
    def on_drawn(self, block: Block, job: JobId, r: int, count: int) -> None:
        """How many witnesses were drawn for the round; reserves their fees."""
        p, ro = self._in_phase(block, job, r, Phase.ATTESTING)
        # INVARIANT: witnesses are drawn once a round, no more than the job pays.
        if ro.drawn or count > p.role.witnesses:
            raise revert("AlreadyDone")
        j, fees = self.jobs[job], count * p.role.witness_fee
        # INVARIANT: witnesses are paid from what slots and merges leave over, should rounds be run again.
        rounds = (p.schedule.rounds if j.status == JobStatus.ACTIVE else j.started) - j.settled
        needed = fees + rounds * (p.role.slots * p.role.slot_price + p.merge.price)
        left = j.escrow - j.paid - j.refunded - j.fees_due
        if needed > left:
            raise revert("EscrowTooLow", needed, left)

        ro.drawn = True
        ro.witnesses = count
        j.fees_due = Wei(j.fees_due + fees)

    @_verb
    def on_witnessed(self, job: JobId, account: Address) -> None:
        """Pays one drawn fee, or gives it up (the zero address)."""
        j, fee = self.jobs[job], self.params[job].role.witness_fee
        # INVARIANT: a drawn duty's fee is paid once or given up once.
        if fee > j.fees_due:
            raise revert("EscrowTooLow", fee, j.fees_due)

        j.fees_due = Wei(j.fees_due - fee)
        if account != ZERO_ADDRESS:
            j.paid = Wei(j.paid + fee)
            self.books.credit(account, fee)
        elif j.status == JobStatus.DONE:
            self._refund(j, fee)

    @_verb
    def on_demanded(self, block: Block, job: JobId, r: int, slot: int) -> None:
        """Somebody asks for the slot's payload; `freeze` will ask whether it was answered."""
        # INVARIANT: payloads are demanded while receipts are given, of those who have revealed.
        _, ro = self._in_phase(block, job, r, Phase.ATTESTING)
        _, c = self._claim_at(job, r, ro, slot)
        if c.status != ClaimStatus.REVEALED:
            raise revert("NoSuchSlot", slot)

        ro.demands += 1

    # -- views

    def phase(self, block: Block, job: JobId, r: int) -> Phase:
        """The phase now: what is stored, and what time and completeness make of it."""
        ro, p = self._round(job, r), self.params.get(job)
        # INVARIANT: in a void job nothing goes on: what was not final or failed is void.
        if _is_voided(self._job(job)):
            return ro.phase if ro.phase >= Phase.FINAL or ro.phase == Phase.NONE else Phase.VOID
        at = phase_of(ro, block.time)
        if p is None or at != Phase.ATTESTING:
            return at
        # Attesting is over when everybody who may has spoken.
        everybody = ro.spoke.bit_count() == ro.revealed + ro.witnesses and (p.role.witnesses == 0 or ro.drawn)
        return Phase.FREEZING if everybody else Phase.ATTESTING

    def bond_of(self, job: JobId) -> Wei:
        """What a game on a claim of the job costs its challenger now."""
        return self._bond(self.params[job])

    def status(self, claim: ClaimId) -> ClaimStatus:
        """The claim's effective status: VOID once its round is."""
        c = self.claims.get(claim)
        if c is None:
            return ClaimStatus.NONE
        return ClaimStatus.VOID if self._is_void(claim, c) else c.status

    def merger_of(self, block: Block, job: JobId, r: int) -> Address:
        """Who may merge now; the zero address if nobody."""
        p, ro = self.params[job], self._round(job, r)
        if ro.phase != Phase.MERGING:
            return ZERO_ADDRESS
        now, order, merger = turn(p, ro, block.time), seed_order(p, ro), ZERO_ADDRESS
        if now == 0:
            merger = p.merge.aggregator
        elif now <= len(order):
            _, c = self._claim_at(job, r, ro, order[now - 1])
            merger = c.worker if c.status != ClaimStatus.CONVICTED else ZERO_ADDRESS
        return ZERO_ADDRESS if (job, merger) in self.barred else merger

    def live(self, claim: ClaimId) -> bool:
        """Whether a verdict on the claim still counts."""
        c = self.claims.get(claim)
        if c is None or c.status not in JUDGED or self._is_void(claim, c):
            return False
        return self.rounds[c.job, c.round].phase != Phase.FINAL

    def window_open(self, block: Block, claim: ClaimId) -> bool:
        """Whether a game may be opened on the claim now."""
        if not self.live(claim):
            return False
        c = self.claims[claim]
        # A failed round, and a void one, keep the games that they have.
        if self.rounds[c.job, c.round].phase >= Phase.FAILED:
            return False
        return block.time < c.claimed_at + self.params[c.job].windows.challenge_seconds

    def facts_of(self, claim: ClaimId, t: int, carried: Sequence[bytes] = ()) -> Facts:
        """What is certain of transition t (1..T) of the claim.

        `carried`, of t = 1: the three words of the Body that S_0's carry comes from; where that is zero, they are not
        read.
        """
        c = self.claims[claim]
        p, ro = self.params[c.job], self.rounds[c.job, c.round]
        # INVARIANT: a claim has transitions 1..T and no other.
        if not 0 < t <= c.transitions:
            raise revert("ProofInvalid")
        zero = self._state_zero(claim, c, p, ro, carried) if t == 1 else NO_STATE
        last = p.role.encode_program if t == c.transitions else p.role.step_program
        program = ProgramRoot(p.merge.program if c.is_merge else last)
        return Facts(
            program,
            zero,
            TensorRoot(p.role.dataset_root),
            p.role.dataset_rows,
            p.role.row_length,
            ro.seed,
            c.round,
            c.slot,
        )

    # -- inside: jobs and rounds

    def _job(self, job: JobId) -> Job:
        return self.jobs.get(job, Job(ZERO_ADDRESS, JobStatus.NONE))

    def _round(self, job: JobId, r: int) -> Round:
        return self.rounds.get((job, r), Round())

    def _refund(self, j: Job, amount: int) -> None:
        j.refunded = Wei(j.refunded + amount)

        self.books.credit(j.requester, Wei(amount))

    def _base_of(self, job: JobId, p: JobParams, r: int) -> tuple[StateRoot, StateRoot]:
        """Raises unless round r - 1 is merged, final or failed."""
        if r == 0:
            return p.genesis.shared, p.genesis.outer
        previous = self._round(job, r - 1)
        if previous.phase == Phase.FAILED:
            return previous.base, previous.outer
        if previous.phase not in (Phase.LEAD, Phase.FINAL):
            raise revert("RoundNotStartable", r)
        return previous.next_shared, previous.next_outer

    def _speaker(self, job: JobId, r: int, p: JobParams, ro: Round, who: int) -> Address:
        """Who speaks as `who`: the owner of a revealed slot, or the round's witness who - 64."""
        account = ZERO_ADDRESS
        if who < p.role.slots:
            _, c = self._claim_at(job, r, ro, who)
            if c.status == ClaimStatus.REVEALED:
                account = c.worker
        elif receipts.WITNESS <= who < receipts.WITNESS + ro.witnesses:
            account = self.beyond.witness_of(job, r, who - receipts.WITNESS)
        # INVARIANT: owners of revealed slots and drawn witnesses speak, and nobody else.
        if account == ZERO_ADDRESS:
            raise revert("NotSlotOwner", who)
        return account

    def _carry_in(self, c: Claim, zero: StateRoot, carried: Sequence[bytes]) -> StateRoot:
        """What a slot's S_0 holds as its carry."""
        if c.round == 0:
            return zero
        before = self.rounds[c.job, c.round - 1]
        _, earlier = self._claim_at(c.job, c.round - 1, before, c.slot)
        # INVARIANT: a slot starts from its owner's accepted carry of the merged round before, or from zero.
        if before.phase == Phase.FAILED or not before.mask >> c.slot & 1 or earlier.worker != c.worker:
            return zero
        # INVARIANT: what is carried is what was claimed.
        if keccak(b"".join(carried)) != earlier.digest:
            raise revert("CommitmentMismatch")
        return StateRoot(carried[2])

    def _require_signed(self, account: Address, digest: Digest, signature: bytes) -> None:
        """By the account itself, or by its delegate."""
        # INVARIANT: a receipt is signed by who gives it.
        if self.beyond.is_signed(account, digest, signature):
            return
        delegate = self.books.delegate_of.get(account, ZERO_ADDRESS)
        if delegate != ZERO_ADDRESS and self.beyond.is_signed(delegate, digest, signature):
            return
        raise revert("SignatureInvalid", account)

    def _in_phase(self, block: Block, job: JobId, r: int, wanted: Phase) -> tuple[JobParams, Round]:
        # INVARIANT: every act has its phase; what comes before or after it is refused.
        if self.phase(block, job, r) != wanted:
            raise revert("WrongPhase", job, r)
        return self.params[job], self.rounds[job, r]

    def _in_time(self, block: Block, job: JobId, r: int, wanted: Phase) -> tuple[JobParams, Round]:
        """A round that is under way, by time alone."""
        # INVARIANT: every act has its phase; what comes before or after it is refused.
        if phase_of(self._round(job, r), block.time) != wanted:
            raise revert("WrongPhase", job, r)
        return self.params[job], self.rounds[job, r]

    def _state_zero(self, claim: ClaimId, c: Claim, p: JobParams, ro: Round, carried: Sequence[bytes]) -> StateRoot:
        """S_0 of a claim."""
        if not self.live(claim):
            raise revert("ClaimClosed", claim)
        if c.is_merge:
            return ro.merge_in
        carry = self._carry_in(c, p.role.zero_carry, carried) if p.role.carry else p.role.zero_carry
        return states.slot_zero(ro.base, carry, c.round * p.role.inner_steps, p.genesis.shared_depth)

    def _bond(self, p: JobParams) -> Wei:
        """What a challenger locks now."""
        fee = economics.median(self.base_fees, p.prices.fee_cap)
        return economics.bond_of(p.prices.bond, p.prices.gas_price, p.prices.fee_cap, fee)

    def _close_roster(self, block: Block, ro: Round) -> None:
        # INVARIANT: nobody who joins or closes knows the seed: it is the hash of a block yet to come.
        ro.seed_block = block.number + 1

    def _set_windows(self, ro: Round, p: JobParams, commit_ends: int, reveal_seconds: int) -> None:
        """Committing ends at `commit_ends`, revealing `reveal_seconds` later, attesting after that."""
        ro.commit_ends = Seconds(commit_ends)
        ro.reveal_ends = Seconds(commit_ends + reveal_seconds)
        ro.attest_ends = Seconds(commit_ends + reveal_seconds + p.role.attest_seconds)

    def _accepted(self, job: JobId, r: int, p: JobParams, ro: Round, bodies: Sequence[Body]) -> tuple[int, list[bytes]]:
        """Accepted = revealed, named by two thirds of the others' receipts, not convicted, and not missing.

        The payload of any other slot is the zero payload.
        """
        payloads: list[bytes] = [p.role.zero_payload] * p.role.slots
        mask = 0
        said = iter(bodies)
        for s in range(p.role.slots):
            claim, c = self._claim_at(job, r, ro, s)
            if c.status != ClaimStatus.REVEALED:
                continue
            body = next(said, None)
            # INVARIANT: what is merged is what was revealed.
            if body is None or claims.body_hash(body) != c.digest:
                raise revert("CommitmentMismatch")
            if not receipts.accepts(ro.named, ro.spoke, ro.receipts, s):
                continue
            if ro.demands and self.beyond.missing(claim):
                continue
            payloads[s] = body.out
            mask |= 1 << s
        return mask, states.padded_payloads(payloads, p.role.payload_depth)

    def _fail(self, job: JobId, r: int, ro: Round) -> None:
        """The checkpoint carries over. Nobody is paid, stakes return; one with open games when they are over."""
        j, p = self.jobs[job], self.params[job]
        is_sealed = ro.seed != NO_SEED

        ro.phase = Phase.FAILED
        j.failed += 1

        for s in range(p.role.slots):
            claim, c = self._claim_at(job, r, ro, s)
            silent = c.status in (ClaimStatus.JOINED, ClaimStatus.COMMITTED)
            if silent and is_sealed:
                self._absent(claim, c, p.role.slot_price)
            elif _holds_stake(c.status) and c.open_games == 0:
                self._give_back(claim, c, ClaimStatus.VOID)
        self._settle(job, j)

    def _settle(self, job: JobId, j: Job) -> None:
        """Moves past every leading round that can no more be voided."""
        while j.settled < j.started and self._round(job, j.settled).phase in (Phase.FINAL, Phase.FAILED):
            j.settled += 1

    def _rewind(self, block: Block, p: JobParams, c: Claim, j: Job, ro: Round) -> int:
        """A convicted merge: what was built on it is void without fault, and the round merges again.

        Returns what the void rounds' work and witnesses are paid from the slash; `release` hands it out.
        """
        owed = 0
        for k in range(c.round + 1, j.started):
            later = self.rounds[c.job, k]
            j.lingering += later.open_games
            if later.phase == Phase.FAILED:
                j.failed -= 1
            else:
                fees = later.witnesses * p.role.witness_fee
                if fees:
                    self.rewound.add(claims.audit_id(c.job, k, later.attempt))
                # Duties are paid from the escrow: what they cost comes back to it.
                j.escrow = Wei(j.escrow + fees)
                owed += fees + self._worth(p, later)
                later.due = True
            later.phase = Phase.VOID
        # INVARIANT: no two claims share an id: what is claimed after a rewind carries a higher attempt.
        j.attempt += 1
        j.started = c.round + 1
        self.barred.add((c.job, c.worker))
        ro.phase = Phase.MERGING
        ro.merge_claim = NO_CLAIM
        ro.turn += 1
        ro.merge_opens = block.time
        return owed

    @staticmethod
    def _worth(p: JobParams, ro: Round) -> int:
        """The pay of a round's work: of every claim that was committed, once frozen of every one that was revealed, and
        of its merge."""
        claimed = ro.committed if ro.merge_in == NO_STATE else ro.revealed
        return claimed * p.role.slot_price + (0 if ro.merge_claim == NO_CLAIM else p.merge.price)

    def _require_backed(self, job: JobId, settled: int, r: int) -> None:
        """Raises unless every merge that round r would stand on answers for it."""
        for q in range(settled, r):
            below = self._round(job, q)
            # INVARIANT: a merge's stake covers the pay of every round that its conviction would void.
            if below.phase == Phase.LEAD and q + below.backed < r:
                raise revert("NotBacked", q)

    # -- inside: claims and stakes

    def _claim_at(self, job: JobId, r: int, ro: Round, slot: int) -> tuple[ClaimId, Claim]:
        """The claim of a slot in the round's current attempt."""
        claim = claims.claim_id(job, r, ro.attempt, slot)
        return claim, self.claims.get(claim, Claim())

    def _own_claim(self, sender: Address, job: JobId, r: int, ro: Round, slot: int) -> tuple[ClaimId, Claim]:
        claim, c = self._claim_at(job, r, ro, slot)
        if c.worker != sender:
            raise revert("NotSlotOwner", slot)
        return claim, c

    def _is_void(self, claim: ClaimId, c: Claim) -> bool:
        """A job is Void as a whole, and a round; a claim also is when its round was started or merged again. A claim of
        a void round stands as long as games are open on it."""
        if c.status >= ClaimStatus.ABSENT:
            return c.status == ClaimStatus.VOID
        ro = self.rounds[c.job, c.round]
        standing = ro.merge_claim == claim if c.is_merge else ro.attempt == c.attempt
        void_round = ro.phase == Phase.VOID and not c.open_games
        return not standing or void_round or _is_voided(self.jobs[c.job])

    def _absent(self, claim: ClaimId, c: Claim, fine: Wei) -> None:
        """No reveal: the slot's price of the stake is burned."""
        c.status = ClaimStatus.ABSENT

        self.books.slash_liveness(claim, fine)

    def _give_back(self, claim: ClaimId, c: Claim, status: ClaimStatus) -> None:
        c.status = status

        self.books.unlock(claim)

    def _release_all(self, job: JobId, r: int, ro: Round) -> None:
        """Gives back every stake that a Void round still holds; after a rewind pays the work that the slash was to
        pay."""
        due, ro.due = ro.due, False
        paid = self._end_all(job, r, ro, pays=due)
        # INVARIANT: what a slash owes to work is paid to that work or burned.
        if due:
            self.books.credit(BURN, Wei(self._worth(self.params[job], ro) - paid))

    def _end_all(self, job: JobId, r: int, ro: Round, *, pays: bool) -> int:
        """Every claim of a round ends Void: its stake returns, and if `pays` it is paid for what was committed."""
        p, paid = self.params[job], 0
        for s in range(p.role.slots):
            claim, c = self._claim_at(job, r, ro, s)
            paid += self._end(claim, c, p.role.slot_price if pays else NOTHING)
        merge = self.claims.get(ro.merge_claim)
        if merge is not None:
            paid += self._end(ro.merge_claim, merge, p.merge.price if pays else NOTHING)
        return paid

    def _end(self, claim: ClaimId, c: Claim, price: Wei) -> Wei:
        if not _holds_stake(c.status):
            return NOTHING
        # INVARIANT: a seat is not work: only what was committed is paid without a verdict.
        if price and c.status >= ClaimStatus.COMMITTED:
            return self._pay(claim, c, ClaimStatus.VOID, price)
        self._give_back(claim, c, ClaimStatus.VOID)
        return NOTHING

    def _pay(self, claim: ClaimId, c: Claim, status: ClaimStatus, amount: Wei) -> Wei:
        self._give_back(claim, c, status)

        self.books.credit(c.worker, amount)
        return amount


def _holds_stake(status: ClaimStatus) -> bool:
    return ClaimStatus.JOINED <= status <= ClaimStatus.EXCLUDED


def _is_voided(j: Job) -> bool:
    """A job that was proven invalid stays so once it is Done."""
    return j.prover != ZERO_ADDRESS


def _require_cid(cid: str) -> None:
    # INVARIANT: what a stranger writes into a log is bounded.
    if len(cid.encode()) > MAX_CID:
        raise revert("CidTooLong", len(cid.encode()))
