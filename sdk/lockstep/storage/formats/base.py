"""Interface of wire formats: each encodes a flat f32 tensor as bytes and decodes it again, canonically.

    data = form.pack(values)              # PayloadInvalid if the format cannot carry exactly these bits
    values = form.unpack(data, n)         # of any bytes: exactly one tensor, or PayloadInvalid

`pack(unpack(data)) == data` for all accepted bytes, so that a tensor has a single CID. The length follows from the
number of elements, and from the first `head` bytes if `head` is not zero; the length is checked before anything else is
read. Formats encode 32-bit words exactly, not approximate numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import PayloadInvalid, UsageError

Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Codes = NDArray[np.unsignedinteger[Any]]

MAX_ELEMENTS = (1 << 31) - 1
"""Most elements of one tensor in a Program."""
MAX_PART = 1 << 26
"""Most elements that share a scale or palette."""


class WireFormat(ABC):
    """One wire format; its fields are its parameters. Each subclass is a frozen dataclass."""

    kind: ClassVar[str]
    """The first part of the format's name."""

    @property
    def head(self) -> int:
        """Number of leading bytes that determine the total length; 0 if the number of elements determines it."""
        return 0

    @property
    def name(self) -> str:
        """The name in a manifest: the kind, then the parameters."""
        return "-".join([self.kind, *(str(getattr(self, f.name)) for f in fields(self))])  # type: ignore[arg-type]

    @abstractmethod
    def longest(self, n: int) -> int:
        """Returns the most bytes that n elements take; the exact number if `head` is 0."""

    def length(self, n: int, head: bytes) -> int:
        """Returns the bytes of an encoding of n elements that begins with `head` (at least `self.head` bytes).

        Raises PayloadInvalid if no encoding of n elements begins so.
        """
        return self.longest(n)

    def bits(self, n: int) -> float:
        """Returns the most bits per element for n elements."""
        return 8 * self.longest(n) / n

    def pack(self, values: NDArray[np.float32]) -> bytes:
        """Encodes a flat f32 tensor. Raises PayloadInvalid if the format cannot represent its bits exactly."""
        if values.dtype != np.float32 or values.ndim != 1:
            raise PayloadInvalid(
                f"a payload tensor has dtype {values.dtype} and shape {values.shape}", "give flat float32"
            )
        return self._pack(np.ascontiguousarray(values).view(np.uint32)) if values.size else b""

    def unpack(self, data: bytes | memoryview, n: int) -> NDArray[np.float32]:
        """Decodes to an f32 tensor [n], read-only. Raises PayloadInvalid if the bytes encode no tensor."""
        if not 0 <= n <= MAX_ELEMENTS:
            raise UsageError(f"a payload tensor has {n} elements", f"use 0 to {MAX_ELEMENTS} elements")
        # INVARIANT: no other length than the declared one is decoded.
        view = memoryview(data)
        if n and len(view) >= self.head:
            due = self.length(n, bytes(view[: self.head]))
        else:
            due = max(self.head, 1) if n else 0
        require(len(view) == due, f"{len(view)} bytes where {due} are due for {n} elements")
        words = self._unpack(np.frombuffer(view, np.uint8), n) if n else np.empty(0, np.uint32)
        words.flags.writeable = False
        return words.view(np.float32)

    @abstractmethod
    def _pack(self, words: Words) -> bytes:
        """Encodes at least one word; called by `pack`."""

    @abstractmethod
    def _unpack(self, data: Bytes, n: int) -> Words:
        """Decodes a positive number of words from bytes of the right length; called by `unpack`."""


def require(condition: Any, what: str) -> None:
    """Raises PayloadInvalid unless the condition holds: these bytes encode no tensor."""
    if not condition:
        raise PayloadInvalid(what, "its publisher did not use the canonical encoding, so the payload counts as absent")


def carried(condition: Any, what: str) -> None:
    """Raises PayloadInvalid unless the condition holds: the format cannot encode this tensor."""
    if not condition:
        raise PayloadInvalid(what, "encode with the codec of this format")


def check_size(what: str, elements: int) -> None:
    """Raises UsageError unless a part may have that many elements."""
    # INVARIANT: a part is no longer than what a decoder may spread for a tensor of one element.
    if not 1 <= elements <= MAX_PART:
        raise UsageError(f"{what} of {elements}", f"use 1 to {MAX_PART} elements")


# -- parts of equal size -----------------------------------------------------------------------------------------------


def partition(units: int, most: int) -> tuple[int, int]:
    """Splits units into the fewest groups of at most `most`, as equal as possible; returns (groups, units of each but
    the last).

    The last group may be shorter, but has at least one unit. Returns (0, 0) for no units.
    """
    if units == 0:
        return 0, 0
    each = -(-units // -(-units // most))
    return -(-units // each), each


def starts(units: int, most: int) -> list[tuple[int, int]]:
    """Returns the (first, end) unit of each group of `partition`."""
    groups, each = partition(units, most)
    return list(pairwise([min(i * each, units) for i in range(groups + 1)]))


# -- bits --------------------------------------------------------------------------------------------------------------

_PIECE = 1 << 20
"""Codes converted to bits at a time: a multiple of 8."""


def packed_length(count: int, width: int) -> int:
    """Returns the bytes of `count` codes of `width` bits."""
    return -(-count * width // 8)


def pack_bits(codes: Codes, width: int) -> Bytes:
    """Packs codes, each < 2^width <= 2^16, one after the other, lowest bit first; zeros fill the last byte."""
    if width == 8:
        return codes.astype(np.uint8)
    if 8 % width == 0:
        lanes = np.zeros((packed_length(codes.size, width), 8 // width), np.uint8)
        lanes.reshape(-1)[: codes.size] = codes
        joined = lanes[:, 0].copy()
        for i in range(1, 8 // width):
            joined |= lanes[:, i] << np.uint8(i * width)
        return joined
    pieces = [np.zeros(0, np.uint8)]
    for at in range(0, codes.size, _PIECE):
        pairs = codes[at : at + _PIECE].astype("<u2").view(np.uint8).reshape(-1, 2)
        pieces.append(np.packbits(np.unpackbits(pairs, axis=1, bitorder="little")[:, :width], bitorder="little"))
    return np.concatenate(pieces)


def unpack_bits(data: Bytes, count: int, width: int) -> Codes:
    """Unpacks the codes that `pack_bits` packed. Raises PayloadInvalid unless zeros fill the last byte."""
    spare = 8 * data.size - count * width
    # INVARIANT: bits that no code has are zero.
    require(not spare or data[-1] >> (8 - spare) == 0, f"a bit beyond the last of {count} codes is set")
    if width == 8:
        return data
    if 8 % width == 0:
        lanes = np.empty((data.size, 8 // width), np.uint8)
        for i in range(8 // width):
            lanes[:, i] = (data >> np.uint8(i * width)) & np.uint8((1 << width) - 1)
        return lanes.reshape(-1)[:count]
    codes = np.empty(count, np.uint16)
    for at in range(0, count, _PIECE):
        some = min(_PIECE, count - at)
        first = at * width // 8
        bits = np.unpackbits(data[first : first + packed_length(some, width)], bitorder="little")
        spread = np.zeros((some, 16), np.uint8)
        spread[:, :width] = bits[: some * width].reshape(some, width)
        codes[at : at + some] = np.packbits(spread, axis=1, bitorder="little").view("<u2").reshape(-1)
    return codes


def joined(parts: Sequence[Bytes | bytes]) -> bytes:
    """Concatenates the parts."""
    return b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts)


def words_of(data: Bytes) -> Words:
    """Reads bytes as little-endian 32-bit words."""
    return np.ascontiguousarray(data).view("<u4").astype(np.uint32, copy=False)
