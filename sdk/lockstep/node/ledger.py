"""A read model of jobs from the chain's events: rounds, claims, games, and the CIDs of their data.

A fold over the events, made anew from the first one at every start; the logs of final blocks come from a copy on disk
(`chain/logcache.py`). Phases and books come from the contracts' views; what is here only events tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import structlog

from lockstep.base.naming import CLAIMS_SHOWN, JOBS_SHOWN, identified
from lockstep.execution.merging import Payload, RoundRecord
from lockstep.protocol import merkle
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import NEVER, Body, ClaimStatus, Phase, Round
from lockstep.protocol.market import events
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

log = structlog.get_logger(__name__)

UNSEALED = Seed(bytes(32))


@dataclass(frozen=True)
class ClaimRecord:
    """A claim as it was made public, and where its data lies."""

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
    """The CID of S_1 ‖ .. ‖ S_T; empty while witnesses look; None for a merge, whose outputs determine its trace."""
    payload_cid: Cid
    """The payload's CID, for a merge the checkpoint's. Empty if the claimant wrote no CID: nobody can fetch it."""
    claimed_at: Seconds
    """The chain time at which its challenge window began."""
    convicted: bool = False
    replaced: bool = False
    """True if a merge with the same outputs has taken its place, since nobody backed it."""
    carries: bool = False
    """True if it starts from the carry of its worker's claim of the slot in the round before, not from zero."""

    @property
    def body(self) -> Body:
        """The roots that it claims: the trace root and both outputs."""
        return Body(self.trace_root, StateRoot(self.out), StateRoot(self.out2))

    @property
    def payload(self) -> Payload:
        """The payload that a slot's claim publishes."""
        return Payload(self.payload_cid, self.out, self.out2)

    @property
    def is_merge(self) -> bool:
        """True if it claims a merge and not a slot."""
        return self.slot == MERGE_SLOT


@dataclass
class RoundLedger:
    """One round of one attempt."""

    number: int
    attempt: int
    base: StateRoot
    """Root of the shared tensors that it starts from."""
    outer: StateRoot
    seed: Seed = UNSEALED
    sealed: int = 0
    """Block in which the seed was drawn."""
    holders: dict[int, tuple[Address, ClaimStatus]] = field(default_factory=dict)
    """By slot."""
    claims: dict[int, ClaimRecord] = field(default_factory=dict)
    """Revealed ones, by slot."""
    mask: int = 0
    merge_in: StateRoot | None = None
    """S_0 of the merge, once frozen."""
    merges: list[ClaimRecord] = field(default_factory=list)
    """In order, convicted and replaced ones among them: the last one stands if it is none of these."""
    missing: set[int] = field(default_factory=set)
    """Slots whose payload, or the carry that they start from, was demanded in vain."""
    decided_at: Seconds = NEVER
    """The chain time at which it was merged, or failed after claims were revealed."""
    phase: Phase = Phase.JOINING
    """JOINING until it is known how it ended: FAILED, VOID, FINAL. Claims of a FAILED one stand until it is FINAL."""

    @property
    def merge(self) -> ClaimRecord | None:
        """The merge that stands."""
        standing = [m for m in self.merges if not (m.convicted or m.replaced)]
        return standing[-1] if standing and self.phase != Phase.FAILED else None

    @property
    def stored(self) -> Round:
        """The phase and the time of its decision, as the market has them."""
        phase = Phase.LEAD if self.phase == Phase.JOINING and self.decided_at != NEVER else self.phase
        return Round(phase, self.attempt, merged_at=self.decided_at)

    @property
    def payloads(self) -> dict[int, Payload]:
        """By slot, of revealed claims."""
        return {slot: c.payload for slot, c in self.claims.items()}

    @property
    def bodies(self) -> list[Body]:
        """The argument of `freeze`: bodies of the revealed slots that nobody has convicted, in order."""
        return [self.claims[slot].body for slot in sorted(self.claims) if not self.claims[slot].convicted]

    def accepted(self, slots: int) -> tuple[Payload | None, ...]:
        """Returns the merge's input payloads in slot order; None for a slot that was not accepted."""
        payloads = self.payloads
        return tuple(payloads.get(s) if self.mask >> s & 1 else None for s in range(slots))

    @property
    def merged_and_convicted(self) -> frozenset[int]:
        """Slots that the merge takes though they were convicted afterwards."""
        return frozenset(s for s, c in self.claims.items() if c.convicted and self.mask >> s & 1)

    def record_of_honest(self, slots: int) -> RoundRecord:
        """As it would have been merged, had nobody lied: no convicted slot among its payloads, and no checkpoint."""
        left_out = self.merged_and_convicted
        payloads = tuple(None if s in left_out else p for s, p in enumerate(self.accepted(slots)))
        return RoundRecord(self.number, self.seed, payloads, None, Digest(bytes(32)), Digest(bytes(32)))

    def record(self, slots: int, merge: ClaimRecord | None = None) -> RoundRecord:
        """As the rounds after it start from it: by the merge that stands, or by `merge`."""
        m = merge or self.merge
        if m is None:
            return RoundRecord(self.number, self.seed, self.accepted(slots), None, Digest(bytes(32)), Digest(bytes(32)))
        return RoundRecord(self.number, self.seed, self.accepted(slots), m.payload_cid, m.out, m.out2)


@dataclass
class AuditLedger:
    """One round's audit by drawn witnesses: as the contract stores it."""

    id: AuditId
    state: Audit
    duties: list[Duty] = field(default_factory=list)
    """In the order of their numbers."""


@dataclass
class JobLedger:
    """One job."""

    id: JobId
    requester: Address
    block: int
    rounds: dict[int, RoundLedger] = field(default_factory=dict)
    past: list[RoundLedger] = field(default_factory=list)
    """Rounds that were started again after a conviction."""
    audits: dict[AuditId, AuditLedger] = field(default_factory=dict)
    attempt: int = 0
    done: bool = False

    def over_at(self, params: JobParams, r: int) -> Seconds:
        """Returns the time at which claims of slots in round `r` can be final, and nobody can challenge them; NEVER
        while a round that may stand on their carries is not decided."""
        started = sum(x.phase != Phase.VOID for x in self.rounds.values())
        return over_at(params, started, r, lambda k: self.rounds[k].stored)[1]

    def records(self, before: int, slots: int) -> list[RoundRecord]:
        """Every round before `before`, in order."""
        return [self.rounds[r].record(slots) for r in range(before)]

    def records_behind(self, r: RoundLedger, slots: int) -> list[RoundRecord]:
        """The rounds before `r` as they were when it started, up to the merge that its base came from."""
        return self.records_to(r.base, r.outer, r.number, slots)

    def records_to(self, base: bytes, outer: bytes, before: int, slots: int) -> list[RoundRecord]:
        """Every round up to the merge of these outputs, in order; every round before `before` if none made them."""
        records = self.records(before, slots)
        found = self.merge_of(base, outer, before)
        if found is None:
            return records
        merged, merge = found
        return [*records[: merged.number], merged.record(slots, merge)]

    def merge_behind(self, r: RoundLedger) -> tuple[RoundLedger, ClaimRecord] | None:
        """The merge that a round's base came from, convicted or not, with its round; None for the genesis."""
        return self.merge_of(r.base, r.outer, r.number)

    def merge_of(self, base: bytes, outer: bytes, before: int) -> tuple[RoundLedger, ClaimRecord] | None:
        """The latest merge of these outputs in a round before `before`, convicted or not, with its round."""
        for number in reversed(range(before)):
            for earlier in self.all_rounds():
                for merge in reversed(earlier.merges):
                    if earlier.number == number and (merge.out, merge.out2) == (base, outer):
                        return earlier, merge
        return None

    def carry_behind(self, r: RoundLedger, slot: int, period: int) -> tuple[RoundLedger, ClaimRecord] | None:
        """The claim whose carry a slot of `r` starts from, with its round; None if it starts from zeros.

        A revealed claim says so itself; one still to be made carries what stands, but in rounds that `period` divides.
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
        """Yields the rounds of every attempt from a copy: a worker thread may read while the loop goes on writing."""
        yield from [*self.past, *self.rounds.values()]


@dataclass(frozen=True)
class GameRecord:
    """A game as it was opened, and how it ended."""

    id: GameId
    claim: ClaimId
    challenger: Address
    defender: Address
    nonce: int
    t: int
    """0: it began at the trace root."""
    verdict: Verdict = Verdict.NONE
    """NONE while it runs."""


@dataclass(frozen=True)
class Pay:
    """The payment that a claim earned."""

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
    """The claim whose payload is demanded; None: a row is."""
    row: int
    asker: Address
    deadline: Seconds


@dataclass
class Ledger:
    """Everything that events tell; `apply` each in order."""

    jobs: dict[JobId, JobLedger] = field(default_factory=dict)
    nodes: dict[Address, bytes] = field(default_factory=dict)
    """Registered ed25519 keys, in the order of registration."""
    registrations: dict[Address, int] = field(default_factory=dict)
    """The number of times that each account has registered."""
    games: dict[GameId, GameRecord] = field(default_factory=dict)
    """Those that run."""
    ended: dict[GameId, GameRecord] = field(default_factory=dict)
    """Those that somebody has won, or nobody."""
    audits: dict[AuditId, AuditLedger] = field(default_factory=dict)
    heads: dict[tuple[JobId, Address], Digest] = field(default_factory=dict)
    """The hash chain's top that a witness enrolled with last."""
    pays: list[Pay] = field(default_factory=list)
    slashed: dict[bytes, int] = field(default_factory=dict)
    """By ClaimId or GameId: what was taken."""
    deposits: dict[Address, int] = field(default_factory=dict)
    """Each account's deposits into the vault less its withdrawals: free, locked, unbonding or lost."""
    demands: dict[Digest, DemandRecord] = field(default_factory=dict)
    """Those that nobody has answered or settled."""
    locks: dict[bytes, Address] = field(default_factory=dict)
    """The account whose stake is locked, by the lock's key: a ClaimId, a GameId, a demand's id, a witness's key."""
    stakers: set[Address] = field(default_factory=set)
    """Accounts of which a stake was locked, at any time."""
    places: dict[ClaimId, tuple[JobId, int]] = field(default_factory=dict)
    """Job and round of every claim that anybody has staked on."""

    def apply(self, event: Event) -> None:
        """Take one event; those that say nothing here change nothing."""
        said = event.said
        fold = _FOLDS.get(type(said)) if said is not None else None
        if fold is not None:
            fold(self, said, event)

    def all_games(self) -> list[GameRecord]:
        """Every game ever opened."""
        return [*self.ended.values(), *self.games.values()]

    def games_against(self, account: Address) -> list[GameRecord]:
        """Open games about an account's claims."""
        return [g for g in self.games.values() if g.defender == account]

    def staked(self, account: Address) -> list[ClaimId]:
        """An account's claims whose stake is locked, in the order of their making."""
        return [ClaimId(key) for key, owner in self.locks.items() if owner == account and key in self.places]

    def at_stake(self, account: Address) -> frozenset[JobId]:
        """Jobs in which an account can still lose a claim's stake, or cannot have it back yet."""
        claims = [*self.staked(account), *(g.claim for g in self.games_against(account))]
        return frozenset(self.places[claim][0] for claim in claims if claim in self.places)

    def place(self, me: Address, others: frozenset[Address]) -> int:
        """The turn of `me` among the registered nodes that are not `others`: which slot it tries first."""
        order = [a for a in self.nodes if a not in others]
        return order.index(me) if me in order else len(order)

    def job_named(self, text: str) -> JobId:
        """The job whose id begins with these hex digits; raises UsageError, NotFoundError."""
        return JobId(identified(text, self.jobs, "job", JOBS_SHOWN))

    def claim_named(self, text: str) -> tuple[JobLedger, RoundLedger, ClaimRecord]:
        """The claim whose id begins with these hex digits, with its round and job; raises UsageError, NotFoundError."""
        found = {record.id: (job, r, record) for job, r, record in self._public()}
        return found[ClaimId(identified(text, found, "claim", CLAIMS_SHOWN))]

    def find(self, claim: ClaimId) -> tuple[JobLedger, RoundLedger, ClaimRecord] | None:
        """A claim that was made public, of any attempt, with its round and job."""
        return next((found for found in self._public() if found[2].id == claim), None)

    def owners_beside(self, claim: ClaimId) -> frozenset[Address]:
        """The owners of the slots of a claim's round, who wait for it to be final."""
        found = self.find(claim)
        return frozenset() if found is None else frozenset(owner for owner, _ in found[1].holders.values())

    def awaited(self, claim: ClaimId) -> ClaimRecord | None:
        """A claim whose round waits for what is open about it: it stands, and its round is not over."""
        found = self.find(claim)
        if found is None or found[2].convicted or found[2].replaced or found[1].phase == Phase.FINAL:
            return None
        return found[2]

    def _public(self) -> Iterator[tuple[JobLedger, RoundLedger, ClaimRecord]]:
        for job in self.jobs.values():
            for r in job.all_rounds():
                for record in (*r.claims.values(), *r.merges):
                    yield job, r, record


_E = TypeVar("_E", bound=events.Logged)
Fold = Callable[[Ledger, _E, "Event"], None]

_FOLDS: dict[type[events.Logged], Fold[Any]] = {}
"""The handler of each event type; it takes the ledger, the decoded event and its log entry."""


def _folds(kind: type[_E]) -> Callable[[Fold[_E]], Fold[_E]]:
    def added(fold: Fold[_E]) -> Fold[_E]:
        _FOLDS[kind] = fold
        return fold

    return added


# -- vault


@_folds(events.NodeRegistered)
def _node_registered(ledger: Ledger, e: events.NodeRegistered, _: Event) -> None:
    ledger.nodes.pop(e.account, None)
    ledger.nodes[e.account] = e.key
    ledger.registrations[e.account] = ledger.registrations.get(e.account, 0) + 1


@_folds(events.Slashed)
def _slashed(ledger: Ledger, e: events.Slashed, _: Event) -> None:
    ledger.slashed[e.key] = e.amount
    ledger.locks.pop(e.key, None)


@_folds(events.Deposited)
def _deposited(ledger: Ledger, e: events.Deposited, _: Event) -> None:
    ledger.deposits[e.account] = ledger.deposits.get(e.account, 0) + e.amount


@_folds(events.Unbonded)
def _unbonded(ledger: Ledger, e: events.Unbonded, _: Event) -> None:
    ledger.deposits[e.account] -= e.amount


@_folds(events.Locked)
def _locked(ledger: Ledger, e: events.Locked, _: Event) -> None:
    ledger.locks[e.key] = e.account
    ledger.stakers.add(e.account)


@_folds(events.Unlocked)
def _unlocked(ledger: Ledger, e: events.Unlocked, _: Event) -> None:
    ledger.locks.pop(e.key, None)


@_folds(events.BondTaken)
def _bond_taken(ledger: Ledger, e: events.BondTaken, _: Event) -> None:
    ledger.locks.pop(e.key, None)


# -- market


@_folds(events.JobCreated)
def _job_created(ledger: Ledger, e: events.JobCreated, at: Event) -> None:
    ledger.jobs[e.job] = JobLedger(JobId(e.job), e.requester, at.block)


@_folds(events.JobDone)
def _job_done(ledger: Ledger, e: events.JobDone, _: Event) -> None:
    ledger.jobs[e.job].done = True


@_folds(events.RoundStarted)
def _round_started(ledger: Ledger, e: events.RoundStarted, _: Event) -> None:
    job = ledger.jobs[e.job]
    if e.round in job.rounds:
        job.past.append(job.rounds[e.round])
    job.rounds[e.round] = RoundLedger(e.round, e.attempt, e.base, e.outer)


@_folds(events.Joined)
def _joined(ledger: Ledger, e: events.Joined, _: Event) -> None:
    r = _round(ledger, e)
    r.holders[e.slot] = (e.worker, ClaimStatus.JOINED)
    ledger.places[claim_id(e.job, e.round, r.attempt, e.slot)] = JobId(e.job), e.round


@_folds(events.Left)
def _left(ledger: Ledger, e: events.Left, _: Event) -> None:
    _round(ledger, e).holders.pop(e.slot)


@_folds(events.Sealed)
def _sealed(ledger: Ledger, e: events.Sealed, at: Event) -> None:
    r = _round(ledger, e)
    r.seed, r.sealed = Seed(e.seed), at.block


@_folds(events.Committed)
def _committed(ledger: Ledger, e: events.Committed, _: Event) -> None:
    _advance(ledger, e, ClaimStatus.COMMITTED)


@_folds(events.Revealed)
def _revealed(ledger: Ledger, e: events.Revealed, at: Event) -> None:
    _advance(ledger, e, ClaimStatus.REVEALED)
    r = _round(ledger, e)
    r.claims[e.slot] = ClaimRecord(
        ClaimId(e.claim), JobId(e.job), e.round, r.attempt, e.slot, e.worker, TraceRoot(e.trace_root),
        Digest(e.out), Digest(e.out2), Cid(e.trace_cid), Cid(e.payload_cid), at.time,
    )  # fmt: skip


@_folds(events.Carried)
def _carried(ledger: Ledger, e: events.Carried, _: Event) -> None:
    claims = _round(ledger, e).claims
    claims[e.slot] = replace(claims[e.slot], carries=True)


@_folds(events.Frozen)
def _frozen(ledger: Ledger, e: events.Frozen, _: Event) -> None:
    r = _round(ledger, e)
    r.mask, r.merge_in = e.mask, StateRoot(e.merge_in)
    # What is open at the freeze is so in vain: before its deadline nothing is frozen.
    asked = {d.claim for d in ledger.demands.values()}
    r.missing |= {slot for slot, claim in r.claims.items() if claim.id in asked}
    absent = dict.fromkeys((ClaimStatus.JOINED, ClaimStatus.COMMITTED), ClaimStatus.ABSENT)
    _close(r, {ClaimStatus.REVEALED: None, **absent})


@_folds(events.Merged)
def _merged(ledger: Ledger, e: events.Merged, at: Event) -> None:
    job, r = ledger.jobs[e.job], _round(ledger, e)
    ledger.places[ClaimId(e.claim)] = JobId(e.job), e.round
    if (first := r.merge) is not None:
        job.attempt += 1
        r.merges = [replace(m, replaced=True) if m.id == first.id else m for m in r.merges]
    trace_root = TraceRoot(merkle.leaf(merkle.node(e.out, e.out2)))
    r.merges.append(
        ClaimRecord(
            ClaimId(e.claim), JobId(e.job), e.round, job.attempt, MERGE_SLOT, e.worker, trace_root, Digest(e.out),
            Digest(e.out2), None, Cid(e.checkpoint_cid), at.time,
        )
    )  # fmt: skip
    r.decided_at = at.time


@_folds(events.RoundFinal)
def _round_final(ledger: Ledger, e: events.RoundFinal, _: Event) -> None:
    r = _round(ledger, e)
    r.phase = Phase.FINAL
    judged = (ClaimStatus.ACCEPTED, ClaimStatus.EXCLUDED, ClaimStatus.MISSING)
    _close(r, dict.fromkeys(judged, ClaimStatus.FINAL))


@_folds(events.RoundFailed)
def _round_failed(ledger: Ledger, e: events.RoundFailed, at: Event) -> None:
    r = _round(ledger, e)
    r.phase = Phase.FAILED
    r.decided_at = at.time if r.claims else NEVER
    # With a seed the freeze has said what each claim is.
    _close(r, {ClaimStatus.JOINED: ClaimStatus.VOID})


@_folds(events.RoundVoid)
def _round_void(ledger: Ledger, e: events.RoundVoid, _: Event) -> None:
    _round(ledger, e).phase = Phase.VOID


@_folds(events.Convicted)
def _convicted(ledger: Ledger, e: events.Convicted, _: Event) -> None:
    job, r = ledger.jobs[e.job], _round(ledger, e)
    if e.slot == MERGE_SLOT:
        job.attempt += 1
        r.decided_at = NEVER
        r.merges = [replace(m, convicted=True) if m.id == e.claim else m for m in r.merges]
    elif claim_id(e.job, e.round, r.attempt, e.slot) == e.claim:
        r.holders[e.slot] = (e.worker, ClaimStatus.CONVICTED)
        r.claims[e.slot] = replace(r.claims[e.slot], convicted=True)


@_folds(events.Paid)
def _paid(ledger: Ledger, e: events.Paid, at: Event) -> None:
    ledger.pays.append(Pay(e.job, e.round, e.slot, e.account, e.amount, at.time))


# -- games


@_folds(events.GameOpened)
def _opened(ledger: Ledger, e: events.GameOpened, _: Event) -> None:
    ledger.games[e.game] = GameRecord(GameId(e.game), ClaimId(e.claim), e.challenger, e.defender, e.nonce, e.t)


@_folds(events.GameResolved)
def _resolved(ledger: Ledger, e: events.GameResolved, _: Event) -> None:
    ledger.ended[e.game] = replace(ledger.games.pop(e.game), verdict=Verdict(e.verdict))


# -- witnesses


@_folds(events.Enrolled)
def _enrolled(ledger: Ledger, e: events.Enrolled, _: Event) -> None:
    ledger.heads[e.job, e.account] = Digest(e.head)


@_folds(events.AuditOpened)
def _audit_opened(ledger: Ledger, e: events.AuditOpened, _: Event) -> None:
    state = Audit(AuditStatus.DRAWING, JobId(e.job), e.round, e.attempt, e.beacon_block)
    ledger.audits[e.audit] = ledger.jobs[e.job].audits[e.audit] = AuditLedger(AuditId(e.audit), state)


@_folds(events.DutyDrawn)
def _duty_drawn(ledger: Ledger, e: events.DutyDrawn, _: Event) -> None:
    ledger.audits[e.audit].duties.append(Duty(e.account, e.slot, e.serial, DutyStatus.DRAWN))


@_folds(events.AuditDrawn)
def _audit_drawn(ledger: Ledger, e: events.AuditDrawn, _: Event) -> None:
    state = ledger.audits[e.audit].state
    state.status, state.beacon, state.duties = AuditStatus.DRAWN, Digest(e.beacon), e.duties
    state.commit_ends, state.reveal_ends = e.commit_ends, e.reveal_ends


@_folds(events.AuditSkipped)
def _audit_skipped(ledger: Ledger, e: events.AuditSkipped, _: Event) -> None:
    ledger.audits[e.audit].state.status = AuditStatus.SKIPPED


@_folds(events.VerdictCommitted)
def _verdict_committed(ledger: Ledger, e: events.VerdictCommitted, _: Event) -> None:
    audit = ledger.audits[e.audit]
    audit.state.committed += 1
    audit.duties[e.i].status, audit.duties[e.i].commitment = DutyStatus.COMMITTED, Digest(e.commitment)


@_folds(events.CommitsEnded)
def _commits_ended(ledger: Ledger, e: events.CommitsEnded, _: Event) -> None:
    state = ledger.audits[e.audit].state
    state.commit_ends, state.reveal_ends = e.commit_ends, e.reveal_ends


@_folds(events.VerdictRevealed)
def _verdict_revealed(ledger: Ledger, e: events.VerdictRevealed, _: Event) -> None:
    duty = ledger.audits[e.audit].duties[e.i]
    duty.t, duty.status = Step(e.t), DutyStatus.AGREED if e.agrees else DutyStatus.DIFFERED


@_folds(events.DutyClosed)
def _duty_closed(ledger: Ledger, e: events.DutyClosed, _: Event) -> None:
    ledger.audits[e.audit].duties[e.i].status = DutyStatus.CLOSED


@_folds(events.TracePublished)
def _trace_published(ledger: Ledger, e: events.TracePublished, _: Event) -> None:
    r = _round(ledger, e)
    if e.slot in r.claims and r.claims[e.slot].id == e.claim:
        r.claims[e.slot] = replace(r.claims[e.slot], trace_cid=Cid(e.trace_cid))


# -- demands


@_folds(events.PayloadDemanded)
def _payload_demanded(ledger: Ledger, e: events.PayloadDemanded, _: Event) -> None:
    claim = ClaimId(e.claim)
    ledger.demands[e.demand] = DemandRecord(Digest(e.demand), JobId(e.job), claim, 0, e.asker, e.deadline)


@_folds(events.RowDemanded)
def _row_demanded(ledger: Ledger, e: events.RowDemanded, _: Event) -> None:
    ledger.demands[e.demand] = DemandRecord(Digest(e.demand), JobId(e.job), None, e.row, e.asker, e.deadline)


@_folds(events.Settled)
def _settled(ledger: Ledger, e: events.Settled, _: Event) -> None:
    ended = ledger.demands.pop(e.demand, None)
    if e.status != Status.MISSING or ended is None or ended.claim is None:
        return
    found = ledger.find(ended.claim)
    # A carry that is given up after the freeze changes nothing there any more.
    if found is not None and found[1].merge_in is None:
        found[1].missing.add(found[2].slot)


# -- inside


class _OfRound(Protocol):
    """An event about a round."""

    @property
    def job(self) -> JobId: ...
    @property
    def round(self) -> int: ...


def _round(ledger: Ledger, e: _OfRound) -> RoundLedger:
    return ledger.jobs[e.job].rounds[e.round]


def _advance(ledger: Ledger, e: events.Committed | events.Revealed, status: ClaimStatus) -> None:
    holders = _round(ledger, e).holders
    holders[e.slot] = (holders[e.slot][0], status)


def _close(r: RoundLedger, become: dict[ClaimStatus, ClaimStatus | None]) -> None:
    for slot, (worker, status) in r.holders.items():
        if status in become:
            unnamed = ClaimStatus.MISSING if slot in r.missing else ClaimStatus.EXCLUDED
            accepted = ClaimStatus.ACCEPTED if r.mask >> slot & 1 else unnamed
            r.holders[slot] = (worker, become[status] or accepted)


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
        """Taken, and not yet returned: a poll that fails on its way loses none."""
        self.ledger = Ledger()

    @property
    def block(self) -> int:
        """The last block that the ledger holds."""
        return self._cursor.next_block - 1

    def poll(self) -> list[Event]:
        """Bring the ledger up to the latest block; the events since the last poll."""
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
        """Take one event; one that does not follow from those before it is logged once and skipped."""
        # INVARIANT: no event ends a process that reads the chain.
        try:
            self.ledger.apply(event)
        except (LookupError, ValueError, TypeError, AttributeError) as failure:
            if event.key not in self._told:
                self._told.add(event.key)
                log.error(
                    "event skipped", contract=event.contract, event_name=event.name, block=event.block,
                    index=event.index, why=f"{type(failure).__name__}: {failure}",
                )  # fmt: skip
