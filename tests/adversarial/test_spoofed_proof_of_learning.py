"""Spoofed Proof-of-Learning trace: checkpoints so close to each other that every step is within a tolerance of honest.

Zhang et al. (2022), "Adversarial Examples for Proof-of-Learning": pick the final weights, then optimise a path whose
single steps pass a threshold. Here there is no threshold: the first state that is not the honest one is wrong.
"""

import numpy as np
import pytest

from lockstep.execution.jobs import ClaimRun
from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, changed, lying, named

TOLERANCE = 1e-4
"""Proof-of-Learning accepts steps that are nearer than this to a step that it runs again."""


def spoofed(honest: ClaimRun) -> Lying:
    """Every step ends TOLERANCE / 2 nearer to weights of the spoofer's choice; the moments are honest."""
    target = np.ones_like(honest.start[0])

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace | None:
        if t > run.job.params.role.inner_steps:
            return None
        op = named(step.program, "p")
        old = step.output(op).array
        moved = (old + np.float32(TOLERANCE / 2) * np.sign(target - old)).astype(np.float32)
        assert np.abs(moved - old).max() < TOLERANCE, "a verifier with a tolerance would accept it"
        return changed(step, {op: moved})

    return lying(honest, lie)


def play(court: Court) -> Ended:
    honest = court.run(0)
    return convict(court, spoofed(honest), Where(1, named(honest.program(1), "p"), 0, rule="op"))


CHEAT = Cheat("spoofed Proof-of-Learning trace", "fraud", {"within a tolerance": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_step_within_a_tolerance_of_honest_is_convicted(court: Court, form: str) -> None:
    run(court, CHEAT, form)
