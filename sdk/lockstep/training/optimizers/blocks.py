"""Parameters as blocks of matrices, and what preconditioners do with a batch of small square ones.

A parameter of two axes and more is a matrix, its first axis by all others. It is cut evenly: of n rows, into as few
parts as have at most `block`, the last one padded with zeros (the published Distributed Shampoo cuts whole blocks and
leaves a smaller one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

SMALL = 1e-30
"""Added to a norm that may be zero."""
_GROWTH = (5 / 4) ** 4
"""The factor by which an iteration for a fourth root brings up an eigenvalue that is small."""
_LAST = 6
"""Iterations in which an eigenvalue near one becomes one to the last bit."""


class Blocks(NamedTuple):
    """The blocks of one parameter."""

    shape: tuple[int, ...]
    """The parameter's."""
    parts: tuple[int, int]
    """Blocks along both axes."""
    sides: tuple[int, int]
    """Rows and columns of a block."""

    @classmethod
    def of(cls, shape: tuple[int, ...], block: int) -> Blocks | None:
        """None for a vector, or a matrix of one row or column: it has no sides."""
        if len(shape) < 2 or min(shape[0], prod(shape[1:])) < 2:
            return None
        extents = shape[0], prod(shape[1:])
        rows, columns = (-(-n // block) for n in extents)
        return cls(shape, (rows, columns), (-(-extents[0] // rows), -(-extents[1] // columns)))

    @property
    def number(self) -> int:
        """Blocks of the parameter."""
        return prod(self.parts)

    def cut(self, x: Tensor) -> Tensor:
        """A parameter's tensor -> [blocks, rows, columns]."""
        (rows, columns), (high, wide) = self.parts, self.sides
        x = x.reshape(self.shape[0], -1)
        below, beside = rows * high - x.shape[0], columns * wide - x.shape[1]
        x = F.pad(x, (0, beside, 0, below)) if below or beside else x
        return x.reshape(rows, high, columns, wide).permute(0, 2, 1, 3).reshape(-1, high, wide)

    def join(self, x: Tensor) -> Tensor:
        """The inverse of `cut`."""
        (rows, columns), (high, wide) = self.parts, self.sides
        x = x.reshape(rows, columns, high, wide).permute(0, 2, 1, 3).reshape(rows * high, columns * wide)
        return x[: self.shape[0], : prod(self.shape[1:])].reshape(self.shape)


def together(function: Callable[[Tensor], Tensor], batches: Sequence[Tensor]) -> list[Tensor]:
    """The function of every batch [., n, n], once for all of the same n."""
    found: dict[int, Tensor] = {}
    for n in sorted({x.shape[-1] for x in batches}):
        same = [at for at, x in enumerate(batches) if x.shape[-1] == n]
        made = function(torch.cat([batches[at] for at in same]) if len(same) > 1 else batches[same[0]])
        found |= dict(zip(same, made.split([batches[at].shape[0] for at in same]), strict=True))
    return [found[at] for at in range(len(batches))]


def scaled(x: Tensor) -> tuple[Tensor, Tensor]:
    """(positive semidefinite matrices [., n, n] of Frobenius norm 1, the norms [., 1, 1]).

    The largest element, which stands on the diagonal, comes first: squares of small gradients' squares are zero.
    """
    most = torch.diagonal(x, dim1=-2, dim2=-1).amax(-1).view(-1, 1, 1) + SMALL
    x = x / most
    norm = torch.sqrt((x * x).sum((-2, -1), keepdim=True)) + SMALL
    return x / norm, most * norm


def inverse_fourth_root(x: Tensor, epsilon: float) -> Tensor:
    """(X + epsilon |X| I)^(-1/4) of positive semidefinite matrices [., n, n], |X| the Frobenius norm, by the coupled
    Newton iteration (Guo and Higham 2006, equation 1.4; Anil 2020, section 5).

        T = (5 I - M) / 4        R = R T        M = T^4 M        from M = z A, R = z^(1/4) I
    """
    one = torch.eye(x.shape[-1])
    x, size = scaled(x)
    # The largest eigenvalue of M lies between 0 and 5, where the iteration converges.
    scale = 2.5 / (1 + epsilon)
    m = (x + epsilon * one) * scale
    root = one
    for turn in range(iterations(epsilon)):
        t = 1.25 * one - 0.25 * m
        root = root @ t if turn else t * scale**0.25
        square = t @ t
        m = square @ square @ m
    return root / torch.sqrt(torch.sqrt(size))


def iterations(epsilon: float) -> int:
    """Turns that bring the least eigenvalue, `epsilon`, to one."""
    return max(0, math.ceil(math.log(1 / (2.5 * epsilon)) / math.log(_GROWTH))) + _LAST


def products(x: Tensor) -> tuple[Tensor, Tensor]:
    """X X' and X' X of a batch."""
    return x @ x.mT, x.mT @ x


def orthonormal(x: Tensor) -> Tensor:
    """The orthogonal factor of matrices [., n, n] = Q R, R's diagonal positive, by Gram and Schmidt's process in its
    modified form, twice (Giraud 2005)."""
    for _ in range(2):
        columns = []
        rest = x
        for left in range(x.shape[-1], 0, -1):
            first = rest[..., :1]
            q = first / torch.sqrt((first * first).sum(-2, keepdim=True))
            columns.append(q)
            if left > 1:
                rest = rest[..., 1:]
                rest = rest - q * (q * rest).sum(-2, keepdim=True)
        x = torch.cat(columns, -1)
    return x
