"""Generates Programs that break rules of the validator: the decoders must accept or refuse them consistently.

A Program of another kind gets a few forbidden fields: ops that no output needs, words read as another dtype, any stride
along k, folds of iotas, unread registers. What the kernels' decoder accepts must give the slow executor's bits, and
both decoders must refuse the rest.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from lockstep.protocol.programs.opcodes import ARITY, Opcode
from lockstep.protocol.programs.program import F32, I32, Alias, Fold, Kind, Op, Tag, View
from tests.differ import anything, layers, nearly
from tests.differ.case import Case, counted, filled, padded
from tests.differ.changed import MOST, changed_op

BASES = (nearly.make, nearly.make, anything.make, layers.make)
ELEMENTS = 600_000
"""Most elements of all ops of a case."""
MOST_REGISTERS = 255
"""The largest register number in a byte; an instruction may name it without reading it."""


def unruled_op(ops: Sequence[Op], i: int, rng: random.Random) -> Op:
    """Returns op i with one change that a rule forbids more often than not."""
    op, roll = ops[i], rng.random()
    if roll < 0.25 and op.views and i:
        return _read_otherwise(ops, i, rng)
    if roll < 0.45 and op.k_extents and op.kind == Kind.FOLD:
        return _strides_along_k(ops, op, rng)
    if roll < 0.6 and op.instrs:
        return _idle_registers(op, rng)
    if roll < 0.7 and op.kind in (Kind.MAP, Kind.CONCAT, Kind.FOLD, Kind.GATHER):
        return replace(op, dtype=F32 if op.dtype == I32 else I32)
    if roll < 0.8 and op.views and op.kind in (Kind.FOLD, Kind.CONCAT, Kind.GATHER):
        at = rng.randrange(len(op.views))
        strides = tuple(rng.choice((0, 1, 1, -1, 3)) for _ in op.views[at].strides)
        view = View(Tag.IOTA, 0, rng.choice((0, 1, 0x3F800000)), strides)
        return replace(op, views=(*op.views[:at], view, *op.views[at + 1 :]))
    if roll < 0.9 and op.kind == Kind.MAP and op.views:
        more = [rng.choice(op.views) for _ in range(rng.choice((1, 2, 8 - min(8, len(op.views)))))]
        # Appended after the other operands; registers of the instructions shift accordingly.
        n = len(op.views)

        def moved(register: int) -> int:
            return register if register < n else min(register + len(more), MOST_REGISTERS)

        instrs = tuple(replace(x, a=moved(x.a), b=moved(x.b), c=moved(x.c)) for x in op.instrs)
        return replace(op, views=(*op.views, *more), instrs=instrs)
    return changed_op(op, i, rng)


def _read_otherwise(ops: Sequence[Op], i: int, rng: random.Random) -> Op:
    """Returns the op with a tensor of another dtype in place of one, at the same strides."""
    op = ops[i]
    at = rng.randrange(len(op.views))
    others = [j for j in range(i) if ops[j].header.elements >= 1]
    alike = [j for j in others if ops[j].kind == Kind.QUANT] or others
    if op.is_qdot:  # scales as codes
        alike = [j for j in alike if not ops[j].gives_codes] or alike
    view = replace(op.views[at], tag=Tag.OP, index=rng.choice(alike if rng.random() < 0.5 else others))
    return replace(op, views=(*op.views[:at], view, *op.views[at + 1 :]))


def _strides_along_k(ops: Sequence[Op], op: Op, rng: random.Random) -> Op:
    at = rng.randrange(len(op.views))
    view = op.views[at]
    along = rng.choice((0, 2, 3, -1, -1, view.strides[0], *view.strides))
    offset = view.offset + (op.k_extents[0] - 1 if along == -1 else 0)
    view = replace(view, offset=offset, strides=(*view.strides[:-1], along))
    return replace(op, views=(*op.views[:at], view, *op.views[at + 1 :]))


def _idle_registers(op: Op, rng: random.Random) -> Op:
    """Adds unread registers and an immediate to an instruction."""
    at = rng.randrange(len(op.instrs))
    old = op.instrs[at]
    reads = 0 if old.op == Opcode.IMM else ARITY[Opcode(old.op)]
    named = {name: rng.choice((0, 1, 40, 255)) for name in ("a", "b", "c")[reads:]}
    new = replace(old, **named) if old.op == Opcode.IMM else replace(old, imm=rng.choice((0, 1, 0xFFFFFFFF)), **named)
    return replace(op, instrs=(*op.instrs[:at], new, *op.instrs[at + 1 :]))


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed."""
    rng = random.Random(seed)
    base = rng.choice(BASES)(rng.randrange(1 << 20), name)
    if base is None:
        return None
    program, ops = base.program, list(base.program.ops)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        products = [i for i, op in enumerate(ops) if op.is_qdot]
        i = rng.choice(products) if products and rng.random() < 0.5 else rng.randrange(len(ops))
        ops[i] = unruled_op(ops, i, rng)
    outputs = [a for a in program.outputs if a.kind != Alias.EMPTY_KIND]
    if rng.random() < 0.5:
        outputs = [a for a in outputs if rng.random() < 0.6]
    if rng.random() < 0.2:
        outputs.append(Alias(Alias.OP_KIND, rng.randrange(len(ops))))
    work = sum(prod(op.extents) * max(1, op.k_terms) for op in ops)
    if work > MOST or sum(op.header.elements for op in ops) > ELEMENTS:
        return None
    if any(not -(2**31) <= x < 2**31 for op in ops for view in op.views for x in (view.offset, *view.strides)):
        return None  # the file format cannot represent these
    if len({op.extents[-1] for op in ops if op.kind == Kind.DRAW}) > 1 or any(op.mode > max(Fold) for op in ops):
        return None
    program = replace(program, ops=counted(ops), outputs=padded(outputs, Alias(Alias.EMPTY_KIND)))
    return filled(name, program, seed)
