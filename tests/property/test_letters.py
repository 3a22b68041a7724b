"""The letters' fast arithmetic against the specification, op by op."""

from __future__ import annotations

import pytest

from lockstep.numerics import reference
from lockstep.numerics.validate import validate
from lockstep.protocol.programs.program import CHUNK, Tag
from tests.support import letters
from tests.support.letters import LetterStep


def operands(step: LetterStep) -> reference.Operands:
    def word(tag: Tag, index: int, at: int) -> int:
        held = step.output(index) if tag == Tag.OP else step.state(index)
        return int.from_bytes(held.data[4 * at : 4 * at + 4], "little")

    return reference.Operands(word, letters.SEED, (3, 1, 1))


@pytest.mark.parametrize("t", [1, 2, 3])
def test_every_op_is_what_the_specification_says(t: int) -> None:
    step = letters.truth(3).step(t)
    for index, op in enumerate(step.program.ops):
        for at in {0, op.header.elements // 2, op.header.elements - 1}:
            held = int.from_bytes(step.output(index).data[4 * at : 4 * at + 4], "little")
            assert held == reference.element(op, at, operands(step)), f"op {index}, element {at}"


def test_partials_are_what_the_specification_says() -> None:
    step = letters.truth(3).step(1)
    op = step.program.ops[letters.TOTAL_OP]
    low = step.partials(letters.TOTAL_OP, 0, 1)
    assert low == [reference.chunk(op, 0, CHUNK + i, operands(step)) for i in range(len(low))]
    top = step.partials(letters.TOTAL_OP, 0, None)
    assert top[1] == reference.combine(op.mode, low)
    sums = step.partials(letters.SUM_OP, 0, None)
    assert sums == [reference.chunk(step.program.ops[letters.SUM_OP], 0, c, operands(step)) for c in range(2)]


@pytest.mark.parametrize("depth", [3, 6])
def test_programs_could_be_defended(depth: int) -> None:
    validate(letters.step_program(depth))
    validate(letters.encode_program(depth))


def test_trees_take_one_reveal_or_more() -> None:
    assert letters.step_program(3).depth == 4, "one reveal"
    assert letters.step_program(6).depth == 7, "two reveals"
    assert letters.step_program(3).ops[letters.RULER_OP].header.depth == 7, "two reveals"
    assert letters.step_program(3).state_block > 6, "there is padding"


def test_states_follow_one_another() -> None:
    claim = letters.truth(3)
    for t in (2, 3):
        assert claim.step(t).prev[-1][0] == claim.trace[t - 2], f"S_{t - 1}"
