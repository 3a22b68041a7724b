"""Palette format: groups with few distinct words, encoded as codes of 1 to 8 bits per element."""

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
"""Allowed bits of a code."""
Spans = Sequence[tuple[int, int]]
"""The (first, end) element of each group; no group is empty."""


@dataclass(frozen=True)
class Palette(WireFormat):
    """Encodes each group's palette, 2^width little-endian words, then one code per element.

    A palette lists the distinct words of its group in ascending order as unsigned integers; zeros fill the rest.
    """

    kind: ClassVar[str] = "palette"
    width: int = 8
    """Bits of a code: 1, 2, 4 or 8."""
    group: int = 1 << 20
    """Most elements that share a palette."""

    def __post_init__(self) -> None:
        check_width(self.width)
        check_size("groups", self.group)

    def longest(self, n: int) -> int:
        """Returns 4 x 2^width bytes per group, plus ceil(width n / 8)."""
        return table_length(partition(n, self.group)[0], self.width) + packed_length(n, self.width)

    def _pack(self, words: Words) -> bytes:
        tables, codes = write_palettes(words, starts(words.size, self.group), self.width)
        return joined([tables, pack_bits(codes, self.width)])

    def _unpack(self, data: Bytes, n: int) -> Words:
        spans = starts(n, self.group)
        cut = table_length(len(spans), self.width)
        return read_palettes(data[:cut], unpack_bits(data[cut:], n, self.width), spans, self.width)


def check_width(width: int) -> None:
    """Raises UsageError unless codes may have that many bits."""
    if width not in WIDTHS:
        raise UsageError(f"codes have {width} bits", f"use one of {', '.join(map(str, WIDTHS))} bits")


def table_length(groups: int, width: int) -> int:
    """Returns the size in bytes of the palettes of that many groups."""
    return groups * 4 << width


def write_palettes(words: Words, spans: Spans, width: int) -> tuple[Bytes, Codes]:
    """Returns (palettes of all groups, code of each word).

    Raises PayloadInvalid for a group with more than 2^width distinct words.
    """
    tables, codes = np.zeros((len(spans), 1 << width), "<u4"), np.empty(words.size, np.uint8)
    for table, (first, end) in zip(tables, spans, strict=True):
        found = np.unique(words[first:end])
        carried(found.size <= 1 << width, f"a group has {found.size} different words, more than {1 << width}")
        table[: found.size] = found
        codes[first:end] = np.searchsorted(found, words[first:end])
    return tables.view(np.uint8).reshape(-1), codes


def read_palettes(tables: Bytes, codes: Codes, spans: Spans, width: int) -> Words:
    """Returns the word of each code. Raises PayloadInvalid unless the palettes are canonical for these words."""
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
