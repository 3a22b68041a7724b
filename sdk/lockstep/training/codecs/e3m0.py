"""Four bits per element, three of them an exponent, as in Streaming DiLoCo (2501.18512, section 2.3).

The paper specifies only the number format. Here a block shares an exponent (Rouhani 2023, microscaling): small
differences would otherwise all become zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.storage.formats import e3m0 as wire
from lockstep.storage.formats.base import WireFormat
from lockstep.training.codecs.base import Elementwise, bits_of, bounded, flat_of, float_of, rows_of

_HALF = 1 << 22
"""Added to a word, it moves 1.5 x 2^e and more into the next exponent."""
_SIGN = -(1 << 31)


@dataclass(frozen=True)
class E3M0(Elementwise):
    """Rounds to the nearest of zero and seven powers of two of either sign; ties go to the larger."""

    name: ClassVar[str] = "e3m0"
    block: int = 256
    """Elements that share an exponent."""

    def __post_init__(self) -> None:
        wire.E3M0Blocks(self.block)

    @property
    def format(self) -> WireFormat:
        """E3M0Blocks of the block."""
        return wire.E3M0Blocks(self.block)

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        rows = rows_of(bounded(x), self.block)
        bits = bits_of(rows.abs())
        largest = bits_of(rows.abs().amax(1, keepdim=True))
        top = (largest + _HALF) >> 23
        power = (bits + _HALF) >> 23
        least = top - (wire.TOP - 1)
        # Half of the least power rounds up to it.
        power = torch.where((power < least) & (bits >= ((least - 1) << 23)), least, power)
        kept = (power >= least) & (top >= wire.LEAST_TOP)
        return flat_of(float_of(torch.where(kept, (power << 23) | (bits_of(rows) & _SIGN), 0)), x.numel())
