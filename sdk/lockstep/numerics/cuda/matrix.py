"""Products of matrices among folds: which axes of an op are rows, columns and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.numerics.builder import row_major
from lockstep.numerics.cuda.views import merged, position
from lockstep.protocol.programs.program import Op, View


class Matrix(NamedTuple):
    """A matrix product among the axes of an op's output, of which neighbours are merged: the last one is that of the
    columns."""

    extents: Sequence[int]
    own: Sequence[int]
    """Strides of the output."""
    walks: Sequence[Sequence[int]]
    """Strides of each operand."""
    left: Sequence[int]
    """The operands that know the rows and not the columns."""
    right: Sequence[int]
    """The operands that know the columns and not the rows."""
    m: int
    """The axis of the rows."""

    @property
    def rows(self) -> int:
        """Extent of the rows' axis."""
        return self.extents[self.m]

    @property
    def columns(self) -> int:
        """Extent of the columns' axis."""
        return self.extents[-1]

    @property
    def batch(self) -> list[int]:
        """The axes of which each coordinate is a product of its own."""
        return [a for a in range(len(self.extents) - 1) if a != self.m]

    @property
    def counts(self) -> list[int]:
        """Extents of the axes along which separate products are computed."""
        return [self.extents[a] for a in self.batch]

    def place(self, walk: Sequence[int]) -> str:
        """The first word of batch `i` of what has these strides, as a C++ expression."""
        return position(self.counts, [walk[a] for a in self.batch])


def matrix_of(op: Op, views: Sequence[View], sides: tuple[Sequence[int], Sequence[int]]) -> Matrix | None:
    """An op as a matrix product of two sides, each the numbers of its operands: if the innermost output axis belongs to
    one of them and another axis to the other one; else None."""
    rank = len(op.extents)
    extents, (own, *walks) = merged(op.extents, row_major(op.extents), *(view.strides[:rank] for view in views))
    if len(extents) < 2:
        return None

    def knows(side: Sequence[int], axis: int) -> bool:
        return any(walks[j][axis] for j in side)

    left, right = sides if knows(sides[1], -1) else sides[::-1]
    rows = [a for a in range(len(extents) - 1) if knows(left, a) and not knows(right, a)]
    if knows(left, -1) or not knows(right, -1) or not rows:
        return None
    return Matrix(extents, own, walks, left, right, max(rows, key=lambda axis: extents[axis]))
