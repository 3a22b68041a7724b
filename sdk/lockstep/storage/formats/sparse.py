"""Sparse format: each block has a fixed number of nonzero words, encoded as positions and values.

    head (of ranked levels: u32, all bytes) ‖ palettes ‖ places ‖ levels

A kept word is never 0 (a kept zero is -0), so that the decoded tensor shows which words were kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats import levels as ranked
from lockstep.storage.formats.base import (
    MAX_PART,
    Bytes,
    Codes,
    WireFormat,
    Words,
    carried,
    joined,
    pack_bits,
    packed_length,
    partition,
    require,
    starts,
    unpack_bits,
    words_of,
)
from lockstep.storage.formats.combinadics import check_table, rank_length, rank_subsets, unrank_subsets
from lockstep.storage.formats.halves import from_halves, to_halves
from lockstep.storage.formats.palette import WIDTHS, Spans, read_palettes, table_length, write_palettes

LISTED, RANKED = "listed", "ranked"
HALF, WORD = 16, 32
MAX_BLOCK = 1 << 16
_HEAD = 4


@dataclass(frozen=True)
class Sparse(WireFormat):
    """Sparse encoding with `kept` words in each block; the last block may be shorter, and keeps at most all of its
    words.
    """

    kind: ClassVar[str] = "sparse"
    block: int = 4096
    """Elements in a block: a power of two, at most 2^16."""
    kept: int = 64
    """Number of nonzero words in a block."""
    width: int = 2
    """Bits of a value: 1, 2, 4 or 8 for a palette code, 16 for a binary16, 32 for a word."""
    group: int = 128
    """Most blocks that share a palette."""
    places: str = LISTED
    """Encoding of positions: "listed" has log2(block) bits for each index, ascending; "ranked" has the rank of the
    subset, in whole bytes per block.
    """
    levels: str = LISTED
    """Encoding of values: "listed" has a code for each; "ranked", for two-bit codes, has counts and ranks, and then the
    length varies.
    """

    def __post_init__(self) -> None:
        if not (2 <= self.block <= MAX_BLOCK and self.block & (self.block - 1) == 0 and 1 <= self.kept <= self.block):
            raise UsageError(
                f"{self.kept} of {self.block} elements are kept",
                f"block is a power of two, 2 to {MAX_BLOCK}, and kept 1 to block",
            )
        if self.width not in (*WIDTHS, HALF, WORD) or not 1 <= self.group <= MAX_PART:
            raise UsageError(
                f"values have {self.width} bits, in groups of {self.group}",
                f"use a width of 1, 2, 4, 8, 16 or 32, and a group of 1 to {MAX_PART}",
            )
        if {self.places, self.levels} - {LISTED, RANKED}:
            raise UsageError(f"places is {self.places!r}, levels is {self.levels!r}", f'use "{LISTED}" or "{RANKED}"')
        if self.places == RANKED:
            check_table(self.block, self.kept)
        if self.levels == RANKED:
            ranked.check_row(self.kept)
            if self.width != 2:
                raise UsageError(f"levels of {self.width} bits cannot be ranked", "rank levels of 2 bits only")

    @property
    def head(self) -> int:
        """4 bytes if levels are ranked, else 0."""
        return _HEAD if self.levels == RANKED else 0

    def longest(self, n: int) -> int:
        """Returns the length in bytes, the greatest possible if levels are ranked."""
        if n == 0:
            return 0
        whole, tail, count = self._counts(n)
        fixed = self.head + self._tables(n) + self._places(n)
        if self.levels == LISTED:
            return fixed + packed_length(count, self.width)
        most = sum(
            ranked.counts_length(rows, k) + -(-rows * ranked.ranks_longest(k) // 8)
            for rows, k in self._rows(whole, tail)
        )
        return fixed + most

    def length(self, n: int, head: bytes) -> int:
        """Returns the length that `head` states. Raises PayloadInvalid if it exceeds `longest`."""
        if self.levels == LISTED:
            return self.longest(n)
        due = int.from_bytes(head[:_HEAD], "little")
        require(due <= self.longest(n), f"a length of {due} bytes is stated, {self.longest(n)} is the most")
        return due

    # -- inside --------------------------------------------------------------------------------------------------------

    def _counts(self, n: int) -> tuple[int, int, int]:
        """Returns (number of whole blocks, elements of the shorter one, kept words)."""
        whole, tail = divmod(n, self.block)
        return whole, tail, whole * self.kept + min(self.kept, tail)

    def _rows(self, whole: int, tail: int) -> list[tuple[int, int]]:
        """Returns (number of blocks, words kept in each), for the whole blocks and for the shorter one."""
        return [(rows, k) for rows, k in ((whole, self.kept), (1, min(self.kept, tail))) if rows and k]

    def _blocks(self, whole: int, tail: int) -> list[tuple[int, int, int]]:
        """Returns (number of blocks, elements of each, words kept in each), for the whole blocks and for the shorter
        one.
        """
        sizes = [(whole, self.block), (1, tail)]
        return [(rows, size, min(self.kept, size)) for rows, size in sizes if rows and size]

    def _spans(self, n: int) -> Spans:
        """Returns the spans of kept words that share a palette."""
        count = self._counts(n)[2]
        return [(a * self.kept, min(b * self.kept, count)) for a, b in starts(-(-n // self.block), self.group)]

    def _tables(self, n: int) -> int:
        groups = partition(-(-n // self.block), self.group)[0]
        return table_length(groups, self.width) if self.width in WIDTHS else 0

    def _places(self, n: int) -> int:
        whole, tail, count = self._counts(n)
        if self.places == LISTED:
            return packed_length(count, self._index_width)
        return sum(rows * rank_length(size, k) for rows, size, k in self._blocks(whole, tail))

    @property
    def _index_width(self) -> int:
        return self.block.bit_length() - 1

    def _pack(self, words: Words) -> bytes:
        n = words.size
        whole, tail, _ = self._counts(n)
        at = np.flatnonzero(words)
        kept = np.bincount(at // self.block, minlength=-(-n // self.block))
        due = [self.kept] * whole + [min(self.kept, tail)] * (tail > 0)
        carried(np.array_equal(kept, due), f"a block has more or less than {self.kept} words that are not 0")
        tables, coded = self._coded(words[at], n)
        body = joined([tables, self._pack_places(at % self.block, whole, tail), coded])
        return (len(body) + _HEAD).to_bytes(_HEAD, "little") + body if self.head else body

    def _coded(self, values: Words, n: int) -> tuple[Bytes, Bytes]:
        """Returns the encoded (palettes, levels) of the kept words."""
        none = np.zeros(0, np.uint8)
        if self.width == WORD:
            return none, values.astype("<u4", copy=False).view(np.uint8)
        if self.width == HALF:
            return none, to_halves(values).astype("<u2", copy=False).view(np.uint8)
        tables, codes = write_palettes(values, self._spans(n), self.width)
        if self.levels == LISTED:
            return tables, pack_bits(codes, self.width)
        whole, tail, _ = self._counts(n)
        parts, first = [], 0
        for rows, k in self._rows(whole, tail):
            some = codes[first : first + rows * k].reshape(rows, k)
            counts = ranked.counts_of(some)
            parts += [ranked.pack_counts(counts), ranked.pack_ranks(some, counts)]
            first += rows * k
        return tables, np.concatenate(parts)

    def _pack_places(self, within: NDArray[np.int64], whole: int, tail: int) -> Bytes:
        if self.places == LISTED:
            return pack_bits(within.astype(np.uint16), self._index_width)
        parts, first = [], 0
        for rows, size, k in self._blocks(whole, tail):
            parts.append(rank_subsets(within[first : first + rows * k].reshape(rows, k), size).reshape(-1))
            first += rows * k
        return np.concatenate(parts)

    def _unpack(self, data: Bytes, n: int) -> Words:
        cut = self.head + self._tables(n)
        end = cut + self._places(n)
        require(len(data) >= end, f"{len(data)} bytes end before the levels")
        at = self._unpack_places(data[cut:end], n)
        values = self._uncoded(data[self.head : cut], data[end:], n)
        # INVARIANT: a kept word is not 0, which says that nothing was kept.
        require(values.all(), "a kept word is 0")
        words = np.zeros(n, np.uint32)
        words[at] = values
        return words

    def _uncoded(self, tables: Bytes, data: Bytes, n: int) -> Words:
        if self.width == WORD:
            return words_of(data)
        if self.width == HALF:
            return from_halves(data.view("<u2").astype(np.uint16, copy=False))
        whole, tail, count = self._counts(n)
        codes = self._unranked(data, whole, tail) if self.levels == RANKED else unpack_bits(data, count, self.width)
        return read_palettes(tables, codes, self._spans(n), self.width)

    def _unranked(self, data: Bytes, whole: int, tail: int) -> Codes:
        codes, first = [], 0
        for rows, k in self._rows(whole, tail):
            cut = first + ranked.counts_length(rows, k)
            require(len(data) >= cut, "the bytes end within the counts")
            counts = ranked.unpack_counts(data[first:cut], rows, k)
            first = cut + ranked.ranks_length(counts)
            require(len(data) >= first, "the bytes end within the ranks")
            codes.append(ranked.unpack_ranks(data[cut:first], counts).reshape(-1))
        # INVARIANT: the stated length is the one that the counts imply.
        require(len(data) == first, f"{len(data) - first} bytes follow the last rank")
        return np.concatenate(codes)

    def _unpack_places(self, data: Bytes, n: int) -> NDArray[np.int64]:
        whole, tail, count = self._counts(n)
        blocks = np.repeat(np.arange(whole + (tail > 0)), [self.kept] * whole + [min(self.kept, tail)] * (tail > 0))
        if self.places == LISTED:
            within = unpack_bits(data, count, self._index_width).astype(np.int64)
            at = blocks * self.block + within
            # INVARIANT: indices ascend, each once, within the tensor.
            require((at[1:] > at[:-1]).all() and at[-1] < n, "indices do not ascend within the tensor")
            return at
        parts, first = [], 0
        for rows, size, k in self._blocks(whole, tail):
            length = rank_length(size, k)
            end = first + rows * length
            parts.append(unrank_subsets(data[first:end].reshape(rows, length), size, k).reshape(-1))
            first = end
        return blocks * self.block + np.concatenate(parts)
