"""Valid Programs that end, freeze or fill what plans or runs them, or once did; and a job that has one as its step.

Each row gives ops that are put behind a step's own; the step's layout is the honest one's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest import mock

from lockstep.numerics.validate import validate
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.opcodes import Opcode
from lockstep.protocol.programs.program import F32, Alias, Fold, Instr, Kind, Op, Program, Tag, View
from lockstep.storage import ContentStore
from tests.support import toyjob

Ops = Callable[[int], Sequence[Op]]
"""Ops of a Program, which has so many ops before them."""
FLAT = 0
"""The state entry that they read: eight numbers."""


def step_with(ops: Ops, honest: Program) -> Program:
    """A step whose first output has the first element of the last of these ops added to it."""
    made = [*honest.ops, *ops(len(honest.ops))]
    read = honest.outputs[0].index
    views = (View(Tag.OP, read, 0, (1,)), View(Tag.OP, len(made) - 1, 0, (0,)))
    made.append(Op(Kind.MAP, F32, made[read].extents, views, instrs=(Instr(Opcode.FADD, 0, 1),)))
    total, counted = 0, []
    for op in made:
        total += op.header.elements
        counted.append(replace(op, cumulative=total))
    outputs = (Alias(Alias.OP_KIND, len(made) - 1), *honest.outputs[1:])
    program = replace(honest, ops=tuple(counted), outputs=outputs, names=(), places=())
    validate(program)
    return program


def publish(store: ContentStore, ops: Ops) -> JobParams:
    """The toy job with such a step; returns its parameters."""
    honest = toyjob.step_program
    with mock.patch.object(toyjob, "step_program", lambda *a, **k: step_with(ops, honest(*a, **k))):
        return toyjob.publish(store)


def concats_of_one_part(first: int) -> list[Op]:
    """Two concats of one part each, one after the other."""
    return [Op(Kind.CONCAT, F32, (8,), (view,), p0=0, sizes=(8,)) for view in (_state(1), _op(first, 1))]


def map_without_operands(first: int) -> list[Op]:
    """A map of no operand beside a product, their sum, its rows' largest elements."""
    rows, columns = 8, 4
    whole = (rows * columns, columns, 1)
    return [
        Op(Kind.FOLD, F32, (2, rows, columns), (_state(0, 0, 0, 1), _state(0, 0, 0, 1)), (2,), Fold.DOT),
        Op(Kind.MAP, F32, (2, rows, columns), (), instrs=(_ONE, Instr(Opcode.FADD, 0, 0))),
        Op(Kind.MAP, F32, (2, rows, columns), (_op(first, *whole), _op(first + 1, *whole)), instrs=(_SUM,)),
        Op(Kind.FOLD, F32, (2, rows), (_op(first + 2, *whole),), (columns,), Fold.MAX),
        Op(Kind.MAP, F32, (2 * rows,), (_op(first + 3, 1),)),
    ]


def work_beyond_an_int64(first: int) -> list[Op]:
    """Sums of 2^24 terms into 2^31 - 1 elements, one after the other."""
    each, many = (1 << 31) - 1, 300
    views = [_state(0, 0), *(_op(first + i, 0, 0) for i in range(many - 1))]
    return [Op(Kind.FOLD, F32, (each,), (view,), (1 << 24,), Fold.SUM) for view in views]


def masks(first: int) -> list[Op]:
    """Selections by a condition that a planner evaluates for every cell of a square."""
    side, ops = 512, []
    ops.append(Op(Kind.FOLD, F32, (side, side), (_state(0, 0, 1), _state(0, 0, 1)), (2,), Fold.DOT))
    for s in range(4):
        chain = [Instr(Opcode.I2F, 2), *(Instr(Opcode.FTANH, 3 + i) for i in range(7))]
        chain += [Instr(Opcode.FDIV, 10 + i, 3) for i in range(20)]
        chain += [Instr(Opcode.IAND, 30, 1), Instr(Opcode.SELECT, 31, 0, 1)]
        views = (_op(first + s, side, 1), View(Tag.IOTA, 0, 0, (1, 0)), View(Tag.IOTA, 0, 0, (0, 1)))
        ops.append(Op(Kind.MAP, F32, (side, side), views, instrs=tuple(chain)))
    ops.append(Op(Kind.FOLD, F32, (side,), (_op(first + 4, side, 1),), (side,), Fold.MAX))
    return ops


def tables_of_places(first: int) -> list[Op]:
    """A copy of 2^28 elements in windows that lie on one another, read by a product of as many rows."""
    rows = 1 << 26
    return [
        Op(Kind.MAP, F32, (rows, 4), (_state(0, 1),)),
        Op(Kind.FOLD, F32, (rows // 2, 2), (_op(first, 8, 0, 1), _state(0, 1, 0)), (8,), Fold.DOT),
        Op(Kind.MAP, F32, (), (_op(first + 1),)),
    ]


def endless_sum(first: int) -> list[Op]:
    """2^24 terms into each of 2^30 elements, and their sum: years of work."""
    return [
        Op(Kind.FOLD, F32, (1 << 30,), (_state(0, 0),), (1 << 24,), Fold.SUM),
        Op(Kind.FOLD, F32, (), (_op(first, 1),), (1 << 24,), Fold.SUM),
    ]


HOSTILE: dict[str, Ops] = {
    "concats of one part": concats_of_one_part,
    "a map without operands": map_without_operands,
    "work beyond an int64": work_beyond_an_int64,
    "masks": masks,
    "tables of places": tables_of_places,
    "an endless sum": endless_sum,
}

_ONE = Instr(Opcode.IMM, imm=0x3F800000)
_SUM = Instr(Opcode.FADD, 0, 1)


def _state(*strides: int) -> View:
    return View(Tag.STATE, FLAT, 0, strides)


def _op(op: int, *strides: int) -> View:
    return View(Tag.OP, op, 0, strides)
