"""One ulp: one element of one gradient differs in its last bit, by wrong terms of a later chunk; found exactly."""

import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where


def play(court: Court, first: int, name: str = "one-ulp") -> Ended:
    """The first lie from seed `first` on that S_1 does not round away: one that is, is none."""
    honest = court.run(0)
    for seed in range(first, first + 100):
        lie = cheat_of(name, court.job.programs, court.job.params, seed, DEVNET_CHAIN_ID)
        liar = lie.run(honest)
        if liar.root(1, liar.advance(1, honest.start)) != honest.root(1, honest.advance(1, honest.start)):
            expected = lie.expectation
            declared = Where(expected.step, expected.op_index, expected.element, expected.chunk, "op")
            return convict(court, liar, declared)
    raise AssertionError("no lie shows")


CHEAT = Cheat("one-ulp flip", "fraud", {f"seed {i}": lambda court, i=i: play(court, i) for i in (1, 200)})
OF_CODES = Cheat(
    "one-ulp flip of a product of integers", "fraud",
    {f"seed {i}": lambda court, i=i: play(court, i) for i in (1, 200)}, {"integers": True},
)  # fmt: skip
CHEATS = (CHEAT, OF_CODES)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_one_ulp_is_convicted_at_its_element_and_chunk(court: Court, form: str) -> None:
    run(court, CHEAT, form)


@pytest.mark.parametrize("form", OF_CODES.forms)
def test_one_ulp_is_convicted_at_its_element_and_group(court: Court, form: str) -> None:
    run(court, OF_CODES, form)
