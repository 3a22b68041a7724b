"""SOAP: Adam in the eigenbasis of Shampoo's products (Vyas 2024, algorithm 3).

G' = QL' G QR     M' = QL' M QR     V = beta2 V + (1 - beta2) G'^2
step = QL (M' corrected / (sqrt(V) corrected + epsilon)) QR'
L = beta2 L + (1 - beta2) G G'      QL = qr(L QL), one step of the power iteration (algorithm 4); R likewise
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.training.optimizers.blocks import orthonormal, products, scaled, together
from lockstep.training.optimizers.chain import At, Memory
from lockstep.training.optimizers.shampoo import Blockwise


@dataclass(frozen=True)
class SOAP(Blockwise):
    """SOAP in blocks, with Adam's step on vectors.

    Differences from the published code: blocks of at most `block` rows and columns have their own bases; the bases
    begin at the identity, where it decomposes the first gradient's products and skips that step; they follow in every
    step, not once in ten, their columns keep their places, and the products have a ridge, so that a product without
    full rank has a basis; a convolution is a matrix, its outputs by all else; the decay takes the parameter before the
    step.
    """

    name: ClassVar[str] = "soap"
    learning_rate: float = 3e-3
    """The highest learning rate."""
    block: int = 32
    """The most rows and columns that share a basis: a Program has about eight operations for each of them."""
    beta1: float = 0.95
    """The decay of the first moment."""
    beta2: float = 0.95
    """The decay of the second moment and of the products."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    ridge: float = 1e-3
    """Added to the products, relative to their Frobenius norm, before the basis follows them."""
    weight_decay: float = field(default=0.01, kw_only=True)
    """Per step, times the learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("beta1", "beta2"), above=("epsilon", "ridge"))

    def kept(self) -> int:
        """The first moment."""
        return 1

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The second moment; of a matrix in the bases, and both sides' products and bases."""
        cut = self.blocks(shape)
        if cut is None:
            return [shape]
        squares = [(cut.number, side, side) for side in cut.sides]
        return [(cut.number, *cut.sides), *squares, *squares]

    def ages(self, age: int) -> list[float]:
        """The bias corrections of the moments, and 1 for the first gradient, whose bases are the identity."""
        return [1 / (1 - self.beta1**age), 1 / math.sqrt(1 - self.beta2**age), float(age == 1)]

    def moved_all(self, runs: Sequence[tuple[At, Tensor, Tensor, Memory]]) -> list[tuple[Tensor, Memory]]:
        """The steps of all parameters; bases of one size follow together."""
        moved, afters = [], []
        follow: list[Tensor] = []
        for at, x, g, memory in runs:
            first, root, begins = at.factors
            m = self.beta1 * memory[0] + (1 - self.beta1) * g
            cut = self.blocks(tuple(g.shape))
            if cut is None:
                v = self.beta2 * memory[1] + (1 - self.beta2) * (g * g)
                step = m * first / (torch.sqrt(v) * root + self.epsilon)
                afters.append([m, v])
            else:
                v, left, right = memory[1:4]
                bases = [q + begins * torch.eye(q.shape[-1]) for q in memory[4:]]
                inside, mean = (bases[0].mT @ cut.cut(y) @ bases[1] for y in (g, m))
                v = self.beta2 * v + (1 - self.beta2) * (inside * inside)
                step = mean * first / (torch.sqrt(v) * root + self.epsilon)
                step = cut.join(bases[0] @ step @ bases[1].mT)
                pairs = zip((left, right), products(cut.cut(g)), strict=True)
                sides = [self.beta2 * old + (1 - self.beta2) * new for old, new in pairs]
                follow += [self._turned(side, q) for side, q in zip(sides, bases, strict=True)]
                afters.append([m, v, *sides])
            moved.append(at.step(x, step))
        bases_after = iter(together(orthonormal, follow))
        for after in afters:
            if len(after) > 2:
                after += [next(bases_after), next(bases_after)]
        return list(zip(moved, afters, strict=True))

    def _turned(self, side: Tensor, q: Tensor) -> Tensor:
        """The product, with its ridge and of norm one, times the basis."""
        return scaled(side)[0] @ q + self.ridge * q
