"""The choice of a worker's next acts: a pure function of one look at the chain.

`acts` lists everything that this worker may do now about one job's rounds; `due` holds back, for a few seconds of chain
time, what others may do as well, so that not everybody pays gas for one round's start. What else a worker does is
decided in `worker.defending` (games), `worker.leaving` (pay, deposits), `worker.admission` (joining) and
`lockstep.market.demands`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.market.acts import Action, ActionKind, Staker, backing_acts, round_acts, startable
from lockstep.protocol.jobs import ZERO_ADDRESS, Claim, ClaimStatus, JobParams, JobState, JobStatus, Phase, Round
from lockstep.protocol.market import backing
from lockstep.protocol.market.types import Audit, AuditStatus
from lockstep.protocol.market.views import finishable, shared_from
from lockstep.protocol.types import Address, JobId, Seconds, StateRoot, Wei

Roots = tuple[StateRoot, StateRoot]
"""The roots of a checkpoint's shared and outer tensors."""

LATE_PARTS = 4
"""Parts of its time to train, in the last of which a worker commits whatever the seed's depth: silence costs more."""

PATIENCE: dict[ActionKind, Seconds] = {
    ActionKind.START: Seconds(0),
    ActionKind.SEAL: Seconds(0),
    ActionKind.DRAW: Seconds(0),
    ActionKind.FREEZE: Seconds(0),
    ActionKind.FINALIZE: Seconds(0),
    ActionKind.RELEASE: Seconds(10),
    ActionKind.FINISH: Seconds(0),
}
"""Seconds that the first in line waits with an act that anybody may do; each later one in line waits a second
longer."""

CLAIMING = frozenset(
    {
        ActionKind.FETCH,
        ActionKind.START,
        ActionKind.JOIN,
        ActionKind.TRAIN,
        ActionKind.COMMIT,
        ActionKind.REVEAL,
        ActionKind.MERGE,
    }
)
"""The acts that lead to a claim, or open one."""

AGGREGATORS = frozenset({ActionKind.FREEZE, ActionKind.FINALIZE, ActionKind.FINISH})
"""The acts that a job's aggregator does first, if there is one; workers give it some time."""
AGGREGATOR_SECONDS = Seconds(2)


@dataclass(frozen=True)
class RoundView:
    """One round's state on chain, at one block."""

    number: int
    state: Round
    phase: Phase
    """The phase at the view's time: the stored phase, advanced by deadlines and by completeness."""
    claims: tuple[Claim, ...]
    """By slot; status NONE is a free slot."""
    merger: Address = ZERO_ADDRESS
    """The account that may merge now: in MERGING, or in LEAD while the merge alone keeps the next round from
    starting."""
    merge_turns_over: bool = False
    """True in MERGING once every entitled account has let its turn pass."""
    audit: Audit | None = None
    """The audit by drawn witnesses, if one has been requested."""
    unpublished: frozenset[int] = frozenset()
    """Slots whose trace of state roots is not public yet."""
    merged_by: Address = ZERO_ADDRESS
    """The account whose merge stands, if the phase is LEAD."""
    idle_locks: frozenset[int] = frozenset()
    """Slots (MERGE_SLOT: the merge) in which stake of this worker is locked and no game is open."""
    sealed: int = 0
    """Block in which the seed was drawn."""

    def slots_of(self, account: Address) -> list[int]:
        """Returns the slots that the account holds."""
        return [s for s, c in enumerate(self.claims) if c.status != ClaimStatus.NONE and c.worker == account]


@dataclass(frozen=True)
class JobView:
    """One job's state on chain, at one block."""

    id: JobId
    params: JobParams
    job: JobState
    rounds: tuple[RoundView, ...]
    """Rounds in order: every one from the first unsettled to the last started one, the one before them if there is one,
    and every other round in which this worker has stake."""
    now: Seconds
    block: int

    def round(self, number: int) -> RoundView | None:
        """Returns the round of this number, or None if the view does not have it."""
        return next((r for r in self.rounds if r.number == number), None)


@dataclass(frozen=True)
class WorkerFacts:
    """The facts about a worker itself from which it decides."""

    address: Address
    free: Wei
    """Its free stake."""
    place: int = 0
    """Its turn among the workers that it knows of; the first slot that it tries."""
    draining: bool = False
    """True if the worker finishes the rounds that it has joined and joins no more."""
    trained: frozenset[tuple[int, int]] = frozenset()
    """(round, slot) of the claims that are ready to be committed."""
    fit: bool = True
    """True if the machine keeps up with the job; if not, the worker finishes the rounds it has joined and joins no
    more."""
    base: Roots | None = None
    """The checkpoint that it holds."""
    relied: int | None = None
    """The last block that it relies on (`Party.relied`); None: any."""
    refuses: bool = False
    """True if its executor computed wrong bits of the job: it claims nothing more, and defends what it has claimed."""

    def staker(self, params: JobParams) -> Staker:
        """Returns the stake that may back this worker's merges of the job: its free stake without that of its next
        claim."""
        return Staker(self.address, self.free, params.role.slot_stake)


def acts(view: JobView, me: WorkerFacts) -> list[Action]:
    """Returns every act that this worker may do about a job now, the most urgent first."""
    found = [act for r in view.rounds for act in _round_acts(view, r, me)]
    if view.job.status == JobStatus.DONE:
        return [a for a in found if a.kind == ActionKind.RELEASE]
    # INVARIANT: a worker that computed wrong bits of a job neither makes nor opens a claim of it. Silence costs a
    # slot's price, a wrong claim its stake.
    found = [a for a in found if not (me.refuses and a.kind in CLAIMING)]
    mine = {r.number for r in view.rounds if r.merged_by == me.address}
    found += backing_acts(view, mine.__contains__, me.staker(view.params))
    if startable(view) and me.fit and not me.draining and not me.refuses:
        # INVARIANT: a worker starts and joins only rounds whose base it holds: who cannot train loses its fine.
        found.append(
            Action(ActionKind.START if _holds(view, view.job.started, me) else ActionKind.FETCH, view.job.started)
        )
    if finishable(view.params, view.job):
        found.append(Action(ActionKind.FINISH))
    return found


def ahead(view: JobView, me: WorkerFacts, sent: frozenset[Action]) -> list[Action]:
    """Returns the acts that become possible once transactions in the pool are mined, `sent` among them.

    The chain's pending state says whether it does: where it says no, nothing is sent. It saves a block where everybody
    acts at once.
    """
    found: list[Action] = []
    if me.refuses:
        return found
    able = me.free >= view.params.role.slot_stake and me.fit and not me.draining
    if able and startable(view) and _holds(view, view.job.started, me):
        nobody = tuple(Claim(slot=s) for s in range(view.params.role.slots))
        slot = slot_to_join(view, RoundView(view.job.started, Round(), Phase.JOINING, nobody), me)
        found += [] if slot is None else [Action(ActionKind.JOIN, view.job.started, slot)]
    for r in view.rounds:
        if r.phase == Phase.TRAINING:
            for s in r.slots_of(me.address):
                if r.claims[s].status == ClaimStatus.COMMITTED or Action(ActionKind.COMMIT, r.number, s) in sent:
                    found.append(Action(ActionKind.REVEAL, r.number, s))
    return found


def due(
    possible: Sequence[Action], since: Mapping[Action, Seconds], now: Seconds, rank: int, aggregated: bool = False
) -> list[Action]:
    """Returns the acts whose turn has come. `since` has the time at which each was first possible, `rank` is this
    worker's place in line, and `aggregated` is True if the job has an aggregator."""

    def wait(do: ActionKind) -> int:
        return PATIENCE[do] + rank + (AGGREGATOR_SECONDS if aggregated and do in AGGREGATORS else 0)

    return [a for a in possible if a.kind not in PATIENCE or now - since.get(a, now) >= wait(a.kind)]


def remember(possible: Sequence[Action], since: Mapping[Action, Seconds], now: Seconds) -> dict[Action, Seconds]:
    """Returns the chain time at which each possible act was first seen to be possible."""
    return {a: since.get(a, now) for a in possible}


def rank(view: JobView, me: WorkerFacts) -> int:
    """Returns the worker's place in line: its slot in the latest round that it joined, else its place among all
    workers."""
    held = (r.slots_of(me.address) for r in reversed(view.rounds))
    return next((slots[0] for slots in held if slots), me.place % view.params.role.slots)


def base_of(view: JobView, number: int) -> Roots:
    """Returns the roots of the base of a round: one that is joined, or the next that can be started."""
    r, before = view.round(number), view.round(number - 1)
    if r is not None and r.phase != Phase.VOID:
        return r.state.base, r.state.outer
    if before is None:
        return view.params.genesis.shared, view.params.genesis.outer
    return before.state.next_shared, before.state.next_outer


def slot_to_join(view: JobView, r: RoundView, me: WorkerFacts) -> int | None:
    """Returns a free slot, counted upward from the worker's place: preferably the one that it held in the round before,
    then one that nobody held there, then any that is not reserved."""
    before = view.round(r.number - 1)
    kept = _reserved(view, r, before, me.address)
    free = [s for s, c in enumerate(r.claims) if c.status == ClaimStatus.NONE and s not in kept]
    own = before.slots_of(me.address) if before else []
    taken = [s for s, c in enumerate(before.claims) if c.status != ClaimStatus.NONE] if before else []
    slots = view.params.role.slots

    def preference(s: int) -> tuple[bool, bool, int]:
        return s not in own, s in taken, (s - me.place) % slots

    return min(free, key=preference, default=None)


def _reserved(view: JobView, r: RoundView, before: RoundView | None, me: Address) -> list[int]:
    """Returns the slots that are still reserved for other accounts, which may continue from their carries."""
    period = view.params.role.carry_period
    # INVARIANT: who may go on from a carry has its slot to itself in the first part of the join window.
    if not period or r.number % period == 0 or before is None or before.phase != Phase.LEAD:
        return []
    if view.now >= shared_from(view.params, r.state):
        return []
    return [s for s, c in enumerate(before.claims) if c.status == ClaimStatus.ACCEPTED and c.worker != me]


def owes(view: JobView, account: Address) -> bool:
    """Returns True if the account would be fined if it left now: it holds a slot whose claim is not revealed yet."""
    running = (Phase.JOINING, Phase.SEALING, Phase.TRAINING, Phase.REVEALING)
    unrevealed = (ClaimStatus.JOINED, ClaimStatus.COMMITTED)
    return any(r.claims[s].status in unrevealed for r in view.rounds if r.phase in running for s in r.slots_of(account))


def stake_wanted(params: JobParams) -> Wei:
    """Returns the free stake that always suffices, in wei: for every round in flight a claim and, in case the worker
    succeeds the aggregator, a merge with the backing for all rounds that may start on it."""
    return Wei(params.schedule.max_lead * (params.role.slot_stake + params.merge.stake) + backing.stake(params))


def _round_acts(view: JobView, r: RoundView, me: WorkerFacts) -> list[Action]:
    own = r.slots_of(me.address)
    return [*_phase_acts(view, r, me, own), *_audit_acts(view, r, own)]


def _audit_acts(view: JobView, r: RoundView, own: Sequence[int]) -> list[Action]:
    """Returns the acts of an audit: have witnesses drawn, and publish a trace once no witness can copy from it."""
    judged = (Phase.ATTESTING, Phase.FREEZING, Phase.MERGING, Phase.LEAD, Phase.FAILED)
    if not view.params.role.witnesses or r.phase not in judged:
        return []
    status = AuditStatus.NONE if r.audit is None else r.audit.status
    if r.audit is not None and status == AuditStatus.DRAWN:
        looked = view.now >= r.audit.commit_ends
    else:
        looked = r.phase != Phase.ATTESTING or status == AuditStatus.SKIPPED
    found = [Action(ActionKind.PUBLISH, r.number, s) for s in own if looked and s in r.unpublished]
    # A transaction sent now is executed in the next block at the earliest.
    drawable = status == AuditStatus.NONE or (
        r.audit is not None and status == AuditStatus.DRAWING and view.block >= r.audit.beacon_block
    )
    return [*found, Action(ActionKind.DRAW, r.number)] if drawable and r.phase == Phase.ATTESTING else found


def _phase_acts(view: JobView, r: RoundView, me: WorkerFacts, own: Sequence[int]) -> list[Action]:
    if r.phase == Phase.JOINING:
        if me.draining:
            # INVARIANT: a slot is given back while others have half of the window left to take it.
            late = view.now >= shared_from(view.params, r.state)
            return [] if late else [Action(ActionKind.LEAVE, r.number, s) for s in own]
        # INVARIANT: a worker joins once a round, and only what its stake covers.
        able = me.fit and not own and me.free >= view.params.role.slot_stake
        slot = slot_to_join(view, r, me) if able else None
        if slot is None:
            return []
        return [
            Action(ActionKind.JOIN, r.number, slot)
            if _holds(view, r.number, me)
            else Action(ActionKind.FETCH, r.number)
        ]
    if r.phase == Phase.SEALING:
        # A transaction sent now is executed in the next block at the earliest.
        return [Action(ActionKind.SEAL, r.number)] if r.state.seed_block <= view.block else []
    if r.phase == Phase.TRAINING:
        waiting = [s for s in own if r.claims[s].status == ClaimStatus.JOINED]
        ready = [s for s in waiting if (r.number, s) in me.trained]
        train = [Action(ActionKind.TRAIN, r.number, s) for s in waiting if s not in ready]
        return train + [Action(ActionKind.COMMIT, r.number, s) for s in ready if _settled(view, r, me)]
    if r.phase == Phase.REVEALING:
        return [Action(ActionKind.REVEAL, r.number, s) for s in own if r.claims[s].status == ClaimStatus.COMMITTED]
    if r.phase == Phase.ATTESTING:
        revealed = [s for s in own if r.claims[s].status == ClaimStatus.REVEALED]
        return [Action(ActionKind.ATTEST, r.number, s) for s in revealed if not r.state.spoke >> s & 1]
    if r.phase == Phase.VOID or (r.phase == Phase.FAILED and view.job.status == JobStatus.VOID):
        return [Action(ActionKind.RELEASE, r.number)] if _releasable(view, r) else []
    return round_acts(view, r, me.staker(view.params), view.now)


def _settled(view: JobView, r: RoundView, me: WorkerFacts) -> bool:
    """Tells if a round's seed is final by the block depth that this worker relies on, or if waiting longer would cost
    more."""
    # INVARIANT: who commits waits until the seed is deep: a commitment outlives the block that drew another seed.
    late = view.now >= r.state.commit_ends - view.params.role.train_seconds // LATE_PARTS
    return late or me.relied is None or r.sealed <= me.relied


def _releasable(view: JobView, r: RoundView) -> bool:
    """Tells if `release` frees stake of this worker, or removes what keeps it from doing so."""
    voided = view.job.status == JobStatus.VOID
    if voided and view.job.settled <= r.number < view.job.started and r.state.phase != Phase.VOID:
        # INVARIANT: a void job's rounds are released in order; the first one also stands in the way of the others.
        return r.number == view.job.settled and any(x.idle_locks for x in view.rounds)
    # INVARIANT: a void round's stakes are given back together, once the games on its claims are over.
    return bool(r.idle_locks) and (voided or not r.state.open_games)


def _holds(view: JobView, number: int, me: WorkerFacts) -> bool:
    return me.base == base_of(view, number)
