"""DiLoCo: workers take H inner steps each, their mean difference is one outer step (Douillard 2023, algorithm 1).

With `payload = "int8-block"` a difference travels as one byte per element, as in INTELLECT-1 (2412.01152, section 2.2),
here with one scale per block of 256.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.storage.payload import BLOCK, F32_FORMAT, FORMATS, INT8_FORMAT, INT8_MAX
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies.base import Optimizer, Rules

_SHORT_SCALE = -256
"""Mask of the 16 high bits of a significand: such a scale times a code of 7 bits is exact."""
_TINY = 2.0**-100
"""Blocks no larger than this are sent as zeros: their scales would be subnormal."""


@dataclass(frozen=True)
class Spec:
    """All that defines the strategy; hashed into the job."""

    inner: Optimizer = field(default_factory=AdamW)
    inner_steps: int = 20
    """H: steps of a slot in a round."""
    payload: str = F32_FORMAT
    """"f32" or "int8-block"."""
    outer_learning_rate: float = 0.7
    outer_momentum: float = 0.9
    carry: bool = False
    """True: a slot's moments go on in its owner's next round; with them the payload has three times the words. False:
    they restart at zero in every round."""

    def __post_init__(self) -> None:
        if self.payload not in FORMATS:
            raise UsageError(f"no payload format is called {self.payload!r}", f"one of {', '.join(FORMATS)}")
        if self.inner_steps < 1:
            raise UsageError(f"inner_steps is {self.inner_steps}", "use at least 1")

    def rules(self, rounds: int) -> Rules:
        """Returns rules whose moments restart in every round, or are carried with their age."""
        steps = rounds * self.inner_steps
        inner = self.inner.inner(steps, None if self.carry else self.inner_steps)
        return Rules(inner, partial(encode, self), partial(merge, self))

    def to_dict(self) -> dict[str, Any]:
        """`strategy` of a job's spec."""
        return {"name": "diloco", **asdict(self), "inner": self.inner.to_dict()}


def encode(spec: Spec, anchor: Tensor, live: Tensor) -> Tensor:
    """The payload, f32 [P]: anchor - live, as its wire format will carry it."""
    difference = anchor - live
    return _quantised(difference) if spec.payload == INT8_FORMAT else difference


def _quantised(x: Tensor) -> Tensor:
    """Each block of 256 rounded to -127 .. 127 times a scale whose products with codes are exact."""
    blocks = x.reshape(-1, BLOCK)
    largest = blocks.abs().amax(1, keepdim=True)
    scale = ((largest / INT8_MAX).view(torch.int32) & _SHORT_SCALE).view(torch.float32)
    codes = (blocks / scale).round().to(torch.int32).to(torch.float32)
    return torch.where(largest > _TINY, codes * scale, 0.0).reshape(-1)


def merge(
    spec: Spec, base: Tensor, momentum: Tensor, payloads: Sequence[Tensor], mask: Tensor
) -> tuple[Tensor, Tensor]:
    """(next parameters, next momentum), f32 [P]: the mean of the payloads whose mask is 1, in slot order, through
    Nesterov's momentum (Sutskever 2013, equations 3 and 4). With no payload at all the mean is zero."""
    total = torch.where(mask[0] > 0, payloads[0], 0.0)
    for slot in range(1, len(payloads)):
        total = total + torch.where(mask[slot] > 0, payloads[slot], 0.0)
    mean = total / torch.clamp(mask.sum(), min=1.0)
    momentum = spec.outer_momentum * momentum + mean
    step = mean + spec.outer_momentum * momentum
    return base - spec.outer_learning_rate * step, momentum
