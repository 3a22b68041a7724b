"""Adam and Yogi as server optimizers (Reddi 2021, algorithm 2): one step per merge, tau added to the root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.chain import At, Chained, Memory
from lockstep.training.optimizers.schedule import brief
from lockstep.training.optimizers.schedules import ConstantRate, RateShape


@dataclass(frozen=True)
class ServerMoments(Chained):
    """Base of Adam and Yogi: moments m and v, and the step p - rate m / (sqrt(v) + tau)."""

    learning_rate: float = 0.1
    """The highest learning rate."""
    beta1: float = 0.9
    """The decay of the first moment."""
    beta2: float = 0.99
    """The decay of the second moment."""
    tau: float = 1e-3
    """Added to the root: the smallest divisor, which bounds the adaptivity."""
    warmup: int = field(default=0, kw_only=True)
    """Steps of linear warm-up over the whole job."""
    schedule: RateShape = field(default_factory=ConstantRate, kw_only=True)
    """The learning rate's schedule after the warm-up; constant by default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.tau > 0):
            raise UsageError(f"{brief(self)} cannot run", "betas must lie in [0, 1), learning rate and tau above 0")

    def kept(self) -> int:
        """m and v."""
        return 2

    @property
    def plain(self) -> bool:
        """True if every parameter has the same rate in every merge."""
        return self.steady and not self.groups.rows

    def rate_of(self, at: At) -> Tensor | float:
        """The rate of the step along m / (sqrt(v) + tau)."""
        return torch.tensor(self.learning_rate) if self.plain else at.rate

    def first(self, m: Tensor, g: Tensor) -> Tensor:
        """The first moment after a gradient."""
        return self.beta1 * m + (1 - self.beta1) * g

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        """The second moment after a gradient."""
        raise NotImplementedError

    def moved_all(self, runs: Sequence[tuple[At, Tensor, Tensor, Memory]]) -> list[tuple[Tensor, Memory]]:
        """Returns the step; the decay uses the plain rate. Existing Programs compute all m, then all v, then the
        updates."""
        ms = [self.first(m, g) for _, _, g, (m, _) in runs]
        vs = [self.second(v, g) for _, _, g, (_, v) in runs]
        done = []
        for (at, x, _, _), m, v in zip(runs, ms, vs, strict=True):
            kept = x * (1 - at.rate * at.decay) if at.decay else x
            done.append((kept - self.rate_of(at) * (m / (torch.sqrt(v) + self.tau)), [m, v]))
        return done


@dataclass(frozen=True)
class Adam(ServerMoments):
    """m and v as in Adam, p - rate m / (sqrt(v) + tau); the rate with the bias correction of Kingma 2015, section 2.

    Both moments begin at zero; flwr's FedAdam corrects by one step more than it has taken, `ahead` = 1.
    """

    name: ClassVar[str] = "adam"
    counts: ClassVar[bool] = True
    corrected: bool = True
    """True: the learning rate is multiplied by sqrt(1 - beta2^t) / (1 - beta1^t)."""
    ahead: int = 0
    """Added to t, the number of merges including this one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ahead < 0:
            raise UsageError(f"ahead is {self.ahead}", "use at least 0")

    def ages(self, age: int) -> list[float]:
        """Returns the corrected rate if it is the same in every merge, else the correction."""
        t = age + self.ahead
        lead = self.learning_rate if self.plain else 1.0
        return [lead * math.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)] if self.corrected else []

    def rate_of(self, at: At) -> Tensor | float:
        """Returns the corrected rate."""
        if not self.corrected:
            return super().rate_of(at)
        return at.factors[0] if self.plain else at.rate * at.factors[0]

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        """Returns the moving average of the squares."""
        return self.beta2 * v + (1 - self.beta2) * (g * g)


@dataclass(frozen=True)
class Yogi(ServerMoments):
    """As Adam without correction, v moving by a bounded part: v - (1 - beta2) g^2 sign(v - g^2) (Zaheer 2018)."""

    name: ClassVar[str] = "yogi"
    learning_rate: float = 0.01
    """The highest learning rate."""

    def second(self, v: Tensor, g: Tensor) -> Tensor:
        """Returns v moved towards the square by a bounded amount."""
        square = g * g
        part = (1 - self.beta2) * square
        return torch.where(v > square, v - part, torch.where(v < square, v + part, v))
