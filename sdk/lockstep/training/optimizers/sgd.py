"""Gradient descent: plain, with Nesterov's momentum, by signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.described import Described
from lockstep.training.optimizers.schedule import Scheduled
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation


@dataclass(frozen=True)
class SGD(Described):
    """p - rate (g + decay p), without a state."""

    name: ClassVar[str] = "sgd"
    learning_rate: float = 1.0
    """The same in every step."""
    weight_decay: float = 0.0
    """Added to the gradient, times the parameter."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and self.weight_decay >= 0):
            raise UsageError(f"SGD cannot run with {self}", "the learning rate is above 0, the decay not below")

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the transformation of plain SGD, which has no state."""

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            if self.weight_decay:
                grad = [g + self.weight_decay * x for g, x in zip(grad, p, strict=True)]
            return [], [x - self.learning_rate * g for x, g in zip(p, grad, strict=True)]

        return Transformation(lambda p, counter: [], update)


@dataclass(frozen=True)
class Nesterov(Described):
    """Nesterov's momentum (Sutskever 2013, equations 3 and 4, as torch's SGD writes it).

    b = momentum b + g        p - rate (g + momentum b)
    """

    name: ClassVar[str] = "nesterov"
    learning_rate: float = 0.7
    """The same in every step."""
    momentum: float = 0.9
    """The part of the earlier gradients that goes on."""

    def __post_init__(self) -> None:
        if not (self.learning_rate > 0 and 0 <= self.momentum < 1):
            raise UsageError(f"Nesterov cannot run with {self}", "the learning rate is above 0, momentum in [0, 1)")

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: b, shard by shard."""

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            after, moved = [], []
            for x, b, g in zip(p, state, grad, strict=True):
                b = self.momentum * b + g
                step = g + self.momentum * b
                moved.append(x - self.learning_rate * step)
                after.append(b)
            return after, moved

        return Transformation(lambda p, counter: list(p), update)


@dataclass(frozen=True)
class SignSGD(Scheduled):
    """p (1 - rate decay) - rate sign(g), as DeMo applies its mean (2411.19870, algorithm 1); the sign of 0 is 0."""

    name: ClassVar[str] = "sign_sgd"
    learning_rate: float = 1e-3
    """The highest learning rate."""
    weight_decay: float = 0.0
    """Per step, times the learning rate."""
    warmup: int = 10
    """Steps of linear warm-up over the whole job."""
    final_fraction: float = 0.1
    """The learning rate of the last step, as a fraction of the highest."""

    def __post_init__(self) -> None:
        self.check_rate()
        if not self.weight_decay >= 0:
            raise UsageError(f"SignSGD cannot run with {self}", "weight_decay is not below 0")

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """No state; the schedule follows the counter."""
        rates = [self.rate(step, steps) for step in range(steps)]
        table = torch.tensor([[1 - r * self.weight_decay, r] for r in rates], dtype=torch.float32)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            keep, rate = F.embedding(counter, table).unbind(0)
            moved = []
            for x, g in zip(p, grad, strict=True):
                step = torch.where(g > 0, rate, torch.where(g < 0, -rate, 0.0))
                moved.append((x * keep if self.weight_decay else x) - step)
            return [], moved

        return Transformation(lambda p, counter: [], update)
