"""INTELLECT-1: DiLoCo whose differences are sent in 8 bits, uniform over six sigma (2412.01152, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.uniform import Uniform
from lockstep.training.strategies.opendiloco import OpenDiLoCo


@dataclass(frozen=True)
class Intellect1(OpenDiLoCo):
    """8 bits per parameter; the moments are carried."""

    name: ClassVar[str] = "intellect1"
    inner_steps: int = 100
    """H: steps of a slot per round."""
    codec: Codec = field(default_factory=Uniform)
    """The codec of the differences that are sent."""
