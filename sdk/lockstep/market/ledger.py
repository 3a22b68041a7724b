"""A read model of jobs from the chain's events: rounds, claims, games, and the CIDs of their data.

The ledger is a fold over the events, repeated from the first one at every start; logs of final blocks come from a copy
on disk (`chain/logcache.py`). Phases and job states come from the contracts' views; the ledger has the data that only
events carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lockstep.base.log import Logger
from lockstep.base.naming import CLAIMS_SHOWN, JOBS_SHOWN, identified
from lockstep.execution.rounds import Payload, RoundRecord
from lockstep.protocol import merkle
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import NEVER, NO_CLAIM, Body, ClaimStatus, Phase, Round
from lockstep.protocol.market import events
from lockstep.protocol.market.effects import EFFECTS, Effect
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.market.types import Audit, AuditStatus, Duty, DutyStatus, Status
from lockstep.protocol.market.views import over_at
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    AuditId,
    Cid,
    ClaimId,
    Digest,
    GameId,
    JobId,
    Seconds,
    Seed,
    StateRoot,
    Step,
    TraceRoot,
)

if TYPE_CHECKING:
    from lockstep.chain.events import Event, EventReader
    from lockstep.protocol.jobs import JobParams

log = Logger(__name__)

UNSEALED = Seed(bytes(32))


@dataclass(frozen=True)
class ClaimRecord:
    """A claim as it was published, with the CIDs of its data."""

    id: ClaimId
    job: JobId
    round: int
    attempt: int
    slot: int
    """MERGE_SLOT for a merge."""
    worker: Address
    trace_root: TraceRoot
    out: Digest
    out2: Digest
    trace_cid: Cid | None
    """The CID of S_1 ‖ .. ‖ S_T; empty until witnesses have committed; None for a merge, whose outputs determine its
    trace."""
    payload_cid: Cid
    """CID of the payload, or of a merge's checkpoint. Empty if the claimant published no valid CID."""
    claimed_at: Seconds
    """The chain time at which its challenge window began."""
    convicted: bool = False
    replaced: bool = False
    """True if another account has merged again with the same outputs, because this merge lacked backing."""
    carries: bool = False
    """True if it starts from the carry of its worker's claim for the slot in the previous round; False: from zero."""

    @property
    def body(self) -> Body:
        """The claimed roots: trace root and both outputs."""
        return Body(self.trace_root, StateRoot(self.out), StateRoot(self.out2))

    @property
    def payload(self) -> Payload:
        """The payload that a slot's claim publishes."""
        return Payload(self.payload_cid, self.out, self.out2)

    @property
    def is_merge(self) -> bool:
        """True if it is the claim of a merge."""
        return self.slot == MERGE_SLOT


@dataclass
class RoundLedger:
    """The state of one round of one attempt, reconstructed from its events."""

    number: int
    attempt: int
    base: StateRoot
    """Root of the shared tensors from which it starts."""
    outer: StateRoot
    seed: Seed = UNSEALED
    sealed: int = 0
    """Block in which the seed was drawn."""
    holders: dict[int, tuple[Address, ClaimStatus]] = field(default_factory=dict)
    """By slot: owner and status."""
    claims: dict[int, ClaimRecord] = field(default_factory=dict)
    """By slot: its revealed claim."""
    mask: int = 0
    merge_in: StateRoot | None = None
    """S_0 of the merge, once frozen."""
    merges: list[ClaimRecord] = field(default_factory=list)
    """Merges in order, including convicted and replaced ones; the last one is valid if it is neither."""
    missing: set[int] = field(default_factory=set)
    """Slots whose payload, or whose carry, was demanded and not posted."""
    decided_at: Seconds = NEVER
    """The chain time at which it was merged, or failed after claims were revealed."""
    phase: Phase = Phase.JOINING
    """The phase after the last event; a phase that begins by time alone has no event.

    Claims of a FAILED round remain valid until it is FINAL.
    """

    @property
    def merge(self) -> ClaimRecord | None:
        """The valid merge, if any."""
        standing = [m for m in self.merges if not (m.convicted or m.replaced)]
        return standing[-1] if standing and self.phase != Phase.FAILED else None

    @property
    def stored(self) -> Round:
        """The phase and the time of its decision, in the contract's form."""
        return Round(self.phase, self.attempt, merged_at=self.decided_at)

    @property
    def payloads(self) -> dict[int, Payload]:
        """By slot: the payload of its revealed claim."""
        return {slot: c.payload for slot, c in self.claims.items()}

    @property
    def bodies(self) -> list[Body]:
        """Arguments of `freeze`: bodies of the revealed slots that were not convicted, in order."""
        return [self.claims[slot].body for slot in sorted(self.claims) if not self.claims[slot].convicted]

    def take(self, effect: Effect, args: Mapping[str, Any]) -> None:
        """Applies an event's effect: the phase, the fields that the round keeps, and every slot's status."""
        for name, value in {**effect.stored(args), "phase": effect.state}.items():
            setattr(self, name, value)
        for slot, (worker, status) in self.holders.items():
            after = effect.becomes(status, bool(self.mask >> slot & 1))
            missing = after is ClaimStatus.EXCLUDED and slot in self.missing
            self.holders[slot] = (worker, ClaimStatus.MISSING if missing else after)

    def accepted(self, slots: int) -> tuple[Payload | None, ...]:
        """Returns the merge's input payloads in slot order; None for a slot that was not accepted."""
        payloads = self.payloads
        return tuple(payloads.get(s) if self.mask >> s & 1 else None for s in range(slots))

    @property
    def merged_and_convicted(self) -> frozenset[int]:
        """Slots that the merge includes although they were convicted afterwards."""
        return frozenset(s for s, c in self.claims.items() if c.convicted and self.mask >> s & 1)

    def record_of_honest(self, slots: int) -> RoundRecord:
        """Returns the round's record without its convicted slots and without a checkpoint, as honest parties would have
        merged it."""
        left_out = self.merged_and_convicted
        payloads = tuple(None if s in left_out else p for s, p in enumerate(self.accepted(slots)))
        return RoundRecord(self.number, self.seed, payloads, None, Digest(bytes(32)), Digest(bytes(32)))

    def record(self, slots: int, merge: ClaimRecord | None = None) -> RoundRecord:
        """Returns the record from which later rounds start: of the valid merge, or of `merge`."""
        m = merge or self.merge
        if m is None:
            return RoundRecord(self.number, self.seed, self.accepted(slots), None, Digest(bytes(32)), Digest(bytes(32)))
        return RoundRecord(self.number, self.seed, self.accepted(slots), m.payload_cid, m.out, m.out2)


@dataclass
class AuditLedger:
    """One round's audit by drawn witnesses, as the contract stores it."""

    id: AuditId
    state: Audit
    duties: list[Duty] = field(default_factory=list)
    """The duties, by their index."""


@dataclass
class JobLedger:
    """The state of one job, reconstructed from its events."""

    id: JobId
    requester: Address
    block: int
    rounds: dict[int, RoundLedger] = field(default_factory=dict)
    past: list[RoundLedger] = field(default_factory=list)
    """Rounds of earlier attempts, which started again after a conviction."""
    audits: dict[AuditId, AuditLedger] = field(default_factory=dict)
    attempt: int = 0
    done: bool = False
    void: bool = False
    """True if it was proven invalid."""
    last: Seconds = NEVER
    """The chain time of the market's latest event about it."""

    def over_at(self, params: JobParams, r: int) -> Seconds:
        """Returns the chain time at which the claims of round `r` are final and cannot be challenged; NEVER while a
        round that may build on their carries is undecided."""
        started = sum(x.phase != Phase.VOID for x in self.rounds.values())
        return over_at(params, started, r, lambda k: self.rounds[k].stored)[1]

    def records(self, before: int, slots: int) -> list[RoundRecord]:
        """Returns the record of every round before `before`, in order."""
        return [self.rounds[r].record(slots) for r in range(before)]

    def records_behind(self, r: RoundLedger, slots: int) -> list[RoundRecord]:
        """Returns the records of the rounds before `r`, up to the merge from which its base came."""
        return self.records_to(r.base, r.outer, r.number, slots)

    def records_to(self, base: bytes, outer: bytes, before: int, slots: int) -> list[RoundRecord]:
        """Returns the records up to the merge with these outputs, in order; all before round `before` if no merge has
        them."""
        records = self.records(before, slots)
        found = self.merge_of(base, outer, before)
        if found is None:
            return records
        merged, merge = found
        return [*records[: merged.number], merged.record(slots, merge)]

    def merge_behind(self, r: RoundLedger) -> tuple[RoundLedger, ClaimRecord] | None:
        """Returns the merge from which a round's base came, convicted or not, with its round; None for the genesis."""
        return self.merge_of(r.base, r.outer, r.number)

    def merge_of(self, base: bytes, outer: bytes, before: int) -> tuple[RoundLedger, ClaimRecord] | None:
        """Returns the latest merge with these outputs in a round before `before`, convicted or not, with its round."""
        for number in reversed(range(before)):
            for earlier in self.all_rounds():
                for merge in reversed(earlier.merges):
                    if earlier.number == number and (merge.out, merge.out2) == (base, outer):
                        return earlier, merge
        return None

    def carry_behind(self, r: RoundLedger, slot: int, period: int) -> tuple[RoundLedger, ClaimRecord] | None:
        """Returns the claim whose carry a slot of `r` starts from, with its round; None if it starts from zeros.

        A revealed claim states this itself; a future claim takes the valid previous claim's carry, except in rounds
        that `period` divides.
        """
        claim = r.claims.get(slot)
        if not claim.carries if claim else period == 0 or r.number % period == 0:
            return None
        earlier = [x for x in self.all_rounds() if x.number == r.number - 1 and x.attempt <= r.attempt]
        if not earlier:
            return None
        before = max(earlier, key=lambda x: x.attempt)
        behind, (owner, _) = before.claims.get(slot), r.holders[slot]
        # INVARIANT: a slot starts from the carry of its owner's claim in the round before, accepted and not convicted,
        # or from zero.
        accepted = before.phase != Phase.FAILED and before.mask >> slot & 1
        if behind is None or behind.worker != owner or not accepted:
            return None
        # INVARIANT: nothing stands on a carry whose claim cannot be challenged any more.
        stands = not behind.convicted and before.phase != Phase.FINAL
        return (before, behind) if claim or stands else None

    def all_rounds(self) -> Iterator[RoundLedger]:
        """Yields the rounds of every attempt from a copy, so that a worker thread may read while the loop writes."""
        yield from [*self.past, *self.rounds.values()]

    def public(self) -> Iterator[tuple[RoundLedger, ClaimRecord]]:
        """Yields the public claims of any attempt with their rounds; a worker thread may read them."""
        for r in self.all_rounds():
            for record in (*r.claims.values(), *r.merges):
                yield r, record


@dataclass(frozen=True)
class GameRecord:
    """A game's opening and its end."""

    id: GameId
    claim: ClaimId
    challenger: Address
    defender: Address
    nonce: int
    t: int
    """The disputed transition; 0 if the game began at the trace root."""
    verdict: Verdict = Verdict.NONE
    """The verdict; NONE while the game runs."""


@dataclass(frozen=True)
class Pay:
    """The payment that a claim earned."""

    claim: ClaimId
    job: JobId
    round: int
    slot: int
    account: Address
    amount: int
    time: Seconds


@dataclass(frozen=True)
class DemandRecord:
    """An open demand for data."""

    id: Digest
    job: JobId
    claim: ClaimId | None
    """The claim whose payload or carry is demanded; None for a dataset row."""
    row: int
    asker: Address
    deadline: Seconds


@dataclass
class Ledger:
    """The state derived from the events; `apply` processes each event, in order."""

    jobs: dict[JobId, JobLedger] = field(default_factory=dict)
    nodes: dict[Address, bytes] = field(default_factory=dict)
    """Registered ed25519 keys, in the order of registration."""
    registrations: dict[Address, int] = field(default_factory=dict)
    """The number of times that each account has registered."""
    games: dict[GameId, GameRecord] = field(default_factory=dict)
    """Running games."""
    ended: dict[GameId, GameRecord] = field(default_factory=dict)
    """Games that are over."""
    audits: dict[AuditId, AuditLedger] = field(default_factory=dict)
    heads: dict[tuple[JobId, Address], Digest] = field(default_factory=dict)
    """The head of the hash chain with which a witness enrolled last."""
    pays: list[Pay] = field(default_factory=list)
    slashed: dict[bytes, int] = field(default_factory=dict)
    """By ClaimId or GameId: the slashed amount, in wei."""
    deposits: dict[Address, int] = field(default_factory=dict)
    """Each account's deposits into the vault less its withdrawals, in wei; includes locked, unbonding and lost
    stake."""
    demands: dict[Digest, DemandRecord] = field(default_factory=dict)
    """Demands that are neither answered nor settled."""
    locks: dict[bytes, Address] = field(default_factory=dict)
    """By the lock's key (a ClaimId, a GameId, a demand's id, a witness's key): the account whose stake is locked."""
    stakers: set[Address] = field(default_factory=set)
    """Accounts that have ever had a stake locked."""
    places: dict[ClaimId, tuple[JobId, int]] = field(default_factory=dict)
    """Job and round of every claim behind which stake was ever locked."""
    unlocked: ClaimId = NO_CLAIM
    """The key of the lock that was released last."""

    def apply(self, event: Event) -> None:
        """Applies one event; an event that the ledger does not use changes nothing."""
        typed = event.typed
        if typed is not None and (fold := _FOLDS.get(typed.contract)) is not None:
            fold(self, typed, event)

    def all_games(self) -> list[GameRecord]:
        """Returns every game ever opened."""
        return [*self.ended.values(), *self.games.values()]

    def games_against(self, account: Address) -> list[GameRecord]:
        """Returns the open games about an account's claims."""
        return [g for g in self.games.values() if g.defender == account]

    def staked(self, account: Address) -> list[ClaimId]:
        """Returns an account's claims whose stake is locked, in the order of locking."""
        return [ClaimId(key) for key, owner in self.locks.items() if owner == account and key in self.places]

    def at_stake(self, account: Address) -> frozenset[JobId]:
        """Returns the jobs in which an account can still lose a claim's stake, or has not got it back yet."""
        claims = [*self.staked(account), *(g.claim for g in self.games_against(account))]
        return frozenset(self.places[claim][0] for claim in claims if claim in self.places)

    def place(self, me: Address, others: frozenset[Address]) -> int:
        """Returns the index of `me` among the registered nodes except `others`; it determines the slot that `me` tries
        first.
        """
        order = [a for a in self.nodes if a not in others]
        return order.index(me) if me in order else len(order)

    def job_named(self, text: str) -> JobId:
        """Returns the job whose id begins with these hex digits; raises UsageError, NotFoundError."""
        return JobId(identified(text, self.jobs, "job", JOBS_SHOWN))

    def claim_named(self, text: str) -> tuple[JobLedger, RoundLedger, ClaimRecord]:
        """Returns the claim whose id begins with these hex digits, with its round and job; raises UsageError,
        NotFoundError."""
        found = {record.id: (job, r, record) for job, r, record in self._public()}
        return found[ClaimId(identified(text, found, "claim", CLAIMS_SHOWN))]

    def find(self, claim: ClaimId) -> tuple[JobLedger, RoundLedger, ClaimRecord] | None:
        """Returns a published claim of any attempt, with its round and job."""
        return next((found for found in self._public() if found[2].id == claim), None)

    def owners_beside(self, claim: ClaimId) -> frozenset[Address]:
        """Returns the owners of all slots in a claim's round, whose stakes are locked until the round is final."""
        found = self.find(claim)
        return frozenset() if found is None else frozenset(owner for owner, _ in found[1].holders.values())

    def awaited(self, claim: ClaimId) -> ClaimRecord | None:
        """Returns a claim if its round waits for the games and demands on it: the claim is valid and its round not
        final.
        """
        found = self.find(claim)
        if found is None or found[2].convicted or found[2].replaced or found[1].phase == Phase.FINAL:
            return None
        return found[2]

    def _public(self) -> Iterator[tuple[JobLedger, RoundLedger, ClaimRecord]]:
        for job in self.jobs.values():
            yield from ((job, *place) for place in job.public())


# -- the fold, by contract


def _of_vault(ledger: Ledger, e: events.Logged, _: Event) -> None:
    match e:
        case events.NodeRegistered():
            ledger.nodes.pop(e.account, None)
            ledger.nodes[e.account] = e.key
            ledger.registrations[e.account] = ledger.registrations.get(e.account, 0) + 1
        case events.Deposited():
            ledger.deposits[e.account] = ledger.deposits.get(e.account, 0) + e.amount
        case events.Unbonded():
            ledger.deposits[e.account] -= e.amount
        case events.Locked():
            ledger.locks[e.key] = e.account
            ledger.stakers.add(e.account)
        case events.Slashed():
            ledger.slashed[e.key] = e.amount
            ledger.locks.pop(e.key, None)
        case events.Unlocked() | events.BondTaken():
            ledger.locks.pop(e.key, None)
            ledger.unlocked = ClaimId(e.key)


def _of_market(ledger: Ledger, e: Any, at: Event) -> None:
    match e:
        case events.JobCreated():
            ledger.jobs[e.job] = JobLedger(e.job, e.requester, at.block)
        case events.JobDone():
            ledger.jobs[e.job].done = True
        case events.Paid():
            # The contract returns the stake first, in the same transaction.
            ledger.pays.append(Pay(ledger.unlocked, e.job, e.round, e.slot, e.account, e.amount, at.time))
        case events.RoundStarted():
            job = ledger.jobs[e.job]
            if e.round in job.rounds:
                job.past.append(job.rounds[e.round])
            job.rounds[e.round] = RoundLedger(e.round, **EFFECTS[type(e)].stored(vars(e)))
        case events.JobVoid():
            ledger.jobs[e.job].void = True
        case events.JobCancelled():
            pass
        case _:
            _of_round(ledger, ledger.jobs[e.job], e, at)
    ledger.jobs[e.job].last = at.time


def _of_round(ledger: Ledger, job: JobLedger, e: Any, at: Event) -> None:
    r, effect = job.rounds[e.round], EFFECTS.get(type(e))
    if effect is not None and isinstance(effect.state, ClaimStatus):
        r.holders[e.slot] = (e.worker if "worker" in effect.kept else r.holders[e.slot][0], effect.state)
    match e:
        case events.Joined():
            ledger.places[claim_id(e.job, e.round, r.attempt, e.slot)] = e.job, e.round
        case events.Left():
            r.holders.pop(e.slot)
        case events.Sealed():
            r.sealed = at.block
        case events.Revealed():
            stored = EFFECTS[type(e)].stored(vars(e))
            made = (e.claim, e.job, e.round, r.attempt, e.slot, e.worker)
            r.claims[e.slot] = ClaimRecord(*made, claimed_at=at.time, **stored)
        case events.Carried():
            r.claims[e.slot] = replace(r.claims[e.slot], carries=True)
        case events.Frozen():
            # A demand that is open at the freeze stays unanswered: nothing is frozen before its deadline.
            asked = {d.claim for d in ledger.demands.values()}
            r.missing |= {slot for slot, claim in r.claims.items() if claim.id in asked}
        case events.Merged():
            ledger.places[e.claim] = e.job, e.round
            if (first := r.merge) is not None:
                job.attempt += 1
                r.merges = [replace(m, replaced=True) if m.id == first.id else m for m in r.merges]
            trace_root = TraceRoot(merkle.leaf(merkle.node(e.out, e.out2)))
            made = (e.claim, e.job, e.round, job.attempt, MERGE_SLOT, e.worker)
            r.merges.append(ClaimRecord(*made, trace_root, e.out, e.out2, None, e.checkpoint_cid, at.time))
            r.decided_at = at.time
        case events.RoundFailed():
            r.decided_at = at.time if r.claims else NEVER
        case events.Convicted() if e.slot == MERGE_SLOT:
            r.merges = [replace(m, convicted=True) if m.id == e.claim else m for m in r.merges]
            # Nothing is based any more on a merge of a void round.
            if r.phase is Phase.LEAD:
                job.attempt += 1
                r.decided_at, r.phase = NEVER, Phase.MERGING
        case events.Convicted() if claim_id(e.job, e.round, r.attempt, e.slot) == e.claim:
            r.holders[e.slot] = (e.worker, ClaimStatus.CONVICTED)
            r.claims[e.slot] = replace(r.claims[e.slot], convicted=True)
        case events.TracePublished() if e.slot in r.claims and r.claims[e.slot].id == e.claim:
            r.claims[e.slot] = replace(r.claims[e.slot], trace_cid=e.trace_cid)
    if effect is not None and isinstance(effect.state, Phase):
        r.take(effect, vars(e))


def _of_game(ledger: Ledger, e: events.Logged, _: Event) -> None:
    match e:
        case events.GameOpened():
            ledger.games[e.game] = GameRecord(e.game, e.claim, e.challenger, e.defender, e.nonce, e.t)
        case events.GameResolved():
            ledger.ended[e.game] = replace(ledger.games.pop(e.game), verdict=Verdict(e.verdict))


def _of_witnesses(ledger: Ledger, e: Any, at: Event) -> None:
    match e:
        case events.Enrolled():
            ledger.heads[e.job, e.account] = e.head
        case events.AuditOpened():
            state = Audit(AuditStatus.DRAWING, e.job, e.round, e.attempt, e.beacon_block)
            ledger.audits[e.audit] = ledger.jobs[e.job].audits[e.audit] = AuditLedger(e.audit, state)
        case events.DutyDrawn():
            ledger.audits[e.audit].duties.append(Duty(e.account, e.slot, e.serial, DutyStatus.DRAWN))
        case events.AuditDrawn():
            state = ledger.audits[e.audit].state
            state.status, state.beacon, state.duties = AuditStatus.DRAWN, e.beacon, e.duties
            state.commit_ends, state.reveal_ends = e.commit_ends, e.reveal_ends
        case events.AuditSkipped():
            ledger.audits[e.audit].state.status = AuditStatus.SKIPPED
        case events.CommitsEnded():
            state = ledger.audits[e.audit].state
            state.commit_ends, state.reveal_ends = e.commit_ends, e.reveal_ends
        case events.VerdictCommitted():
            audit = ledger.audits[e.audit]
            audit.state.committed += 1
            audit.duties[e.i].status, audit.duties[e.i].commitment = DutyStatus.COMMITTED, e.commitment
        case events.VerdictRevealed():
            duty = ledger.audits[e.audit].duties[e.i]
            duty.t, duty.status = Step(e.t), DutyStatus.AGREED if e.agrees else DutyStatus.DIFFERED
        case events.DutyClosed():
            ledger.audits[e.audit].duties[e.i].status = DutyStatus.CLOSED
        case events.TracePublished():
            _of_round(ledger, ledger.jobs[e.job], e, at)


def _of_demands(ledger: Ledger, e: events.Logged, _: Event) -> None:
    match e:
        case events.PayloadDemanded():
            ledger.demands[e.demand] = DemandRecord(e.demand, e.job, e.claim, 0, e.asker, e.deadline)
        case events.RowDemanded():
            ledger.demands[e.demand] = DemandRecord(e.demand, e.job, None, e.row, e.asker, e.deadline)
        case events.Settled():
            ended = ledger.demands.pop(e.demand, None)
            if e.status != Status.MISSING or ended is None or ended.claim is None:
                return
            found = ledger.find(ended.claim)
            # A carry that is lost after the freeze no longer changes the round.
            if found is not None and found[1].merge_in is None:
                found[1].missing.add(found[2].slot)


_FOLDS: dict[str, Callable[[Ledger, Any, Event], None]] = {
    "StakeVault": _of_vault,
    "JobMarket": _of_market,
    "DisputeGame": _of_game,
    "Witnesses": _of_witnesses,
    "Availability": _of_demands,
}


def ledger_of(reader: EventReader) -> Ledger:
    """Returns a ledger of all events so far, for a caller that reads once."""
    watcher = Watcher(reader)
    watcher.poll()
    return watcher.ledger


class Watcher:
    """Reads events into a ledger; after a reorganisation it starts the ledger anew."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._cursor = reader.start()
        self._told: set[tuple[int, int]] = set()
        self._fresh: list[Event] = []
        """Events applied and not yet returned, so that a failing poll loses none."""
        self.ledger = Ledger()

    @property
    def block(self) -> int:
        """The last block that the ledger holds."""
        return self._cursor.next_block - 1

    def poll(self) -> list[Event]:
        """Brings the ledger up to the latest block; returns the events since the last poll."""
        while True:
            batch = self._reader.poll(self._cursor)
            if batch.rolled_back_to is not None:
                self.ledger, self._cursor, self._fresh = Ledger(), self._reader.start(), []
                continue
            for event in batch.events:
                self._apply(event)
            self._fresh += batch.events
            self._cursor = batch.cursor
            if batch.behind <= 0:
                fresh, self._fresh = self._fresh, []
                return fresh

    def _apply(self, event: Event) -> None:
        """Applies one event; an event that contradicts earlier ones is logged once and skipped."""
        # INVARIANT: no event ends a process that reads the chain.
        try:
            self.ledger.apply(event)
        except (LookupError, ValueError, TypeError, AttributeError) as failure:
            if event.key not in self._told:
                self._told.add(event.key)
                log.error(
                    "an event of the chain contradicts the ledger and is skipped",
                    contract=event.contract, event_name=event.name, block=event.block,
                    index=event.index, why=f"{type(failure).__name__}: {failure}",
                )  # fmt: skip
