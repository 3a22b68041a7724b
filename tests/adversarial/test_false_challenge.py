"""False challenge: an honest claim is attacked. There is nothing to prove; the challenger's clock and bond run out."""

import pytest

from lockstep.demo.cheats.challenges import Aim, InventedStep, place_of
from lockstep.node.player import HeldClaim, Side
from lockstep.protocol.dispute import honest as play_of
from lockstep.protocol.types import ClaimId, StateRoot
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where


def invented(court: Court) -> Ended:
    """Played as far as it goes with a step of the challenger's invention (the demo's lie)."""
    claims = court.claim()
    held = inventing(court, claims[0])
    opening = play_of.opening(court.known(claims[0]), held, court.held[claims[0]].trace, 0)
    assert opening is not None
    game = court.begin(opening, "mallory")
    challenger = court.seat(game, Side.CHALLENGER, held, "mallory").turn
    court.play(game, court.defender(game), until_refused(challenger))
    return weighed(court, game)


def inventing(court: Court, claim: ClaimId, place: Aim | None = None) -> HeldClaim:
    """An honest claim as a challenger has it that has flipped a bit of step 1, at `place` or somewhere."""
    honest = court.held[claim]
    step = InventedStep(honest.step(1), place or place_of(court.job.programs, 1))
    held = HeldClaim(honest.run, [StateRoot(step.root), *honest.trace[1:]])
    held.keep(1, step)
    return held


def until_refused(turn):  # type: ignore[no-untyped-def]
    """Plays until the contract refuses a proof, and then waits for its clock."""
    from lockstep.protocol.errors import ChainError

    refused: list[str] = []

    def player(now):  # type: ignore[no-untyped-def]
        if refused:
            return None
        try:
            return turn(now)
        except ChainError as error:
            if error.code != "chain.EqualBits":
                raise
            refused.append(error.code)
            return None

    return player


def silent(court: Court, t: int) -> Ended:
    """Opened, and never moved again."""
    claims = court.claim()
    game = court.open_at(claims[0], t, "mallory")
    court.play(game, court.defender(game), lambda now: None)
    return weighed(court, game)


def weighed(court: Court, game) -> Ended:  # type: ignore[no-untyped-def]
    court.settle()
    court.balance({"mallory": court.params.prices.bond})
    return ended(court, game, Where(t=court.found(game).t))


CHEAT = Cheat(
    "false challenge", "rejected",
    {
        "an invented word": invented,
        "silent": lambda court: silent(court, 3),
        "without t": lambda court: silent(court, 0),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_false_challenge_is_rejected_and_pays_for_it(court: Court, form: str) -> None:
    run(court, CHEAT, form)
