"""Checks that this machine can meet a job's deadlines on its chain; missing one costs stake.

a window covers   the work in it, and the blocks that a transaction waits for; half of one the payloads to fetch
a clock covers    every move of a game, a replay of its claim, its step as a game shows it
all clocks cover  the work of a game on every claim that is live, opened at once, whatever jobs they belong to
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep.base.machine import memory, readable
from lockstep.execution import footprint
from lockstep.execution.footprint import DeviceShare
from lockstep.execution.jobs import PROCESSOR_PATHS, ClaimRun, Job, merge_run, slot_run
from lockstep.protocol.errors import Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market.job_rules import GAME_MOVES
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import Seconds, Seed

SHARE = 0.5
"""Largest share of a window or clock that work may take: transactions, disks and other processes need the rest."""
SAMPLES = 3
IDLE_SECONDS = Seconds(86_400)
"""Longest time for which silent owners may lock a stake, however short training is."""
IDLE_FACTOR = 16
"""Largest ratio of a training window to this machine's need: at twice the need of a machine, one an eighth as fast can
join.
"""
AGAIN_SECONDS = Seconds(300)
"""Chain seconds after which a job that was too slow for this machine is tried again."""
LONG_SECONDS = 10.0
"""Seconds of a sample from which it is the only one."""
FASTEST = 4e11
"""Operations per second that no thread reaches; a job that would be too slow even at this rate is not tried."""
FASTEST_DEVICE = 1e15
"""Operations per second in float32 that no device reaches."""
MOST_DEVICE_SECONDS = 1.0
"""Longest transition at that rate in seconds: work on a device cannot be interrupted."""


INCLUSION_BLOCKS = 2
"""Blocks until a transaction is included, unless it is censored: the next block but one."""


@dataclass(frozen=True)
class ChainPace:
    """The times of a chain, in seconds."""

    block: float = 0.0
    """Median time between two blocks."""
    promised: float = 0.0
    """Time within which the deployment guarantees inclusion of a transaction."""

    @property
    def inclusion(self) -> float:
        """Seconds between sending a transaction and its inclusion in a block."""
        return max(INCLUSION_BLOCKS * self.block, self.promised)

    @property
    def game(self) -> float:
        """Seconds of a side's clock that inclusion of its moves takes in the longest game."""
        return GAME_MOVES * self.inclusion


@dataclass(frozen=True)
class Pace:
    """The times of one job on this machine, in seconds."""

    step: float
    """Time to compute one transition and hash its state."""
    shown: float
    """Time to materialise one transition for a game, with its tree."""
    trains: str = "cpu"
    """The device on which `step` was measured, as `--device` names it."""
    defends: str = "cpu"
    """The device on which `shown` was measured: the same, unless it lacks memory."""
    merge: float = 0.0
    """Time to merge a round and hash the result; 0 for a role that does not merge."""

    def defence(self, transitions: int) -> float:
        """Returns the seconds to defend one claim in a game: a replay of its transitions, and one step materialised."""
        return transitions * self.step + self.shown


@dataclass(frozen=True)
class LiveClaim:
    """A claim that can be challenged, for planning its defence."""

    clock: float
    extra: float
    """Seconds by which each other open game of its owner extends the clock."""
    work: float
    """Seconds of work on this machine: `Pace.defence`."""


Require = Callable[[JobParams, Pace, ChainPace], None]


def keep_up(job: Job, require: Require, chain: ChainPace, role: footprint.Role = footprint.worker) -> Pace:
    """Returns the pace of a job.

    Raises Unfit if this machine or its device does not meet `require` and `role`. A step that cannot be in time, or
    whose tensors do not fit, is not run.
    """
    programs, slots = job.programs, job.params.role.slots
    on_processor, lower = job.path in PROCESSOR_PATHS, least(job)
    require(job.params, lower, chain)
    # INVARIANT: no job keeps a device for hours while it is looked at.
    if not on_processor and max(lower.step, lower.merge) > MOST_DEVICE_SECONDS:
        most = MOST_DEVICE_SECONDS * FASTEST_DEVICE
        raise Unfit(f"a transition has more than {most:.0e} operations", "leave this job to larger machines")
    need = role(programs, slots) if on_processor else DeviceShare.loaded(role, job).need(role, programs, slots)
    # The loaded job includes its constants and a checkpoint in memory.
    memory().require(need.total, need.process + need.child + need.constants + need.base)
    pace = measure(job, merges=role is footprint.worker)
    require(job.params, pace, chain)
    return pace


def least(job: Job) -> Pace:
    """Returns a lower bound on the pace: a step at a rate that no machine reaches, and a merge."""
    rate = FASTEST * job.threads if job.path in PROCESSOR_PATHS else FASTEST_DEVICE
    seconds = operations(job.programs.step) / rate
    return Pace(seconds, seconds, merge=operations(job.programs.merge) / rate)


def measure(job: Job, *, merges: bool = True) -> Pace:
    """Times some first steps from the genesis on the devices that train and defend, and returns the shortest times,
    which other load affects least. `merges`: also times merges of zero payloads.
    """
    run = slot_run(job, job.genesis, Seed(bytes(32)), 0, 0)
    # One-time costs, such as compiling kernels, do not count as a step's; the state is on its device already.
    state = run.advance(1, run.start)
    step = _quickest(lambda: run.root(1, run.advance(1, state)))
    shown = _quickest(lambda: _show(run))
    merged = _quickest(_merging(job)) if merges else 0.0
    job.turn_to(None)
    return Pace(step, shown, *job.places(job.programs.step), merged)


def _merging(job: Job) -> Callable[[], object]:
    """Returns a function that merges zero payloads: a payload's values do not affect the time."""
    run = merge_run(job, job.genesis, [None] * job.params.role.slots, Seed(bytes(32)), 0)
    return lambda: run.root(1, run.advance(1, run.start), job.threads)


def _show(run: ClaimRun) -> None:
    """Does a game's work on step 1: builds its tree, then the tensors of the last op, which is the worst case."""
    step = run.materialise(1, run.start)
    _ = step.graph
    step.output(len(step.program.ops) - 1)


def operations(program: Program) -> int:
    """Returns a lower bound on the operations of a Program: its folds' terms and its other ops' elements."""
    return sum(op.header.elements * max(1, op.k_terms) for op in program.ops)


def require_nothing(params: JobParams, pace: Pace, chain: ChainPace) -> None:
    """Accepts every pace: the pace is measured for information only."""


def require_claimant(params: JobParams, pace: Pace, chain: ChainPace) -> None:
    """Raises Unfit if a worker at this pace could not train a slot in time, or not defend its claim."""
    # One step is computed twice: checking a claim materialises it.
    trained = params.role.transitions * pace.step + pace.shown
    _require(trained, SHARE * params.role.train_seconds, "a round's steps", "half of train_seconds")
    _require(trained + chain.inclusion, params.role.train_seconds, "a round's steps and a commitment", "train_seconds")
    _require(chain.inclusion, params.role.reveal_seconds, "a reveal on this chain", "reveal_seconds")
    _require(chain.block, params.role.attest_seconds, "a receipt on this chain", "attest_seconds")
    # INVARIANT: a worker trains for no round that nobody could merge in time: its work would be public and unpaid.
    _require(pace.merge + chain.inclusion, params.merge.turn_seconds, "a merge on this chain", "merge_seconds")
    _require(pace.shown, params.windows.step_seconds, "a step as a game shows it", "step_seconds")
    # After a restart, a defender recomputes its claim before its first move.
    _require(trained, SHARE * params.windows.clock_seconds, "to defend a claim", "half of clock_seconds")
    _require(chain.game + trained, params.windows.clock_seconds, "to defend a claim on this chain", "clock_seconds")


def require_prompt(params: JobParams, pace: Pace) -> None:
    """Raises Unfit if silent owners could lock a worker's stake for much longer than a challenger could and its own
    training takes.
    """
    # INVARIANT: a worker stakes on no round in which a silent owner locks it for much longer than its training takes.
    needed = IDLE_FACTOR * (params.role.transitions * pace.step + pace.shown)
    given = max(IDLE_SECONDS, params.windows.challenge_seconds, needed)
    windows = {"join_seconds": params.windows.join_seconds, "train_seconds": params.role.train_seconds}
    for window, seconds in windows.items():
        if seconds > given:
            raise Unfit(
                f"{window} is {seconds} s, in which a stake may wait for owners that are silent, and this machine "
                f"gives {given:.3g} s: a day, challenge_seconds or {IDLE_FACTOR} times its own training",
                hint=f"leave this job to slower machines, or ask its requester for a shorter {window}",
            )


def require_fetched(params: JobParams, fetched: int, rate: int | None) -> None:
    """Raises Unfit if a round's payloads (`fetched` bytes) could not arrive in time to attest them.

    `rate` is this machine's bandwidth in bytes per second; None if nothing has to be fetched.
    """
    seconds, given = 0.0 if rate is None else fetched / rate, SHARE * params.role.attest_seconds
    # INVARIANT: a worker trains for no round whose payloads it could not fetch: who has none leaves the others out.
    if seconds > given:
        raise Unfit(
            f"fetching the others' payloads ({readable(fetched)}) takes {seconds:.3g} s, and half of attest_seconds is "
            f"{given:.3g} s",
            hint="set --download to this machine's bandwidth, or leave this job to machines with more",
        )


def require_witness(params: JobParams, pace: Pace, chain: ChainPace) -> None:
    """Raises Unfit if a witness at this pace could not replay in time the steps that a duty may require."""
    looked = params.role.transitions * pace.step
    _require(looked, SHARE * params.windows.audit_seconds, "a slot's steps", "half of audit_seconds")
    _require(looked + chain.inclusion, params.windows.audit_seconds, "a slot's steps and a commitment", "audit_seconds")


def live_claim(params: JobParams, pace: Pace | None) -> LiveClaim:
    """Returns a slot's claim for planning; without a pace, with the most work that joining allowed."""
    work = SHARE * params.windows.clock_seconds if pace is None else pace.defence(params.role.transitions)
    return LiveClaim(params.windows.clock_seconds, params.windows.step_seconds, work)


def require_all(claims: Iterable[LiveClaim], chain: ChainPace) -> None:
    """Raises Unfit if a game on each of these claims, all opened at once, could not be defended in time.

    Games are played earliest deadline first, so every one is in time if the work of those due before it, its own
    and the chain's share of its clock fit into that clock.
    """
    work = 0.0
    for others, claim in enumerate(sorted(claims, key=lambda c: c.clock)):
        work += claim.work
        clock = claim.clock + others * claim.extra
        _require(chain.game + work, clock, f"games on {others + 1} claims at once", "the clock of the last")


def _quickest(work: Callable[[], object]) -> float:
    """Returns the seconds of the quickest of several runs."""
    taken: list[float] = []
    while len(taken) < SAMPLES and max(taken, default=0.0) < LONG_SECONDS:
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def _require(takes: float, given: float, what: str, window: str) -> None:
    if takes > given:
        raise Unfit(
            f"{what} takes {takes:.3g} s on this machine, and {window} is {given:.3g} s",
            hint="give the process more threads, or leave this job to faster machines",
        )
