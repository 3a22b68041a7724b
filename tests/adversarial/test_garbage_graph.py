"""Right S_t with a garbage G: the claim is right, its owner defends it with an output that no arithmetic gives.

Nobody would do so on purpose; it shows that a verdict follows from what is posted, and that S_t alone saves nobody.
"""

import numpy as np
import pytest

from lockstep.node.player import HeldClaim, Side
from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named, next_of, outputs_of, written

STEP = 2


def garbage(step: StepTrace, op: int) -> StepTrace:
    """The honest step with ones for the output of an op that no state entry names."""
    outputs = tuple(np.ones_like(a) if i == op else a for i, a in enumerate(outputs_of(step)))
    return written(step, outputs, next_of(step))


def play(court: Court, name: str) -> Ended:
    claims = court.claim()
    assert court.audits() == {}, "every claim is right"
    honest = court.held[claims[0]]
    op = named(honest.run.program(STEP), name)
    game = court.open_at(claims[0], STEP, "verifier")
    posted = HeldClaim(honest.run, honest.trace)
    posted.keep(STEP, garbage(honest.whole(STEP), op))  # type: ignore[arg-type]
    defender = court.seat(game, Side.DEFENDER, posted, "worker-0").turn
    court.play(game, defender, court.seat(game, Side.CHALLENGER, honest, "verifier").turn)
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, op, rule="op"))


CHEAT = Cheat(
    "right S_t with a garbage G", "fraud",
    {name: lambda court, name=name: play(court, name) for name in ("features", "error", "clip")},
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_garbage_graph_is_convicted_though_its_state_is_right(court: Court, form: str) -> None:
    run(court, CHEAT, form)
