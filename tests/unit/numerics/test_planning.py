"""Programs written to end or to hold up whoever plans them: each is planned, and has the bits of its ops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lockstep.execution import footprint
from lockstep.numerics.arrays import Array, to_array
from lockstep.numerics.builder import Expression, ProgramBuilder, Tensor
from lockstep.numerics.built import kernels
from lockstep.numerics.validate import validate
from lockstep.protocol.programs.program import F32, Program, Tag
from tests.unit.numerics.comparison import CONTEXT, compare, normal, words

LONG = "planning it takes too long"


def _planned(program: Program, plain: bool = False) -> kernels.Executor:
    consts = [to_array(c.header, c.data).reshape(-1) for c in program.consts]
    return kernels.Executor(program.header, list(program.descriptors), consts, plain)


def _state(program: Program) -> list[Array | None]:
    rng = np.random.default_rng(0)
    return [None if h is None else normal(rng, h.elements) for h in program.inputs]


def _concats() -> Program:
    """A concat of one part, of a concat of one part, of another one."""
    b = ProgramBuilder([(F32, 24)])
    inner = b.concat([b.input(0).reshape(4, 6)], axis=1)
    middle = b.concat([inner], axis=0)
    return b.finish([b.map((24,), [b.concat([middle], axis=1).reshape(24)], lambda e, x: e.fneg(x))])


def _without_operands() -> Program:
    """A strip group with a map of immediates alone."""
    b = ProgramBuilder([(F32, 64), (F32, 64)])
    q, k = b.input(0).reshape(2, 8, 1, 4), b.input(1).reshape(2, 1, 8, 4)
    scores = b.dot(q, k)

    def one(e: Expression) -> int:
        return e.fadd(e.f32(0.5), e.f32(0.5))

    ones = b.map((2, 8, 8), [], one, dtype=F32)
    wide = b.map((2, 8, 8), [scores, ones], lambda e, x, y: e.fadd(x, y))
    return b.finish([b.map((16,), [b.max(wide).reshape(16)], lambda e, x: e.fneg(x))])


def _masked(side: int, masks: int) -> Program:
    """Softmax's maximum behind masks whose conditions take long to compute."""
    b = ProgramBuilder([(F32, side * 2), (F32, side * 2)])
    x = b.dot(b.input(0).reshape(side, 1, 2), b.input(1).reshape(1, side, 2))
    for mask in range(masks):

        def masked(e: Expression, value: int, column: int, _mask: int = mask) -> None:
            condition = first = e.fadd(e.i2f(column), e.f32(_mask))
            for _ in range(20):
                condition = e.fdiv(condition, first)
            e.fadd(e.select(condition, value, e.f32(0.0)), value)  # the sum may be masked again

        x = b.map((side, side), [x, b.iota((side, side), axis=1)], masked, dtype=F32)
    return b.finish([b.map((side,), [b.max(x)], lambda e, v: e.fneg(v))])


def _sums(count: int) -> Program:
    """Sums of 2^24 terms into 2^31 - 1 elements, one after the other: more work than 63 bits count."""
    b = ProgramBuilder([(F32, None)])
    elements, terms = (1 << 31) - 1, 1 << 24
    x = b.input(0)
    for _ in range(count):
        one = Tensor(F32, (elements, terms), x.tag, x.index, 0, (0, 0))
        x = b.sum(one)
    first = Tensor(F32, (), Tag.OP, x.index, 0, ())
    return b.finish([b.map((), [first], lambda e, v: e.fneg(v))])


def _windows(rows: int) -> Program:
    """A product whose rows are windows of a copy, a table of which would be as large as the tensors."""
    b = ProgramBuilder([(F32, 4)])
    copy = b.map((rows, 4), [Tensor(F32, (rows, 4), Tag.STATE, 0, 0, (0, 1))])
    left = Tensor(F32, (rows // 2, 2, 8), Tag.OP, copy.index, 0, (8, 0, 1))
    right = Tensor(F32, (rows // 2, 2, 8), Tag.STATE, 0, 0, (0, 1, 0))
    return b.finish([b.map((), [Tensor(F32, (), Tag.OP, b.dot(left, right).index, 0, ())])])


@pytest.mark.parametrize("make", [_concats, _without_operands], ids=["one-part concats", "a map without operands"])
def test_odd_forms_have_the_reference_bits(make: Callable[[], Program]) -> None:
    program = make()
    validate(program)
    compare(program, _state(program), threads=(1, 2))


@pytest.mark.parametrize(
    "program",
    [_masked(4096, 1), _masked(1024, 16), _windows(1 << 28)],
    ids=["masks of many cells", "many masks", "a table as large as its tensors"],
)
def test_what_takes_too_long_to_plan_is_run_op_by_op(program: Program) -> None:
    validate(program)
    assert _planned(program).plain == LONG, "the reason"


def test_a_program_of_more_work_than_64_bits_count_is_quoted() -> None:
    program = _sums(300)
    validate(program)
    assert footprint.of_program(program).shown > 2 * 4 * ((1 << 31) - 1), "a sum and what it reads"


@pytest.mark.parametrize("make", [_concats, _without_operands, lambda: _masked(40, 2), lambda: _windows(64)])
def test_the_plain_schedule_has_the_fused_bits(make: Callable[[], Program]) -> None:
    program = make()
    arguments = (_state(program), CONTEXT.seed, *CONTEXT.words, None, False, 1, "auto")
    fused, plain = (_planned(program, plain).run(*arguments) for plain in (False, True))
    for alias in program.outputs:
        np.testing.assert_array_equal(words(fused[alias.index]), words(plain[alias.index]), err_msg="an output")


def test_a_fused_program_gives_no_reason() -> None:
    assert _planned(_masked(40, 1)).plain == "", "fused"
    assert _planned(_masked(40, 1), plain=True).plain == "asked for", "by itself"
