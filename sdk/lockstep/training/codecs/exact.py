"""The identity codec: every element unchanged, 32 bits each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lockstep.storage.formats.base import WireFormat
from lockstep.storage.formats.words import PlainWords
from lockstep.training.codecs.base import Elementwise, bounded


@dataclass(frozen=True)
class Exact(Elementwise):
    """Sends every element unchanged, 32 bits each."""

    name: ClassVar[str] = "exact"

    @property
    def format(self) -> WireFormat:
        """Plain words, 32 bits each."""
        return PlainWords()

    def encode(self, x: Tensor, round: Tensor) -> Tensor:  # noqa: A002
        """f32 [n]."""
        return bounded(x)
