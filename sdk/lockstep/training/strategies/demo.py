"""DeMo: the largest DCT coefficients of a momentum are sent and removed from it (Peng 2024, 2411.19870, algorithm 1).

    m = decay m + g     q = the largest coefficients of DCT(m)     m = m - iDCT(q)     p = p - rate sign(mean iDCT(q))

The rest of m is the residual.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.dct import DCT
from lockstep.training.optimizers import SignSGD
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import GRADIENT, Loop, Parts


@dataclass(frozen=True)
class DeMo(Loop):
    """8 of 4,096 coefficients in 16 bits each: 0.055 bits per parameter."""

    name: ClassVar[str] = "demo"
    inner_steps: int = 1
    """H: one step per round."""
    codec: Codec = field(default_factory=DCT)
    """The codec of the momentum that is sent."""
    decay: float = 0.999
    """The decay per round of the momentum that was not sent."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' momenta."""
    outer: Optimizer = field(default_factory=SignSGD)
    """Applies the mean, once per round."""

    def parts(self) -> Parts:
        """Returns the loop's parts; the residual serves as the momentum."""
        return Parts(None, self.codec, self.aggregate, self.outer, sent=GRADIENT, decay=self.decay)
