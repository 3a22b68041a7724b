"""The interface of wire formats: a value that turns a flat f32 tensor into bytes and back, one form for each tensor.

    data = form.pack(values)              # PayloadInvalid if the format cannot carry exactly these bits
    values = form.unpack(data, n)         # of any bytes: exactly one tensor, or PayloadInvalid

`pack(unpack(data)) == data` for all bytes that are not refused, so that a tensor has one name in a store. The length
follows from the number of elements, and from the first `head` bytes where `head` is not zero; nothing else is read
before it is checked. A tensor is handled as its 32-bit words: what is carried is bits, not numbers.
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
"""The most elements of one tensor of a Program."""
MAX_PART = 1 << 26
"""The most elements under one scale or palette."""


class WireFormat(ABC):
    """One wire format; its fields are its parameters. A subclass is a frozen dataclass."""

    kind: ClassVar[str]
    """The first part of its name."""

    @property
    def head(self) -> int:
        """The first bytes, which say how long the whole is; 0 where the number of elements says it."""
        return 0

    @property
    def name(self) -> str:
        """The name that a manifest states: the kind, then the parameters."""
        return "-".join([self.kind, *(str(getattr(self, f.name)) for f in fields(self))])  # type: ignore[arg-type]

    @abstractmethod
    def longest(self, n: int) -> int:
        """The most bytes that n elements take; exactly these where `head` is 0."""

    def length(self, n: int, head: bytes) -> int:
        """The bytes that n elements take if they begin with `head`, of `self.head` bytes at least.

        PayloadInvalid if no n elements begin so.
        """
        return self.longest(n)

    def bits(self, n: int) -> float:
        """The most bits for each of n elements."""
        return 8 * self.longest(n) / n

    def pack(self, values: NDArray[np.float32]) -> bytes:
        """The bytes of a flat f32 tensor; PayloadInvalid if unpacking could not give its bits."""
        if values.dtype != np.float32 or values.ndim != 1:
            raise PayloadInvalid(
                f"a payload tensor has dtype {values.dtype} and shape {values.shape}", "give flat float32"
            )
        return self._pack(np.ascontiguousarray(values).view(np.uint32)) if values.size else b""

    def unpack(self, data: bytes | memoryview, n: int) -> NDArray[np.float32]:
        """The f32 tensor [n] that these bytes stand for, read-only; PayloadInvalid if they stand for none."""
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
        """`pack` of at least one word."""

    @abstractmethod
    def _unpack(self, data: Bytes, n: int) -> Words:
        """`unpack` of a positive number of words, from bytes of the due length."""


def require(condition: Any, what: str) -> None:
    """Raises PayloadInvalid unless the condition holds: these bytes are the form of no tensor."""
    if not condition:
        raise PayloadInvalid(what, "its publisher did not use the canonical encoding, so the payload counts as absent")


def carried(condition: Any, what: str) -> None:
    """Raises PayloadInvalid unless the condition holds: this tensor has no form."""
    if not condition:
        raise PayloadInvalid(what, "encode with the codec of this format")


def check_size(what: str, elements: int) -> None:
    """Raises UsageError unless parts of so many elements can be."""
    # INVARIANT: a part is no longer than what a decoder may spread for a tensor of one element.
    if not 1 <= elements <= MAX_PART:
        raise UsageError(f"{what} of {elements}", f"use 1 to {MAX_PART} elements")


# -- parts of equal size -----------------------------------------------------------------------------------------------


def partition(units: int, most: int) -> tuple[int, int]:
    """(groups, units of each but the last) of a cut into the fewest groups of at most `most`, as equal as can be.

    The last group is the shorter one and has one unit at least; (0, 0) of nothing.
    """
    if units == 0:
        return 0, 0
    each = -(-units // -(-units // most))
    return -(-units // each), each


def starts(units: int, most: int) -> list[tuple[int, int]]:
    """The (first, past the last) unit of each group of `partition`."""
    groups, each = partition(units, most)
    return list(pairwise([min(i * each, units) for i in range(groups + 1)]))


# -- bits --------------------------------------------------------------------------------------------------------------

_PIECE = 1 << 20
"""Codes that are spread into bits at once: a multiple of 8."""


def packed_length(count: int, width: int) -> int:
    """Bytes of `count` codes of `width` bits."""
    return -(-count * width // 8)


def pack_bits(codes: Codes, width: int) -> Bytes:
    """The codes, each < 2^width <= 2^16, one after the other, the lowest bit first; zeros fill the last byte."""
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
    """Unpacks the codes that `pack_bits` packed; raises PayloadInvalid if the last byte is not filled with zeros."""
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
    """The parts one after the other."""
    return b"".join(part if isinstance(part, bytes) else part.tobytes() for part in parts)


def words_of(data: Bytes) -> Words:
    """Little-endian 32-bit words."""
    return np.ascontiguousarray(data).view("<u4").astype(np.uint32, copy=False)
