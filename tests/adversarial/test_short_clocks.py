"""A game's own transactions outlast a short clock: a chain of slow blocks takes no such job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.demo.cheats.challenges import Aim
from lockstep.node.player import Side
from lockstep.presets import CHAINS
from lockstep.protocol.dispute import honest as play_of
from lockstep.protocol.errors import ChainError
from lockstep.protocol.market.job_rules import GAME_MOVES
from lockstep.protocol.types import Seconds
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import NAMES, UNBOND_SECONDS, Court, Spent, Turn, Where
from tests.adversarial.lies import named
from tests.adversarial.test_false_challenge import inventing, until_refused

ETHEREUM = CHAINS["ethereum"]
BLOCK_SECONDS = Seconds(12)
SHORTEST = ETHEREUM.clock_floor
WINDOW = Seconds(10 * ETHEREUM.inclusion)
TERMS: dict[str, Any] = {
    "clock_seconds": SHORTEST, "step_seconds": Seconds(SHORTEST // 4), "attest_seconds": WINDOW,
    "merge_seconds": WINDOW, "answer_seconds": WINDOW,
}  # fmt: skip
"""What that chain can keep, with the shortest clock."""
STEPS = 100
"""Enough for two reveals of the trace."""


@contextmanager
def ethereum(court: Court) -> Iterator[None]:
    """The market as it is deployed on a chain of twelve seconds a block."""
    court.forget()
    before, w3 = court.contracts, court.devnet.w3
    addresses = deploy(w3, court.devnet.account("deployer"), unbond_seconds=UNBOND_SECONDS, chain=ETHEREUM)
    court.contracts = Contracts.at(w3, addresses)
    for name in NAMES:
        court.fund(name)
    spent: list[Spent] = []
    court.spent = spent
    try:
        yield
    finally:
        court.contracts = before
        court.forget()
        court.spent = spent


def refused(court: Court) -> Ended:
    """Clocks that a devnet takes, a clock one second too short, a step that is most of it, a window
    below a block."""
    with ethereum(court):
        bad: list[tuple[str, dict[str, Any]]] = [
            ("clocks", {"clock_seconds": Seconds(60), "step_seconds": Seconds(10)}),
            ("clocks", {"clock_seconds": Seconds(SHORTEST - 1), "step_seconds": Seconds(10)}),
            ("clocks", {"step_seconds": Seconds(SHORTEST // 4 + 1)}),
            ("windows", {"attest_seconds": Seconds(ETHEREUM.inclusion - 1)}),
        ]
        for group, change in bad:
            with pytest.raises(ChainError, match=rf"JobInvalid\({group}\)"):
                court.submit(**{**TERMS, **change})
        assert not court.events("JobCreated")
    return Ended("refused", Where(rule="clocks"), Where(rule="clocks"))


def kept(court: Court, late: Seconds) -> Ended:
    """The shortest clock, and a defender whose every move is mined `late` seconds after the one
    that it answers."""
    with ethereum(court):
        court.create(**TERMS, steps=STEPS)
        court.seal()
        claim = court.claim()[0]
        fold = named(court.job.programs.step, "gradient")
        held = inventing(court, claim, Aim(fold, "fold", "gradient", 0, 1))
        # The challenger finds the transition, too: the game is as long as it can be.
        opening = play_of.opening(court.known(claim), held, None, 0)
        assert opening is not None
        game = court.begin(opening, "mallory")
        answers: list[Seconds] = []
        challenger = court.seat(game, Side.CHALLENGER, held, "mallory").turn
        court.play(game, waiting(court, game, late, answers), until_refused(challenger))
        assert set(answers) == {late}
        assert len(answers) <= GAME_MOVES
        assert sum(answers) > 60, "a clock of a minute would have run out"
        assert games.read(court.contracts.game, game).verdict.name == "REJECTED"
        court.settle()
        court.balance({"mallory": court.params.prices.bond})
        return ended(court, game, Where(t=1))


def waiting(court: Court, game: Any, late: Seconds, answers: list[Seconds]) -> Turn:
    """The defender's seat; each of its moves waits for `late` seconds, and is noted."""
    turn = court.defender(game)

    def player(now: Seconds) -> Any:
        if not games.read(court.contracts.game, game).defender_moves:
            return None
        court.advance(late - 1)
        made = turn(court.now())
        assert made is not None, "the defender is in time"
        answers.append(Seconds(court.now() - now))
        return made

    return player


CHEATS = (
    Cheat("clocks that a chain cannot keep", "refused", {"twelve seconds a block": refused}),
    Cheat(
        "the shortest clock", "rejected",
        {
            "answers a block later": lambda court: kept(court, BLOCK_SECONDS),
            "answers as late as promised": lambda court: kept(court, ETHEREUM.inclusion),
        },
    ),
)  # fmt: skip


@pytest.mark.parametrize(("cheat", "form"), [(c, f) for c in CHEATS for f in c.forms])
def test_a_clock_covers_every_move_that_its_chain_mines_in_time(court: Court, cheat: Cheat, form: str) -> None:
    run(court, cheat, form)
