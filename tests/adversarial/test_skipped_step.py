"""Skipped step: a step passes its state on, but for the clock, and all that follows is honest."""

import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from lockstep.execution.jobs import ClaimRun
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where


def play(court: Court, seed: int) -> Ended:
    lie = cheat_of("skipped-step", court.job.programs, court.job.params, seed, DEVNET_CHAIN_ID)
    liar: ClaimRun = lie.run(court.run(0))
    return convict(court, liar, Where(lie.expectation.step, lie.expectation.op_index, rule="op"))


CHEAT = Cheat(
    "skipped step", "fraud", {"one step": lambda court: play(court, 0), "another": lambda court: play(court, 3)}
)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_skipped_step_is_convicted_at_that_step(court: Court, form: str) -> None:
    run(court, CHEAT, form)
