"""Shampoo: the gradient between inverse roots of sums of its products (Gupta 2018, algorithm 1; Anil 2020).

L = beta2 L + (1 - beta2) G G'     R = beta2 R + (1 - beta2) G' G       sums where beta2 is 1
step = (L + epsilon |L| I)^(-1/4)  G  (R + epsilon |R| I)^(-1/4)
step = step |a| / |step|           a = g / sqrt(v), Adagrad's step by the sums or means of squares: grafting
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.blocks import SMALL, Blocks, inverse_fourth_root, products, together
from lockstep.training.optimizers.chain import At, Chained, Memory

_EPSILON = 1e-10
"""Added to the root of Adagrad's sum, as in Adagrad."""


@dataclass(frozen=True)
class Blockwise(Chained):
    """An optimizer that preconditions blocks of matrices from both sides, and is diagonal on vectors."""

    whole: ClassVar[bool] = True

    block: int = 128
    """The most rows and columns that are preconditioned together; a matrix is cut into such blocks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.block <= 1024:
            raise UsageError(
                f"block is {self.block}", "use 2 to 1024: a step takes about block^3 operations for each block"
            )

    def blocks(self, shape: tuple[int, ...]) -> Blocks | None:
        """The blocks of a parameter of a shape; None for a vector."""
        return Blocks.of(shape, self.block)


@dataclass(frozen=True)
class Shampoo(Blockwise):
    """Shampoo in blocks, as in Distributed Shampoo, with Adagrad's step on vectors.

    Differences from the published code (Anil 2020): roots are computed in every step, not once in many; epsilon is
    relative to the Frobenius norm, not to the largest eigenvalue; blocks are even; a convolution is a matrix, its
    outputs by everything else; momentum is heavy-ball, after the root.
    """

    name: ClassVar[str] = "shampoo"
    learning_rate: float = 1e-2
    """The highest learning rate: Adagrad's where steps are grafted."""
    beta2: float = 1.0
    """The decay of the products and squares; 1: they are summed, as in Gupta's algorithm."""
    epsilon: float = 1e-5
    """The smallest eigenvalue of a root's argument, relative to the norm."""
    momentum: float = 0.0
    """The part of the earlier directions that goes on; 0: there is none."""
    graft: bool = True
    """True: the step of each block is as long as Adagrad's, RMSprop's where products decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("momentum",), above=("epsilon",))
        if not (0 < self.beta2 <= 1 and self.epsilon <= 0.1):
            raise UsageError(
                f"beta2 is {self.beta2}, epsilon is {self.epsilon}", "beta2 lies in (0, 1], epsilon in (0, 0.1]"
            )

    def kept(self) -> int:
        """The sum of squares, and the momentum if there is one."""
        return 1 + bool(self.momentum)

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The products of every block's rows, and of its columns."""
        cut = self.blocks(shape)
        return [] if cut is None else [(cut.number, side, side) for side in cut.sides]

    def ages(self, age: int) -> list[float]:
        """The correction of means that began at zero."""
        return [1 / (1 - self.beta2**age)] if self.beta2 < 1 else []

    def moved_all(self, runs: Sequence[tuple[At, Tensor, Tensor, Memory]]) -> list[tuple[Tensor, Memory]]:
        """The steps of all parameters; blocks of one size share their iteration."""
        cuts = [self.blocks(tuple(g.shape)) for _, _, g, _ in runs]
        sides: list[tuple[Tensor, Tensor]] = []
        for cut, (at, _, g, memory) in zip(cuts, runs, strict=True):
            if cut is not None:
                pairs = zip(memory[-2:], products(cut.cut(g)), strict=True)
                sides += [self._mean(at, old, new) for old, new in pairs]
        roots = iter(together(lambda x: inverse_fourth_root(x, self.epsilon), [mean for _, mean in sides]))
        held = iter(old for old, _ in sides)
        done = []
        for cut, (at, x, g, memory) in zip(cuts, runs, strict=True):
            v, spread = self._mean(at, memory[0], g * g)
            step = g / (torch.sqrt(spread) + _EPSILON)
            after, further = [v], []
            if cut is not None:
                further = [next(held), next(held)]
                step = cut.join(self._between(next(roots), cut.cut(g), next(roots), cut.cut(step)))
            if self.momentum:
                step = self.momentum * memory[1] + step
                after.append(step)
            done.append((at.step(x, step), [*after, *further]))
        return done

    def _mean(self, at: At, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
        """(the sum or mean after a gradient, corrected for its beginning)."""
        if self.beta2 == 1:
            return old + new, old + new
        mean = self.beta2 * old + (1 - self.beta2) * new
        return mean, mean * at.factors[0]

    def _between(self, left: Tensor, g: Tensor, right: Tensor, diagonal: Tensor) -> Tensor:
        step = left @ g @ right
        if not self.graft:
            return step
        size, due = (torch.sqrt((x * x).sum((-2, -1), keepdim=True)) for x in (step, diagonal))
        return step * (due / (size + SMALL))
