"""Gradient descent: plain, with momentum, by signs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.chain import At, Chained, Memory
from lockstep.training.optimizers.schedule import brief
from lockstep.training.optimizers.schedules import ConstantRate, RateShape
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation


@dataclass(frozen=True)
class SGD(Chained):
    """p - rate (g + decay p), or along a momentum of it, as torch's SGD has it (Sutskever 2013).

    b = momentum b + (1 - dampening) g, whose first gradient is not dampened; p - rate b, or p - rate (g + momentum b).
    """

    name: ClassVar[str] = "sgd"
    coupled: ClassVar[bool] = True
    learning_rate: float = 1.0
    """The highest learning rate."""
    momentum: float = 0.0
    """The part of the earlier gradients that goes on; 0: there is no memory."""
    dampening: float = 0.0
    """The share of a gradient that is not added to the momentum."""
    nesterov: bool = False
    """True: the step looks ahead along the momentum."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """Added to the gradient, times the parameter."""
    warmup: int = field(default=0, kw_only=True)
    """Steps of linear warm-up over the whole job."""
    schedule: RateShape = field(default_factory=ConstantRate, kw_only=True)
    """The learning rate after the warm-up: as in every step, unless another is named."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("momentum",))
        if not 0 <= self.dampening <= 1 or (self.nesterov and (not self.momentum or self.dampening)):
            raise UsageError(
                f"SGD cannot run with {brief(self)}",
                "dampening lies in [0, 1]; nesterov needs a momentum and no dampening",
            )

    def kept(self) -> int:
        """The momentum."""
        return 1 if self.momentum else 0

    def ages(self, age: int) -> list[float]:
        """The part of a gradient that is taken."""
        return [1.0 if age == 1 else 1 - self.dampening] if self.momentum and self.dampening else []

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The gradient, the momentum, or both."""
        if not memory:
            return g, []
        b = self.momentum * memory[0] + (g * at.factors[0] if at.factors else g)
        return g + self.momentum * b if self.nesterov else b, [b]


@dataclass(frozen=True)
class Nesterov(Chained):
    """Nesterov's momentum (Sutskever 2013, equations 3 and 4, as torch's SGD writes it).

    b = momentum b + g        p - rate (g + momentum b)
    """

    name: ClassVar[str] = "nesterov"
    coupled: ClassVar[bool] = True
    learning_rate: float = 0.7
    """The highest learning rate."""
    momentum: float = 0.9
    """The part of the earlier gradients that goes on."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """Added to the gradient, times the parameter."""
    warmup: int = field(default=0, kw_only=True)
    """Steps of linear warm-up over the whole job."""
    schedule: RateShape = field(default_factory=ConstantRate, kw_only=True)
    """The learning rate after the warm-up: as in every step, unless another is named."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1):
            raise UsageError(
                f"Nesterov cannot run with {brief(self)}", "the learning rate is above 0, momentum in [0, 1)"
            )
        super().__post_init__()

    def kept(self) -> int:
        """b."""
        return 1

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """g + momentum b."""
        b = self.momentum * memory[0] + g
        return g + self.momentum * b, [b]


@dataclass(frozen=True)
class SignSGD(Chained):
    """p (1 - rate decay) - rate sign(g), as DeMo applies its mean (2411.19870, algorithm 1); the sign of 0 is 0."""

    name: ClassVar[str] = "sign_sgd"
    learning_rate: float = 1e-3
    """The highest learning rate."""

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the transformation, which has no state; the schedule depends on the counter."""
        cut, rates = self.cut_of(layout), [self.rate(step, steps) for step in range(steps)]
        keys = list(dict.fromkeys(run.key for run in cut.runs))
        rows = [[x for ratio, decay in keys for x in (1 - r * ratio * decay, r * ratio)] for r in rates]
        table = torch.tensor(rows, dtype=torch.float32)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            found = F.embedding(counter, table).unbind(0)
            moved = []
            for run, x, g in zip(cut.runs, cut.cut(p), cut.cut(self.clipped(grad)), strict=True):
                at = 2 * keys.index(run.key)
                keep, rate = found[at], found[at + 1]
                step = torch.where(g > 0, rate, torch.where(g < 0, -rate, 0.0))
                moved.append((x * keep if run.key[1] else x) - step)
            return [], cut.join(moved)

        return Transformation(lambda p, counter: [], update)
