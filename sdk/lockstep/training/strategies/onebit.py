"""1-bit Adam: after a warm-up Adam's second moment is frozen, and the first is sent as signs (Tang 2021, 2102.02888).

    warm-up     g is sent in full                m = beta1 m + (1 - beta1) mean(g), v as Adam's, at the merge
    then        C(m_slot + e_slot) is sent       m = C(mean + e_merge), v frozen
    both        p = p - rate m / (sqrt(v) + epsilon)

In the paper every worker receives the mean momentum. Here a slot receives only the parameters, so its momentum is that
of its own gradients; by linearity the mean is the same, except for the codec's error, which both residuals keep.
Payloads of the warm-up are plain words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat
from lockstep.training.aggregates.base import Aggregate
from lockstep.training.aggregates.mean import Average
from lockstep.training.codecs.base import Codec, Elementwise, bounded
from lockstep.training.codecs.sign import Sign
from lockstep.training.described import Described
from lockstep.training.optimizers.schedule import Scheduled
from lockstep.training.optimizers.schedules import CosineRate, RateShape
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation
from lockstep.training.strategies.loop import GRADIENT, Loop, Parts


@dataclass(frozen=True)
class OneBit(Scheduled, Loop):
    """1 bit per parameter after the warm-up."""

    name: ClassVar[str] = "onebit"
    inner_steps: int = 1
    """H: one step per round."""
    warm_rounds: int = 20
    """Rounds of plain Adam, which estimate the second moment."""
    block: int = 4096
    """Elements that share a magnitude."""
    learning_rate: float = 1e-3
    """The highest learning rate."""
    beta1: float = 0.9
    """The decay of the momentum."""
    beta2: float = 0.999
    """The decay of the second moment, until it is frozen."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    warmup: int = 10
    """Rounds of linear warm-up of the learning rate."""
    final_fraction: float = 0.1
    """The learning rate of the last round, as a fraction of the highest."""
    schedule: RateShape = field(default_factory=CosineRate)
    """The learning rate after the warm-up, by rounds."""
    aggregate: Aggregate = field(default_factory=Average)
    """The rule that aggregates the slots' momenta."""

    def __post_init__(self) -> None:
        self.check_rate()
        fine = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0 and self.warm_rounds > 0
        if not fine:
            raise UsageError(
                f"1-bit Adam cannot run with {self}", "betas must lie in [0, 1), epsilon and warm_rounds above 0"
            )
        super().__post_init__()

    def parts(self) -> Parts:
        """Returns the loop's parts: signs with residuals at both ends, after the warm-up."""
        codec = OnceWarm(Sign(self.block), self.warm_rounds)
        momentum = SlotMomentum(self.beta1, self.warm_rounds)
        return Parts(
            momentum, codec, self.aggregate, FrozenAdam(self), sent=GRADIENT, keeps=True, decay=1.0, down=codec
        )


@dataclass(frozen=True)
class OnceWarm(Elementwise):
    """Sends the tensor itself in the first rounds, then a codec's form of it."""

    name: ClassVar[str] = "once_warm"
    then: Codec = field(default_factory=Sign)
    """The codec after the warm-up; its payload is the decoded tensor."""
    rounds: int = 20
    """The number of first rounds."""

    @property
    def format(self) -> WireFormat:
        """The wire format of the codec that follows the warm-up."""
        return self.then.format

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        coded = self.then.encode(x, round)
        return torch.where(round < self.rounds, bounded(x), coded)


@dataclass(frozen=True)
class SlotMomentum(Described):
    """Sends a slot's gradient in the first rounds, then the moving average of its gradients."""

    name: ClassVar[str] = "slot_momentum"
    beta: float = 0.9
    rounds: int = 20

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the transformation. Its state: the moving average, shard by shard."""

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            m = [self.beta * a + (1 - self.beta) * g for a, g in zip(state, grad, strict=True)]
            return m, [torch.where(counter < self.rounds, g, a) for g, a in zip(grad, m, strict=True)]

        return Transformation(lambda p, counter: list(p), update)


@dataclass(frozen=True)
class FrozenAdam:
    """Adam in the first rounds; then its second moment is frozen, and its input is used as the momentum."""

    of: OneBit

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the transformation. Its state: m, then v, shard by shard. Bias corrections depend on the round."""
        rows = [self._row(step, steps) for step in range(steps)]
        table, o = torch.tensor(rows, dtype=torch.float32), self.of

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            count, warm = len(p), counter < o.warm_rounds
            rate, first, root = F.embedding(counter, table).unbind(0)
            after_m, after_v, moved = [], [], []
            for x, m, v, g in zip(p, state[:count], state[count:], grad, strict=True):
                m = torch.where(warm, o.beta1 * m + (1 - o.beta1) * g, g)
                v = torch.where(warm, o.beta2 * v + (1 - o.beta2) * (g * g), v)
                moved.append(x - rate * ((m * first) / (torch.sqrt(v) * root + o.epsilon)))
                after_m.append(m)
                after_v.append(v)
            return [*after_m, *after_v], moved

        return Transformation(lambda p, counter: [*p, *p], update)

    def to_dict(self) -> dict[str, Any]:
        """Returns the optimizer's name; its fields are the strategy's."""
        return {"name": "frozen_adam"}

    def _row(self, step: int, steps: int) -> list[float]:
        o, seen = self.of, min(step + 1, self.of.warm_rounds)
        return [o.rate(step, steps), 1 / (1 - o.beta1 ** (step + 1)), 1 / math.sqrt(1 - o.beta2**seen)]
