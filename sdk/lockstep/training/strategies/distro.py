"""DisTrO: DeMo whose coefficients are sent as signs times a magnitude (Nous Research 2024, Psyche)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.dct import DCT
from lockstep.training.codecs.topk import TopK
from lockstep.training.strategies.demo import DeMo


@dataclass(frozen=True)
class DisTrO(DeMo):
    """4 of 4,096 coefficients in one bit each."""

    name: ClassVar[str] = "distro"
    codec: Codec = field(default_factory=lambda: DCT(then=TopK(kept=4, width=1)))
    """The codec of the momentum that is sent."""
