"""AdamW on flat tensors, its schedule a table that the step's counter indexes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.schedule import Scheduled
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation


@dataclass(frozen=True)
class AdamW(Scheduled):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with clipping by the global norm, warm-up and cosine decay.

    Moments restart at zero every `restart` steps, and the bias correction with them; or they are carried, and with them
    their age: the steps since they were zero, `step` of torch's own AdamW.
    """

    learning_rate: float = 3e-3
    """The highest learning rate."""
    beta1: float = 0.9
    """The decay of the first moment."""
    beta2: float = 0.95
    """The decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Per step, times the learning rate, of every parameter."""
    clip: float = 1.0
    """The largest global norm of a gradient (Pascanu 2013, algorithm 1)."""
    warmup: int = 10
    """Steps of linear warm-up over the whole job."""
    restart_warmup: int = 0
    """Steps of linear warm-up after each restart of the moments, which know little of the gradient then."""
    final_fraction: float = 0.1
    """The learning rate of the last step, as a fraction of the highest."""

    def __post_init__(self) -> None:
        self.check_rate()
        fine = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0 and self.clip > 0
        if not (fine and self.weight_decay >= 0 and self.restart_warmup >= 0):
            raise UsageError(
                f"AdamW cannot run with {self}",
                "betas lie in [0, 1), clip and epsilon above 0, weight_decay and restart_warmup not below",
            )

    def to_dict(self) -> dict[str, Any]:
        """Returns the optimizer as it is described in a strategy, under `inner` or `outer`."""
        return {"name": "adamw", **asdict(self)}

    def table(self, steps: int, restart: int) -> Tensor:
        """f32 [steps, 3]: the factors of step c on the parameters, on their move, and on sqrt(v)."""
        rows = []
        for step in range(steps):
            since = step % restart + 1
            rate = self.rate(step, steps) * min(1.0, since / (self.restart_warmup + 1))
            rows.append(
                [
                    1 - rate * self.weight_decay,
                    rate / (1 - self.beta1**since),
                    1 / math.sqrt(1 - self.beta2**since),
                ]
            )
        return torch.tensor(rows, dtype=torch.float32)

    def rates(self, steps: int) -> Tensor:
        """f32 [steps, 1]: the learning rate of step c, whatever the moments' age."""
        return torch.tensor([[self.rate(step, steps)] for step in range(steps)], dtype=torch.float32)

    def ages(self, steps: int) -> Tensor:
        """f32 [steps, 3]: the factors of moments of age a on the learning rate, the step and sqrt(v)."""
        rows = []
        for since in range(1, steps + 1):
            warm = min(1.0, since / (self.restart_warmup + 1))
            rows.append([warm, 1 / (1 - self.beta1**since), 1 / math.sqrt(1 - self.beta2**since)])
        return torch.tensor(rows, dtype=torch.float32)

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: m, then v, shard by shard flat f32; where they do not restart also their age i32 (), the steps that
        they have seen."""
        return self._carried(steps) if restart is None else self._restarted(steps, restart)

    def _restarted(self, steps: int, restart: int) -> Transformation:
        table = self.table(steps, restart)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            decay, move, root = F.embedding(counter, table).unbind(0)
            p, m, v = self._moved(decay, move, root, p, state[: len(p)], state[len(p) :], grad)
            return [*m, *v], p

        return Transformation(lambda p, counter: [*p, *p], update)

    def _carried(self, steps: int) -> Transformation:
        rates, ages = self.rates(steps), self.ages(steps)

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            count, age = len(p), state[-1]
            (rate,) = F.embedding(counter, rates).unbind(0)
            warm, first, root = F.embedding(age, ages).unbind(0)
            rate = rate * warm
            moved = self._moved(
                1 - rate * self.weight_decay, rate * first, root, p, state[:count], state[count : 2 * count], grad
            )
            return [*moved[1], *moved[2], age + 1], moved[0]

        return Transformation(lambda p, counter: [*p, *p, counter], update)

    def _moved(
        self, decay: Tensor, move: Tensor, root: Tensor, p: Shards, m: Shards, v: Shards, grad: Shards
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        norm = torch.sqrt(reduce(torch.add, [(g * g).sum() for g in grad]))
        scale = torch.clamp(self.clip / (norm + 1e-6), max=1.0)
        moved: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        for shard in zip(p, m, v, grad, strict=True):
            for found, tensor in zip(moved, self._moved_shard(decay, move, root, scale, *shard), strict=True):
                found.append(tensor)
        return moved

    def _moved_shard(
        self, decay: Tensor, move: Tensor, root: Tensor, scale: Tensor, p: Tensor, m: Tensor, v: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        clipped = grad * scale
        m = self.beta1 * m + (1 - self.beta1) * clipped
        v = self.beta2 * v + (1 - self.beta2) * (clipped * clipped)
        p = p * decay - move * (m / (torch.sqrt(v) * root + self.epsilon))
        return p, m, v
