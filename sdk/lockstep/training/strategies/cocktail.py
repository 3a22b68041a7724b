"""CocktailSGD: the largest elements of a random eighth of a step are sent in 4 bits (Wang 2023, ICML, section 3).

Residuals are kept at both ends: a slot keeps that of its own step, the merge that of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.random_k import RandomK
from lockstep.training.codecs.topk import TopK
from lockstep.training.optimizers import SGD, AdamW
from lockstep.training.strategies.base import Optimizer
from lockstep.training.strategies.loop import Loop, Parts


def _mixed() -> Codec:
    return RandomK(block=4096, kept=512, then=TopK(block=512, kept=56, width=4))


@dataclass(frozen=True)
class Cocktail(Loop):
    """0.18 bits per parameter, up and down."""

    name: ClassVar[str] = "cocktail"
    inner: Optimizer = field(default_factory=AdamW)
    """The optimizer whose steps are sent."""
    inner_steps: int = 1
    """H: steps of a slot per round."""
    codec: Codec = field(default_factory=_mixed)
    """The codec of the steps that are sent."""
    down: Codec = field(default_factory=_mixed)
    """The codec of the mean that is applied."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' steps."""
    outer: Optimizer = field(default_factory=SGD)
    """Applies the mean step, once per round."""

    def parts(self) -> Parts:
        """Returns the loop's parts, with residuals at both ends and the inner moments."""
        return Parts(self.inner, self.codec, self.aggregate, self.outer, keeps=True, decay=1.0, down=self.down)
