"""SparseLoCo in fewer bits: the same tensors, with indices and levels coded as ranks of subsets and sequences (Cover
1973)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lockstep.training.codecs.base import Codec
from lockstep.training.codecs.topk import TopK
from lockstep.training.strategies.sparseloco import SparseLoCo


@dataclass(frozen=True)
class SparseLoCoE(SparseLoCo):
    """SparseLoCo with entropy-coded payloads, 0.135 bits per parameter; its states are SparseLoCo's, bit for bit."""

    name: ClassVar[str] = "sparseloco_e"
    codec: Codec = field(default_factory=lambda: TopK(places="ranked", levels="ranked"))
    """The codec of the differences that are sent."""
