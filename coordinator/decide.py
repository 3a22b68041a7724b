"""A coordinator's decisions: pure functions of the state of chain and storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from lockstep.market.acts import Action, ActionKind, Staker, backing_acts, round_acts, startable
from lockstep.market.demands import left_out
from lockstep.protocol.jobs import NOTHING, ZERO_ADDRESS, JobParams, JobState, JobStatus, Phase, Round
from lockstep.protocol.market import backing, views
from lockstep.protocol.market.receipts import FINAL_REPORTS, Report, add, batch_due
from lockstep.protocol.types import Address, Seconds, Wei

PATIENCE_SECONDS = Seconds(3)
PATIENCE_BLOCKS = 2
"""Blocks for which the coordinator leaves the start of a round to the workers: two equal transactions would cost gas
twice."""


@dataclass(frozen=True)
class AggregatorRound:
    """One round's state on chain and in storage, at the head."""

    number: int
    phase: Phase
    """The stored phase, advanced by time and completeness."""
    state: Round
    reports: tuple[tuple[int, Report], ...] = ()
    """(slot, report) of every revealed claim, in slot order."""
    receipts: Mapping[int, int] = field(default_factory=dict)
    """By slot whose owner has handed over its receipt: the slots that the receipt names, as a mask."""
    merger: Address = ZERO_ADDRESS
    """The account that may merge now, or merge again."""
    merge_turns_over: bool = False
    """Every merge turn has passed."""
    mine: bool = False
    """This coordinator's stake is locked in the round's merge."""
    convicted: frozenset[int] = frozenset()
    """Slots of revealed claims whose owners were convicted and may not attest any more."""
    demanded: frozenset[int] = frozenset()
    """Slots whose payloads this account has demanded."""


@dataclass(frozen=True)
class AggregatorJob:
    """One job's state on chain and in storage, at the head."""

    params: JobParams
    job: JobState
    barred: bool
    """The aggregator was convicted of a merge of this job."""
    rounds: tuple[AggregatorRound, ...]
    """Rounds settled - 1 .. started - 1 and voided ones beyond, in order."""
    bond: Wei = NOTHING
    """The bond that a demand for a payload locks now."""

    def round(self, number: int) -> AggregatorRound | None:
        """Returns the round of this number; None if it is not among `rounds`."""
        return next((r for r in self.rounds if r.number == number), None)


@dataclass(frozen=True)
class Decider:
    """The deciding account, with the time and its funds."""

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
    """Earnings that are not withdrawn yet."""
    demands: int = 0
    """The most payloads of a round that the account demands."""

    @property
    def staker(self) -> Staker:
        """The account with all of its free stake, which backs its merges."""
        return Staker(self.me, self.free)


def decide(seen: AggregatorJob, decider: Decider) -> tuple[Action, ...]:
    """Returns the acts that are due now, the most urgent first."""
    if seen.params.merge.aggregator != decider.me:
        return ()
    if seen.job.status == JobStatus.DONE:
        # What a convicted merge voided may end later than its job.
        void = [r.number for r in seen.rounds if r.phase == Phase.VOID and _releasable(r)]
        left = tuple(Action(ActionKind.RELEASE, number) for number in void)
        return (*left, Action(ActionKind.WITHDRAW)) if decider.credits > 0 else left
    deposit = stake_due(seen, decider)
    acts = [Action(ActionKind.DEPOSIT, amount=deposit)] if deposit else []
    for r in seen.rounds:
        acts += _round_acts(seen, r, decider)
    mine = {r.number for r in seen.rounds if r.mine}
    acts += backing_acts(seen, mine.__contains__, decider.staker)
    if start_due(seen, decider):
        acts.append(Action(ActionKind.START, seen.job.started))
    if views.finishable(seen.params, seen.job):
        acts.append(Action(ActionKind.FINISH))
    return tuple(acts)


def wanted_payloads(seen: AggregatorJob, decider: Decider) -> tuple[tuple[int, int], ...]:
    """Returns (round, slot) of revealed claims whose payload is still to be fetched and checked."""
    if seen.params.merge.aggregator != decider.me or seen.barred:
        return ()
    return tuple(
        (r.number, slot)
        for r in seen.rounds
        if r.phase in (Phase.REVEALING, Phase.ATTESTING)
        for slot, report in r.reports
        if report not in FINAL_REPORTS
    )


def receipts_due(r: AggregatorRound, params: JobParams, now: Seconds) -> frozenset[int]:
    """Returns the slots whose receipts are sent now: all once the last has arrived, or those that have arrived after a
    while.

    That while ends before any owner sends its own receipt, which would forfeit the saving of a joint transaction.
    """
    silent = frozenset(slot for slot, _ in r.reports if not r.state.spoke >> slot & 1) - r.convicted
    complete = len(r.reports) == r.state.revealed and silent <= r.receipts.keys()
    late = batch_due(r.state.attest_ends, params.role.attest_seconds, now)
    return silent & r.receipts.keys() if complete or late else frozenset()


def demands_due(r: AggregatorRound, params: JobParams, decider: Decider) -> list[int]:
    """Returns the slots whose payloads are demanded now: unavailable ones that the receipts exclude from the merge. The
    requester pays their price all the same, unless nobody answers the demand."""
    state = r.state
    for who in receipts_due(r, params, decider.now):
        named = add(state.named, r.receipts[who], who)
        state = replace(state, named=named, spoke=state.spoke | 1 << who, receipts=state.receipts + 1)
    found = [s for s in left_out(dict(r.reports), state) if s not in r.convicted]
    return [s for s in found[: decider.demands] if s not in r.demanded]


def stake_due(seen: AggregatorJob, decider: Decider) -> Wei:
    """Returns the stake to deposit, in wei, so that every round that may run ahead can be merged; bounded by the
    balance."""
    if seen.barred or seen.job.status != JobStatus.ACTIVE:
        return Wei(0)
    ahead = min(seen.params.schedule.max_lead, seen.params.schedule.rounds - seen.job.settled)
    locked = sum(r.mine and r.phase == Phase.LEAD for r in seen.rounds)
    backed = sum(r.state.backed for r in seen.rounds if r.mine and r.phase == Phase.LEAD)
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
        and startable(seen)
        and decider.now >= previous.state.merged_at + PATIENCE_SECONDS
    )


def _round_acts(seen: AggregatorJob, r: AggregatorRound, decider: Decider) -> Iterator[Action]:
    params, state = seen.params, r.state
    match r.phase:
        case Phase.SEALING:
            # INVARIANT: the seed is the hash of a block that is already there when it is drawn.
            drawn = state.seed_block > 0 and decider.block >= state.seed_block + PATIENCE_BLOCKS
            closed = state.seed_block == 0 and decider.now >= state.join_ends + PATIENCE_SECONDS
            if drawn or closed:
                yield Action(ActionKind.SEAL, r.number)
        case Phase.ATTESTING:
            # INVARIANT: what receipts leave out and nobody has is demanded before they are sent: in vain, its owner
            # pays its price.
            demanded = demands_due(r, params, decider)
            yield from (
                Action(ActionKind.DEMAND, r.number, slot) for slot in demanded[: decider.free // max(1, seen.bond)]
            )
            if receipts_due(r, params, decider.now):
                yield Action(ActionKind.ATTEST, r.number)
        case Phase.VOID | Phase.FAILED if r.phase == Phase.VOID or seen.job.status == JobStatus.VOID:
            over = _releasable(r) and not views.startable(params, seen.job)
            if over or (seen.job.status == JobStatus.VOID and r.number == seen.job.settled):
                yield Action(ActionKind.RELEASE, r.number)
        case _:
            yield from round_acts(seen, r, decider.staker, decider.now)


def _releasable(r: AggregatorRound) -> bool:
    """Tells if a void round holds stake of this coordinator, and no game keeps it there."""
    return r.mine and r.state.open_games == 0
