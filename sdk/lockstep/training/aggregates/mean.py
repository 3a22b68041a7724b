"""The mean over a round's contributors or over all its slots, optionally of payloads clipped to their median norm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.training.aggregates.base import accepted, norms
from lockstep.training.codecs.base import Codec
from lockstep.training.described import Described
from lockstep.training.strategies.base import Shards

CONTRIBUTORS, SLOTS = "contributors", "slots"


@dataclass(frozen=True)
class Average(Described):
    """The sum of the accepted payloads in slot order, divided by their number."""

    name: ClassVar[str] = "mean"
    over: str = CONTRIBUTORS
    """"contributors": divided by the accepted payloads; "slots": by all slots, as SparseLoCo's paper does."""
    clip: bool = False
    """True: a payload whose norm is above the median of the accepted ones' is scaled down to it."""

    def __post_init__(self) -> None:
        if self.over not in (CONTRIBUTORS, SLOTS):
            raise UsageError(f"over is {self.over!r}", f'use "{CONTRIBUTORS}" or "{SLOTS}"')

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """Returns the mean; zeros without any payload."""
        if self.clip:
            clean = accepted(payloads, mask)
            lengths = norms(clean)
            middle = median_of(lengths, mask)
            scales = [torch.where(length > middle, middle / length, 1.0) for length in lengths]
            payloads = [[x * scale for x in payload] for payload, scale in zip(clean, scales, strict=True)]
        count = torch.clamp(mask.sum(), min=1.0) if self.over == CONTRIBUTORS else torch.tensor(float(len(payloads)))
        found = []
        for k in range(len(payloads[0])):
            total = torch.where(mask[0] > 0, payloads[0][k], 0.0)
            for slot in range(1, len(payloads)):
                total = total + torch.where(mask[slot] > 0, payloads[slot][k], 0.0)
            found.append(total / count)
        return found

    def check(self, codec: Codec) -> None:
        """Accepts every codec: a mean is defined for the payloads of each."""


def preceding(values: Sequence[Tensor], i: int) -> Iterator[tuple[int, Tensor]]:
    """(j, bool (): whether value j comes before value i in ascending order), equals in slot order, for all other j."""
    for j, y in enumerate(values):
        if j != i:
            yield j, (y <= values[i]) if j < i else (y < values[i])


def median_of(values: Sequence[Tensor], mask: Tensor) -> Tensor:
    """Returns the median of the values with mask 1: the mean of the middle two of an even number; 0 of none.

    Each value's rank is counted, with ties in slot order.
    """
    count = mask.sum().to(torch.int32)
    ranks = []
    for i in range(len(values)):
        below = torch.zeros((), dtype=torch.int32)
        for j, before in preceding(values, i):
            below = below + (before & (mask[j] > 0)).to(torch.int32)
        ranks.append(torch.where(mask[i] > 0, below, -1))
    low, high = (count - 1) >> 1, count >> 1
    parts = []
    for wanted in (low, high):
        found = torch.zeros(())
        for x, rank in zip(values, ranks, strict=True):
            found = torch.where((rank == wanted) & (count > 0), x, found)
        parts.append(found)
    return 0.5 * (parts[0] + parts[1])
