"""The sign and the mean magnitude of a block, as in EF-SignSGD (Karimireddy 2019) and 1-bit Adam (2102.02888)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.storage.formats.base import WireFormat
from lockstep.storage.formats.signs import Signs
from lockstep.training.codecs.base import Elementwise, bounded, flat_of, rows_of, within


@dataclass(frozen=True)
class Sign(Elementwise):
    """sign(x) times the mean of |x| over the block; the sign of zero is plus."""

    name: ClassVar[str] = "sign"
    block: int = 4096
    """Elements that share a magnitude."""

    def __post_init__(self) -> None:
        Signs(self.block)

    @property
    def format(self) -> WireFormat:
        """One sign bit for each element and a magnitude for each block."""
        return Signs(self.block)

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        rows = rows_of(bounded(x), self.block)
        count = within(rows, x.numel()).to(torch.int32).sum(1, keepdim=True).to(torch.float32)
        mean = rows.abs().sum(1, keepdim=True) / count
        signed = torch.where(rows < 0, -mean, mean)
        return flat_of(torch.where(mean > 0, signed, 0.0), x.numel())
