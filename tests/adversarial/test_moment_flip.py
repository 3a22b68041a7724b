"""A flip in a moment only: one bit of one word of AdamW's second moment, which this step's parameters do not read."""

import pytest

from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, Lying, at, changed, named, with_word, words

ELEMENT, STEP = 5, 3


def flips(name: str, bit: int) -> Lie:
    """The moment `name` with one bit of element ELEMENT flipped after the step has used it."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
        op = named(step.program, name)
        word = int(words(step.output(op).array)[ELEMENT]) ^ 1 << bit
        return changed(step, {op: with_word(step.output(op).array, ELEMENT, word)})

    return at(STEP, lie)


CHEAT = Cheat(
    "flip in a moment only", "fraud",
    {
        f"{name}, bit {bit}": convicts(
            flips(name, bit), lambda run, name=name: Where(STEP, named(run.program(STEP), name), ELEMENT, rule="op")
        )
        for name, bit in (("m", 0), ("v", 22))
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_flipped_bit_of_a_moment_is_convicted_at_its_word(court: Court, form: str) -> None:
    run(court, CHEAT, form)
