"""One job with witnesses on the pure rules: right traces and traces wrong from a step on, honest and lying witnesses.

`Stage` plays named acts, `Season` random ones: honest accounts act in time, others arbitrarily.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from lockstep.protocol import merkle
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body, ClaimStatus, JobParams, JobStatus, Phase, Reveal
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.types import Duty, DutyStatus, Outcome, Standing, StateLeaf, Word
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, JobId, Seconds, StateRoot, TraceRoot, Wei
from tests.support.ledger import Availability, Market, Witnesses
from tests.support.market.twin import BlockHashes
from tests.support.market.twin import actor as account
from tests.support.params import amended, job_params
from tests.support.wide import WideClaim, program, state

REQUESTER, CHALLENGER, ANYONE = (account(0x10 + i) for i in range(3))
WORKERS = tuple(account(0x20 + i) for i in range(3))
HONEST, HONEST_TOO, LAZY, COPYING, CARTEL, SILENT, LISTED = (account(0x30 + i) for i in range(7))
LOOKERS = (HONEST, HONEST_TOO, LAZY, COPYING, CARTEL, SILENT, LISTED)
STEPS = 5
FUNDS = 100_000
LINKS = 64
"""Number of preimages in a hash chain."""
ROOT = keccak(b"root")

PARAMS = job_params(
    spec_digest=ROOT, step_program=program().root, encode_program=ROOT, merge_program=ROOT, dataset_root=ROOT,
    dataset_rows=9, row_length=4, genesis_shared=keccak(b"shared"), genesis_outer=keccak(b"outer"), zero_carry=ROOT,
    zero_payload=keccak(b"zero payload"),
    shared_depth=3, payload_depth=2, inner_steps=STEPS - 1, rounds=3, slots=3, min_slots=1, max_lead=2, max_fail=2,
    join_seconds=Seconds(100), train_seconds=Seconds(100), reveal_seconds=Seconds(50), attest_seconds=Seconds(50),
    turn_seconds=Seconds(100), challenge_seconds=Seconds(400), clock_seconds=Seconds(100), step_seconds=Seconds(1),
    slot_price=Wei(1_000), merge_price=Wei(600), slot_stake=Wei(10_100), merge_stake=Wei(10_200), bond=Wei(510),
    aggregator=Address(REQUESTER), witnesses=2, audit_seconds=Seconds(60), witness_fee=Wei(50),
    witness_stake=Wei(1_003), answer_seconds=Seconds(50),
)  # fmt: skip


def chain_of(name: bytes) -> list[Digest]:
    """Returns a hash chain: the head, then the preimages in the order in which duties use them."""
    values = [keccak(name)]
    for _ in range(LINKS):
        values.append(keccak(values[-1]))
    return values[::-1]


@dataclass(frozen=True)
class Trace:
    """A worker's claimed trace and the true one."""

    claim: ClaimId
    wrong_from: int | None
    """The first wrong step; None for an honest claim."""
    carries: bool = False

    @cached_property
    def claimed(self) -> WideClaim:
        """Returns the claimed states."""
        return WideClaim(self.claim, STEPS, self.wrong_from)

    @cached_property
    def true(self) -> WideClaim:
        """Returns the true states."""
        return self.claimed.truth

    @property
    def body(self) -> Body:
        """Returns the claim's three words."""
        return self.claimed.body

    def proof(self, t: int) -> tuple[Digest, ...]:
        """Proves that leaf(S_t) is in the claim's trace."""
        return tuple(merkle.proof(self.claimed.levels, t - 1))

    @property
    def reveal(self) -> Reveal:
        """Returns the worker's reveal."""
        body = self.body
        nonce = keccak(self.claim + b"nonce")
        return Reveal(body, nonce, self.proof(STEPS), "", "payload", self.carries)


@dataclass
class Stage:
    """A market with witnesses and one job; time moves only by `later`."""

    params: JobParams = PARAMS
    funds: int = FUNDS
    block: Block = field(default_factory=lambda: Block(100, Seconds(1_000), BlockHashes()))
    traces: dict[ClaimId, Trace] = field(default_factory=dict)
    chains: dict[Address, list[Digest]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.market = Market()
        self.witnesses = Witnesses(self.market)
        self.demands = Availability(self.market)
        for who in (REQUESTER, CHALLENGER, *WORKERS, *LOOKERS):
            self.market.books.deposit(who, Wei(self.funds))
        self.job: JobId = self.market.create(REQUESTER, self.params, 0, self.params.escrow)

    # -- time and money

    def later(self, seconds: int = 1, blocks: int = 1) -> None:
        """Puts the next act in a later block."""
        self.block = Block(self.block.number + blocks, Seconds(self.block.time + seconds), BlockHashes())

    def wealth(self, who: Address) -> int:
        """Returns everything that an account has in the vault."""
        books = self.market.books
        locked = sum(lock.amount for lock in books.locks.values() if lock.account == who)
        return books.free[who] + books.credits[who] + locked

    # -- rounds

    def phase(self, r: int = 0) -> Phase:
        return self.market.phase(self.block, self.job, r)

    def claim(self, slot: int, r: int = 0) -> ClaimId:
        return ids.claim_id(self.job, r, self.market.rounds[self.job, r].attempt, slot)

    def to_revealed(self, r: int = 0, wrong: dict[int, int] | None = None, carries: bool = False) -> None:
        """Plays a round until every slot is revealed.

        `wrong` maps a slot to its first wrong step; with `carries` every claim starts from a carry.
        """
        self.market.start_round(self.block, self.job, r)
        for slot, worker in enumerate(WORKERS):
            self.market.join(self.block, worker, self.job, r, slot)
        self.later(blocks=2)
        self.market.seal(self.block, self.job, r)
        for slot, worker in enumerate(WORKERS):
            claim = self.claim(slot, r)
            self.traces[claim] = Trace(claim, (wrong or {}).get(slot), carries)
            bound = ids.commitment(claim, worker, self.traces[claim].reveal)
            self.market.commit(self.block, worker, self.job, r, slot, bound)
        for slot, worker in enumerate(WORKERS):
            self.market.reveal(self.block, worker, self.job, r, slot, self.traces[self.claim(slot, r)].reveal)

    def freeze(self, r: int = 0) -> None:
        """Freezes a round with the bodies of its revealed slots."""
        named = [ids.claim_id(self.job, r, self.market.rounds[self.job, r].attempt, s) for s in range(3)]
        bodies = [self.traces[c].body for c in named if self.market.status(c) == ClaimStatus.REVEALED]
        self.market.freeze(self.block, self.job, r, bodies)

    def convict(self, claim: ClaimId, t: int) -> None:
        """Convicts a claim by a game's verdict; t = 0: the defender was silent."""
        self.market.on_open(self.block, claim, self.body(claim))
        self.market.on_convicted(self.block, claim, t, [CHALLENGER], [])

    def body(self, claim: ClaimId) -> Body:
        """Returns the three words of a claim or merge."""
        if claim in self.traces:
            return self.traces[claim].body
        ro = self.market.rounds[self.job, self.market.claims[claim].round]
        root = merkle.leaf(merkle.node(ro.next_shared, ro.next_outer))
        return Body(TraceRoot(root), ro.next_shared, ro.next_outer)

    # -- audits

    def enrol(self, *who: Address) -> None:
        for one in who:
            self.chains[one] = chain_of(b"chain of " + one.encode() + bytes([len(self.chains)]))
            self.witnesses.enrol(self.block, one, self.job, self.chains[one][0])

    def draw(self, r: int = 0) -> AuditId:
        """Fixes the beacon, waits for its block, draws; returns the audit."""
        self.witnesses.draw(self.block, self.job, r)
        self.later(blocks=2)
        self.witnesses.draw(self.block, self.job, r)
        return self.audit(r)

    def audit(self, r: int = 0) -> AuditId:
        return ids.audit_id(self.job, r, self.market.rounds[self.job, r].attempt)

    def duties(self, audit: AuditId) -> dict[int, Duty]:
        return {i: self.witnesses.duties[audit, i] for i in range(self.witnesses.audits[audit].duties)}

    def trace_of(self, audit: AuditId, i: int) -> Trace:
        a = self.witnesses.audits[audit]
        return self.traces[ids.claim_id(a.job, a.round, a.attempt, self.witnesses.duties[audit, i].slot)]

    def preimage(self, audit: AuditId, i: int) -> Digest:
        duty = self.witnesses.duties[audit, i]
        return self.chains[duty.account][duty.serial]

    def step(self, audit: AuditId, i: int) -> int:
        """Returns the duty's t*."""
        return draws.step_of(self.preimage(audit, i), self.witnesses.audits[audit].beacon, i, STEPS)

    def word(
        self, audit: AuditId, i: int, held: WideClaim, agrees: bool, state: StateRoot | None = None,
        leaf: StateLeaf | None = None,
    ) -> Word:  # fmt: skip
        """Returns the verdict of a witness that has these states."""
        trace, u = self.trace_of(audit, i), draws.seen_of(self.step(audit, i), STEPS)
        proof, preimage = trace.proof(u) if agrees else (), self.preimage(audit, i)
        place = draws.leaf_word(preimage, self.witnesses.audits[audit].beacon, i)
        state, leaf = state or held.trace[u - 1], leaf or held.leaf(place, u)
        return Word(preimage, state, leaf, salt_of(audit, i), agrees, trace.body, proof)

    def seen(self, audit: AuditId, i: int) -> Word:
        """Returns an honest witness's verdict."""
        trace, t = self.trace_of(audit, i), self.step(audit, i)
        wrong = trace.wrong_from
        return self.word(audit, i, trace.true, agrees=wrong is None or wrong > t)

    def said(self, audit: AuditId, i: int) -> Word:
        """Returns the verdict of a witness that the worker gave all its data."""
        return self.word(audit, i, self.trace_of(audit, i).claimed, agrees=True)

    def listed(self, audit: AuditId, i: int) -> Word:
        """Returns the verdict of a witness that has only the worker's list of roots; it takes the leaf from the public
        base.
        """
        claimed, preimage = self.trace_of(audit, i).claimed, self.preimage(audit, i)
        place = draws.leaf_word(preimage, self.witnesses.audits[audit].beacon, i)
        return self.word(audit, i, claimed, agrees=True, leaf=state(b"base").leaf(place))

    def commit(self, audit: AuditId, i: int, word: Word) -> None:
        duty = self.witnesses.duties[audit, i]
        claim = self.trace_of(audit, i).claim
        bound = draws.commitment(claim, duty.account, word.state, word.leaf.digest, word.preimage, word.salt)
        self.witnesses.commit(self.block, duty.account, audit, i, bound)

    def reveal(self, audit: AuditId, i: int, word: Word) -> None:
        self.witnesses.reveal(self.block, self.witnesses.duties[audit, i].account, audit, i, word)

    def may_reveal(self, audit: AuditId) -> bool:
        return self.block.time >= self.witnesses.audits[audit].commit_ends

    def settle(self, audit: AuditId, i: int) -> Outcome:
        return self.witnesses.settle(self.block, audit, i)

    # -- what must hold

    def check(self) -> None:
        """Checks that money is conserved, and that list and counters match witnesses and duties."""
        books, market = self.witnesses.market.books, self.witnesses
        assert books.owed == books.tokens, "the books hold what the vault holds"
        assert min([*books.free.values(), *books.credits.values(), books.total_escrow]) >= 0
        accounts = market.lists.get(self.job, [])
        places = {one: w.place for (_, one), w in market.witnesses.items() if w.standing == Standing.LISTED}
        assert places == {one: k for k, one in enumerate(accounts)}, "a place is where the list has the account"
        still = [d for d in market.duties.values() if d.status != DutyStatus.CLOSED]
        due = self.market.jobs[self.job].fees_due
        assert due == len(still) * self.params.role.witness_fee, "every open duty's fee is reserved"
        for (job, one), w in market.witnesses.items():
            assert w.open == sum(d.account == one for d in still), "a witness's open duties are counted"
            assert (w.standing == Standing.SLASHED) == (draws.stake_key(job, one) not in books.locks)


def salt_of(audit: AuditId, i: int) -> Digest:
    return keccak(audit + bytes([i]) + b"salt")


@dataclass
class Season:
    """A whole job at random: cheating workers, volunteers that may notice, all kinds of witnesses."""

    dice: random.Random
    stage: Stage = field(init=False)
    outcomes: list[tuple[Address, Outcome, AuditId, int]] = field(default_factory=list)
    acts: int = 0

    def __post_init__(self) -> None:
        d = self.dice
        self.stage = Stage(
            amended(
                PARAMS,
                rounds=d.choice((1, 2, 3)),
                max_lead=d.choice((1, 2, 3)),
                witnesses=d.choice((1, 2, 3, 5)),
                witness_fee=Wei(d.choice((7, 50))),
                audit_seconds=Seconds(d.choice((20, 60))),
                max_fail=3,
            )
        )

    def play(self) -> None:
        """Plays until the job is done and every duty closed."""
        stage = self.stage
        for who in self.dice.sample(LOOKERS, self.dice.randint(1, len(LOOKERS))):
            stage.enrol(who)
        for _ in range(600):
            if stage.market.jobs[stage.job].status == JobStatus.DONE:
                break
            self._look()
            for act in self._sensible():
                self._try(act)
            if self.dice.random() < 0.4:
                self._try(self.dice.choice(list(self._anything())))
            stage.check()
            stage.later(self.dice.choice((1, 5, 5, 15, 15)), 300 if self.dice.random() < 0.01 else 1)
        assert stage.market.jobs[stage.job].status == JobStatus.DONE, "nothing sticks"
        self._close()

    def _try(self, act: Callable[[], object]) -> bool:
        self.acts += 1
        try:
            act()
        except LockstepError:
            return False
        return True

    # -- who does what

    def _look(self) -> None:
        """Lets honest witnesses act as soon as they may."""
        stage = self.stage
        for audit in list(stage.witnesses.audits):
            for i, duty in stage.duties(audit).items():
                if duty.account not in (HONEST, HONEST_TOO):
                    continue
                if duty.status == DutyStatus.DRAWN:
                    stage.commit(audit, i, stage.seen(audit, i))
                elif duty.status == DutyStatus.COMMITTED and stage.may_reveal(audit):
                    stage.reveal(audit, i, stage.seen(audit, i))
                wrong = stage.trace_of(audit, i).wrong_from
                claim = stage.trace_of(audit, i).claim
                sees = wrong is not None and wrong <= stage.step(audit, i) and self.dice.random() < 0.15
                if sees and stage.market.window_open(stage.block, claim):
                    stage.convict(claim, self.dice.choice((wrong, wrong, 0)))

    def _sensible(self) -> Iterator[Callable[[], object]]:
        stage, market, d = self.stage, self.stage.market, self.dice
        if self._started < stage.params.schedule.rounds and d.random() < 0.5:
            yield lambda: stage.to_revealed(
                self._started, {s: d.randint(1, STEPS) for s in range(3) if d.random() < 0.3}
            )
        if d.random() < 0.2:
            yield lambda: market.finish(stage.job)
        for r in range(self._started):
            if d.random() < 0.4:
                yield lambda r=r: stage.witnesses.draw(stage.block, stage.job, r)
            if d.random() < 0.6:
                yield lambda r=r: stage.freeze(r)
            if stage.phase(r) == Phase.MERGING and d.random() < 0.7:
                out = keccak(b"next" + bytes([r]) + d.randbytes(4))
                yield lambda r=r, out=out: market.merge(
                    stage.block, market.merger_of(stage.block, stage.job, r), stage.job, r, out, out, 2
                )
            if stage.phase(r) in (Phase.LEAD, Phase.MERGING, Phase.FAILED) and d.random() < 0.3:
                yield lambda r=r: market.finalize(stage.block, stage.job, r)
            if stage.phase(r) == Phase.LEAD and d.random() < 0.02:
                yield lambda r=r: stage.convict(market.rounds[stage.job, r].merge_claim, 1)
            for slot in range(3):
                yield from self._verdicts(stage.claim(slot, r))
        for audit in list(stage.witnesses.audits):
            for i, duty in stage.duties(audit).items():
                yield from self._lies(audit, i, duty)
                if d.random() < 0.3:
                    yield lambda audit=audit, i=i: self._settle(audit, i)

    @property
    def _started(self) -> int:
        return self.stage.market.jobs[self.stage.job].started

    def _verdicts(self, claim: ClaimId) -> Iterator[Callable[[], object]]:
        """Yields verdicts: volunteers convict at the wrong step; a silent defender loses any claim."""
        trace, d = self.stage.traces.get(claim), self.dice
        if trace is None or not self.stage.market.window_open(self.stage.block, claim):
            return
        if trace.wrong_from is not None and d.random() < 0.08:
            yield lambda: self.stage.convict(claim, d.choice((trace.wrong_from, trace.wrong_from, 0)))
        elif d.random() < 0.005:
            yield lambda: self.stage.convict(claim, 0)

    def _lies(self, audit: AuditId, i: int, duty: Duty) -> Iterator[Callable[[], object]]:
        stage, d = self.stage, self.dice
        held, agrees = stage.trace_of(audit, i).true, d.random() < 0.5
        garbage = stage.word(audit, i, held, agrees, state=StateRoot(keccak(b"garbage")))
        if duty.account == CARTEL:
            said = stage.said(audit, i)
            yield lambda: stage.commit(audit, i, said)
            yield lambda: stage.reveal(audit, i, said)
        elif duty.account == LISTED:
            listed = stage.listed(audit, i)
            yield lambda: stage.commit(audit, i, listed)
            yield lambda: stage.reveal(audit, i, listed)
        elif duty.account == LAZY:
            yield lambda: stage.commit(audit, i, garbage)
            yield lambda: stage.reveal(audit, i, garbage)
        elif duty.account == COPYING:
            others = [k for k, other in stage.duties(audit).items() if other.slot == duty.slot and k != i]
            if others:
                copied = stage.witnesses.duties[audit, others[0]].commitment
                yield lambda: stage.witnesses.commit(stage.block, COPYING, audit, i, copied)
                yield lambda: stage.reveal(audit, i, stage.seen(audit, others[0]))
        elif duty.account == SILENT and d.random() < 0.3:
            yield lambda: stage.commit(audit, i, garbage)

    def _anything(self) -> Iterator[Callable[[], object]]:
        """Yields arbitrary calls, most of which are refused."""
        stage, d = self.stage, self.dice
        who = d.choice((*LOOKERS, *WORKERS, ANYONE))
        liar = d.choice((LAZY, COPYING, CARTEL, SILENT, LISTED))
        r, i = d.randrange(stage.params.schedule.rounds + 1), d.randrange(4)
        audits = [*stage.witnesses.audits, AuditId(ROOT)]
        audit = d.choice(audits)
        yield lambda: stage.enrol(who) if who not in stage.chains or who in LOOKERS[2:] else None
        yield lambda: stage.witnesses.retire(stage.block, liar, stage.job)
        yield lambda: stage.witnesses.retire(stage.block, ANYONE, stage.job)
        yield lambda: stage.witnesses.commit(stage.block, liar, audit, i, ROOT)
        yield lambda: stage.witnesses.draw(stage.block, stage.job, r)
        yield lambda: stage.witnesses.publish(stage.block, d.choice(WORKERS), stage.job, 0, d.randrange(3))
        yield lambda: self._settle(audit, i)

    def _settle(self, audit: AuditId, i: int) -> None:
        account = self.stage.witnesses.duties[audit, i].account if (audit, i) in self.stage.witnesses.duties else None
        outcome = self.stage.settle(audit, i)
        assert account is not None
        self.outcomes.append((account, outcome, audit, i))

    def _close(self) -> None:
        """Closes the remaining duties."""
        for audit in list(self.stage.witnesses.audits):
            for i, duty in self.stage.duties(audit).items():
                if duty.status != DutyStatus.CLOSED:
                    self._settle(audit, i)
        self.stage.check()
