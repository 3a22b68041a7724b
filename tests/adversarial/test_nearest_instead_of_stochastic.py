"""Nearest instead of stochastic: gradients' codes without the random words that the Program draws for them."""

import pytest

from tests.adversarial.cheat import Cheat, run
from tests.adversarial.court import Court
from tests.adversarial.test_one_ulp import play

CHEAT = Cheat(
    "gradients rounded to nearest", "fraud",
    {"every step": lambda court: play(court, 0, "nearest-instead-of-stochastic")}, {"integers": True},
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_gradients_rounded_to_nearest_are_convicted_in_their_codes(court: Court, form: str) -> None:
    run(court, CHEAT, form)
