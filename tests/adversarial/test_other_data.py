"""Other data: a step trains on rows that the seed did not draw."""

from itertools import count

import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from lockstep.execution.jobs import ClaimRun
from lockstep.protocol.types import StateRoot
from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where


def drawn(court: Court) -> Ended:
    """Rows drawn with another counter, one that draws others: of forty, the same may come again."""
    honest = court.run(0)
    for seed in count():
        lie = cheat_of("other-data", court.job.programs, court.job.params, seed, DEVNET_CHAIN_ID)
        liar = lie.run(honest)
        if first_root(liar) != first_root(honest):
            return convict(court, liar, Where(1, lie.expectation.op_index, rule="op"))
    raise AssertionError("there are always other rows")


def first_root(run: ClaimRun) -> StateRoot:
    """S_1."""
    return run.root(1, run.advance(1, run.start))


CHEAT = Cheat("other data", "fraud", {"rows drawn otherwise": drawn})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_rows_that_were_not_drawn_are_convicted_at_the_draw(court: Court, form: str) -> None:
    run(court, CHEAT, form)
