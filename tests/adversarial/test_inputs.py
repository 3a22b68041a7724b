"""Every row about what is said to the contracts ends as it says: in games, and against their rules."""

import pytest

from tests.adversarial.cheat import Cheat, run
from tests.adversarial.court import Court
from tests.adversarial.table import INPUTS


@pytest.mark.slow
@pytest.mark.parametrize("cheat", INPUTS, ids=lambda cheat: cheat.id)
def test_a_false_input_ends_as_its_row_says(court: Court, cheat: Cheat) -> None:
    run(court, cheat)
