"""Uniform bins over six standard deviations, whose means are sent (INTELLECT-1: 2412.01152, section 2.2).

    scale = 6 sigma / bins        bin = round((x - mean) / scale) + bins / 2, within 0 .. bins - 1

With 256 bins this is the quantiser of hivemind's `Uniform8BitQuantization`; with 4 bins, on what top-k has kept, the
one of SparseLoCo. Three sigmas lie on either side of the mean: the report says six, its numbers are of three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import WireFormat, partition
from lockstep.storage.formats.palette import Palette
from lockstep.training.codecs.base import Elementwise, bounded, flat_of, rows_of, within

SIGMAS = 6.0
MAX_PIECE = 1 << 26
"""Elements binned by one set of ops, whose one-hot rows have 16 times as many elements."""


@dataclass(frozen=True)
class Uniform(Elementwise):
    """2^width bins for each group of elements."""

    name: ClassVar[str] = "uniform"
    width: int = 8
    """Bits of a bin's number: 2, 4 or 8."""
    group: int = 1 << 20
    """The most elements that share mean, deviation and bins."""

    def __post_init__(self) -> None:
        if self.width not in (2, 4, 8) or not 1 <= self.group <= MAX_PIECE:
            raise UsageError(
                f"width is {self.width}, group is {self.group}",
                f"use a width of 2, 4 or 8, and a group of 1 to {MAX_PIECE}",
            )

    @property
    def format(self) -> WireFormat:
        """A palette of the bins' means for each group."""
        return Palette(self.width, self.group)

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        rows = rows_of(bounded(x), partition(x.numel(), self.group)[1])
        return flat_of(binned(rows, within(rows, x.numel()), self.width), x.numel())


def binned(rows: Tensor, chosen: Tensor, width: int) -> Tensor:
    """Returns f32 [groups, length]: each chosen element replaced by the mean of its bin, other elements unspecified."""
    step = max(1, MAX_PIECE // rows.shape[1])
    pieces = [_binned(rows[i : i + step], chosen[i : i + step], width) for i in range(0, rows.shape[0], step)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _binned(rows: Tensor, chosen: Tensor, width: int) -> Tensor:
    bins = 1 << width
    count = chosen.to(torch.int32).sum(1, keepdim=True).to(torch.float32)
    own = torch.where(chosen, rows, 0.0)
    mean = own.sum(1, keepdim=True) / count
    centred = torch.where(chosen, rows - mean, 0.0)
    sigma = torch.sqrt((centred * centred).sum(1, keepdim=True) / torch.clamp(count - 1, min=1.0))
    scale = sigma * (SIGMAS / bins)
    ratio = torch.where(scale > 0, centred / torch.where(scale > 0, scale, 1.0), 0.0)
    found = torch.clamp(ratio.round() + bins // 2, 0, bins - 1).to(torch.int32)
    # Sums by bin as a product of one-hot rows: the high half of a bin's number by the low half.
    half = width // 2
    high, low = (_one_hot(part, 1 << half) for part in (found >> half, found & ((1 << half) - 1)))
    high = torch.where(chosen.unsqueeze(1), high, 0.0)
    sums = high @ (low * own.unsqueeze(1)).transpose(1, 2)
    counts = high @ low.transpose(1, 2)
    means = (sums / torch.clamp(counts, min=1.0)).reshape(-1)
    first = torch.arange(rows.shape[0], dtype=torch.int32).unsqueeze(1) * bins
    return torch.index_select(means, 0, (found + first).reshape(-1)).reshape(rows.shape)


def _one_hot(codes: Tensor, size: int) -> Tensor:
    """f32 [groups, size, length]: 1 where the code is the row's number."""
    return (codes.unsqueeze(1) == torch.arange(size, dtype=torch.int32).reshape(1, size, 1)).to(torch.float32)
