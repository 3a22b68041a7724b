"""Self-challenge to recover the stake: the liar's accomplice convicts it before the verifier's game is over."""

import pytest

from lockstep.node.player import Side
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips


def play(court: Court, races: bool) -> Ended:
    """`races`: the verifier has opened its game, too, and comes second."""
    honest = court.run(0)
    court.claim({0: lying(honest, flips("m", 7))})
    ((claim, found),) = court.audits().items()
    theirs = court.open(claim, found, "verifier") if races else None
    own = court.open(claim, found, "accomplice")
    court.play(own, court.defender(own), court.seat(own, Side.CHALLENGER, found.held, "accomplice").turn)
    if theirs is not None:
        court.play(theirs, court.seat(theirs, Side.CHALLENGER, found.held, "verifier").turn)
    court.settle()
    gained = court.balance({"worker-0": court.params.role.slot_stake})
    together = gained["worker-0"] + gained["accomplice"]
    assert together <= -court.params.role.slot_stake // 2, "the two together have lost at least half the stake"
    assert gained["verifier"] >= 0
    return ended(court, own, Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op"))


CHEAT = Cheat(
    "self-challenge to recover the stake", "fraud",
    {"alone": lambda court: play(court, False), "against the verifier": lambda court: play(court, True)},
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_liar_that_convicts_itself_loses_half_its_stake(court: Court, form: str) -> None:
    run(court, CHEAT, form)
