"""E3M0 format: blocks whose elements are zero or +- one of seven powers of two, 4 bits per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lockstep.storage.formats.base import (
    Bytes,
    Codes,
    WireFormat,
    Words,
    carried,
    check_size,
    joined,
    pack_bits,
    packed_length,
    require,
    unpack_bits,
)

TOP = 7
"""Code of a block's largest power of two P; code c encodes P x 2^(c - 7), code 0 encodes zero."""
LEAST_TOP, MOST_TOP = TOP, 254
"""Bounds of a block's largest biased exponent, such that all seven powers are normal numbers."""
_NEGATIVE = 8


@dataclass(frozen=True)
class E3M0Blocks(WireFormat):
    """Encodes each block's largest exponent (biased) as a byte, then 4 bits per element: code 0 .. 7, plus 8 for minus.

    Each block contains the code 7, unless it has exponent 0 and only zeros. The last block may be shorter.
    """

    kind: ClassVar[str] = "e3m0"
    block: int = 256
    """Number of elements that share an exponent."""

    def __post_init__(self) -> None:
        check_size("blocks", self.block)

    def longest(self, n: int) -> int:
        """Returns ceil(n / block) + ceil(n / 2) bytes."""
        return -(-n // self.block) + packed_length(n, 4)

    def _pack(self, words: Words) -> bytes:
        exponents = ((words >> np.uint32(23)) & np.uint32(0xFF)).astype(np.uint8)
        tops = np.maximum.reduceat(exponents, np.arange(0, words.size, self.block))
        spread = self._spread(tops, words.size)
        codes = np.where(exponents > 0, exponents.astype(np.int16) - spread + TOP, 0)
        carried(_valid(tops) and (codes >= 0).all(), "a block's powers are further apart than E3M0's, or out of range")
        signed = codes.astype(np.uint8) | ((words >> np.uint32(31)) << np.uint32(3)).astype(np.uint8)
        carried(np.array_equal(self._joined(tops, signed), words), "an element is not a power of two, or is -0")
        return joined([tops, pack_bits(signed, 4)])

    def _unpack(self, data: Bytes, n: int) -> Words:
        blocks = -(-n // self.block)
        tops, codes = data[:blocks], unpack_bits(data[blocks:], n, 4)
        # INVARIANT: a block's exponent is its largest element's, and zero is +0.
        require(_valid(tops), f"an exponent is neither 0 nor {LEAST_TOP} to {MOST_TOP}")
        require((codes != _NEGATIVE).all(), "a zero has a sign")
        largest = np.maximum.reduceat(codes & np.uint8(TOP), np.arange(0, n, self.block))
        require((largest == np.where(tops > 0, TOP, 0)).all(), "a block's exponent is not its largest element's")
        return self._joined(tops, codes)

    def _joined(self, tops: Bytes, codes: Codes) -> Words:
        power = (codes & np.uint8(TOP)).astype(np.uint32)
        exponents = self._spread(tops, codes.size).astype(np.uint32) + power - np.uint32(TOP)
        signs = (codes >> np.uint8(3)).astype(np.uint32) << np.uint32(31)
        return np.where(power > 0, exponents << np.uint32(23) | signs, np.uint32(0))

    def _spread(self, tops: Bytes, n: int) -> np.ndarray:
        return np.repeat(tops.astype(np.int16), self.block)[:n]


def _valid(tops: Bytes) -> bool:
    return bool(((tops == 0) | ((tops >= LEAST_TOP) & (tops <= MOST_TOP))).all())
