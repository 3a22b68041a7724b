"""Elementwise optimizers: Lion, RMSprop, Adagrad, NAdam, RAdam, Adan."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.training.optimizers.chain import At, Chained, Memory


@dataclass(frozen=True)
class Lion(Chained):
    """The sign of a momentum (Chen 2023, algorithm 2): sign(beta1 m + (1 - beta1) g), m by beta2."""

    name: ClassVar[str] = "lion"
    learning_rate: float = 1e-4
    """The highest learning rate: a third to a tenth of AdamW's."""
    beta1: float = 0.9
    """The part of the momentum in the direction."""
    beta2: float = 0.99
    """The decay of the momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("beta1", "beta2"))

    def kept(self) -> int:
        """m."""
        return 1

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Returns the sign; that of 0 is 0."""
        (m,) = memory
        return torch.sign(self.beta1 * m + (1 - self.beta1) * g), [self.beta2 * m + (1 - self.beta2) * g]


@dataclass(frozen=True)
class RMSprop(Chained):
    """g / (sqrt(v) + epsilon) (Tieleman and Hinton 2012), centred or along a momentum as torch's has it."""

    name: ClassVar[str] = "rmsprop"
    coupled: ClassVar[bool] = True
    learning_rate: float = 1e-3
    """The highest learning rate."""
    alpha: float = 0.99
    """The decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    momentum: float = 0.0
    """The part of the earlier directions that goes on; 0: there is none."""
    centered: bool = False
    """True: the root is that of v - m^2, the variance."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """Added to the gradient, times the parameter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("alpha", "momentum"), above=("epsilon",))

    def kept(self) -> int:
        """v, m if centred, the momentum if there is one."""
        return 1 + self.centered + bool(self.momentum)

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The gradient over its root mean square."""
        v = self.alpha * memory[0] + (1 - self.alpha) * (g * g)
        after, spread = [v], v
        if self.centered:
            m = self.alpha * memory[1] + (1 - self.alpha) * g
            # Rounding can bring a variance below 0.
            after, spread = [v, m], torch.clamp(v - m * m, min=0.0)
        step = g / (torch.sqrt(spread) + self.epsilon)
        if self.momentum:
            step = self.momentum * memory[-1] + step
            after.append(step)
        return step, after


@dataclass(frozen=True)
class Adagrad(Chained):
    """g / (sqrt(v) + epsilon), v the sum of all squares (Duchi 2011, section 1.2)."""

    name: ClassVar[str] = "adagrad"
    coupled: ClassVar[bool] = True
    learning_rate: float = 1e-2
    """The highest learning rate."""
    rate_decay: float = 0.0
    """The learning rate is divided by 1 + rate_decay times the number of gradients so far, torch's `lr_decay`."""
    epsilon: float = 1e-10
    """Added to the root of the sum."""
    weight_decay: float = field(default=0.0, kw_only=True)
    """Added to the gradient, times the parameter."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(above=("epsilon",), least=("rate_decay",))

    def kept(self) -> int:
        """v."""
        return 1

    def ages(self, age: int) -> list[float]:
        """The part of the rate that is left."""
        return [1 / (1 + (age - 1) * self.rate_decay)] if self.rate_decay else []

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The gradient over the root of the sum."""
        v = memory[0] + g * g
        step = g / (torch.sqrt(v) + self.epsilon)
        return step * at.factors[0] if self.rate_decay else step, [v]


@dataclass(frozen=True)
class TwoMoments(Chained):
    """Base of optimizers with Adam's moments m and v, each with its decay."""

    beta1: float = 0.9
    """The decay of the first moment."""
    beta2: float = 0.999
    """The decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("beta1", "beta2"), above=("epsilon",))

    def kept(self) -> int:
        """m and v."""
        return 2

    def moments(self, g: Tensor, memory: Memory) -> Memory:
        """Both after a gradient."""
        m, v = memory
        return [self.beta1 * m + (1 - self.beta1) * g, self.beta2 * v + (1 - self.beta2) * (g * g)]


@dataclass(frozen=True)
class NAdam(TwoMoments):
    """Adam that looks ahead along its momentum (Dozat 2016, algorithm 2), with torch's decoupled decay."""

    name: ClassVar[str] = "nadam"
    learning_rate: float = 2e-3
    """The highest learning rate."""
    momentum_decay: float = 4e-3
    """The pace at which the momentum approaches beta1: beta1 (1 - 0.5 0.96^(t momentum_decay))."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(least=("momentum_decay",))

    def rows(self, ages: int) -> list[list[float]]:
        """The parts of gradient and momentum in the direction, and the correction of the root."""
        found, product = [], 1.0
        for age in range(1, ages + 1):
            mu, ahead = self._mu(age), self._mu(age + 1)
            product *= mu
            root = 1 / math.sqrt(1 - self.beta2**age)
            found.append([(1 - mu) / (1 - product), ahead / (1 - product * ahead), root])
        return found

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Gradient and momentum over the root."""
        m, v = self.moments(g, memory)
        now, ahead, root = at.factors
        return (now * g + ahead * m) / (torch.sqrt(v) * root + self.epsilon), [m, v]

    def _mu(self, age: int) -> float:
        return self.beta1 * (1 - 0.5 * 0.96 ** (age * self.momentum_decay))


@dataclass(frozen=True)
class RAdam(TwoMoments):
    """Adam without the root while its variance is intractable (Liu 2020, algorithm 2), with torch's decoupled decay."""

    name: ClassVar[str] = "radam"

    def ages(self, age: int) -> list[float]:
        """The factor of m, and those of its step with a root and without one."""
        first, second = 1 - self.beta1**age, 1 - self.beta2**age
        most = 2 / (1 - self.beta2) - 1
        length = most - 2 * age * self.beta2**age / second
        if length <= 5:
            return [1 / first, 0.0, 1.0]
        rectified = math.sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length))
        return [1 / first, rectified * math.sqrt(second), 0.0]

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Returns m, divided by the root once its variance is tractable."""
        m, v = self.moments(g, memory)
        first, rooted, plain = at.factors
        mean = m * first
        return mean * plain + mean * rooted / (torch.sqrt(v) + self.epsilon), [m, v]


@dataclass(frozen=True)
class Adan(Chained):
    """Adam with the differences of gradients (Xie 2022, algorithm 1), with the published code's corrections.

    Its betas are decay factors, as in the code: one minus those of the paper. The decay is the code's
    `no_prox`.
    """

    name: ClassVar[str] = "adan"
    learning_rate: float = 1e-3
    """The highest learning rate."""
    beta1: float = 0.98
    """The decay of the first moment."""
    beta2: float = 0.92
    """The decay of the differences, and their part in the direction."""
    beta3: float = 0.99
    """The decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(inside=("beta1", "beta2", "beta3"), above=("epsilon",))

    def kept(self) -> int:
        """m, the mean difference, n, the last gradient."""
        return 4

    def ages(self, age: int) -> list[float]:
        """The corrections of the three, and 0 for the first gradient, which differs from none."""
        first, second = 1 / (1 - self.beta1**age), self.beta2 / (1 - self.beta2**age)
        return [first, second, 1 / math.sqrt(1 - self.beta3**age), float(age > 1)]

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Mean and mean difference over the root."""
        first, second, root, differs = at.factors
        m, d, n, last = memory
        change = (g - last) * differs
        ahead = g + self.beta2 * change
        m = self.beta1 * m + (1 - self.beta1) * g
        d = self.beta2 * d + (1 - self.beta2) * change
        n = self.beta3 * n + (1 - self.beta3) * (ahead * ahead)
        return (first * m + second * d) / (torch.sqrt(n) * root + self.epsilon), [m, d, n, g]
