"""Neighbour's slot: a worker claims for its slot what its neighbour computed for the other one."""

from dataclasses import replace

import pytest

from lockstep.execution.jobs import ClaimRun
from lockstep.numerics.arrays import StepContext
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named


class Copied(ClaimRun):
    """The neighbour's computation under one's own slot."""

    def context(self, t: int) -> StepContext:
        """The neighbour's."""
        return replace(super().context(t), slot=1)


def play(court: Court) -> Ended:
    own = court.run(0)
    copied = Copied(own.job, own.slot, own.round, own.seed, own.start)
    return convict(court, copied, Where(1, named(own.program(1), "rows"), rule="op"))


CHEAT = Cheat("neighbour's slot", "fraud", {"slot 1 claimed for slot 0": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_neighbours_work_is_convicted_at_the_first_draw(court: Court, form: str) -> None:
    run(court, CHEAT, form)
