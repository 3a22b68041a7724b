"""Aggregator convicted late: two rounds stand on its merge. They are void without fault, and played again."""

import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from lockstep.protocol.errors import TryLater
from lockstep.protocol.jobs import Phase
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where


def play(court: Court) -> Ended:
    court.reset(aggregator=court.address("aggregator"), rounds=3, max_lead=3)
    court.claim()
    lie = cheat_of("lying-aggregator", court.job.programs, court.job.params, 2, DEVNET_CHAIN_ID)
    wrong = court.merge(lie.run)
    court.seal(1)
    court.claim(r=1)
    court.merge(r=1)
    court.seal(2)
    court.claim(r=2)
    handle = court.network().job(court.job_id)
    assert handle.checkpoint()[1]["round"] == 1
    assert set(court.audits()) == {wrong}, "what stands on a wrong merge is right, as far as it goes"
    (game,) = court.audit_and_play()
    assert court.convicted(wrong)
    assert [court.phase(r) for r in (1, 2)] == [Phase.VOID, Phase.VOID]
    with pytest.raises(TryLater):
        handle.checkpoint()
    court.merge()
    assert handle.checkpoint()[1]["round"] == 0, "what stands on a convicted merge is nobody's model"
    for r in (1, 2):
        court.send(court.contracts.market.release(court.job_id, r), "requester")
        court.seal(r)
        court.claim(r=r)
        court.merge(r=r)
    court.settle()
    # Its stake answered for the two rounds: their work is paid from it.
    court.balance({"aggregator": court.params.merge.stake + 2 * court.params.round_pay})
    return ended(court, game, Where(1, lie.expectation.op_index, rule="op"))


CHEAT = Cheat("aggregator convicted late", "fraud", {"two rounds later": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_rounds_on_a_convicted_merge_are_void_without_fault(court: Court, form: str) -> None:
    run(court, CHEAT, form)
