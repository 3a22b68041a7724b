"""How fast this machine runs a job, held against the job's windows: who is too slow is fined for silence."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.jobs import Job, slot_run
from lockstep.protocol.errors import TooSlow
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Seed

MOVES_SHARE = 0.5
"""Of a clock and of a witness's window: what is left to transactions."""


@dataclass(frozen=True)
class Pace:
    """Of one job on this machine, in seconds of its clock."""

    step: float
    """One transition."""
    shown: float
    """The same with everything that a game may ask of it."""


def measure(job: Job) -> Pace:
    """The second of two first steps from the genesis, then one as a game shows it."""
    run = slot_run(job, job.genesis, Seed(bytes(32)), 0, 0)
    # What a process makes once, such as kernels, is no step's.
    run.advance(1, run.start)
    return Pace(_seconds(lambda: run.advance(1, run.start)), _seconds(lambda: run.materialise(1, run.start)))


def require_claimant(params: JobParams, pace: Pace) -> None:
    """Raises TooSlow if a worker at this pace could not train a slot in time, or not defend its claim."""
    trained = params.transitions * pace.step
    _require(trained, params.train_seconds, "a round's steps", "train_seconds")
    _require(pace.shown, params.step_seconds, "a step as a game shows it", "step_seconds")
    # After a kill, a defender computes its claim again before its first move.
    _require(trained + pace.shown, MOVES_SHARE * params.clock_seconds, "to defend a claim", "half of clock_seconds")


def require_witness(params: JobParams, pace: Pace) -> None:
    """Raises TooSlow if a witness at this pace could not look as far as its duty may ask."""
    looked = params.transitions * pace.step
    _require(looked, MOVES_SHARE * params.audit_seconds, "a slot's steps", "half of audit_seconds")


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _require(takes: float, given: float, what: str, window: str) -> None:
    if takes > given:
        raise TooSlow(
            f"{what}: {takes:.3g} s on this machine, and {window} is {given:.3g} s",
            hint="give the process more threads, or leave this job to faster machines",
        )
