"""Recognises matrix products among folds: finds the axes of rows, columns and batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lockstep.numerics.builder import row_major
from lockstep.numerics.cuda.views import merged, position
from lockstep.protocol.programs.program import Op, View


class Matrix(NamedTuple):
    """A matrix product over the axes of an op's output, with neighbouring axes merged; the last axis is that of the
    columns.
    """

    extents: Sequence[int]
    own: Sequence[int]
    """Strides of the output along the axes."""
    walks: Sequence[Sequence[int]]
    """Strides of each operand along the axes."""
    left: Sequence[int]
    """Operands that vary along the rows and not along the columns."""
    right: Sequence[int]
    """Operands that vary along the columns and not along the rows."""
    m: int
    """Index of the axis of the rows."""

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
        """Axes along which separate products are computed."""
        return [a for a in range(len(self.extents) - 1) if a != self.m]

    @property
    def counts(self) -> list[int]:
        """Extents of the batch axes."""
        return [self.extents[a] for a in self.batch]

    def place(self, walk: Sequence[int]) -> str:
        """Returns a C++ expression for the first word of batch `i` of a tensor with these strides."""
        return position(self.counts, [walk[a] for a in self.batch])


def matrix_of(op: Op, views: Sequence[View], sides: tuple[Sequence[int], Sequence[int]]) -> Matrix | None:
    """Recognises an op as a matrix product of two sides, each a set of operand numbers.

    Returns None unless the innermost output axis belongs to one side and another axis to the other side.
    """
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
