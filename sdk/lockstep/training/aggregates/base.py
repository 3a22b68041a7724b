"""The interface of aggregates: a value that combines the slots' decoded payloads.

    mean = aggregate.combine(payloads, mask)

Payloads are in slot order, each a flat f32 tensor for every shard of the parameters. A slot with mask 0 must not count,
whatever its payload holds, infinities included. Without any slot the result is finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.training.codecs.base import Codec, usable
from lockstep.training.strategies.base import Shards


class Aggregate(Protocol):
    """A rule that combines payloads into one; frozen, with its parameters as fields."""

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """(payloads by slot, mask f32 [slots], 0 or 1) -> f32 [P] for each shard."""

    def check(self, codec: Codec) -> None:
        """Raises UsageError if the aggregate is not meaningful for this codec's payloads."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the aggregate's registered name and its fields."""


def accepted(payloads: Sequence[Shards], mask: Tensor) -> list[list[Tensor]]:
    """Returns the payloads, with zeros for those of mask 0 and for each element that no codec encodes, such as an
    infinity."""
    return [[torch.where((mask[k] > 0) & usable(x), x, 0.0) for x in payload] for k, payload in enumerate(payloads)]


def norms(payloads: Sequence[Shards]) -> list[Tensor]:
    """The Euclidean norm of each payload over all its shards, f32 ()."""
    return [torch.sqrt(reduce(torch.add, [(x * x).sum() for x in payload])) for payload in payloads]


def weighted(payloads: Sequence[Shards], weights: Sequence[Tensor]) -> list[Tensor]:
    """The sum of weight times payload, in slot order, shard by shard."""
    return [
        reduce(torch.add, [w * payload[k] for w, payload in zip(weights, payloads, strict=True)])
        for k in range(len(payloads[0]))
    ]
