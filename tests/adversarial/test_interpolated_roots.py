"""Fewer steps with interpolated roots: three steps of five are run, the states between are drawn through the ends."""

import numpy as np
import pytest

from lockstep.execution.jobs import ClaimRun, State
from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, changed, lying, named

RUN = 3
"""Steps that are really run."""


def interpolated(honest: ClaimRun) -> Lying:
    """A claim of H steps whose parameters and moments go in a straight line from S_0 to the state after RUN steps."""
    steps = honest.job.params.role.inner_steps
    end = honest.state_before(RUN + 1)
    ops = {named(honest.program(1), name): entry for name, entry in (("m", 4), ("v", 5), ("p", 0))}

    def lie(_: Lying, t: int, step: StepTrace) -> StepTrace | None:
        if t > steps:
            return None
        return changed(step, {op: between(honest.start, end, entry, t / steps) for op, entry in ops.items()})

    return lying(honest, lie)


def between(start: State, end: State, entry: int, part: float) -> np.ndarray:
    a, b = start[entry], end[entry]
    assert a is not None
    assert b is not None
    return (a + np.float32(part) * (b - a)).astype(np.float32)


def play(court: Court) -> Ended:
    honest = court.run(0)
    declared = Where(1, named(honest.program(1), "m"), 0, rule="op")
    return convict(court, interpolated(honest), declared)


CHEAT = Cheat("fewer steps, interpolated roots", "fraud", {"3 steps of 5": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_interpolated_states_are_convicted_at_the_first_one(court: Court, form: str) -> None:
    run(court, CHEAT, form)
