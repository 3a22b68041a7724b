"""Wrong partials: words that combine to a lie are convicted at their chunk, words that do not combine are refused."""

import struct

import pytest

from lockstep.chain import games
from lockstep.disputes import Side
from lockstep.numerics.trace import StepTrace
from lockstep.protocol import moves
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, Shown, at, changed, lying, named, with_word, words
from worker.cheats import wrong_partials

STEP, ELEMENT, CHUNK = 1, 3, 1


class Padded(Shown):
    """A step whose one gradient word is a lie, with partials that combine to it."""

    shown: tuple[int, ...] = ()

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        if (op, element) == (named(self.program, "gradient"), ELEMENT):
            return list(self.shown)
        return super().partials(op, element, group)


def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
    """The gradient's element one ulp off, made up for by the partial of chunk CHUNK."""
    op = named(step.program, "gradient")
    off = (int(words(step.outputs[op])[ELEMENT]) + 1) & 0xFFFFFFFF
    made = changed(step, {op: with_word(step.outputs[op], ELEMENT, off)})
    follow = follows(run, t, made)
    found = wrong_partials(step.program.ops[op].mode, step.partials(op, ELEMENT), CHUNK, off)
    assert found is not None
    shown = Padded(step.program, step.before, follow.outputs, follow.next, step.context, step.rows)
    object.__setattr__(shown, "shown", found)
    return shown


def follows(run: Lying, t: int, made: StepTrace) -> StepTrace:
    """All ops behind the gradient, computed from it: so that the state shows the lie."""
    from tests.adversarial.lies import recomputed

    return recomputed(run, made, named(made.program, "gradient"))


def play(court: Court) -> Ended:
    honest = court.run(0)
    claims = court.claim({0: lying(honest, at(STEP, lie))})
    ((claim, found),) = court.audits().items()
    assert claim == claims[0]
    game = court.open(claim, found)
    defender, challenger = court.defender(game), court.seat(game, Side.CHALLENGER, found.held, "verifier").turn

    def refused_first(now):  # type: ignore[no-untyped-def]
        state = games.read(court.contracts.game, game)
        if state.phase == moves.Phase.PARTIALS:
            step = court.held[claim].step(STEP)
            shown = step.partials(named(step.program, "gradient"), ELEMENT, None)
            for bad in (shown[:-1], [*shown, 0], [shown[0] ^ 1 << 30, *shown[1:]], []):
                call = games.call(court.contracts.game, moves.PostPartials(state.node, pack(bad)), game)
                refusals.append(court.refused(call, "worker-0"))
        return defender(now)

    refusals: list[str] = []
    court.play(game, refused_first, challenger)
    assert len(refusals) == 4, refusals
    court.settle()
    court.balance({"worker-0": court.params.slot_stake})
    return ended(court, game, Where(STEP, named(honest.program(STEP), "gradient"), ELEMENT, CHUNK, "op"))


def pack(partials: list[int]) -> bytes:
    return struct.pack(f">{len(partials)}I", *partials)


CHEAT = Cheat("wrong partials", "fraud", {"one chunk of three": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_partials_that_do_not_add_up_are_refused_and_wrong_ones_convicted(court: Court, form: str) -> None:
    run(court, CHEAT, form)
