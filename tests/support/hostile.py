"""Valid Programs that crash, block or exhaust a planner or executor (or once did), and a job with such a step.

Each row has ops that are appended to an honest step, whose layout is unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from lockstep.numerics.validate import validate
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.opcodes import Opcode
from lockstep.protocol.programs.program import F32, Alias, Fold, Instr, Kind, Op, Program, Tag, View
from lockstep.storage import ContentStore
from tests.support import toyjob

Ops = Callable[[int], Sequence[Op]]
"""Returns ops of a Program, given the number of ops before them."""
FLAT = 0
"""The state entry that the ops read: eight numbers."""


def step_with(ops: Ops, honest: Program) -> Program:
    """Returns a step whose first output additionally has the first element of the last of these ops."""
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


def publish(store: ContentStore, ops: Ops, **terms: Any) -> JobParams:
    """Stores the toy job with such a step; returns its parameters."""
    honest = toyjob.step_program
    with mock.patch.object(toyjob, "step_program", lambda *a, **k: step_with(ops, honest(*a, **k))):
        return toyjob.publish(store, **terms)


def concats_of_one_part(first: int) -> list[Op]:
    """Two consecutive concats of one part each."""
    return [Op(Kind.CONCAT, F32, (8,), (view,), p0=0, sizes=(8,)) for view in (_state(1), _op(first, 1))]


def map_without_operands(first: int) -> list[Op]:
    """A map without operands, a product, their sum, and the maxima of its rows."""
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
    """Consecutive sums of 2^24 terms into 2^31 - 1 elements."""
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
    """A copy of 2^28 elements in overlapping windows, read by a product with as many rows."""
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


def late_sum(first: int) -> list[Op]:
    """2^20 terms into each of 2^17 elements: minutes of work that pass an unmeasured estimate."""
    return [
        Op(Kind.FOLD, F32, (1 << 17,), (_state(0, 0),), (1 << 20,), Fold.SUM),
        Op(Kind.FOLD, F32, (), (_op(first, 1),), (1 << 17,), Fold.SUM),
    ]


HOSTILE: dict[str, Ops] = {
    "concats of one part": concats_of_one_part,
    "a map without operands": map_without_operands,
    "work beyond an int64": work_beyond_an_int64,
    "masks": masks,
    "tables of places": tables_of_places,
    "an endless sum": endless_sum,
}

MOST_TERMS, MOST_ELEMENTS = 1 << 24, (1 << 31) - 1
"""Most terms and elements of one op."""


def drawn(rng: random.Random) -> Ops:
    """Returns random ops near some limit of memory, time, planner or compiler. `validate` may refuse them."""
    return rng.choice((_sums, _masks, _tables, _copies, _parts, _instructions))(rng)


def _sums(rng: random.Random) -> Ops:
    """Consecutive sums of many terms into many elements."""
    each, terms = _upto(rng, MOST_ELEMENTS), _upto(rng, MOST_TERMS)

    def ops(first: int) -> list[Op]:
        views = [_state(0, 0), *(_op(first + i, 0, 0) for i in range(_upto(rng, 300) - 1))]
        return [
            *(Op(Kind.FOLD, F32, (each,), (view,), (terms,), rng.choice((Fold.SUM, Fold.MAX))) for view in views),
            Op(Kind.FOLD, F32, (), (_op(first + len(views) - 1, 1),), (each,), Fold.MAX),
        ]

    return ops


def _masks(rng: random.Random) -> Ops:
    """Selections by conditions that a planner evaluates for every cell of a square."""
    side, selections = _upto(rng, 4096), _upto(rng, 16)

    def ops(first: int) -> list[Op]:
        made = [Op(Kind.FOLD, F32, (side, side), (_state(0, 0, 1), _state(0, 0, 1)), (2,), Fold.DOT)]
        for s in range(selections):
            chain = [Instr(Opcode.I2F, 2), *(Instr(Opcode.FDIV, 3 + i, 3) for i in range(_upto(rng, 27)))]
            chain += [Instr(Opcode.IAND, len(chain) + 2, 1), Instr(Opcode.SELECT, len(chain) + 3, 0, 1)]
            views = (_op(first + s, side, 1), View(Tag.IOTA, 0, 0, (1, 0)), View(Tag.IOTA, 0, 0, (0, 1)))
            made.append(Op(Kind.MAP, F32, (side, side), views, instrs=tuple(chain)))
        return [*made, Op(Kind.FOLD, F32, (side,), (_op(first + selections, side, 1),), (side,), Fold.MAX)]

    return ops


def _tables(rng: random.Random) -> Ops:
    """A copy read by a product in overlapping windows: a planner may tabulate every row."""
    rows = 2 * _upto(rng, 1 << 27)
    return lambda first: [
        Op(Kind.MAP, F32, (rows, 4), (_state(0, 1),)),
        Op(Kind.FOLD, F32, (rows // 2, 2), (_op(first, 8, 0, 1), _state(0, 1, 0)), (8,), Fold.DOT),
        Op(Kind.MAP, F32, (), (_op(first + 1),)),
    ]


def _copies(rng: random.Random) -> Ops:
    """A chain of copies of large tensors, each a view of the previous copy."""
    size, many = _upto(rng, 1 << 26), _upto(rng, 2000)

    def ops(first: int) -> list[Op]:
        views = [_state(0), *(_op(first + i, rng.choice((0, 1))) for i in range(many - 1))]
        return [Op(Kind.MAP, F32, (size,), (view,)) for view in views]

    return ops


def _parts(rng: random.Random) -> Ops:
    """Nested concats of one part or many."""
    many, parts = _upto(rng, 500), _upto(rng, 64)

    def ops(first: int) -> list[Op]:
        made = []
        for i in range(many):
            view = _state(1) if i == 0 else _op(first + i - 1, 1)
            made.append(Op(Kind.CONCAT, F32, (8 * parts,), (view,) * parts, p0=0, sizes=(8,) * parts))
        return made

    return ops


def _instructions(rng: random.Random) -> Ops:
    """Maps with the most instructions, all different, so that a compiler must process each."""
    many, size = _upto(rng, 300), _upto(rng, 1 << 20)

    def ops(first: int) -> list[Op]:
        made = []
        for i in range(many):
            view = _state(0) if i == 0 else _op(first + i - 1, 1)
            chain = [
                Instr(rng.choice((Opcode.FADD, Opcode.FMUL, Opcode.FDIV)), k, rng.randrange(k + 1)) for k in range(31)
            ]
            made.append(Op(Kind.MAP, F32, (size,), (view,), instrs=tuple(chain)))
        return made

    return ops


def _upto(rng: random.Random, most: int) -> int:
    """Returns a size with a random number of digits: small ones, and the limit itself."""
    return most if rng.random() < 0.2 else max(1, int(most ** rng.random()))


_ONE = Instr(Opcode.IMM, imm=0x3F800000)
_SUM = Instr(Opcode.FADD, 0, 1)


def _state(*strides: int) -> View:
    return View(Tag.STATE, FLAT, 0, strides)


def _op(op: int, *strides: int) -> View:
    return View(Tag.OP, op, 0, strides)
