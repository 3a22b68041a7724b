"""FedAdam: FedAvg whose mean is a direction for Adam at the merge (Reddi 2021, algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.optimizers import Adam
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.fedavg import FedOpt


@dataclass(frozen=True)
class FedAdam(FedOpt):
    """Adam at the merge, with the bias correction of flwr 1.42."""

    name: ClassVar[str] = "fedadam"
    outer: Optimizer = field(default_factory=lambda: Adam(learning_rate=0.01, ahead=1))
    """Applies base - mean, once per round."""
