"""Sixteen games at once attack all claims of one honest worker; each lengthens its clock."""

from __future__ import annotations

import pytest

from lockstep.chain import games
from lockstep.node.player import Side
from lockstep.protocol.dispute import honest as play_of
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.types import GameId, Seconds
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Turn, Where
from tests.adversarial.test_false_challenge import inventing, until_refused

GAMES = 16
STEP_SECONDS = Seconds(60)
OWNER = "worker-0"


def play(court: Court) -> Ended:
    """One machine answers one game at a time; it takes nearly a step's time to make the step of
    each game."""
    court.forget()
    court.owners = dict.fromkeys(range(3), OWNER)
    court.create(clock_seconds=Seconds(600), step_seconds=STEP_SECONDS)
    court.seal()
    claims, game = court.claim(), court.contracts.game
    challengers: dict[GameId, Turn] = {}
    for i in range(GAMES):
        claim, name = claims[i % 3], ("mallory", "accomplice")[i % 2]
        assert game.defending(court.address(OWNER)) == i
        held = inventing(court, claim)
        opening = play_of.opening(court.known(claim), held, court.held[claim].trace, i)
        assert opening is not None
        opened = court.begin(opening, name)
        # Half of them are played as far as a false challenge goes, half are opened and left.
        seat = until_refused(court.seat(opened, Side.CHALLENGER, held, name).turn)
        challengers[opened] = seat if i % 4 < 2 else lambda now: None
        left = games.read(game, opened).left_defender
        assert left == court.params.windows.clock_seconds + i * STEP_SECONDS, "one step more for each game that is open"
    begun = court.now()
    defend_all(court, challengers)
    assert court.now() - begun > court.params.windows.clock_seconds, "one clock would not have done"
    for opened, challenger in challengers.items():
        court.play(opened, court.defender(opened), challenger)
    assert {court.verdict(g) for g in challengers} == {Verdict.REJECTED}
    assert game.defending(court.address(OWNER)) == 0
    court.settle()
    gained = court.balance(dict.fromkeys(("mallory", "accomplice"), GAMES // 2 * court.params.prices.bond))
    assert gained[OWNER] > 0
    return Ended("rejected", Where(), Where())


def defend_all(court: Court, challengers: dict[GameId, Turn]) -> None:
    """Answer the game whose clock runs out first, until the challengers alone are to move; they
    answer at once."""
    defenders = {g: court.defender(g) for g in challengers}
    made: set[GameId] = set()
    while True:
        stored = {g: games.read(court.contracts.game, g) for g in challengers}
        waiting = [g for g, state in stored.items() if state.defender_moves]
        if not waiting:
            if not any(turn(court.now()) for turn in challengers.values()):
                return
            continue
        first = min(waiting, key=lambda g: stored[g].deadline)
        if first not in made:
            made.add(first)
            court.advance(STEP_SECONDS - 2)
        assert defenders[first](court.now()) is not None, "the defender answers each in time"
        challengers[first](court.now())


CHEAT = Cheat("sixteen games at once", "rejected", {"on all claims of one worker": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_games_on_all_claims_of_an_honest_worker_do_not_starve_it(court: Court, form: str) -> None:
    run(court, CHEAT, form)
