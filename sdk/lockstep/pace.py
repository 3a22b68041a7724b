"""What this machine can do, held against what a job asks: who is too slow for its windows is fined for silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.jobs import Job, slot_run
from lockstep.protocol.errors import Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.program import Program
from lockstep.protocol.types import Seconds, Seed

SHARE = 0.5
"""Of a window or a clock: the rest is for transactions, disks, and whatever else the machine does."""
SAMPLES = 3
AGAIN_SECONDS = Seconds(300)
"""Of chain time: how long a job rests that this machine was too slow for."""
WORD_BYTES = 4
FASTEST = 4e11
"""Operations a second that no thread reaches: a job that is too slow even so is not tried."""


@dataclass(frozen=True)
class Pace:
    """Of one job on this machine, in seconds of its clock."""

    step: float
    """One transition, hashed."""
    shown: float
    """One with everything that a game may ask of it, and the tree over it."""


Require = Callable[[JobParams, Pace], None]


def keep_up(job: Job, require: Require) -> None:
    """Raises Unfit if this machine cannot do what is required of it; no step is run that could not be in time, or
    whose tensors do not fit."""
    require(job.params, least(job))
    _require_memory(job)
    require(job.params, measure(job))


def least(job: Job) -> Pace:
    """What a step takes at a rate that no machine reaches."""
    seconds = operations(job.programs.step) / (FASTEST * job.threads)
    return Pace(seconds, seconds)


def measure(job: Job) -> Pace:
    """The quickest of some first steps from the genesis: what else the machine does at the moment is not counted."""
    run = slot_run(job, job.genesis, Seed(bytes(32)), 0, 0)
    # What a process makes once, such as kernels, is no step's.
    run.advance(1, run.start)
    step = min(_seconds(lambda: run.root(1, run.advance(1, run.start))) for _ in range(SAMPLES))
    return Pace(step, min(_seconds(lambda: run.materialise(1, run.start).graph) for _ in range(SAMPLES)))


def operations(program: Program) -> int:
    """Terms of its folds and elements of its other ops: at least so many operations."""
    return sum(op.header.elements * max(1, op.k_terms) for op in program.ops)


def _require_memory(job: Job) -> None:
    kept = WORD_BYTES * sum(op.header.elements for op in job.programs.step.ops)
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if kept > held:
        raise Unfit(
            f"a step as a game shows it: {kept:,} bytes, and this machine has {held:,}",
            hint="leave this job to larger machines",
        )


def require_claimant(params: JobParams, pace: Pace) -> None:
    """Raises Unfit if a worker at this pace could not train a slot in time, or not defend its claim."""
    # One step is computed twice: the check of a claim shows it.
    trained = params.transitions * pace.step + pace.shown
    _require(trained, SHARE * params.train_seconds, "a round's steps", "half of train_seconds")
    _require(pace.shown, params.step_seconds, "a step as a game shows it", "step_seconds")
    # After a kill, a defender computes its claim again before its first move.
    _require(trained, SHARE * params.clock_seconds, "to defend a claim", "half of clock_seconds")


def require_witness(params: JobParams, pace: Pace) -> None:
    """Raises Unfit if a witness at this pace could not look as far as its duty may ask."""
    looked = params.transitions * pace.step
    _require(looked, SHARE * params.audit_seconds, "a slot's steps", "half of audit_seconds")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _require(takes: float, given: float, what: str, window: str) -> None:
    if takes > given:
        raise Unfit(
            f"{what}: {takes:.3g} s on this machine, and {window} is {given:.3g} s",
            hint="give the process more threads, or leave this job to faster machines",
        )
