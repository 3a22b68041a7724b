"""Encodes sequences of four symbols by enumerative source coding (Cover 1973): symbol counts, then positions.

A row of k symbols is encoded as the index of its counts among all counts with sum k, in lexicographic order, then the
ranks of three subsets: the positions of symbol 0 among k, of symbol 1 among the remaining, of symbol 2 among those then
remaining. Each rank takes the bits that the counts require.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import Bytes, Codes, pack_bits, packed_length, require, unpack_bits
from lockstep.storage.formats.combinadics import MAX_SMALL, rank_bits, rank_masks, unrank_masks

SYMBOLS = 4
_KEY = MAX_SMALL + 1

Integers = NDArray[np.int64]


def check_row(k: int) -> None:
    """Raises UsageError unless rows of k symbols can be ranked."""
    if not 1 <= k <= MAX_SMALL:
        raise UsageError(f"ranks of {k} symbols", f"keep 1 to {MAX_SMALL} elements of a block, or list the levels")


def counts_width(k: int) -> int:
    """Returns the bits of a row's counts."""
    return (comb(k + SYMBOLS - 1, SYMBOLS - 1) - 1).bit_length()


def counts_length(rows: int, k: int) -> int:
    """Returns the size in bytes of the counts of that many rows."""
    return packed_length(rows, counts_width(k))


def ranks_longest(k: int) -> int:
    """Returns the most bits of a row's ranks."""
    return int(_widths(_all_counts(k)).sum(1).max())


def ranks_length(counts: Integers) -> int:
    """Returns the bytes of the ranks of rows with these counts [rows, 4]."""
    return -(-int(_widths(counts).sum()) // 8)


def pack_counts(counts: Integers) -> Bytes:
    """Packs the counts [rows, 4] of rows of equal length."""
    k = int(counts[0].sum())
    return pack_bits(np.searchsorted(_keys(_all_counts(k)), _keys(counts)).astype(np.uint16), counts_width(k))


def unpack_counts(data: Bytes, rows: int, k: int) -> Integers:
    """Unpacks the counts that `pack_counts` packed. Raises PayloadInvalid for a number that encodes no counts."""
    found = unpack_bits(data, rows, counts_width(k))
    every = _all_counts(k)
    # INVARIANT: a number is below the number of counts.
    require((found < len(every)).all(), f"no counts of {k} symbols have this number")
    return every[found]


def counts_of(rows: Codes) -> Integers:
    """Counts each symbol in each row: [rows, k] -> [rows, 4]."""
    return np.stack([(rows == s).sum(1, dtype=np.int64) for s in range(SYMBOLS)], axis=1)


def pack_ranks(rows: Codes, counts: Integers) -> Bytes:
    """Packs the ranks of rows [rows, k] with these counts, lowest bit first."""
    ranks, left = [], rows
    for s in range(SYMBOLS - 1):
        ranks.append(rank_masks(left == s) if left.shape[1] else np.zeros(len(rows), np.uint64))
        left = _without(left, s)
    widths = _widths(counts).reshape(-1)
    values = np.stack(ranks, axis=1).reshape(-1)
    first = np.cumsum(widths) - widths
    offsets = np.arange(int(widths.sum())) - np.repeat(first, widths)
    bits = (np.repeat(values, widths) >> offsets.astype(np.uint64)) & np.uint64(1)
    return np.packbits(bits.astype(np.uint8), bitorder="little")


def unpack_ranks(data: Bytes, counts: Integers) -> Codes:
    """Unpacks the rows that `pack_ranks` packed. Raises PayloadInvalid for an invalid rank or a nonzero padding bit."""
    widths = _widths(counts).reshape(-1)
    total = int(widths.sum())
    bits = np.unpackbits(data, bitorder="little")
    # INVARIANT: bits that no rank has are zero.
    require(not bits[total:].any(), "a bit beyond the last rank is set")
    bits = np.concatenate([bits[:total], np.zeros(MAX_SMALL, np.uint8)]).astype(np.uint64)
    first = np.cumsum(widths) - widths
    values = np.zeros(len(widths), np.uint64)
    for b in range(int(widths.max(initial=0))):
        values |= np.where(widths > b, bits[first + b], np.uint64(0)) << np.uint64(b)
    ranks = values.reshape(-1, SYMBOLS - 1)
    k = int(counts[0].sum())
    rows = np.full((len(counts), k), SYMBOLS - 1, np.uint8)
    sizes = np.full(len(counts), k, np.int64)
    places = np.tile(np.arange(k), (len(counts), 1))
    for s in range(SYMBOLS - 1):
        masks = unrank_masks(ranks[:, s], sizes, counts[:, s], k)
        row, column = np.nonzero(masks)
        rows[row, places[row, column]] = s
        # Remaining positions move to the front, in order.
        order = np.argsort(masks, axis=1, kind="stable")
        places = np.take_along_axis(places, order, axis=1)
        sizes = sizes - counts[:, s]
    return rows


def _without(rows: Codes, symbol: int) -> Codes:
    """Removes a symbol from the rows and closes the gaps; elements after a row's new end are undefined."""
    order = np.argsort(rows == symbol, axis=1, kind="stable")
    moved = np.take_along_axis(rows, order, axis=1)
    return np.where(moved == symbol, np.uint8(0xFF), moved)


def _widths(counts: Integers) -> Integers:
    """Returns the bits of the three ranks of rows with these counts: [rows, 4] -> [rows, 3]."""
    sizes = np.stack([counts[:, s:].sum(1) for s in range(SYMBOLS - 1)], axis=1)
    return np.asarray(_bits()[sizes, counts[:, : SYMBOLS - 1]])


@lru_cache(maxsize=1)
def _bits() -> Integers:
    """Returns the table of rank_bits(n, k) for n, k <= 64; 0 if k > n."""
    every = range(MAX_SMALL + 1)
    return np.array([[rank_bits(n, k) if k <= n else 0 for k in every] for n in every], np.int64)


@lru_cache(maxsize=8)
def _all_counts(k: int) -> Integers:
    """Lists all counts [.., 4] with sum k, in lexicographic order."""
    a, b, c = np.meshgrid(*[np.arange(k + 1)] * (SYMBOLS - 1), indexing="ij")
    some = np.stack([a.reshape(-1), b.reshape(-1), c.reshape(-1)], axis=1)
    rest = k - some.sum(1)
    return np.concatenate([some, rest[:, None]], axis=1)[rest >= 0]


def _keys(counts: Integers) -> Integers:
    return (counts[:, 0] * _KEY + counts[:, 1]) * _KEY + counts[:, 2]
