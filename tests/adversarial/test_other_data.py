"""Other data: a step trains on rows that the seed did not draw."""

import pytest

from lockstep.settings import DEVNET_CHAIN_ID
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from worker.cheats import cheat_of


def drawn(court: Court) -> Ended:
    """Rows drawn with another counter."""
    lie = cheat_of("other-data", court.job.programs, court.job.params, 0, DEVNET_CHAIN_ID)
    return convict(court, lie.run(court.run(0)), Where(1, lie.expectation.op_index, rule="op"))


CHEAT = Cheat("other data", "fraud", {"rows drawn otherwise": drawn})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_rows_that_were_not_drawn_are_convicted_at_the_draw(court: Court, form: str) -> None:
    run(court, CHEAT, form)
