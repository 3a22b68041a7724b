"""NaN, infinity, -0, subnormals: put where a number belongs, or in another form than the arithmetic gives them."""

import numpy as np
import pytest

from lockstep.numerics.trace import StepTrace
from tests.adversarial.cheat import Cheat, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, Lying, at, changed, named, with_word
from tests.support.toyjob import SIZE

ELEMENT, STEP = 2, 1
WORDS = {
    "NaN": 0x7FC00000,
    "NaN with a payload": 0xFFC0DEAD,
    "infinity": 0x7F800000,
    "-infinity": 0xFF800000,
    "-0": 0x80000000,
    "smallest subnormal": 0x00000001,
    "largest subnormal": 0x807FFFFF,
}


def puts(word: int) -> Lie:
    """That word stands for one element of the second moment, and the steps after go on from it."""

    def lie(run: Lying, t: int, step: StepTrace) -> StepTrace:
        op = named(step.program, "v")
        return changed(step, {op: with_word(step.output(op).array, ELEMENT, word)})

    return at(STEP, lie)


def where(run):  # type: ignore[no-untyped-def]
    return Where(STEP, named(run.program(STEP), "v"), ELEMENT, rule="op")


CHEAT = Cheat("NaN, infinity, -0, subnormals", "fraud", {name: convicts(puts(w), where) for name, w in WORDS.items()})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_special_word_in_a_numbers_place_is_convicted_at_that_word(court: Court, form: str) -> None:
    run(court, CHEAT, form)


def test_the_words_are_what_their_names_say() -> None:
    numbers = {name: np.array([w], np.uint32).view(np.float32)[0] for name, w in WORDS.items()}
    assert np.isnan(numbers["NaN"])
    assert np.isnan(numbers["NaN with a payload"])
    assert numbers["-infinity"] < -3e38
    assert 0 < numbers["smallest subnormal"] < 1.2e-38
    assert ELEMENT < SIZE
