"""Encodes subsets as numbers by the combinatorial number system (Knuth, TAOCP 4A, section 7.2.1.3, theorem L).

rank of {c_1 < ... < c_k} = C(c_1, 1) + C(c_2, 2) + ... + C(c_k, k), in 0 .. C(m, k) - 1 for subsets of 0 .. m - 1
"""

from __future__ import annotations

from functools import lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.storage.formats.base import Bytes, require

MAX_TABLE_BYTES = 1 << 26
"""Largest table of binomial coefficients, in bytes."""
MAX_SMALL = 64
"""Largest set whose subsets have 64-bit ranks."""
_LIMB = 32

Positions = NDArray[np.int64]


def rank_length(m: int, k: int) -> int:
    """Returns the bytes of the rank of a k-subset of m elements."""
    return (rank_bits(m, k) + 7) // 8


def rank_bits(m: int, k: int) -> int:
    """Returns the bits of the rank of a k-subset of m elements; 0 if there is only one subset."""
    return (comb(m, k) - 1).bit_length()


def check_table(m: int, k: int) -> None:
    """Raises UsageError if k-subsets of m elements need too large a table."""
    if 4 * m * k * _limbs(m, k) > MAX_TABLE_BYTES:
        raise UsageError(f"subsets of {k} of {m} elements", "their ranks are too long: keep fewer, or list the indices")


def rank_subsets(positions: Positions, m: int) -> Bytes:
    """Returns the ranks, little-endian [rows, rank_length], of subsets of 0 ..

    m - 1 given as ascending rows [rows, k].
    """
    rows, k = positions.shape
    totals = np.zeros((rows, _limbs(m, k)), np.uint64)
    for column, table in zip(positions.T, _tables(m, k), strict=True):
        totals += table[column].view(">u4").reshape(rows, -1)
    limbs = _carried(totals)[:, ::-1].astype("<u4")
    return limbs.view(np.uint8).reshape(rows, -1)[:, : rank_length(m, k)]


def unrank_subsets(ranks: Bytes, m: int, k: int) -> Positions:
    """Returns the ascending rows [rows, k] with these ranks: the inverse of `rank_subsets`.

    Raises PayloadInvalid for an invalid rank.
    """
    rows, limbs = len(ranks), _limbs(m, k)
    size = 4 * limbs
    left = np.zeros((rows, size), np.uint8)
    left[:, size - ranks.shape[1] :] = ranks[:, ::-1]
    # INVARIANT: a rank is below the number of subsets.
    beyond = np.frombuffer(comb(m, k).to_bytes(size, "big"), f"S{size}")[0]
    require((left.view(f"S{size}") < beyond).all(), f"a rank denotes no subset of {k} of {m}")
    positions = np.empty((rows, k), np.int64)
    words = left.view(">u4").astype(np.int64)
    for j in range(k - 1, -1, -1):
        table = _tables(m, k)[j]
        # Finds the largest c with C(c, j + 1) <= remainder; byte strings of equal length compare as big-endian numbers.
        at = np.searchsorted(table, words.astype(">u4").view(f"S{size}").reshape(-1), side="right") - 1
        positions[:, j] = at
        words -= table[at].view(">u4").reshape(rows, limbs)
        for i in range(limbs - 1, 0, -1):
            borrow = words[:, i] < 0
            words[:, i] += borrow.astype(np.int64) << _LIMB
            words[:, i - 1] -= borrow
    return positions


def _limbs(m: int, k: int) -> int:
    return comb(m, k).bit_length() // _LIMB + 1


@lru_cache(maxsize=8)
def _tables(m: int, k: int) -> tuple[NDArray[np.bytes_], ...]:
    """Returns for each j the table of C(c, j + 1), c = 0 .. m - 1, as big-endian numbers of equal length."""
    limbs = _limbs(m, k)
    row = np.zeros((m, limbs), np.uint64)
    row[:, -1] = 1
    tables = []
    for _ in range(k):
        # Uses C(c, j + 1) = sum of C(i, j) over i < c.
        sums = np.zeros_like(row)
        np.cumsum(row[:-1], axis=0, out=sums[1:])
        row = _carried(sums[:, ::1])
        tables.append(row.astype(">u4").view(f"S{4 * limbs}").reshape(-1))
    return tuple(tables)


def _carried(sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Propagates carries; returns limbs below 2^32, the most significant first."""
    found = sums.copy()
    for i in range(found.shape[1] - 1, 0, -1):
        found[:, i - 1] += found[:, i] >> np.uint64(_LIMB)
        found[:, i] &= np.uint64((1 << _LIMB) - 1)
    return found


# -- subsets of at most 64 ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _small() -> NDArray[np.uint64]:
    """Returns the table of C(n, k) for n, k <= 64."""
    return np.array([[comb(n, k) for k in range(MAX_SMALL + 1)] for n in range(MAX_SMALL + 1)], np.uint64)


def binomials(n: NDArray[np.int64], k: NDArray[np.int64]) -> NDArray[np.uint64]:
    """C(n, k), elementwise, for 0 <= n, k <= 64."""
    return _small()[n, k]


def rank_masks(masks: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Returns the rank of each row [rows, m] of a mask, m <= 64, among the subsets of equal size."""
    seen = np.cumsum(masks, axis=1)
    terms = np.where(masks, _small()[np.arange(masks.shape[1])[None, :], seen], np.uint64(0))
    return np.asarray(terms.sum(1, dtype=np.uint64))


def unrank_masks(
    ranks: NDArray[np.uint64], sizes: NDArray[np.int64], counts: NDArray[np.int64], m: int
) -> NDArray[np.bool_]:
    """Returns the masks [rows, m] of subsets with these ranks: `counts` elements of 0 ..

    `sizes` - 1. Raises PayloadInvalid for an invalid rank.
    """
    # INVARIANT: a rank is below the number of subsets.
    require((ranks < binomials(sizes, counts)).all(), "a rank denotes no subset")
    masks, left, wanted = np.zeros((len(ranks), m), np.bool_), ranks.copy(), counts.copy()
    for c in range(m - 1, -1, -1):
        term = _small()[c, wanted]
        taken = (c < sizes) & (wanted > 0) & (left >= term)
        masks[:, c] = taken
        left[taken] -= term[taken]
        wanted -= taken
    return masks
