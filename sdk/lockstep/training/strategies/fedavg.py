"""FedAvg: slots train independently for H steps; their mean parameters are the next base (McMahan 2017, algorithm 1).

All slots draw the same number of rows per round, so the mean has equal weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.exact import Exact
from lockstep.training.optimizers import SGD
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import PARAMETERS, Loop, Parts


@dataclass(frozen=True)
class FedAvg(Loop):
    """Parameters are sent, 32 bits each; the inner optimizer's state restarts in every round."""

    name: ClassVar[str] = "fedavg"
    inner: Optimizer = field(default_factory=lambda: SGD(learning_rate=0.1))
    """The optimizer within a round."""
    inner_steps: int = 20
    """H: steps of a slot per round."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' parameters."""

    def parts(self) -> Parts:
        """Returns the loop's parts; the mean becomes the next base."""
        return Parts(self.inner, Exact(), self.aggregate, None, sent=PARAMETERS)


@dataclass(frozen=True)
class FedOpt(Loop):
    """FedAvg whose mean gives the direction of a server optimizer's step (Reddi 2021, algorithm 2)."""

    inner: Optimizer = field(default_factory=lambda: SGD(learning_rate=0.1))
    """The optimizer within a round; its state restarts in every round."""
    inner_steps: int = 20
    """H: steps of a slot per round."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' parameters."""
    outer: Optimizer = field(default_factory=SGD)
    """Applies base - mean, once per round."""

    def parts(self) -> Parts:
        """Parameters are sent, 32 bits each."""
        return Parts(self.inner, Exact(), self.aggregate, self.outer, sent=PARAMETERS)
