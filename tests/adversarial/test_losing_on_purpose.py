"""A challenger that loses on purpose: an accomplice opens the first game and lets it run out."""

import pytest

from lockstep.node.player import Side
from lockstep.protocol.dispute.moves import Verdict
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips


def play(court: Court) -> Ended:
    honest = court.run(0)
    court.claim({0: lying(honest, flips("m", 7))})
    ((claim, found),) = court.audits().items()
    thrown = court.open(claim, found, "accomplice")
    court.play(thrown, court.defender(thrown), lambda now: None)
    assert court.verdict(thrown) == Verdict.REJECTED
    assert not court.convicted(claim), "a lost game acquits nobody"
    game = court.open(claim, found)
    court.play(game, court.defender(game), court.seat(game, Side.CHALLENGER, found.held, "verifier").turn)
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake, "accomplice": court.params.prices.bond})
    return ended(court, game, Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op"))


CHEAT = Cheat("challenger that loses on purpose", "fraud", {"accomplice first": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_thrown_game_does_not_save_the_claim(court: Court, form: str) -> None:
    run(court, CHEAT, form)
