"""Optimizers that read a parameter as a whole: LAMB, Adafactor."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.training.optimizers.chain import At, Chained, Memory
from lockstep.training.optimizers.elementwise import TwoMoments

SMALLEST = 2.0**-23
"""torch's default of `eps1`: the epsilon of binary32."""


@dataclass(frozen=True)
class LAMB(TwoMoments):
    """Adam's step, decay included, as long as the parameter itself (You 2020, algorithm 2, phi the identity)."""

    name: ClassVar[str] = "lamb"
    whole: ClassVar[bool] = True
    epsilon: float = 1e-6
    """Added to the root of the second moment."""
    weight_decay: float = field(default=0.01, kw_only=True)
    """Added to the step, times the parameter, before its length is taken."""

    def ages(self, age: int) -> list[float]:
        """The bias corrections of m and of the root of v."""
        return [1 / (1 - self.beta1**age), 1 / math.sqrt(1 - self.beta2**age)]

    def moved(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The step times |x| / |step|; 1 where one of them is 0."""
        m, v = self.moments(g, memory)
        first, root = at.factors
        step = (m * first) / (torch.sqrt(v) * root + self.epsilon)
        step = step + at.decay * x if at.decay else step
        own, length = torch.sqrt((x * x).sum()), torch.sqrt((step * step).sum())
        trust = torch.where((own > 0) & (length > 0), own / length, 1.0)
        return x - at.rate * trust * step, [m, v]


@dataclass(frozen=True)
class Adafactor(Chained):
    """A second moment of rows and columns alone (Shazeer and Stern 2018, algorithm 4), with the arguments of torch's.

    Of a parameter with two axes and more the last two are factored; a vector has a second moment of its own.
    """

    name: ClassVar[str] = "adafactor"
    whole: ClassVar[bool] = True
    learning_rate: float = 1e-2
    """The highest learning rate, times the root mean square of a parameter; never above 1 / sqrt(steps seen)."""
    beta2_decay: float = -0.8
    """The second moment's decay is 1 - t^beta2_decay."""
    least: float = 1e-3
    """The least root mean square of a parameter, torch's `eps[1]`."""
    largest: float = 1.0
    """The largest root mean square of a step before its rate, torch's `d`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_lies(above=("least", "largest"))
        if not self.beta2_decay <= 0:
            self.check_lies(above=("learning_rate",))

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Means of rows and of columns, or the second moment of a vector."""
        return [(*shape[:-1], 1), (*shape[:-2], 1, shape[-1])] if len(shape) > 1 else [shape]

    def ages(self, age: int) -> list[float]:
        """The part of a square that is taken, and the bound of the rate."""
        return [age**self.beta2_decay, 1 / math.sqrt(age)]

    def moved(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The step by a rate relative to the parameter."""
        part, bound = at.factors
        square = g * g
        if len(memory) == 2:
            rows = memory[0] + part * (square.mean(-1, keepdim=True) - memory[0])
            columns = memory[1] + part * (square.mean(-2, keepdim=True) - memory[1])
            spread = rows * columns / torch.clamp(rows.mean(-2, keepdim=True), min=SMALLEST)
            memory = [rows, columns]
        else:
            spread = memory[0] + part * (square - memory[0])
            memory = [spread]
        step = g / torch.sqrt(torch.clamp(spread, min=SMALLEST**2))
        size = torch.clamp(_rms(step) / self.largest, min=1.0)
        rate = torch.minimum(torch.as_tensor(at.rate), bound) * torch.clamp(_rms(x), min=self.least)
        kept = x * (1 - at.rate * at.decay) if at.decay else x
        return kept - rate / size * step, memory


def _rms(x: Tensor) -> Tensor:
    return torch.sqrt((x * x).mean())
