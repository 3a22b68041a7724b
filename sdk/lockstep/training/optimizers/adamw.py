"""AdamW on flat tensors, its schedule a table that the step's counter indexes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.chain import Chained, norm_scale
from lockstep.training.optimizers.groups import Partition
from lockstep.training.optimizers.schedule import brief
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation

Key = tuple[float, float]
"""A learning rate over the highest, and a decay."""


@dataclass(frozen=True)
class AdamW(Chained):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with clipping by the global norm, warm-up and cosine decay.

    Moments restart at zero every `restart` steps, and the bias correction with them; or they are carried, and with them
    their age: the steps since they were zero, `step` of torch's own AdamW.
    """

    name: ClassVar[str] = "adamw"
    learning_rate: float = 3e-3
    """The highest learning rate."""
    beta1: float = 0.9
    """The decay of the first moment."""
    beta2: float = 0.95
    """The decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = field(default=0.1, kw_only=True)
    """Per step, times the learning rate, of every parameter that `decayed` names."""
    clip: float = field(default=1.0, kw_only=True)
    """The largest global norm of a gradient (Pascanu 2013, algorithm 1); 1e30 clips nothing."""
    restart_warmup: int = field(default=0, kw_only=True)
    """Steps of linear warm-up after each restart of the moments, which know little of the gradient then."""

    def __post_init__(self) -> None:
        self.check_rate()
        self.check_groups()
        fine = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0 and self.clip > 0
        if not (fine and self.weight_decay >= 0 and self.restart_warmup >= 0 and self.clip_value >= 0):
            raise UsageError(
                f"AdamW cannot run with {brief(self)}",
                "betas lie in [0, 1), clip and epsilon above 0, clip_value, weight_decay and restart_warmup not below",
            )

    def table(self, steps: int, restart: int, keys: Sequence[Key] = ()) -> Tensor:
        """f32 [steps, 3]: the factors of step c on the parameters, on their move, and on sqrt(v).

        Of several keys, (learning rate over the highest, decay), the first two stand for each.
        """
        rows = []
        for step in range(steps):
            since = step % restart + 1
            rate = self.rate(step, steps) * min(1.0, since / (self.restart_warmup + 1))
            row = []
            for ratio, decay in keys or [(1.0, self.weight_decay)]:
                row += [1 - rate * ratio * decay, rate * ratio / (1 - self.beta1**since)]
            rows.append([*row, 1 / math.sqrt(1 - self.beta2**since)])
        return torch.tensor(rows, dtype=torch.float32)

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: m, then v, shard by shard flat f32; where they do not restart also their age i32 (), the steps that
        they have seen."""
        cut = self.cut_of(layout)
        return self._carried(steps, cut) if restart is None else self._restarted(steps, restart, cut)

    def unreached(self, steps: int, restart: int | None) -> str:
        """Warns also if the warm-up outlasts a round."""
        if restart is not None and self.restart_warmup >= restart:
            part = restart / (self.restart_warmup + 1)
            return (
                f"restart_warmup is {self.restart_warmup}, and the moments restart every {restart} steps: "
                f"the largest learning rate is {part * self.learning_rate:.1e} of {self.learning_rate:.1e}"
            )
        return super().unreached(steps, restart)

    def _restarted(self, steps: int, restart: int, cut: Partition) -> Transformation:
        keys = list(dict.fromkeys(run.key for run in cut.runs))
        table = self.table(steps, restart, keys)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            *factors, root = F.embedding(counter, table).unbind(0)
            by_key = {key: (factors[2 * at], factors[2 * at + 1]) for at, key in enumerate(keys)}
            p, m, v = self._moved(by_key, root, cut, p, state[: len(p)], state[len(p) :], grad)
            return [*m, *v], p

        return Transformation(lambda p, counter: [*p, *p], update)

    def _carried(self, steps: int, cut: Partition) -> Transformation:
        rates = torch.tensor([[self.rate(step, steps)] for step in range(steps)], dtype=torch.float32)
        ages = torch.tensor([self.ages(since) for since in range(1, steps + 1)], dtype=torch.float32)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            count, age = len(p), state[-1]
            (rate,) = F.embedding(counter, rates).unbind(0)
            warm, first, root = F.embedding(age, ages).unbind(0)
            rate = rate * warm
            by_key = {}
            for ratio, decay in dict.fromkeys(run.key for run in cut.runs):
                own = rate if ratio == 1 else rate * ratio
                by_key[ratio, decay] = (1 - own * decay, own * first)
            moved, m, v = self._moved(by_key, root, cut, p, state[:count], state[count : 2 * count], grad)
            return [*m, *v, age + 1], moved

        return Transformation(lambda p, counter: [*p, *p, counter], update)

    def ages(self, age: int) -> list[float]:
        """The factors of moments of an age on the learning rate, the step and sqrt(v)."""
        warm = min(1.0, age / (self.restart_warmup + 1))
        return [warm, 1 / (1 - self.beta1**age), 1 / math.sqrt(1 - self.beta2**age)]

    def _moved(
        self,
        by_key: Mapping[Key, tuple[Tensor, Tensor]],
        root: Tensor,
        cut: Partition,
        p: Shards,
        m: Shards,
        v: Shards,
        grad: Shards,
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        if self.clip_value:
            grad = [torch.clamp(g, -self.clip_value, self.clip_value) for g in grad]
        scale = norm_scale(grad, self.clip)
        moved: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for run, *shard in zip(cut.runs, cut.cut(p), cut.cut(m), cut.cut(v), cut.cut(grad), strict=True):
            for found, tensor in zip(moved, self._moved_run(*by_key[run.key], root, scale, *shard), strict=True):
                found.append(tensor)
        return cut.join(moved[0]), cut.join(moved[1]), cut.join(moved[2])

    def _moved_run(
        self, decay: Tensor, move: Tensor, root: Tensor, scale: Tensor, p: Tensor, m: Tensor, v: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        clipped = grad * scale
        m = self.beta1 * m + (1 - self.beta1) * clipped
        v = self.beta2 * v + (1 - self.beta2) * (clipped * clipped)
        p = p * decay - move * (m / (torch.sqrt(v) * root + self.epsilon))
        return p, m, v
