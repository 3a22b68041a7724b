"""One byte per element, one scale per block, as in diloco's `int8-block`: blocks of any size, the last one short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.storage.formats import int8 as wire
from lockstep.storage.formats.base import WireFormat
from lockstep.training.codecs.base import Elementwise, bits_of, bounded, flat_of, float_of, rows_of

TINY = 2.0**-100
"""Blocks no larger than this are sent as zeros: their scales would be subnormal."""
SHORT = -256
"""Mask of the 16 high bits of a significand: such a scale times a code of 7 bits is exact."""


@dataclass(frozen=True)
class Int8(Elementwise):
    """Each block rounded to -127 .. 127 times a scale, which makes its largest magnitude 127."""

    name: ClassVar[str] = "int8"
    block: int = 256
    """Elements that share a scale."""

    def __post_init__(self) -> None:
        wire.Int8Blocks(self.block)

    @property
    def format(self) -> WireFormat:
        """Int8Blocks of the block."""
        return wire.Int8Blocks(self.block)

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        rows = rows_of(bounded(x), self.block)
        largest = rows.abs().amax(1, keepdim=True)
        scale = float_of(bits_of(largest / wire.MAX_CODE) & SHORT)
        safe = torch.where(largest > TINY, scale, 1.0)
        codes = (rows / safe).round().to(torch.int32).to(torch.float32)
        return flat_of(torch.where(largest > TINY, codes * safe, 0.0), x.numel())
