"""Stalling to the last second: a liar uses its clock up, and is convicted all the same, within both clocks."""

import pytest

from lockstep.chain import games
from lockstep.node.player import Side
from lockstep.protocol.dispute import moves
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips

SPARE = 40
"""Seconds that a careful staller keeps for the rest of its moves."""


def play(court: Court, late: int) -> Ended:
    """The first move comes `late` seconds before (or, negative, after) the end of the defender's clock."""
    honest = court.run(0)
    claims = court.claim({0: lying(honest, flips("m", 7))})
    ((claim, found),) = court.audits().items()
    game = court.open(claim, found)
    begun, defender = court.now(), court.defender(game)
    stalled: list[str] = []

    def stalls(now):  # type: ignore[no-untyped-def]
        state = games.read(court.contracts.game, game)
        if stalled or not state.defender_moves:
            # The next block would be too late, and a worker knows it.
            return defender(now) if now < state.deadline else None
        court.advance(state.deadline - now - late - 1)
        if late < 0:
            move = moves.PostLeaf(state.standing, b"")
            stalled.append(court.refused(games.call(court.contracts.game, move, game), "worker-0"))
            return None
        stalled.append("moved")
        return defender(court.now())

    court.play(game, stalls, court.seat(game, Side.CHALLENGER, found.held, "verifier").turn)
    assert court.now() - begun <= 2 * court.params.windows.clock_seconds + court.params.windows.step_seconds, (
        "within both clocks"
    )
    assert stalled == ["moved" if late >= 0 else "PhaseWrong"] or stalled == ["ClockExpired"], stalled
    assert court.convicted(claims[0])
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    where = Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op") if late > 0 else Where(t=STEP)
    return ended(court, game, where)


CHEATS = (
    Cheat("stalling to the last second", "fraud", {"with seconds to spare": lambda court: play(court, SPARE)}),
    Cheat(
        "stalling to the last second", "timeout",
        {"until too late": lambda court: play(court, -2), "no second left": lambda court: play(court, 0)},
    ),
)  # fmt: skip


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_a_stalled_game_ends_within_both_clocks_in_conviction(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)
