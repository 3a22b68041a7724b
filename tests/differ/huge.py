"""Generates Programs with tensors of up to 2^31 - 1 elements, which are planned and never run."""

from __future__ import annotations

import struct
from dataclasses import replace

from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32, Alias, Fold, Kind, Op
from tests.differ.anything import LARGEST, Anything
from tests.differ.case import Case, finished

EXTENTS = (1, 1, 1, 2, 3, 8, 64, 256, 1 << 10, 1 << 14, 1 << 16, 1 << 20, 1 << 24, 1 << 28, LARGEST)


class Huge(Anything):
    """A generator like `Anything`, at the limits of extents, terms and totals."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        pick = self.rng.choice
        self.inputs = [
            TensorHeader(F32, (pick((LARGEST, 1 << 30, 1 << 24, 7)),)),
            TensorHeader(I32, (LARGEST,)),
            TensorHeader(F32, ()),
            TensorHeader(F32, (1 << 20,)),
        ]
        self.favourites = [self.shape() for _ in range(3)]

    def shape(self, most: int = LARGEST) -> tuple[int, ...]:
        found, left = [], most
        for _ in range(self.rng.choice((0, 1, 2, 2, 3, 3, 4, 5, 7))):
            extent = self.rng.choice((*EXTENTS, self.rng.randrange(1, 1 << 31)))
            found.append(max(1, min(left, extent)))
            left //= found[-1]
        self.rng.shuffle(found)
        return tuple(found)

    def fold(self, shape: tuple[int, ...]) -> Op | None:
        op = super().fold(shape)
        if op is None or self.chance(0.5):
            return op
        k = self.rng.choice((1 << 24, 1 << 16, 257))
        views = [self.view(op.dtype, (*op.extents, k), along=(0, 1)) for _ in op.views]
        return None if None in views else replace(op, k_extents=(k,), views=tuple(v for v in views if v is not None))

    def chained(self) -> None:
        """Adds sums that each read one element of the previous one: much work for few bytes."""
        for _ in range(self.rng.choice((20, 300))):
            source = self.view(F32, (LARGEST, 1 << 24), along=(0,), computed=False)
            if source is not None:
                view = replace(source, strides=(0, 0))
                self.ops.append(Op(Kind.FOLD, F32, (LARGEST,), (view,), (1 << 24,), Fold.SUM))

    def case(self, name: str, seed: int) -> Case | None:
        """Returns a Program without a state, because it is never run."""
        if self.chance(0.03):
            self.chained()
        for _ in range(self.rng.choice((1, 2, 4, 8, 16))):
            shape = self.shape() if self.chance(0.35) else self.rng.choice(self.favourites)
            makers = (
                self.map,
                self.fold,
                self.fold,
                self.gather,
                self.concat,
                self.whole_concat,
                self.random,
                self.qdot,
            )
            if (op := self.rng.choice(makers)(shape)) is not None:
                self.ops.append(op)
        if not self.ops:
            return None
        program = finished(self.ops, self.inputs, self.consts, (), (Alias(Alias.EMPTY_KIND),))
        return Case(name, program, (None,) * len(program.inputs), None)


def make(seed: int, name: str) -> Case | None:
    """Returns the case of a seed; None if a view exceeds what a Program can encode."""
    case = Huge(seed).case(name, seed)
    try:
        return case if case is None or case.program.descriptors else None
    except struct.error:
        return None
