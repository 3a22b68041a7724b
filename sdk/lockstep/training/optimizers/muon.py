"""Muon: momentum whose matrices are orthogonalised by five Newton-Schulz steps in binary32 (Jordan 2024).

    b = momentum b + g     X = (g + momentum b) / its norm     5 times  X = a X + (b A + c A A) X, A = X X'
    p = p (1 - rate decay) - rate 0.2 sqrt(max(rows, columns)) X        (Liu 2025, 2502.16982, equation 4)

The factor gives a matrix step the root mean square of an AdamW step, so that embeddings, heads and vectors can use
AdamW's step at the same rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.chain import Chained
from lockstep.training.optimizers.groups import refuse_unmatched
from lockstep.training.optimizers.schedule import brief
from lockstep.training.parameters import Layout, Parameter
from lockstep.training.strategies.base import Shards, Transformation

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
_SMALL = 1e-7
_RMS = 0.2


@dataclass(frozen=True)
class Muon(Chained):
    """Muon on matrices, AdamW on the rest; warm-up and cosine decay as in AdamW."""

    name: ClassVar[str] = "muon"
    learning_rate: float = 3e-3
    """The highest learning rate."""
    momentum: float = 0.95
    """The part of the earlier gradients that goes on."""
    beta1: float = 0.9
    """AdamW's, for what is no hidden matrix."""
    beta2: float = 0.95
    """AdamW's, for what is no hidden matrix."""
    epsilon: float = 1e-8
    """AdamW's, for what is no hidden matrix."""
    weight_decay: float = field(default=0.1, kw_only=True)
    """Per step, times the learning rate, of every parameter that `decayed` names."""
    others: str = "tokens positions embed head wte wpe"
    """Words: a matrix whose name contains one of them uses AdamW's step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = 0 <= self.momentum < 1 and 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.epsilon > 0
        if not fine:
            raise UsageError(
                f"Muon cannot run with {brief(self)}",
                "momentum and betas lie in [0, 1), epsilon above 0, weight_decay not below",
            )

    def hidden(self, parameter: Parameter) -> bool:
        """True if a parameter is a matrix that is orthogonalised."""
        named = any(word in parameter.name for word in self.others.split())
        return len(parameter.shape) == 2 and min(parameter.shape) > 1 and not named and not parameter.is_complex

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """State: the momenta shard by shard, AdamW's v of all other parameters one after the other f32 [n], and where
        they do not restart their age i32 ()."""
        refuse_unmatched((pattern for pattern, _ in self.groups.rows), layout, "groups")
        rest = [p for p in layout.parameters if not self.hidden(p)]
        count, room = len(layout.sizes), max(1, sum(p.elements for p in rest))
        rates = torch.tensor([[self.rate(step, steps)] for step in range(steps)], dtype=torch.float32)
        since = [step % (restart or steps) + 1 for step in range(steps)]
        ages = torch.tensor([self.ages(age) for age in since], dtype=torch.float32)

        def init(p: Shards, counter: Tensor) -> list[Tensor]:
            v = torch.empty(room, device=p[0].device)
            return [*p, v] if restart is not None else [*p, v, counter]

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            (rate,) = F.embedding(counter, rates).unbind(0)
            age = state[count + 1] if restart is None else counter
            first, root = F.embedding(age, ages).unbind(0)
            live, slope, kept = layout.split(*p), layout.split(*self.clipped(grad)), layout.split(*state[:count])
            moved, momenta, seconds, at = {}, {}, [], 0
            for each in layout.parameters:
                x, g, b = live[each.name], slope[each.name], kept[each.name]
                if self.hidden(each):
                    b = self.momentum * b + g
                    step = orthogonal(g + self.momentum * b) * (_RMS * math.sqrt(max(each.shape)))
                else:
                    v = state[count][at : at + each.elements].view(each.shape)
                    b = self.beta1 * b + (1 - self.beta1) * g
                    v = self.beta2 * v + (1 - self.beta2) * (g * g)
                    step = (b * first) / (torch.sqrt(v) * root + self.epsilon)
                    seconds.append(v.reshape(-1))
                    at += each.elements
                ratio, decay = self.key_of(each)
                own = rate if ratio == 1 else rate * ratio
                moved[each.name] = x * (1 - own * decay) - own * step
                momenta[each.name] = b
            v = torch.cat(seconds) if seconds else state[count]
            after = [*layout.shards(momenta), v]
            return [*after, age + 1] if restart is None else after, layout.shards(moved)

        return Transformation(init, update)

    def ages(self, age: int) -> list[float]:
        """The bias corrections of AdamW's moments."""
        return [1 / (1 - self.beta1**age), 1 / math.sqrt(1 - self.beta2**age)]


def orthogonal(x: Tensor) -> Tensor:
    """f32 [rows, columns] with all singular values brought near 1 (Jordan 2024, Newton-Schulz of degree 5)."""
    a, b, c = COEFFICIENTS
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x
    x = x / (torch.sqrt((x * x).sum()) + _SMALL)
    for _ in range(ITERATIONS):
        square = x @ x.t()
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.t() if tall else x
