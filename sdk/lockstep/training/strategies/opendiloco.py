"""OpenDiLoCo: DiLoCo whose differences are sent as binary16 (2407.07852, section 2.3)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.float16 import Float16
from lockstep.training.optimizers import AdamW, Nesterov
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import Loop, Parts


@dataclass(frozen=True)
class OpenDiLoCo(Loop):
    """16 bits per parameter; the moments are carried."""

    name: ClassVar[str] = "opendiloco"
    inner: Optimizer = field(default_factory=AdamW)
    """The optimizer within a round."""
    inner_steps: int = 500
    """H: steps of a slot per round."""
    codec: Codec = field(default_factory=Float16)
    """The codec of the differences that are sent."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' differences."""
    outer: Optimizer = field(default_factory=Nesterov)
    """Applies the mean difference, once per round."""
    moments: bool = True
    """True: the inner optimizer's state is carried into its owner's next round."""

    def parts(self) -> Parts:
        """Returns the loop's parts, without a residual: the codec's error is lost."""
        return Parts(self.inner, self.codec, self.aggregate, self.outer, keeps=self.moments)
