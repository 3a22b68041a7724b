"""Stale base: round 1 is trained from the genesis instead of from what round 0 merged."""

import pytest

from lockstep.execution import jobs
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named


def play(court: Court) -> Ended:
    court.claim()
    court.merge()
    court.seal(1)
    seed = court.run(0, 1).seed
    stale = jobs.slot_run(court.job, court.job.genesis, seed, 1, 0)
    claims = court.claim({0: stale}, r=1)
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    # The forward pass is the first that reads the parameters: a fold over all of them, its terms in one chunk.
    return ended(court, game, Where(1, named(stale.program(1), "predict"), rule="op"))


CHEAT = Cheat("stale base", "fraud", {"genesis in round 1": play}, {"rounds": 2, "max_lead": 2})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_round_from_a_stale_base_is_convicted_where_it_is_first_read(court: Court, form: str) -> None:
    run(court, CHEAT, form)
