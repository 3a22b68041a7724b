"""All-reduce: every step's gradient is averaged over all slots and applied by AdamW, as one machine would.

The synchronous baseline (Goyal 2017, section 2.3): with one slot it is AdamW itself, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.exact import Exact
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import GRADIENT, Loop, Parts


@dataclass(frozen=True)
class AllReduce(Loop):
    """Gradients of one step, 32 bits per parameter."""

    name: ClassVar[str] = "allreduce"
    inner_steps: int = 1
    """H: one step per round."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' gradients."""
    outer: Optimizer = field(default_factory=AdamW)
    """Applies the mean gradient, once per round."""

    def parts(self) -> Parts:
        """Returns the loop's parts, without a codec and without a carry."""
        return Parts(None, Exact(), self.aggregate, self.outer, sent=GRADIENT)
