"""Front-run winning move: who sees it in the pool sends it first, in the same game or in a copy of one's own."""

import pytest

from lockstep.chain import games
from lockstep.chain.contracts import Call
from lockstep.node.player import Side
from lockstep.protocol.dispute import moves
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips


def same_game(court: Court) -> Ended:
    """Every move of the challenger is sent by mallory first; nothing but the challenger's own counts."""
    honest = court.run(0)
    court.claim({0: lying(honest, flips("m", 7))})
    ((claim, found),) = court.audits().items()
    game = court.open(claim, found)
    refusals: list[str] = []

    def watched(call: Call, key: str) -> object:
        refusals.append(court.refused(call, "mallory"))
        return court.send(call, "verifier")

    seat = court.seat(game, Side.CHALLENGER, found.held, "verifier")
    seat.send = watched
    court.play(game, court.defender(game), seat.turn)
    assert refusals
    assert set(refusals) == {"Unauthorized"}
    court.settle()
    gained = court.balance({"worker-0": court.params.role.slot_stake})
    assert gained["mallory"] == 0
    assert gained["verifier"] > 0, "the reward is the challenger's"
    return ended(court, game, Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op"))


def own_game(court: Court) -> Ended:
    """A game beside the verifier's, its moves copied, its last one mined first: the copier wins, nobody is hurt."""
    honest = court.run(0)
    court.claim({0: lying(honest, flips("m", 7))})
    ((claim, found),) = court.audits().items()
    game, copy = court.open(claim, found), court.open(claim, found, "mallory")
    defenders = court.defender(game), court.defender(copy)
    verifier = court.seat(game, Side.CHALLENGER, found.held, "verifier").turn
    copier = court.seat(copy, Side.CHALLENGER, found.held, "mallory").turn

    def waits(now):  # type: ignore[no-untyped-def]
        """The verifier's last move is held up in the pool."""
        last = games.read(court.contracts.game, game).phase in (moves.GamePhase.ELEMENT, moves.GamePhase.PROOF)
        return (
            None if last and games.read(court.contracts.game, copy).phase != moves.GamePhase.CLOSED else verifier(now)
        )

    while games.read(court.contracts.game, copy).phase != moves.GamePhase.CLOSED:
        assert any(turn(court.now()) is not None for turn in (*defenders, waits, copier))
    court.play(game, verifier)
    court.settle()
    gained = court.balance({"worker-0": court.params.role.slot_stake})
    assert gained["verifier"] >= 0, "its bond came back"
    return ended(court, copy, Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op"))


CHEAT = Cheat("front-run winning move", "fraud", {"in the same game": same_game, "in a game of its own": own_game})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_front_runner_takes_no_move_and_hurts_nobody(court: Court, form: str) -> None:
    run(court, CHEAT, form)
