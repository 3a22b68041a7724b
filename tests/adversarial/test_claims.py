"""Every row about what is claimed ends as it says: steps, states, payloads, merges."""

import pytest

from tests.adversarial.cheat import Cheat, run
from tests.adversarial.court import Court
from tests.adversarial.table import CLAIMS


@pytest.mark.slow
@pytest.mark.parametrize("cheat", CLAIMS, ids=lambda cheat: cheat.id)
def test_a_false_claim_is_convicted_where_its_row_says(court: Court, cheat: Cheat) -> None:
    run(court, cheat)
