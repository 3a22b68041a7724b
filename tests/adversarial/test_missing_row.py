"""Missing dataset row: a draw that nobody can check or learn from. Demanded in vain, it voids the job."""

import pytest

from lockstep.protocol.availability import row_answer, row_demand_id
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import WALLET, Court, Where
from tests.toyjob import ROWS

ROW = 17


def missing(court: Court) -> Ended:
    """Nobody has the row: the requester published a root and not the data."""
    demands = court.contracts.demands
    court.send(demands.demand_row(court.job_id, ROW), "verifier")
    assert court.refused(demands.void_for_row(court.job_id, ROW), "verifier") == "TooEarly"
    court.advance(court.params.answer_seconds + 1)
    court.send(demands.void_for_row(court.job_id, ROW), "verifier")
    court.settle_void("verifier")
    return Ended("void", Where(rule=f"row {ROW}"), Where(rule=f"row {ROW}"))


def answered(court: Court) -> Ended:
    """The row is there: who demanded it in spite pays who posts it."""
    demands, params = court.contracts.demands, court.params
    bond = court.contracts.market.bond_of(court.job_id)
    court.send(demands.demand_row(court.job_id, ROW), "mallory")
    tree, rows = row_answer(params, court.job.dataset.tobytes(), ROW)
    court.send(demands.answer_row(court.job_id, ROW, tree, rows), "accomplice")
    demand = demands.demand(row_demand_id(court.job_id, ROW))
    assert demand is not None
    assert demand.status.name == "ANSWERED"
    assert court.wealth("accomplice") - WALLET == bond * 60 // 100
    assert court.wealth("mallory") - WALLET == -bond
    assert court.contracts.market.job(court.job_id).status.name == "ACTIVE"
    assert court.refused(demands.demand_row(court.job_id, ROWS), "mallory") == "NoSuchRow"
    return Ended("answered", Where(rule="bond lost"), Where(rule="bond lost"))


CHEATS = (
    Cheat("missing dataset row", "void", {"nobody has it": missing}),
    Cheat("row demanded in spite", "answered", {"somebody has it": answered}),
)


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_a_row_that_nobody_has_voids_the_job_and_one_that_is_posted_does_not(
    court: Court, cheat: Cheat, form: str
) -> None:
    run(court, cheat, form)
