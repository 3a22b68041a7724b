"""binary16, as in OpenDiLoCo (2407.07852, section 2.3): rounded to nearest even, 16 bits per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.storage.formats.base import WireFormat
from lockstep.storage.formats.halves import Halves
from lockstep.training.codecs.base import Elementwise, bits_of, bounded, float_of

LARGEST_HALF = 65504.0
_LEAST_NORMAL = 2.0**-14
_SPACING = 0.5
"""A binary32 whose last place is that of binary16's subnormals, 2^-24."""
_DROPPED = 13
_SIGN = -(1 << 31)


@dataclass(frozen=True)
class Float16(Elementwise):
    """Rounds every element to the nearest binary16, and larger magnitudes to the largest."""

    name: ClassVar[str] = "float16"

    @property
    def format(self) -> WireFormat:
        """Binary16 words."""
        return Halves()

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n], each element a finite binary16."""
        magnitude = torch.clamp(bounded(x).abs(), max=LARGEST_HALF)
        bits = bits_of(magnitude)
        # Half of the last place kept, less one where that place is even: the carry rounds to nearest even.
        normal = (bits + ((1 << (_DROPPED - 1)) - 1) + ((bits >> _DROPPED) & 1)) & -(1 << _DROPPED)
        small = bits_of((magnitude + _SPACING) - _SPACING)
        return float_of(torch.where(magnitude < _LEAST_NORMAL, small, normal) | (bits_of(bounded(x)) & _SIGN))
