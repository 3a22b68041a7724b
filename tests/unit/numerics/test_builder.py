"""Programs written by hand: views, broadcasting, names, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.builder import Expression, ProgramBuilder
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.programs.program import F32, I32, Alias, Program
from tests.unit.numerics.comparison import CONTEXT


def test_a_program_is_valid_padded_and_named() -> None:
    b = ProgramBuilder([(F32, 6), (I32, None), None])
    x = b.input(0).reshape(2, 3)
    rows = b.sum(x, name="rows")
    clock = b.map((), [b.input(1)], lambda e, c: e.iadd(c, e.i32(1)))
    program = b.finish([rows, clock, b.input(0)])
    validate(program)
    assert program.names == ("rows", "map_1")
    assert len(program.inputs) == len(program.outputs) == 4, "powers of two"
    assert program.outputs[2] == Alias(Alias.STATE_KIND, 0)
    assert [op.cumulative for op in program.ops] == [2, 3]
    assert Program.decode(program.header, program.descriptors, program.consts) == program


def test_views_read_what_numpy_reads() -> None:
    values = np.arange(24, dtype=np.float32)
    b = ProgramBuilder([(F32, 24)])
    x, y = b.input(0).reshape(2, 3, 4), values.reshape(2, 3, 4)
    views = {
        "permute": (x.permute(2, 0, 1), y.transpose(2, 0, 1)),
        "slice": (x.slice(1, 1, 3), y[:, 1:3]),
        "step": (x.slice(2, 0, 4, 3), y[:, :, ::3]),
        "expand": (x.slice(0, 1, 2).expand(5, 3, 4), np.broadcast_to(y[1:2], (5, 3, 4))),
        "unsqueeze": (x.unsqueeze(1), y[:, None]),
        "lead": (x.slice(0, 0, 1).reshape(3, 4).expand(2, 3, 4), np.broadcast_to(y[0], (2, 3, 4))),
    }
    copies = [b.map(view.shape, [view], name=name) for name, (view, _) in views.items()]
    outputs = paths.compile(b.finish([])).run([values], CONTEXT, keep=True)
    for copy, (name, (_, due)) in zip(copies, views.items(), strict=True):
        got = outputs[copy.index]
        assert got is not None
        np.testing.assert_array_equal(got, due, err_msg=name)


def test_folds_broadcast_all_but_the_last_axis() -> None:
    b = ProgramBuilder([(F32, 6), (F32, 12)])
    product = b.dot(b.input(0).reshape(2, 1, 3), b.input(1).reshape(4, 3))
    x, y = np.arange(6, dtype=np.float32), np.arange(12, dtype=np.float32)
    output = paths.compile(b.finish([product])).run([x, y], CONTEXT)[0]
    assert output is not None
    np.testing.assert_array_equal(output, x.reshape(2, 3) @ y.reshape(4, 3).T)


def test_equal_constants_are_one() -> None:
    b = ProgramBuilder()
    first, second = b.const(np.arange(3, dtype=np.float32)), b.const(np.arange(3, dtype=np.float32))
    assert first == second
    assert len(b.consts) == 1
    assert b.const(np.zeros((2, 2), np.int32)).index == 1


def test_expressions_name_opcodes_as_methods() -> None:
    e = Expression(2)
    assert e.ffma(0, 1, e.f32(1.0)) == 3
    assert [i.op.name for i in e.instrs] == ["IMM", "FFMA"]
    with pytest.raises(AttributeError):
        e.fancy(0)
    with pytest.raises(ProgramInvalid, match="FADD of 1"):
        e.fadd(0)


def test_what_is_no_view_is_refused() -> None:
    b = ProgramBuilder([(F32, 6), None])
    x = b.input(0).reshape(2, 3)
    with pytest.raises(ProgramInvalid, match="broadcast"):
        x.expand(4, 3)
    with pytest.raises(ProgramInvalid, match="strided"):
        x.permute(1, 0).reshape(6)
    with pytest.raises(ProgramInvalid, match="reshape"):
        x.reshape(7)
    with pytest.raises(ProgramInvalid, match="EMPTY"):
        b.input(1)
    with pytest.raises(ProgramInvalid, match="terms"):
        b.dot(x, b.input(0))
    with pytest.raises(ProgramInvalid, match="view"):
        b.finish([x])
