"""The acts of a job's parties, and those that workers and coordinators choose alike: freezing, merging, settling.

Pure functions of one look at the chain. Every act that they return is valid on the state that was seen, and none
relies on another: a process may die between any two of them, and its next look decides again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from lockstep.protocol.jobs import NOTHING, JobParams, JobState, Phase, Round
from lockstep.protocol.market import views
from lockstep.protocol.types import Address, JobId, Seconds, Wei

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call, Market
    from lockstep.protocol.jobs import Body


class Do(StrEnum):
    """One kind of act; the value is the contract's function, but for `fetch` and `train`."""

    FETCH = "fetch"
    START = "startRound"
    JOIN = "join"
    LEAVE = "leave"
    SEAL = "seal"
    TRAIN = "train"
    COMMIT = "commit"
    REVEAL = "reveal"
    DEMAND = "unavailable"
    ATTEST = "attest"
    DRAW = "draw"
    PUBLISH = "publish"
    FREEZE = "freeze"
    MERGE = "merge"
    BACK = "back"
    FINALIZE = "finalize"
    RELEASE = "release"
    FINISH = "finish"
    DEPOSIT = "deposit"
    WITHDRAW = "withdraw"


CALLS = frozenset({Do.START, Do.JOIN, Do.LEAVE, Do.SEAL, Do.FREEZE, Do.BACK, Do.FINALIZE, Do.RELEASE, Do.FINISH})
"""The acts that are calls of the market, of which nothing has to be computed."""


@dataclass(frozen=True)
class Act:
    """Something to do about a round; FINISH about the job, DEPOSIT and WITHDRAW about the account."""

    do: Do
    round: int = 0
    slot: int = 0
    rounds: int = 0
    """MERGE, BACK: later rounds whose pay is locked with the merge."""
    amount: Wei = NOTHING
    """DEPOSIT: the stake to add."""


class SeenRound(Protocol):
    """One round as the chain has it."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> Round: ...

    @property
    def phase(self) -> Phase:
        """Now, with time and completeness counted in."""

    @property
    def merger(self) -> Address:
        """The account that may merge now: MERGING, or LEAD and the merge alone keeps the next round from starting."""

    @property
    def merge_turns_over(self) -> bool:
        """MERGING, and everybody entitled has failed to merge."""


class SeenJob(Protocol):
    """One job as the chain has it, at one block."""

    @property
    def params(self) -> JobParams: ...

    @property
    def job(self) -> JobState: ...

    @property
    def rounds(self) -> Sequence[SeenRound]:
        """The rounds in their order; all that are not settled are among them."""


@dataclass(frozen=True)
class Staker:
    """The account that decides, and its stake."""

    address: Address
    free: Wei
    kept: Wei = NOTHING
    """The part of its free stake that backing a merge leaves alone if it can: a worker's next claim takes it."""


def round_acts(seen: SeenJob, r: SeenRound, staker: Staker, now: Seconds) -> list[Act]:
    """Returns what is due about a round after its receipts: freezing and settling, which anybody may do, and its merge
    if it is the staker's turn and its stake reaches."""
    match r.phase:
        case Phase.FREEZING:
            return [Act(Do.FREEZE, r.number)]
        case Phase.MERGING if r.merge_turns_over and not seen.job.lingering:
            return [Act(Do.FINALIZE, r.number)]
        case Phase.LEAD | Phase.FAILED if _finalizable(seen, r, now):
            return [Act(Do.FINALIZE, r.number)]
        case Phase.MERGING | Phase.LEAD if r.merger == staker.address:
            rounds = views.rounds_to_merge(seen.params, seen.job, r.number, r.phase, staker.free, staker.kept)
            return [] if rounds is None else [Act(Do.MERGE, r.number, rounds=rounds)]
    return []


def backing_acts(seen: SeenJob, mine: Callable[[int], bool], staker: Staker) -> list[Act]:
    """Returns what backs the staker's own merges where they keep the next round from starting, if its stake reaches."""
    found = views.rounds_to_back(seen.params, seen.job, leads(seen), mine, staker.free, staker.kept)
    return [Act(Do.BACK, number, rounds=rounds) for number, rounds in found]


def startable(seen: SeenJob) -> bool:
    """Returns True if `startRound` takes the job's next round now."""
    before = next((r.phase for r in seen.rounds if r.number == seen.job.started - 1), Phase.NONE)
    return views.round_startable(seen.params, seen.job, before, leads(seen))


def leads(seen: SeenJob) -> list[tuple[int, Round]]:
    """The rounds that are merged and not final."""
    return [(r.number, r.state) for r in seen.rounds if r.phase == Phase.LEAD]


def call_of(market: Market, job: JobId, act: Act, bodies: Callable[[], Sequence[Body]]) -> Call:
    """The transaction of an act of CALLS; `bodies` are what FREEZE shows."""
    match act.do:
        case Do.START:
            return market.start_round(job, act.round)
        case Do.JOIN:
            return market.join(job, act.round, act.slot)
        case Do.LEAVE:
            return market.leave(job, act.round, act.slot)
        case Do.SEAL:
            return market.seal(job, act.round)
        case Do.FREEZE:
            return market.freeze(job, act.round, bodies())
        case Do.BACK:
            return market.back(job, act.round, act.rounds)
        case Do.FINALIZE:
            return market.finalize(job, act.round)
        case Do.RELEASE:
            return market.release(job, act.round)
        case Do.FINISH:
            return market.finish(job)
    raise ValueError(f"{act.do} takes more than a call")


def _finalizable(seen: SeenJob, r: SeenRound, now: Seconds) -> bool:
    return views.finalizable(seen.params, seen.job, r.number, {x.number: x.state for x in seen.rounds}, now)
