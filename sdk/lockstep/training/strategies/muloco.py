"""MuLoCo: Muon within a round, differences in 2 or 4 bits with a residual, Nesterov's momentum (2505.23725)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.uniform import Uniform
from lockstep.training.optimizers import Muon, Nesterov
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import Loop, Parts


@dataclass(frozen=True)
class MuLoCo(Loop):
    """4 bits per parameter, or 2; Muon's momentum and the codec's residual are carried."""

    name: ClassVar[str] = "muloco"
    inner: Optimizer = field(default_factory=Muon)
    """The optimizer within a round."""
    inner_steps: int = 30
    """H: steps of a slot per round."""
    codec: Codec = field(default_factory=lambda: Uniform(width=4))
    """The codec of the differences that are sent."""
    decay: float = 0.9
    """The residual's decay per round."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' differences."""
    outer: Optimizer = field(default_factory=Nesterov)
    """Applies the mean difference, once per round."""
    moments: bool = True
    """True: the inner optimizer's state is carried into its owner's next round."""

    def parts(self) -> Parts:
        """Returns the loop's parts, with a residual to which the learning rate was applied once."""
        return Parts(self.inner, self.codec, self.aggregate, self.outer, keeps=self.moments, decay=self.decay)
