"""Palettes: tensors of groups with few different words, a code of 1 to 8 bits an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lockstep.protocol.errors import UsageError
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
    partition,
    require,
    starts,
    unpack_bits,
    words_of,
)

WIDTHS = (1, 2, 4, 8)
"""Bits of a code."""
Spans = Sequence[tuple[int, int]]
"""The (first, past the last) element of each group; none is empty."""


@dataclass(frozen=True)
class Palette(WireFormat):
    """The groups' palettes, 2^width little-endian words each, then a code an element.

    A palette lists the different words of its group in ascending order, read as unsigned integers; zeros fill it.
    """

    kind: ClassVar[str] = "palette"
    width: int = 8
    """Bits of a code: 1, 2, 4 or 8."""
    group: int = 1 << 20
    """The most elements that share a palette."""

    def __post_init__(self) -> None:
        check_width(self.width)
        check_size("groups", self.group)

    def longest(self, n: int) -> int:
        """4 x 2^width for each group, and width n / 8 rounded up."""
        return table_length(partition(n, self.group)[0], self.width) + packed_length(n, self.width)

    def _pack(self, words: Words) -> bytes:
        tables, codes = write_palettes(words, starts(words.size, self.group), self.width)
        return joined([tables, pack_bits(codes, self.width)])

    def _unpack(self, data: Bytes, n: int) -> Words:
        spans = starts(n, self.group)
        cut = table_length(len(spans), self.width)
        return read_palettes(data[:cut], unpack_bits(data[cut:], n, self.width), spans, self.width)


def check_width(width: int) -> None:
    """Raises UsageError unless codes can have this many bits."""
    if width not in WIDTHS:
        raise UsageError(f"codes have {width} bits", f"use one of {', '.join(map(str, WIDTHS))} bits")


def table_length(groups: int, width: int) -> int:
    """Bytes of the palettes of so many groups."""
    return groups * 4 << width


def write_palettes(words: Words, spans: Spans, width: int) -> tuple[Bytes, Codes]:
    """(the groups' palettes, a code for each word); PayloadInvalid for a group with more than 2^width words."""
    tables, codes = np.zeros((len(spans), 1 << width), "<u4"), np.empty(words.size, np.uint8)
    for table, (first, end) in zip(tables, spans, strict=True):
        found = np.unique(words[first:end])
        carried(found.size <= 1 << width, f"a group has {found.size} different words, more than {1 << width}")
        table[: found.size] = found
        codes[first:end] = np.searchsorted(found, words[first:end])
    return tables.view(np.uint8).reshape(-1), codes


def read_palettes(tables: Bytes, codes: Codes, spans: Spans, width: int) -> Words:
    """The word of each code; PayloadInvalid unless these are the palettes of the words."""
    words = np.empty(codes.size, np.uint32)
    for table, (first, end) in zip(words_of(tables).reshape(-1, 1 << width), spans, strict=True):
        falls = np.flatnonzero(table[1:] <= table[:-1])
        used = int(falls[0]) + 1 if falls.size else table.size
        # INVARIANT: a palette ascends, names every word that occurs and no other, and is filled with zeros.
        require(not table[used:].any(), "a palette does not ascend")
        counts = np.bincount(codes[first:end], minlength=table.size)
        require(counts[:used].all() and not counts[used:].any(), "a palette names other words than those that occur")
        words[first:end] = table[codes[first:end]]
    return words
