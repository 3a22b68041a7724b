"""Schedule-free AdamW (Defazio 2024, 2405.15682, algorithm 1).

    y = (1 - beta1) z + beta1 x     the point of the gradient: the parameters of a step
    z = z - rate (g / (sqrt(v) + epsilon) + decay y)
    x = (1 - c) x + c z             c: the part of this step in the sum of squared rates

The memory is z - y, zero at first. At the end of its round a slot sends x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.chain import At, Chained, Memory
from lockstep.training.optimizers.schedules import ConstantRate, RateShape
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation


@dataclass(frozen=True)
class ScheduleFree(Chained):
    """AdamW whose averaging replaces a schedule: the job's length need not be known."""

    name: ClassVar[str] = "schedule_free"
    learning_rate: float = 2.5e-3
    """The learning rate of every step after the warm-up."""
    beta1: float = 0.9
    """The weight of the average in the point at which gradients are computed."""
    beta2: float = 0.999
    """The decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    warmup: int = field(default=0, kw_only=True)
    """Steps of linear warm-up of a memory: in every round, unless the strategy carries it."""
    schedule: RateShape = field(default_factory=ConstantRate, kw_only=True)
    """Only "constant" is valid."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("beta1", "beta2"), above=("beta1", "epsilon"))
        if not isinstance(self.schedule, ConstantRate):
            raise UsageError(f"schedule-free AdamW has a schedule: {self.schedule}", "omit schedule, or use adamw")

    @property
    def steady(self) -> bool:
        """True: the warm-up follows the age of the memory."""
        return True

    def unreached(self, steps: int, restart: int | None) -> str:
        """Warns also of a warm-up that is longer than the memory's lifetime."""
        return super().unreached(min(steps, restart or steps), restart)

    def kept(self) -> int:
        """z - y, and v."""
        return 2

    def rows(self, ages: int) -> list[list[float]]:
        """The factors of z - y and of the rate in y, then those in z - y."""
        found, total = [], 0.0
        for age in range(1, ages + 1):
            rate = min(1.0, age / max(1, self.warmup)) * math.sqrt(1 - self.beta2**age)
            total += rate**2
            c = rate**2 / total
            found.append([c, rate * (1 - self.beta1 * (1 - c)), 1 - c, (1 - c) * rate * self.beta1])
        return found

    def moved(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """y and z - y after the step: x, the average, follows from them."""
        apart, v = memory
        v = self.beta2 * v + (1 - self.beta2) * (g * g)
        u = g / (torch.sqrt(v) + self.epsilon)
        u = u + at.decay * x if at.decay else u
        towards, ahead, left, back = at.factors
        return x + towards * apart - at.rate * ahead * u, [left * apart - at.rate * back * u, v]

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: z - y, then v, shard by shard; their age i32 () where they do not restart."""

        def average(state: Shards, y: Shards) -> list[Tensor]:
            part = (1 - self.beta1) / self.beta1
            return [each - part * apart for each, apart in zip(y, state, strict=False)]

        return super().over(steps, restart, layout)._replace(sent=average)
