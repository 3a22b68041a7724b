"""The coordinator's next actions: pure functions of what chain and storage say.

Every action in a decision is valid on the state it was decided from; none relies on another of the same decision. So a
process may die between any two of them: the next look decides again from what the chain then says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from lockstep.node.demands import left_out
from lockstep.protocol.jobs import NOTHING, JobParams, JobState, JobStatus, Phase, Round
from lockstep.protocol.market import backing, views
from lockstep.protocol.market.receipts import FINAL_REPORTS, Report, add, batch_due
from lockstep.protocol.types import Address, Seconds, Wei

PATIENCE_SECONDS = Seconds(3)
PATIENCE_BLOCKS = 2
"""The time for which the coordinator leaves a round's beginning to the workers, who need it first: two that send
the same pay for it twice."""


@dataclass(frozen=True)
class AggregatorRound:
    """A round as chain and storage tell it at the head."""

    number: int
    phase: Phase
    """The stored phase, moved on by time and completeness."""
    stored: Round
    reports: tuple[tuple[int, Report], ...] = ()
    """(slot, report) of every revealed claim, in slot order."""
    receipts: Mapping[int, int] = field(default_factory=dict)
    """The slots whose owners have handed over their receipts -> what each names."""
    merger: Address | None = None
    """The account that may merge now, or merge again."""
    turns_over: bool = False
    """Every merge turn has passed."""
    mine: bool = False
    """This coordinator's stake is locked in the round's merge."""
    convicted: frozenset[int] = frozenset()
    """Slots of revealed claims whose owners may not speak any more."""
    demanded: frozenset[int] = frozenset()
    """Slots whose payloads this account has demanded."""


@dataclass(frozen=True)
class AggregatorJob:
    """A job as chain and storage tell it at the head."""

    params: JobParams
    job: JobState
    barred: bool
    """The aggregator was convicted of a merge of this job."""
    views: tuple[AggregatorRound, ...]
    """Rounds settled - 1 .. started - 1 and voided ones beyond, in order."""
    bond: Wei = NOTHING
    """The bond that a demand for a payload locks now."""

    def round(self, number: int) -> AggregatorRound | None:
        """The view of a round, if it is among `views`."""
        return next((v for v in self.views if v.number == number), None)

    @property
    def leads(self) -> list[tuple[int, Round]]:
        """Rounds that are merged and not final."""
        return [(v.number, v.stored) for v in self.views if v.phase == Phase.LEAD]


@dataclass(frozen=True)
class Decider:
    """The rest: who decides, when, with what money."""

    me: Address
    now: Seconds
    """The head's timestamp."""
    block: int
    """The head's number; a transaction sent now lands in a later block."""
    free: Wei
    """Free stake in the vault."""
    balance: Wei
    """Tokens in the account."""
    credits: Wei
    """Earned, not yet withdrawn."""
    demands: int = 0
    """The payloads of a round that are demanded, at most."""


@dataclass(frozen=True)
class Deposit:
    """Stake more."""

    amount: Wei


@dataclass(frozen=True)
class StartRound:
    """Begin the next round."""

    round: int


@dataclass(frozen=True)
class Seal:
    """Close the roster, or draw the seed."""

    round: int


@dataclass(frozen=True)
class DemandPayload:
    """Demand a payload that receipts leave out."""

    round: int
    slot: int


@dataclass(frozen=True)
class Attest:
    """Send the receipts that slot owners have handed over."""

    round: int


@dataclass(frozen=True)
class Freeze:
    """Fix the accepted claims and what is merged."""

    round: int


@dataclass(frozen=True)
class Merge:
    """Run the merge Program and claim its outputs; lock the pay of `rounds` later rounds with it."""

    round: int
    rounds: int = 0


@dataclass(frozen=True)
class Back:
    """Lock the pay of `rounds` more later rounds with a merge, `backed` of which are covered already."""

    round: int
    rounds: int
    backed: int


@dataclass(frozen=True)
class Finalize:
    """Pay a round that nobody can overturn, or fail one that nobody merged."""

    round: int


@dataclass(frozen=True)
class Release:
    """Take back the stake that a void round holds."""

    round: int


@dataclass(frozen=True)
class Finish:
    """Close the job: the rest goes back to the requester."""


@dataclass(frozen=True)
class Withdraw:
    """Pay this account's credits out."""


Action = (
    Deposit
    | StartRound
    | Seal
    | DemandPayload
    | Attest
    | Freeze
    | Merge
    | Back
    | Finalize
    | Release
    | Finish
    | Withdraw
)


def decide(seen: AggregatorJob, decider: Decider) -> tuple[Action, ...]:
    """Everything that is due now, most urgent first."""
    if seen.params.merge.aggregator != decider.me:
        return ()
    if seen.job.status == JobStatus.DONE:
        # What a convicted merge voided may end later than its job.
        left = tuple(Release(view.number) for view in seen.views if view.phase == Phase.VOID and _releasable(view))
        return (*left, Withdraw()) if decider.credits > 0 else left
    deposit = stake_due(seen, decider)
    actions: list[Action] = [Deposit(deposit)] if deposit else []
    for view in seen.views:
        actions += _round_actions(seen, view, decider)
    actions += _backing(seen, decider)
    if start_due(seen, decider):
        actions.append(StartRound(seen.job.started))
    if views.finishable(seen.params, seen.job):
        actions.append(Finish())
    return tuple(actions)


def wanted_payloads(seen: AggregatorJob, decider: Decider) -> tuple[tuple[int, int], ...]:
    """(round, slot) of revealed claims whose payload is still to be fetched and judged."""
    if seen.params.merge.aggregator != decider.me or seen.barred:
        return ()
    return tuple(
        (view.number, slot)
        for view in seen.views
        if view.phase in (Phase.REVEALING, Phase.ATTESTING)
        for slot, report in view.reports
        if report not in FINAL_REPORTS
    )


def receipts_due(view: AggregatorRound, params: JobParams, now: Seconds) -> frozenset[int]:
    """Slots whose receipts leave now: all of them with the last one, or those that are here after a while.

    The while is over before any owner sends its own, which would cost what sending them together saves.
    """
    silent = frozenset(slot for slot, _ in view.reports if not view.stored.spoke >> slot & 1) - view.convicted
    complete = len(view.reports) == view.stored.revealed and silent <= view.receipts.keys()
    late = batch_due(view.stored.attest_ends, params.role.attest_seconds, now)
    return silent & view.receipts.keys() if complete or late else frozenset()


def demands_due(view: AggregatorRound, params: JobParams, decider: Decider) -> list[int]:
    """Slots whose payloads are demanded now: they are not there, and the receipts that are given, or leave now, leave
    them out of the merge, whose requester pays their price all the same; unless nobody answers the demand."""
    stored = view.stored
    for who in receipts_due(view, params, decider.now):
        named = add(stored.named, view.receipts[who], who)
        stored = replace(stored, named=named, spoke=stored.spoke | 1 << who, receipts=stored.receipts + 1)
    found = [s for s in left_out(dict(view.reports), stored) if s not in view.convicted]
    return [s for s in found[: decider.demands] if s not in view.demanded]


def stake_due(seen: AggregatorJob, decider: Decider) -> Wei:
    """Stake to deposit so that every unsettled round that may be ahead can be merged; bounded by the balance."""
    if seen.barred or seen.job.status != JobStatus.ACTIVE:
        return Wei(0)
    ahead = min(seen.params.schedule.max_lead, seen.params.schedule.rounds - seen.job.settled)
    locked = sum(view.mine and view.phase == Phase.LEAD for view in seen.views)
    backed = sum(view.stored.backed for view in seen.views if view.mine and view.phase == Phase.LEAD)
    needed = seen.params.merge.stake * max(0, ahead - locked)
    needed += max(0, backing.cover(seen.params, seen.job.settled) - backed) * seen.params.round_pay
    return Wei(max(0, min(needed - decider.free, decider.balance)))


def start_due(seen: AggregatorJob, decider: Decider) -> bool:
    """Returns True if the next round can start, and somebody is there to join it.

    After a failed round, and before the first, a worker that is there starts it: a round without workers only fails.
    """
    previous = seen.round(seen.job.started - 1)
    return (
        previous is not None
        and previous.phase != Phase.FAILED
        and views.round_startable(seen.params, seen.job, previous.phase, seen.leads)
        and decider.now >= previous.stored.merged_at + PATIENCE_SECONDS
    )


def _backing(seen: AggregatorJob, decider: Decider) -> Iterator[Back]:
    """Back merges of this coordinator where they keep the next round from starting, if its stake reaches."""
    leads = dict(seen.leads)
    mine = {view.number for view in seen.views if view.mine}
    for number, rounds in views.rounds_to_back(seen.params, seen.job, seen.leads, mine.__contains__, decider.free):
        yield Back(number, rounds, leads[number].backed)


def _round_actions(seen: AggregatorJob, view: AggregatorRound, decider: Decider) -> Iterator[Action]:
    params, stored = seen.params, view.stored
    match view.phase:
        case Phase.SEALING:
            # INVARIANT: the seed is the hash of a block that is already there when it is drawn.
            drawn = stored.seed_block > 0 and decider.block >= stored.seed_block + PATIENCE_BLOCKS
            closed = stored.seed_block == 0 and decider.now >= stored.join_ends + PATIENCE_SECONDS
            if drawn or closed:
                yield Seal(view.number)
        case Phase.ATTESTING:
            # INVARIANT: what receipts leave out and nobody has is demanded before they are sent: in vain, its owner
            # pays its price.
            demanded = demands_due(view, params, decider)
            yield from (DemandPayload(view.number, slot) for slot in demanded[: decider.free // max(1, seen.bond)])
            if receipts_due(view, params, decider.now):
                yield Attest(view.number)
        case Phase.FREEZING:
            yield Freeze(view.number)
        case Phase.MERGING:
            if view.turns_over and not seen.job.lingering:
                yield Finalize(view.number)
            else:
                yield from _merging(seen, view, decider)
        case Phase.LEAD | Phase.FAILED if seen.job.status != JobStatus.VOID:
            rounds = {x.number: x.stored for x in seen.views}
            if views.finalizable(params, seen.job, view.number, rounds, decider.now):
                yield Finalize(view.number)
            elif view.phase == Phase.LEAD:
                yield from _merging(seen, view, decider)
        case Phase.VOID | Phase.FAILED:
            voided = seen.job.status == JobStatus.VOID
            over = _releasable(view) and not views.startable(params, seen.job)
            if over or (voided and view.number == seen.job.settled):
                yield Release(view.number)


def _merging(seen: AggregatorJob, view: AggregatorRound, decider: Decider) -> Iterator[Merge]:
    """Merge a round, or merge it again, if it is this coordinator's turn and its stake reaches."""
    if view.merger == decider.me:
        rounds = views.rounds_to_merge(seen.params, seen.job, view.number, view.phase, decider.free)
        if rounds is not None:
            yield Merge(view.number, rounds)


def _releasable(view: AggregatorRound) -> bool:
    """Tells if a void round holds stake of this coordinator, and no game keeps it there."""
    return view.mine and view.stored.open_games == 0
