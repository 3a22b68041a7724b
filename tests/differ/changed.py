"""Mutates Programs of other kinds in a few fields: views, extents, opcodes, modes, parts, outputs."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod

from lockstep.protocol.programs.opcodes import ARITY, Opcode
from lockstep.protocol.programs.program import STOCHASTIC, Alias, Fold, Instr, Kind, Op, Program, Tag
from tests.differ import layers, traced
from tests.differ.case import Case, filled, finished

TRACED = 96
"""Number of traced Programs that are mutated: the first seeds of that kind."""
MOST = 20_000_000
"""Most work of a case."""


def changed(program: Program, rng: random.Random) -> Program:
    """Returns the Program with one to three changed fields, valid or not."""
    ops = list(program.ops)
    shown: list[int] = [a.index for a in program.outputs if a.kind == Alias.OP_KIND]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        i = rng.randrange(len(ops))
        ops[i] = changed_op(ops[i], i, rng)
        if rng.random() < 0.15:
            shown.append(rng.randrange(len(ops)))
        if rng.random() < 0.1 and len(shown) > 1:
            shown.remove(rng.choice(shown))
    return finished(ops, program.inputs, program.consts, shown)


def changed_op(op: Op, i: int, rng: random.Random) -> Op:
    roll = rng.random()
    if roll < 0.45 and op.views:
        return _other_view(op, i, rng)
    if roll < 0.6 and op.extents:
        axis, extents = rng.randrange(len(op.extents)), list(op.extents)
        e = extents[axis]
        extents[axis] = max(1, rng.choice((e - 1, e + 1, e // 2, 1, e * 2)))
        if op.kind == Kind.CONCAT and axis == op.p0:
            sizes = list(op.sizes)
            sizes[-1] += extents[axis] - e
            return replace(op, extents=tuple(extents), sizes=tuple(sizes)) if sizes[-1] > 0 else op
        return replace(op, extents=tuple(extents))
    if roll < 0.68 and op.k_extents:
        k = op.k_extents[0]
        return replace(op, k_extents=(max(1, rng.choice((k - 1, k + 1, k // 2, 1, k * 2, 256, 257))),))
    if roll < 0.74 and op.kind == Kind.FOLD and op.mode in (Fold.SUM, Fold.MAX, Fold.MIN):
        return replace(op, mode=rng.choice((Fold.SUM, Fold.MAX, Fold.MIN)))
    if roll < 0.86 and op.instrs:
        instrs = list(op.instrs)
        at = rng.randrange(len(instrs))
        old, registers = instrs[at], len(op.views) + at
        alike = [o for o in Opcode if ARITY[o] == ARITY[Opcode(old.op)] and o != Opcode.IMM]
        if old.op == Opcode.IMM:
            instrs[at] = replace(old, imm=rng.choice((0, 1, 0x3F800000, 0xFF800000, 0x7FC00000, 0x80000000)))
        elif rng.random() < 0.5 or not registers:
            instrs[at] = replace(old, op=rng.choice(alike))
        else:
            reads = [rng.randrange(registers) for _ in range(ARITY[Opcode(old.op)])]
            instrs[at] = Instr(old.op, *reads)
        return replace(op, instrs=tuple(instrs))
    if roll < 0.92 and op.kind == Kind.QUANT:
        return replace(op, p1=rng.choice((0, STOCHASTIC, STOCHASTIC + 5))) if op.gives_codes else op
    if roll < 0.96 and op.kind == Kind.CONCAT and len(op.sizes) > 1 and op.sizes[0] > 1:
        return replace(op, sizes=(op.sizes[0] - 1, *op.sizes[1:-1], op.sizes[-1] + 1))
    views = list(op.views)
    if op.kind in (Kind.MAP, Kind.CONCAT) and len(views) > 1:
        rng.shuffle(views)
    elif len(views) == 2 and op.kind == Kind.FOLD:
        views.reverse()
    return replace(op, views=tuple(views))


def _other_view(op: Op, i: int, rng: random.Random) -> Op:
    at = rng.randrange(len(op.views))
    view, roll = op.views[at], rng.random()
    strides = list(view.strides)
    if roll < 0.5 and strides:
        axis = rng.randrange(len(strides))
        s = strides[axis]
        strides[axis] = rng.choice((0, 1, -1, 2, s + 1, s - 1, -s, s * 2, rng.choice(strides)))
        view = replace(view, strides=tuple(strides))
    elif roll < 0.75:
        view = replace(view, offset=max(0, view.offset + rng.choice((1, -1, 4, 16, -4, 64, rng.randrange(200)))))
    elif roll < 0.9 and i:
        view = replace(view, tag=Tag.OP, index=rng.randrange(i))
    else:
        view = replace(view, tag=rng.choice((Tag.STATE, Tag.IOTA)), index=0)
    return replace(op, views=(*op.views[:at], view, *op.views[at + 1 :]))


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed: a mutated Program of the kinds traced or layers."""
    rng = random.Random(seed)
    base: Case | None
    if rng.random() < 0.5:
        base = traced.make(rng.randrange(TRACED), name)
    else:
        base = layers.make(rng.randrange(1 << 20), name)
    if base is None:
        return None
    program = changed(base.program, rng)
    work = sum(prod(op.extents) * max(1, op.k_terms) for op in program.ops)
    if work > MOST or program.ops[-1].cumulative > 600_000:
        return None
    if len({op.extents[-1] for op in program.ops if op.kind == Kind.DRAW}) > 1:
        return None
    return filled(name, program, seed)
