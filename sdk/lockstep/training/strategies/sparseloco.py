"""SparseLoCo: DiLoCo whose differences are sent as 64 of 4,096 elements in 2 bits, with a residual (2508.15706).

    e = decay e + (base - live)     d = Q(TopK(e))     e = e - d          in each slot (algorithm 1, lines 8 to 11)
    base = base - outer rate mean(d)

Templar's runs (Covenant-72B: 2603.08163) average over the contributors and clip payloads to their median norm, as set
by `aggregate`. The paper's bins, scale and indices are those of the codec.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.topk import TopK
from lockstep.training.optimizers import SGD, AdamW
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import Loop, Parts


@dataclass(frozen=True)
class SparseLoCo(Loop):
    """0.219 bits per parameter; the moments and the codec's residual are carried."""

    name: ClassVar[str] = "sparseloco"
    inner: Optimizer = field(default_factory=AdamW)
    """The optimizer within a round."""
    inner_steps: int = 30
    """H: steps of a slot per round."""
    codec: Codec = field(default_factory=TopK)
    """The codec of the differences that are sent."""
    decay: float = 0.95
    """The residual's decay per round."""
    aggregate: Aggregate = field(default_factory=lambda: Average(clip=True))
    """The rule that aggregates the slots' differences."""
    outer: Optimizer = field(default_factory=SGD)
    """Applies the mean difference, once per round."""
    moments: bool = True
    """True: the inner optimizer's state is carried into its owner's next round."""

    def parts(self) -> Parts:
        """Returns the parts of the loop, with a residual."""
        return Parts(self.inner, self.codec, self.aggregate, self.outer, keeps=self.moments, decay=self.decay)
