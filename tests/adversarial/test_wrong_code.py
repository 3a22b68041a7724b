"""A wrong code: one code of a quantised operand is off by one, and the product reads it; found exactly."""

import pytest

from tests.adversarial.cheat import Cheat, run
from tests.adversarial.court import Court
from tests.adversarial.test_one_ulp import play

CHEAT = Cheat(
    "a code off by one", "fraud",
    {f"seed {i}": lambda court, i=i: play(court, i, "wrong-code") for i in (1, 200, 300)}, {"integers": True},
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_code_off_by_one_is_convicted_at_its_word(court: Court, form: str) -> None:
    run(court, CHEAT, form)
