"""Photon: AdamW within long rounds, Nesterov's momentum at the merge (2411.02908, section 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.optimizers import AdamW, Nesterov
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.fedavg import FedOpt


@dataclass(frozen=True)
class Photon(FedOpt):
    """FedAvg with a momentum of the mean."""

    name: ClassVar[str] = "photon"
    inner: Optimizer = field(default_factory=AdamW)
    """The optimizer within a round; its state restarts in every round."""
    inner_steps: int = 128
    """H: steps of a slot per round."""
    outer: Optimizer = field(default_factory=lambda: Nesterov(0.7, 0.7))
    """Applies base - mean, once per round."""
