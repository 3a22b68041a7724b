"""Lying aggregator: the merge is one ulp off. Convicted, it is succeeded by a slot owner from the same inputs."""

import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where


def play(court: Court) -> Ended:
    court.reset(aggregator=court.address("aggregator"))
    court.claim()
    lie = cheat_of("lying-aggregator", court.job.programs, court.job.params, 1, DEVNET_CHAIN_ID)
    claim = court.merge(lie.run)
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    assert court.contracts.market.barred(court.job_id, court.address("aggregator"))
    court.settle()
    gained = court.balance({"aggregator": court.params.merge.stake})
    assert sum(gained[f"worker-{i}"] for i in range(3)) == court.params.round_pay, "a worker merged in its stead"
    return ended(court, game, Where(1, lie.expectation.op_index, rule="op"))


CHEAT = Cheat("lying aggregator", "fraud", {"one ulp": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_lying_aggregator_is_convicted_and_succeeded(court: Court, form: str) -> None:
    run(court, CHEAT, form)
