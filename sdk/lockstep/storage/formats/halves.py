"""Halves format: tensors of finite binary16 values, 16 bits per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.storage.formats.base import Bytes, WireFormat, Words, carried, require

_EXPONENT = 0x7C00


def to_halves(words: Words) -> NDArray[np.uint16]:
    """Converts binary32 words to binary16 patterns. Raises PayloadInvalid unless each is a finite binary16 value."""
    with np.errstate(over="ignore"):
        halves = words.view(np.float32).astype(np.float16)
    carried(
        np.array_equal(halves.astype(np.float32).view(np.uint32), words) and np.isfinite(halves).all(),
        "an element is not a finite binary16 value",
    )
    return halves.view(np.uint16)


def from_halves(halves: NDArray[np.uint16]) -> Words:
    """Converts binary16 patterns to binary32 words. Raises PayloadInvalid for an infinity or a NaN."""
    # INVARIANT: a half is finite.
    require((halves & _EXPONENT != _EXPONENT).all(), "a half is infinite or no number")
    return halves.view(np.float16).astype(np.float32).view(np.uint32)


@dataclass(frozen=True)
class Halves(WireFormat):
    """Encodes values as little-endian binary16, including both zeros and subnormals."""

    kind: ClassVar[str] = "f16"

    def longest(self, n: int) -> int:
        """Returns 2 n bytes."""
        return 2 * n

    def _pack(self, words: Words) -> bytes:
        return to_halves(words).astype("<u2", copy=False).tobytes()

    def _unpack(self, data: Bytes, n: int) -> Words:
        return from_halves(data.view("<u2").astype(np.uint16, copy=False))
