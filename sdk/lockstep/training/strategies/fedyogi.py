"""FedYogi: FedAvg whose mean is a direction for Yogi at the merge (Reddi 2021, algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.optimizers import Yogi
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.fedavg import FedOpt


@dataclass(frozen=True)
class FedYogi(FedOpt):
    """Averages the slots' differences, and applies the mean by Yogi at the merge."""

    name: ClassVar[str] = "fedyogi"
    outer: Optimizer = field(default_factory=Yogi)
    """Applies base - mean, once per round."""
