"""A worker's accomplice attacks its claim again and again, to lock everybody's stake for a year."""

from __future__ import annotations

import pytest

from lockstep.chain import games
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import ChainError
from lockstep.protocol.types import Seconds
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where

DAY = 86_400
CLOCK = Seconds(6 * DAY)
MOST = 30 * DAY
"""What other games add to a clock at most."""
GAMES = 24


def refused(court: Court) -> Ended:
    """A step that takes most of a clock would make each game lengthen the next by as much."""
    court.forget()
    for step in (Seconds(CLOCK // 4 + 1), Seconds(MOST)):
        with pytest.raises(ChainError, match=r"JobInvalid\(clocks\)"):
            court.submit(clock_seconds=CLOCK, step_seconds=step)
    court.submit(clock_seconds=CLOCK, step_seconds=Seconds(CLOCK // 4))
    return Ended("refused", Where(rule="clocks"), Where(rule="clocks"))


def play(court: Court) -> Ended:
    """The owner answers each game in its last second, the accomplice then keeps silent; both have
    all the time that the longest clocks and steps give."""
    court.reset(clock_seconds=CLOCK, step_seconds=Seconds(CLOCK // 4))
    claim, game = court.claim()[0], court.contracts.game
    court.merge()
    begun = court.now()
    opened = [court.open_at(claim, 0, "accomplice", nonce) for nonce in range(GAMES)]
    left = [games.read(game, g).left_defender for g in opened]
    assert left[-1] == CLOCK + MOST, "thirty days more, whatever the number of games"
    assert max(left) == left[-1]
    for one in opened:
        state = games.read(game, one)
        court.advance(min(state.deadline - 60, begun + CLOCK + MOST) - court.now())
        assert court.defender(one)(court.now()) is not None
    for one in opened:
        court.play(one, lambda now: None)
    assert {court.verdict(g) for g in opened} == {Verdict.REJECTED}
    court.settle()
    locked = court.now() - begun
    assert CLOCK + MOST < locked <= 2 * CLOCK + MOST + court.params.windows.challenge_seconds, f"{locked / DAY} days"
    court.balance({"accomplice": GAMES * court.params.prices.bond})
    for slot in range(3):
        assert court.contracts.vault.lock_of(court.contracts.market.claim_id_of(court.job_id, 0, slot)) is None
    return Ended("rejected", Where(), Where())


CHEATS = (
    Cheat("games with oneself", "refused", {"steps of days": refused}),
    Cheat("games with oneself", "rejected", {"two dozen at once": play}),
)


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_games_on_ones_own_claim_lock_nobodys_stake_for_long(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)
