"""The acts of a job's parties, and the decisions that workers and coordinators share: freezing, merging, settling.

All functions are pure functions of the chain's state at one block. Each returned act is valid on that state,
independently of the others: a process may die between two acts, and decides again at its next poll.
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


class ActionKind(StrEnum):
    """One kind of act; its value is the contract function's name, except for `fetch` and `train`."""

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


CALLS = frozenset(
    {
        ActionKind.START,
        ActionKind.JOIN,
        ActionKind.LEAVE,
        ActionKind.SEAL,
        ActionKind.FREEZE,
        ActionKind.BACK,
        ActionKind.FINALIZE,
        ActionKind.RELEASE,
        ActionKind.FINISH,
    }
)
"""Acts that are contract calls and need no computation."""


@dataclass(frozen=True)
class Action:
    """An act to perform on a round; FINISH concerns the job, DEPOSIT and WITHDRAW the account."""

    kind: ActionKind
    round: int = 0
    slot: int = 0
    rounds: int = 0
    """For MERGE and BACK: the number of later rounds whose pay is locked with the merge."""
    amount: Wei = NOTHING
    """For DEPOSIT: the stake to add."""


class SeenRound(Protocol):
    """Interface of one round's state on chain."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> Round: ...

    @property
    def phase(self) -> Phase:
        """The phase at the view's time: the stored phase, advanced by deadlines and by completeness."""

    @property
    def merger(self) -> Address:
        """The account that may merge now: in MERGING, or in LEAD while only the merge's backing prevents the next
        round.
        """

    @property
    def merge_turns_over(self) -> bool:
        """True in MERGING once every entitled account has missed its turn."""


class SeenJob(Protocol):
    """Interface of one job's state on chain, at one block."""

    @property
    def params(self) -> JobParams: ...

    @property
    def job(self) -> JobState: ...

    @property
    def rounds(self) -> Sequence[SeenRound]:
        """Rounds in order, including all unsettled ones."""


@dataclass(frozen=True)
class Staker:
    """The deciding account and its free stake."""

    address: Address
    free: Wei
    kept: Wei = NOTHING
    """Part of the free stake that backing a merge retains if possible: a worker needs it for its next claim."""


def round_acts(seen: SeenJob, r: SeenRound, staker: Staker, now: Seconds) -> list[Action]:
    """Returns the acts due on a round after its receipts: freezing and settling, open to any account, and the merge if
    it is the staker's turn and its stake suffices.
    """
    match r.phase:
        case Phase.FREEZING:
            return [Action(ActionKind.FREEZE, r.number)]
        case Phase.MERGING if r.merge_turns_over and not seen.job.lingering:
            return [Action(ActionKind.FINALIZE, r.number)]
        case Phase.LEAD | Phase.FAILED if _finalizable(seen, r, now):
            return [Action(ActionKind.FINALIZE, r.number)]
        case Phase.MERGING | Phase.LEAD if r.merger == staker.address:
            rounds = views.rounds_to_merge(seen.params, seen.job, r.number, r.phase, staker.free, staker.kept)
            return [] if rounds is None else [Action(ActionKind.MERGE, r.number, rounds=rounds)]
    return []


def backing_acts(seen: SeenJob, mine: Callable[[int], bool], staker: Staker) -> list[Action]:
    """Returns the acts that back the staker's own merges whose insufficient backing prevents the next round, if its
    stake suffices.
    """
    found = views.rounds_to_back(seen.params, seen.job, leads(seen), mine, staker.free, staker.kept)
    return [Action(ActionKind.BACK, number, rounds=rounds) for number, rounds in found]


def startable(seen: SeenJob) -> bool:
    """Returns True if `startRound` would accept the job's next round now."""
    before = next((r.phase for r in seen.rounds if r.number == seen.job.started - 1), Phase.NONE)
    return views.round_startable(seen.params, seen.job, before, leads(seen))


def leads(seen: SeenJob) -> list[tuple[int, Round]]:
    """Returns the rounds that are merged and not final."""
    return [(r.number, r.state) for r in seen.rounds if r.phase == Phase.LEAD]


def call_of(market: Market, job: JobId, act: Action, bodies: Callable[[], Sequence[Body]]) -> Call:
    """Returns the transaction of an act in CALLS; `bodies` returns the claims' bodies for FREEZE."""
    match act.kind:
        case ActionKind.START:
            return market.start_round(job, act.round)
        case ActionKind.JOIN:
            return market.join(job, act.round, act.slot)
        case ActionKind.LEAVE:
            return market.leave(job, act.round, act.slot)
        case ActionKind.SEAL:
            return market.seal(job, act.round)
        case ActionKind.FREEZE:
            return market.freeze(job, act.round, bodies())
        case ActionKind.BACK:
            return market.back(job, act.round, act.rounds)
        case ActionKind.FINALIZE:
            return market.finalize(job, act.round)
        case ActionKind.RELEASE:
            return market.release(job, act.round)
        case ActionKind.FINISH:
            return market.finish(job)
    raise ValueError(f"{act.kind} takes more than a call")


def _finalizable(seen: SeenJob, r: SeenRound, now: Seconds) -> bool:
    return views.finalizable(seen.params, seen.job, r.number, {x.number: x.state for x in seen.rounds}, now)
