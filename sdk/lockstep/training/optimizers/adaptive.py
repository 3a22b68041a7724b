"""Adam and Yogi as server optimizers (Reddi 2021, algorithm 2): one step a merge, tau beside the root."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.described import Described
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation


@dataclass(frozen=True)
class Adam(Described):
    """m and v as in Adam, p - rate m / (sqrt(v) + tau); the rate with the bias correction of Kingma 2015, section 2.

    Both moments begin at zero; flwr's FedAdam corrects by one step more than it has taken, `ahead` = 1.
    """

    name: ClassVar[str] = "adam"
    learning_rate: float = 0.1
    """The same in every merge."""
    beta1: float = 0.9
    """The decay of the first moment."""
    beta2: float = 0.99
    """The decay of the second moment."""
    tau: float = 1e-3
    """Added to the root: the least divisor, and so a bound of the adaptivity."""
    corrected: bool = True
    """True: the learning rate is multiplied by sqrt(1 - beta2^t) / (1 - beta1^t)."""
    ahead: int = 0
    """t is the number of merges, this one included, and so many more."""

    def __post_init__(self) -> None:
        _check(self)
        if self.ahead < 0:
            raise UsageError(f"ahead is {self.ahead}", "use 0 or more")

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: m, then v, shard by shard, then the age i32 () if the rate is corrected."""
        table = torch.tensor([[self._rate(age + 1 + self.ahead)] for age in range(steps)], dtype=torch.float32)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            count = len(p)
            m = [self.beta1 * a + (1 - self.beta1) * g for a, g in zip(state[:count], grad, strict=True)]
            v = [
                self.beta2 * a + (1 - self.beta2) * (g * g) for a, g in zip(state[count : 2 * count], grad, strict=True)
            ]
            if not self.corrected:
                return [*m, *v], _moved(p, m, v, torch.tensor(self.learning_rate), self.tau)
            (rate,) = F.embedding(state[-1], table).unbind(0)
            return [*m, *v, state[-1] + 1], _moved(p, m, v, rate, self.tau)

        return Transformation(lambda p, counter: [*p, *p, counter] if self.corrected else [*p, *p], update)

    def _rate(self, t: int) -> float:
        return self.learning_rate * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)


@dataclass(frozen=True)
class Yogi(Described):
    """As Adam without correction, v moving by a bounded part: v - (1 - beta2) g^2 sign(v - g^2) (Zaheer 2018)."""

    name: ClassVar[str] = "yogi"
    learning_rate: float = 0.01
    """The same in every merge."""
    beta1: float = 0.9
    """The decay of the first moment."""
    beta2: float = 0.99
    """The decay of the second moment."""
    tau: float = 1e-3
    """Added to the root."""

    def __post_init__(self) -> None:
        _check(self)

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """The update rule for a round's steps; its state is m, then v, a tensor for each shard."""

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            count = len(p)
            m = [self.beta1 * a + (1 - self.beta1) * g for a, g in zip(state[:count], grad, strict=True)]
            v = []
            for a, g in zip(state[count:], grad, strict=True):
                square = g * g
                part = (1 - self.beta2) * square
                v.append(torch.where(a > square, a - part, torch.where(a < square, a + part, a)))
            return [*m, *v], _moved(p, m, v, torch.tensor(self.learning_rate), self.tau)

        return Transformation(lambda p, counter: [*p, *p], update)


def _check(value: Adam | Yogi) -> None:
    if not (0 <= value.beta1 < 1 and 0 <= value.beta2 < 1 and value.learning_rate > 0 and value.tau > 0):
        raise UsageError(
            f"the optimizer cannot run with {value}", "use betas in [0, 1), and a learning rate and tau above 0"
        )


def _moved(p: Shards, m: Shards, v: Shards, rate: Tensor, tau: float) -> list[Tensor]:
    return [x - rate * (a / (torch.sqrt(b) + tau)) for x, a, b in zip(p, m, v, strict=True)]
