"""Garbage padding: a position of G behind the last op, which must be EMPTY, holds something; S_t is right."""

from dataclasses import dataclass
from functools import cached_property

import pytest

from lockstep.node.player import HeldClaim, Side
from lockstep.numerics.trace import StepTrace
from lockstep.protocol import merkle
from lockstep.protocol.dispute.openings import Levels
from lockstep.protocol.types import Digest
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where

STEP = 2
GARBAGE = Digest(b"\x47" * 32)


@dataclass(frozen=True)
class Littered(StepTrace):
    """A step whose G holds garbage at one position."""

    position: int = 0

    @cached_property
    def graph(self) -> Levels:
        """Levels over the 2^D leaves of G_t."""
        clean = super().graph
        leaves = [merkle.node_at(clean, 0, i) for i in range(1 << self.program.depth)]
        leaves[self.position] = GARBAGE
        return merkle.levels(leaves, self.program.depth)


def littered(step: StepTrace, position: int) -> Littered:
    return Littered(step.program, step.before, step.made, step.context, step.rows, position=position)


def play(court: Court, which: int) -> Ended:
    """The first or the last position between the ops and the state block."""
    claims = court.claim()
    honest = court.held[claims[0]]
    program = honest.run.program(STEP)
    position = range(len(program.ops), program.state_block)[which]
    game = court.open_at(claims[0], STEP, "verifier")
    posted = HeldClaim(honest.run, honest.trace)
    posted.keep(STEP, littered(honest.whole(STEP), position))  # type: ignore[arg-type]
    defender = court.seat(game, Side.DEFENDER, posted, "worker-0").turn
    court.play(game, defender, court.seat(game, Side.CHALLENGER, honest, "verifier").turn)
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, position, rule="padding"))


CHEAT = Cheat(
    "garbage padding", "fraud", {"first": lambda court: play(court, 0), "last": lambda court: play(court, -1)}
)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_garbage_where_nothing_belongs_is_convicted_there(court: Court, form: str) -> None:
    run(court, CHEAT, form)
