"""Int8 format: blocks whose elements are -127 .. 127 times a scale, one byte per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.storage.formats.base import Bytes, WireFormat, Words, carried, check_size, require, words_of

MAX_CODE = 127
SHORT_SCALE = 0xFFFFFF00
"""Mask of the bits that a scale may have: with 16 significant bits its product with a 7-bit code is exact."""
LEAST_SCALE = np.float32(2.0**-110)
"""Least nonzero scale."""
LARGEST_SCALE = np.float32(2.0**120)
"""Largest scale, so that 127 times the scale is finite."""
_PIECE = 1 << 18
"""Elements processed at a time, rounded up to whole blocks."""


@dataclass(frozen=True)
class Int8Blocks(WireFormat):
    """Encodes n signed bytes, then a little-endian binary32 scale for each block; the last block may be shorter.

    The largest code of a block has magnitude 127. A block of zeros has scale 0.
    """

    kind: ClassVar[str] = "int8"
    block: int = 256
    """Number of elements that share a scale."""

    def __post_init__(self) -> None:
        check_size("blocks", self.block)

    def longest(self, n: int) -> int:
        """Returns n + 4 ceil(n / block) bytes."""
        return n + 4 * -(-n // self.block)

    def _pack(self, words: Words) -> bytes:
        n, at = words.size, 0
        codes, scales = np.empty(n, np.int8), np.empty(-(-n // self.block), np.float32)
        for first, rows in self._rows(words.view(np.float32)):
            largest = np.abs(rows).max(1)
            scale = (largest / np.float32(MAX_CODE)).astype(np.float32)
            carried(_valid(scale), "a block's largest magnitude is not 127 short scales")
            found = np.rint(rows / np.where(scale > 0, scale, np.float32(1))[:, None]).astype(np.int8)
            exact = (found * scale[:, None]).astype(np.float32).view(np.uint32) == rows.view(np.uint32)
            carried(exact.all(), "an element is not a code times its block's scale")
            flat = found.reshape(-1)[: n - first]
            codes[first : first + flat.size] = flat
            scales[at : at + scale.size] = scale
            at += scale.size
        return codes.tobytes() + scales.astype("<f4", copy=False).tobytes()

    def _unpack(self, data: Bytes, n: int) -> Words:
        codes, scales = data[:n].view(np.int8), words_of(data[n:]).view(np.float32)
        # INVARIANT: a block has the scale that its largest code of 127 defines, and zero for no code.
        require(_valid(scales), "a scale has more than 16 significant bits, or is too small or too large")
        values, at = np.empty(n, np.float32), 0
        for first, rows in self._rows(codes):
            largest = np.abs(rows.astype(np.int16)).max(1)
            scale = scales[at : at + len(rows)]
            require((largest == np.where(scale > 0, MAX_CODE, 0)).all(), "a block's largest code is not 127")
            flat = (rows * scale[:, None]).astype(np.float32).reshape(-1)[: n - first]
            values[first : first + flat.size] = flat
            at += len(rows)
        return values.view(np.uint32)

    def _rows(self, flat: NDArray) -> list[tuple[int, NDArray]]:
        """Splits into pieces (first element, blocks [.., block]); zeros fill the last block."""
        step = -(-_PIECE // self.block) * self.block
        pieces = []
        for first in range(0, flat.size, step):
            piece = flat[first : first + step]
            if piece.size % self.block:
                piece = np.concatenate([piece, np.zeros(-piece.size % self.block, flat.dtype)])
            pieces.append((first, piece.reshape(-1, self.block)))
        return pieces


def _valid(scales: NDArray[np.float32]) -> bool:
    words = scales.view(np.uint32)
    within = (scales >= LEAST_SCALE) & (scales <= LARGEST_SCALE) & (words & ~np.uint32(SHORT_SCALE) == 0)
    return bool((within | (words == 0)).all())
