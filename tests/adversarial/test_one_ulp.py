"""One ulp: one element of one gradient differs in its last bit, by wrong terms of a later chunk; found exactly."""

import pytest

from lockstep.settings import DEVNET_CHAIN_ID
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from worker.cheats import cheat_of


def play(court: Court, seed: int) -> Ended:
    lie = cheat_of("one-ulp", court.job.programs, court.job.params, seed, DEVNET_CHAIN_ID)
    expected = lie.expectation
    declared = Where(expected.step, expected.op_index, expected.element, expected.chunk, "op")
    return convict(court, lie.run(court.run(0)), declared)


CHEAT = Cheat("one-ulp flip", "fraud", {f"seed {i}": lambda court, i=i: play(court, i) for i in (1, 2)})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_one_ulp_is_convicted_at_its_element_and_chunk(court: Court, form: str) -> None:
    run(court, CHEAT, form)
