"""Signs format: blocks whose elements are +- one magnitude, 1 bit per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lockstep.storage.formats.base import (
    Bytes,
    WireFormat,
    Words,
    carried,
    check_size,
    joined,
    pack_bits,
    packed_length,
    require,
    unpack_bits,
    words_of,
)

_SIGN = np.uint32(0x80000000)
_INFINITY = np.uint32(0x7F800000)


@dataclass(frozen=True)
class Signs(WireFormat):
    """Encodes a little-endian binary32 magnitude for each block, then one bit per element: 1 is minus.

    The last block may be shorter. Magnitudes are finite. A block of zeros has magnitude 0 and no bit set.
    """

    kind: ClassVar[str] = "sign"
    block: int = 4096
    """Number of elements that share a magnitude."""

    def __post_init__(self) -> None:
        check_size("blocks", self.block)

    def longest(self, n: int) -> int:
        """Returns 4 ceil(n / block) + ceil(n / 8) bytes."""
        return 4 * -(-n // self.block) + packed_length(n, 1)

    def _pack(self, words: Words) -> bytes:
        magnitudes = words[:: self.block] & ~_SIGN
        carried((magnitudes < _INFINITY).all(), "a magnitude is not finite")
        negative = words >> np.uint32(31)
        carried(np.array_equal(self._joined(magnitudes, negative), words), "a block has several magnitudes, or -0")
        return joined([magnitudes.astype("<u4", copy=False).view(np.uint8), pack_bits(negative, 1)])

    def _unpack(self, data: Bytes, n: int) -> Words:
        cut = 4 * -(-n // self.block)
        magnitudes, negative = words_of(data[:cut]), unpack_bits(data[cut:], n, 1)
        # INVARIANT: a magnitude is a finite number without a sign of its own; zero is +0.
        require((magnitudes < _INFINITY).all(), "a magnitude is negative, infinite or no number")
        empty = np.repeat(magnitudes == 0, self.block)[:n]
        require(not (empty & (negative != 0)).any(), "a block of zeros has a sign")
        return self._joined(magnitudes, negative)

    def _joined(self, magnitudes: Words, negative: np.ndarray) -> Words:
        """Combines magnitudes and sign bits into words; zeros have no sign."""
        spread = np.repeat(magnitudes, self.block)[: negative.size]
        return spread | np.where(spread != 0, negative.astype(np.uint32) << np.uint32(31), np.uint32(0))
