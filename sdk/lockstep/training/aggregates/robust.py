"""Aggregates that are robust to some wrong payloads: Krum, medians, trimming, clipping.

`wrong` is the number of a round's accepted payloads that may be arbitrary. Distances are over all shards together.
Ties are broken in slot order, so that every party picks the same payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.protocol.market.job_rules import MAX_SLOTS
from lockstep.training.aggregates.base import accepted, norms, weighted
from lockstep.training.aggregates.mean import preceding
from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.topk import TopK
from lockstep.training.described import Described
from lockstep.training.strategies.base import Shards

_FAR = 2.0**126
"""A distance larger than that of any numbers that a codec encodes."""
_NEAR = 1e-12
"""The smallest distance by which a weight is divided."""
MAX_ITERATIONS = 256


def refuse_sparse(codec: Codec, what: str) -> None:
    """Raises UsageError for a codec with which the payloads of different slots hold different elements."""
    inner: Any = codec
    while inner is not None:
        if isinstance(inner, TopK) and inner.kept < inner.block:
            raise UsageError(
                f"{what} does not suit payloads that keep {inner.kept} of {inner.block} elements each",
                "most of their elements are zero, and so is the median: use a mean, Krum or clipping",
            )
        inner = getattr(inner, "then", None)


def _check_wrong(wrong: int) -> None:
    if not 0 <= wrong <= MAX_SLOTS:
        raise UsageError(f"wrong is {wrong}", f"use 0 to {MAX_SLOTS} payloads")


def _check_iterations(iterations: int) -> None:
    if not 1 <= iterations <= MAX_ITERATIONS:
        raise UsageError(f"iterations is {iterations}", f"use 1 to {MAX_ITERATIONS}: each is a part of the Program")


def sorted_values(values: Sequence[Tensor]) -> list[Tensor]:
    """The values in ascending order, element by element: odd-even transposition (Knuth 1973, section 5.3.4)."""
    found = list(values)
    for turn in range(len(found)):
        for i in range(turn % 2, len(found) - 1, 2):
            low, high = torch.minimum(found[i], found[i + 1]), torch.maximum(found[i], found[i + 1])
            found[i], found[i + 1] = low, high
    return found


def ranks(values: Sequence[Tensor]) -> list[Tensor]:
    """i32 (): how many values come before each in ascending order, equals in slot order."""
    found = []
    for i in range(len(values)):
        before = [precedes.to(torch.int32) for _, precedes in preceding(values, i)]
        found.append(reduce(torch.add, before) if before else torch.zeros((), dtype=torch.int32))
    return found


@dataclass(frozen=True)
class Trimmed(Described):
    """The mean of each element without the `wrong` largest and the `wrong` smallest (Yin 2018, 1803.01498).

    With no more than 2 `wrong` payloads the middle one or two are left.
    """

    name: ClassVar[str] = "trimmed"
    wrong: int = 1
    """The number of a round's payloads that may be arbitrary."""

    def __post_init__(self) -> None:
        _check_wrong(self.wrong)

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """Returns the trimmed mean over the payloads, elementwise; absent payloads are sorted behind all others."""
        count = mask.sum().to(torch.int32)
        most = torch.clamp((count - 1) >> 1, min=0)
        cut = torch.clamp(most, max=self.wrong)
        return _between(payloads, mask, cut, count - cut)

    def check(self, codec: Codec) -> None:
        """Raises UsageError for a sparse codec."""
        refuse_sparse(codec, "a trimmed mean")


@dataclass(frozen=True)
class Median(Described):
    """The median of each element; of an even number of payloads the mean of the middle two (Yin 2018)."""

    name: ClassVar[str] = "median"

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """Returns the median over the payloads, elementwise; absent payloads are sorted behind all others."""
        count = mask.sum().to(torch.int32)
        return _between(payloads, mask, torch.clamp((count - 1) >> 1, min=0), (count >> 1) + 1)

    def check(self, codec: Codec) -> None:
        """Raises UsageError for a sparse codec."""
        refuse_sparse(codec, "a median")


def _between(payloads: Sequence[Shards], mask: Tensor, first: Tensor, end: Tensor) -> list[Tensor]:
    """The mean of each element's values number first .. end - 1 in ascending order; 0 of no payload."""
    taken = torch.clamp(end - first, min=1).to(torch.float32)
    found, clean = [], accepted(payloads, mask)
    for k in range(len(payloads[0])):
        values = sorted_values([torch.where(mask[s] > 0, p[k], _FAR) for s, p in enumerate(clean)])
        parts = [torch.where((first <= i) & (i < end), value, 0.0) for i, value in enumerate(values)]
        found.append(torch.where(mask.sum() > 0, reduce(torch.add, parts) / taken, 0.0))
    return found


@dataclass(frozen=True)
class Krum(Described):
    """The mean of the `picked` payloads nearest to their neighbours (Blanchard 2017, section 3; 1703.02757).

    A payload's score is the sum of squared distances to its n - wrong - 2 nearest others, at least one, of n accepted.
    Picking one is Krum, picking more is multi-Krum.
    """

    name: ClassVar[str] = "krum"
    wrong: int = 1
    """The number of a round's payloads that may be arbitrary."""
    picked: int = 1
    """The number of payloads to average."""

    def __post_init__(self) -> None:
        _check_wrong(self.wrong)
        if not 1 <= self.picked <= MAX_SLOTS:
            raise UsageError(f"picked is {self.picked}", f"use 1 to {MAX_SLOTS} payloads")

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """Returns the mean of the picked payloads; absent payloads have the highest scores."""
        clean = accepted(payloads, mask)
        slots, count = len(clean), mask.sum().to(torch.int32)
        neighbours = torch.clamp(count - self.wrong - 2, min=1)
        apart: dict[tuple[int, int], Tensor] = {}
        for i in range(slots):
            for j in range(i + 1, slots):
                gap = [((a - b) * (a - b)).sum() for a, b in zip(clean[i], clean[j], strict=True)]
                both = (mask[i] > 0) & (mask[j] > 0)
                apart[i, j] = torch.where(both, reduce(torch.add, gap), _FAR)
        scores = []
        for i in range(slots):
            others = sorted_values([apart[min(i, j), max(i, j)] for j in range(slots) if j != i])
            near = [torch.where((n < neighbours) & (x < _FAR), x, 0.0) for n, x in enumerate(others)]
            score = reduce(torch.add, near) if near else torch.zeros(())
            scores.append(torch.where(mask[i] > 0, score, 2 * _FAR))
        taken = torch.clamp(torch.clamp(count, max=self.picked), min=1)
        weights = [torch.where((rank < taken) & (mask[s] > 0), 1.0, 0.0) for s, rank in enumerate(ranks(scores))]
        return [total / taken.to(torch.float32) for total in weighted(clean, weights)]

    def check(self, codec: Codec) -> None:
        """Distances have a meaning for every payload."""


@dataclass(frozen=True)
class GeometricMedian(Described):
    """The point of least total distance, by Weiszfeld's smoothed iteration from 0 (Pillutla 2022, 1912.13445)."""

    name: ClassVar[str] = "geometric_median"
    iterations: int = 8
    """Steps of the iteration; as many ops."""
    smoothing: float = 1e-6
    """The least distance by which a payload is weighted."""

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if not self.smoothing > 0:
            raise UsageError(f"smoothing is {self.smoothing}", "use a number above 0")

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """Combines the payloads by a fixed number of iterations."""
        clean = accepted(payloads, mask)
        z = [torch.zeros_like(x) for x in clean[0]]
        for _ in range(self.iterations):
            far = norms([[x - c for x, c in zip(payload, z, strict=True)] for payload in clean])
            weights = [
                torch.where(mask[s] > 0, 1.0 / torch.clamp(d, min=self.smoothing), 0.0) for s, d in enumerate(far)
            ]
            whole = torch.clamp(reduce(torch.add, weights), min=_NEAR)
            z = [total / whole for total in weighted(clean, weights)]
        return z

    def check(self, codec: Codec) -> None:
        """Distances have a meaning for every payload."""


@dataclass(frozen=True)
class CentredClipping(Described):
    """v + the mean of payload - v, clipped to `radius`, repeated from v = 0 (Karimireddy 2021, 2012.10333)."""

    name: ClassVar[str] = "centred_clipping"
    radius: float = 1.0
    """The largest norm by which one payload moves v in an iteration, times 1 / n."""
    iterations: int = 3
    """Steps of the iteration; as many ops."""

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if not self.radius > 0:
            raise UsageError(f"radius is {self.radius}", "use a number above 0")

    def combine(self, payloads: Sequence[Shards], mask: Tensor) -> list[Tensor]:
        """Combines the payloads by a fixed number of iterations."""
        clean = accepted(payloads, mask)
        count = torch.clamp(mask.sum(), min=1.0)
        v = [torch.zeros_like(x) for x in clean[0]]
        for _ in range(self.iterations):
            apart = [[x - c for x, c in zip(payload, v, strict=True)] for payload in clean]
            weights = [
                torch.where(mask[s] > 0, torch.clamp(self.radius / torch.clamp(d, min=_NEAR), max=1.0), 0.0)
                for s, d in enumerate(norms(apart))
            ]
            v = [c + total / count for c, total in zip(v, weighted(apart, weights), strict=True)]
        return v

    def check(self, codec: Codec) -> None:
        """Norms have a meaning for every payload."""
