"""Generates random Programs with all kinds of ops at all limits of the rules, regardless of what a tracer writes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from lockstep.numerics.arrays import const
from lockstep.numerics.builder import row_major
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.opcodes import ARITY, FUNCTIONS, Opcode
from lockstep.protocol.programs.program import (
    F32,
    I32,
    STOCHASTIC,
    Alias,
    Fold,
    Instr,
    Kind,
    Op,
    Quant,
    Tag,
    View,
    groups_of,
)
from tests.differ.case import Case, filled, finished

LEAST, LARGEST = -(2**31), 2**31 - 1
EXTENTS = (1, 1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 255, 256, 257, 300, 512, 1025)
TERMS = (1, 1, 2, 3, 5, 8, 16, 17, 31, 48, 64, 100, 255, 256, 257, 512, 600, 1200)
LONG = (65535, 65536, 65537, 66000)
"""Numbers of terms around two levels of partials."""
WIDE = 3000
"""Number of elements of most tensors."""
IMMEDIATES = (0, 1, 0x3F800000, 0xFFFFFFFF, 0x7FC00000, 0x80000000, 0x7F800000, 0xFF800000, 0x7F800001)


class Anything:
    """A list of ops that grows by one op at a time; each reads any earlier tensor."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ops: list[Op] = []
        pick = self.rng.choice
        self.inputs: list[TensorHeader | None] = [
            TensorHeader(F32, (pick((WIDE, 257, 1024, 33)),)), TensorHeader(I32, (WIDE,)), TensorHeader(F32, ()),
            TensorHeader(F32, (pick((WIDE, 8192, 1)),)), TensorHeader(I32, ()),
        ]  # fmt: skip
        if self.chance(0.2):
            self.inputs.insert(pick((0, 2, 5)), None)
        if self.chance(0.15):
            self.inputs.append(TensorHeader(F32, (70_000,)))
        rng = np.random.default_rng(seed)
        self.consts = [
            const(rng.standard_normal((7, 11)).astype(np.float32)), const(rng.integers(-5, 80, 64).astype(np.int32)),
            const(np.float32(-0.0).reshape(())), const(rng.standard_normal((1,) * 7 + (300,)).astype(np.float32)),
        ]  # fmt: skip
        self.favourites = [self.shape() for _ in range(3)]

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def shape(self, most: int = 2500) -> tuple[int, ...]:
        rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7, 8))
        found, left = [], most
        for _ in range(rank):
            found.append(max(1, min(left, self.rng.choice(EXTENTS))))
            left //= found[-1]
        self.rng.shuffle(found)
        return tuple(found)

    # --- views ------------------------------------------------------------------------------------------------------

    def source(self, dtype: int) -> tuple[Tag, int, int]:
        """Returns (tag, index, elements) of a tensor with that dtype: an op's output, most often a recent one, or a
        leaf.
        """
        made = [(Tag.OP, i, op.header.elements) for i, op in enumerate(self.ops) if op.dtype == dtype]
        if made and self.chance(0.75):
            return self.rng.choice(made[-5:] if self.chance(0.8) else made)
        leaves = [(Tag.STATE, i, h.elements) for i, h in enumerate(self.inputs) if h is not None and h.dtype == dtype]
        leaves += [(Tag.CONST, i, c.header.elements) for i, c in enumerate(self.consts) if c.header.dtype == dtype]
        if dtype == I32:
            leaves.append((Tag.CONTEXT, 0, 3))
        return self.rng.choice(leaves)

    def iota(self, dtype: int, axes: int) -> View:
        strides = (0,) * axes
        if dtype == I32:
            strides = tuple(self.rng.choice((0, 0, 1, -1, 3, -7, LARGEST, LEAST)) for _ in range(axes))
        return View(Tag.IOTA, 0, self.rng.choice((0, 1, -9, LARGEST, LEAST, 0x3F800000)), strides)

    def view(
        self,
        dtype: int,
        extents: Sequence[int],
        *,
        along: tuple[int, ...] | None = None,
        unit: int = 1,
        beyond: int = 0,
        computed: bool = True,
    ) -> View | None:
        """Returns a view over `extents` inside a tensor.

        The last stride is one of `along`, all strides are whole units, and each position is followed by `beyond` more
        elements that are read.
        """
        if computed and self.chance(0.08):
            return self.iota(dtype, len(extents))
        for _ in range(60):
            tag, index, elements = self.source(dtype)
            strides = self.strides(extents, unit)
            if not beyond and self.chance(0.45) and prod(extents) == elements:
                strides = list(row_major(extents))
            if along is not None:
                strides[-1] = self.rng.choice(along)
            reaches = [s * (e - 1) for s, e in zip(strides, extents, strict=True)]
            low, high = sum(min(0, r) for r in reaches), sum(max(0, r) for r in reaches) + beyond
            room = (elements - 1 - high + low) // unit
            if room < 0:
                continue
            offset = -low + unit * (self.rng.randint(0, room) if self.chance(0.5) else self.rng.choice((0, room)))
            if offset + high < elements and offset % unit == 0:
                return View(tag, index, offset, tuple(strides))
        return self.iota(dtype, len(extents)) if computed else None

    def strides(self, extents: Sequence[int], unit: int) -> list[int]:
        """Returns strides of axes in any order: adjacent, repeated, overlapping, apart, reversed."""
        strides = [0] * len(extents)
        order = list(range(len(extents)))
        if self.chance(0.5):
            self.rng.shuffle(order)
        step = self.rng.choice((2, 3, 4, 16)) if self.chance(0.15) else 1
        for axis in reversed(order):
            roll = self.rng.random()
            if extents[axis] == 1:
                far = (LEAST // unit, LARGEST // unit)
                strides[axis] = unit * self.rng.choice((0, 1, -1, step, *(far if self.chance(0.3) else ())))
            elif roll < 0.2:
                continue
            elif roll < 0.3:
                strides[axis] = unit * self.rng.choice((1, 2, -1, 3))
            else:
                strides[axis] = unit * step * (-1 if roll > 0.93 else 1)
                step *= extents[axis] + (self.chance(0.1))
        return strides

    # --- ops --------------------------------------------------------------------------------------------------------

    def map(self, shape: tuple[int, ...]) -> Op | None:
        dtype = self.rng.choice((F32, F32, I32))
        views: list[View] = []
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 8))):
            own = self.rng.choice((F32, I32)) if self.chance(0.2) else dtype
            full = sum(view.tag < Tag.IOTA for view in views) == 6
            view = self.iota(own, len(shape)) if full else self.view(own, shape)
            assert view is not None, "a computed one is always there"
            views.append(view)
        instrs: list[Instr] = []
        functions = 0
        count = self.rng.choice((0, 0, 1, 1, 1, 2, 3, 5, 12, 32)) if views else self.rng.choice((1, 2, 4))
        opcodes = (Opcode.MOV,) if self.chance(0.05) else tuple(Opcode)
        for _ in range(count):
            registers = len(views) + len(instrs)
            opcode = self.rng.choice(opcodes) if registers else Opcode.IMM
            functions += opcode in FUNCTIONS
            if opcode in FUNCTIONS and functions > 8:
                opcode = Opcode.FADD
            if opcode == Opcode.IMM:
                word = self.rng.choice((*IMMEDIATES, self.rng.getrandbits(32)))
                instrs.append(Instr(opcode, imm=word))
                continue
            reads = [self.rng.randrange(registers) if self.chance(0.7) else registers - 1 for _ in range(ARITY[opcode])]
            instrs.append(Instr(opcode, *reads))
        if not views and not instrs:
            return None
        return Op(Kind.MAP, dtype, shape, tuple(views), instrs=tuple(instrs))

    def fold(self, shape: tuple[int, ...]) -> Op | None:
        mode = self.rng.choice((Fold.DOT, Fold.DOT, Fold.DOT, Fold.SUM, Fold.MAX, Fold.MIN, Fold.ISUM))
        shape, k = shape[:7], self.rng.choice(TERMS)
        if prod(shape) * k > 250_000:
            k = self.rng.choice((1, 2, 3))
        if prod(shape) <= 4 and self.chance(0.1):
            k = self.rng.choice(LONG)
        dtype = I32 if mode == Fold.ISUM else F32
        views = []
        for _ in range(2 if mode == Fold.DOT else 1):
            view = self.view(dtype, (*shape, k), along=(1, 1, 1, 1, 0))
            assert view is not None, "a computed one is always there"
            views.append(view)
        return Op(Kind.FOLD, dtype, shape, tuple(views), (k,), mode)

    def gather(self, shape: tuple[int, ...]) -> Op | None:
        dtype, rows, apart = self.rng.choice((F32, I32)), self.rng.choice((1, 2, 7, 50)), self.rng.choice((0, 1, 3, 11))
        if apart == 0 and self.chance(0.2):
            rows = LARGEST
        index = self.view(I32, shape)
        table = self.view(dtype, shape, beyond=(rows - 1) * apart, computed=False)
        if index is None or table is None or table.tag >= Tag.IOTA:
            return None
        return Op(Kind.GATHER, dtype, shape, (index, table), p0=rows, p1=apart)

    def concat(self, shape: tuple[int, ...]) -> Op | None:
        if not shape:
            return None
        axis = len(shape) - 1 if self.chance(0.4) else self.rng.randrange(len(shape))
        dtype, sizes, left = self.rng.choice((F32, F32, I32)), [], shape[axis]
        for _ in range(self.rng.choice((0, 1, 1, 2, 4, 20))):
            if left > 1:
                sizes.append(self.rng.randint(1, left - 1))
                left -= sizes[-1]
        sizes.append(left)
        views = []
        for size in sizes:
            view = self.view(dtype, (*shape[:axis], size, *shape[axis + 1 :]))
            assert view is not None, "a computed one is always there"
            views.append(view)
        return Op(Kind.CONCAT, dtype, shape, tuple(views), p0=axis, sizes=tuple(sizes))

    def whole_concat(self, shape: tuple[int, ...]) -> Op | None:
        """Returns a concat of whole ops, possibly of a single one."""
        fits = [i for i, op in enumerate(self.ops) if op.extents and op.header.elements <= 4000]
        if not fits:
            return None
        first = self.rng.choice(fits[-4:])
        extents, dtype = self.ops[first].extents, self.ops[first].dtype
        axis = self.rng.randrange(len(extents))
        views = [View(Tag.OP, first, 0, row_major(extents))]
        sizes = [extents[axis]]
        for _ in range(self.rng.choice((0, 0, 1, 2))):
            size = self.rng.choice((1, 2, extents[axis]))
            view = self.view(dtype, (*extents[:axis], size, *extents[axis + 1 :]))
            assert view is not None, "a computed one is always there"
            at = self.rng.choice((0, len(views)))
            views.insert(at, view)
            sizes.insert(at, size)
        extents = (*extents[:axis], sum(sizes), *extents[axis + 1 :])
        return Op(Kind.CONCAT, dtype, extents, tuple(views), p0=axis, sizes=tuple(sizes))

    def random(self, shape: tuple[int, ...]) -> Op | None:
        return Op(Kind.RANDOM, I32, shape, (), p0=self.rng.getrandbits(32))

    def draw(self, shape: tuple[int, ...]) -> Op | None:
        return Op(Kind.DRAW, I32, (self.rng.choice((1, 3, 40)), 5), (), p0=self.rng.getrandbits(32))

    def quant(self, shape: tuple[int, ...]) -> Op | None:
        """Adds codes and scales of one view, or one of the two."""
        words, k = (
            self.rng.choice((1, 1, 2, 4, 8, 16, 32, 64)),
            self.rng.choice((1, 3, 4, 5, 8, 16, 17, 33, 64, 100, 256, 257, 512)),
        )
        shape = shape[:6]
        while shape and prod(shape) * k > 5000:
            shape = shape[1:]
        view = self.view(F32, (*shape, k), along=(1,), computed=False)
        if view is None or view.tag >= Tag.IOTA:
            return None
        view = replace(view, strides=(*view.strides[:-1], 0, 1))
        groups, power = groups_of(k, words), self.chance(0.4)
        modes = [Quant.CODES_POWER, Quant.SCALES_POWER] if power else [Quant.CODES, Quant.SCALES]
        self.rng.shuffle(modes)
        found = []
        for mode in modes:
            codes = mode in (Quant.CODES, Quant.CODES_POWER)
            stream = self.rng.choice((0, STOCHASTIC, 2**32 - 1)) if codes else 0
            last = groups * words if codes else groups
            found.append(
                Op(Kind.QUANT, I32 if codes else F32, (*shape, last), (view,), (k,), mode, p0=words, p1=stream)
            )
        if self.chance(0.6):
            self.ops.append(found[1])
        return found[0]

    def qdot(self, shape: tuple[int, ...]) -> Op | None:
        words, groups = self.rng.choice((1, 1, 2, 4, 16, 64)), self.rng.choice((1, 2, 3, 5, 17))
        if prod(shape) <= 8 and self.chance(0.1):
            words, groups = 1, self.rng.choice((255, 256, 257, 600))
        shape = shape[:7]
        while shape and prod(shape) * groups * words > 60_000:
            shape = shape[1:]
        box = (*shape, groups)
        codes = [self.view(I32, box, along=(words,), unit=words, beyond=words - 1, computed=False) for _ in range(2)]
        scales = [self.view(F32, box, along=(1, 1, 1, 0), computed=False) for _ in range(2)]
        views = [view for view in (*codes, *scales) if view is not None and view.tag < Tag.IOTA]
        if len(views) < 4:
            return None
        return Op(Kind.FOLD, F32, shape, tuple(views), (groups,), Fold.QDOT, p0=words)

    def case(self, name: str, seed: int) -> Case | None:
        makers = [
            (self.map, 35), (self.fold, 27), (self.gather, 7), (self.concat, 8), (self.whole_concat, 4),
            (self.random, 2), (self.draw, 1), (self.quant, 9), (self.qdot, 7),
        ]  # fmt: skip
        for _ in range(self.rng.choice((1, 2, 4, 6, 10, 18, 30))):
            shape = self.shape() if self.chance(0.35) else self.rng.choice(self.favourites)
            make = self.rng.choices([m for m, _ in makers], [weight for _, weight in makers])[0]
            if (op := make(shape)) is not None:
                self.ops.append(op)
        if not self.ops:
            return None
        shown = [i for i in range(len(self.ops)) if self.chance(0.1)]
        shown += [i for i in shown if self.chance(0.2)]
        own = [k for k, header in enumerate(self.inputs) if header is not None]
        others = [Alias(Alias.STATE_KIND, self.rng.choice(own)) for _ in range(self.rng.choice((0, 0, 1, 2)))]
        others += [Alias(Alias.EMPTY_KIND)] * self.rng.choice((0, 0, 1))
        return filled(name, finished(self.ops, self.inputs, self.consts, shown, others), seed)


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed."""
    return Anything(seed).case(name, seed)
