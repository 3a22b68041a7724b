"""A hundred games at once on one honest claim: each adds the time of a step to the defender's clock, each is lost."""

import pytest

from lockstep.chain import games
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.moves import Verdict
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where

GAMES = 100
ANSWER_SECONDS = 9
"""Chain time that the defender takes for one answer: less than a step's, and in all more than one clock."""


def play(court: Court) -> Ended:
    claims = court.claim()
    for i in range(4):
        court.fund(f"sybil-{i}")
    opened = [
        court.open_at(claims[0], 1 + i * court.params.role.transitions // GAMES, f"sybil-{i % 4}", nonce=i // 4)
        for i in range(GAMES)
    ]
    begun = court.now()
    allowed = [games.read(court.contracts.game, g).left_defender for g in opened]
    for game in opened:
        court.advance(ANSWER_SECONDS)
        assert court.defender(game)(court.now()) is not None, "the defender answers each in time"
    assert court.now() - begun > court.params.windows.clock_seconds, "one clock would not have done"
    assert allowed[-1] == court.params.windows.clock_seconds + (GAMES - 1) * court.params.windows.step_seconds
    for game in opened:
        court.play(game, court.defender(game), lambda now: None)
    assert {court.verdict(g) for g in opened} == {Verdict.REJECTED}
    court.settle()
    lost = {f"sybil-{i}": GAMES // 4 * court.params.prices.bond for i in range(4)}
    gained = court.balance(lost)
    assert gained["worker-0"] > 0
    assert court.verdict(opened[0]) == moves.Verdict.REJECTED
    return Ended("rejected", Where(), Where())


CHEAT = Cheat(
    "a hundred games at once", "rejected", {"on one honest claim": play}, {"clock_seconds": 600, "step_seconds": 10}
)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_hundred_games_do_not_starve_an_honest_defender(court: Court, form: str) -> None:
    run(court, CHEAT, form)
