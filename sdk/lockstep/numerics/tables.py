"""Quantises many groups at once in numpy, by the rules of `numerics.codes`.

    codes, scales = quantised(weights, width=64)       # f32 [R, K] -> i32 [R, C 64], f32 [R, C]; rounded to nearest
    near = restored(codes, scales, terms=K)

numpy's float32 arithmetic rounds each operation once, to nearest even, as the reference does.
"""

from __future__ import annotations

from math import prod

import numpy as np
from numpy.typing import NDArray

from lockstep.numerics.codes import LARGEST, TINY
from lockstep.numerics.scalar import INFINITY, SIGN
from lockstep.numerics.scalar import NAN as NAN_WORD
from lockstep.protocol.programs.program import CODES, MAX_GROUP_WORDS, groups_of

PIECE = 1 << 20
"""Elements converted at a time: a table may be as large as the machine's memory."""

Floats = NDArray[np.float32]
Words = NDArray[np.int32]
Magnitudes = NDArray[np.uint32]
ONE, NAN = np.uint32(0x3F800000), np.uint32(NAN_WORD)


def width_of(terms: int) -> int:
    """Returns the words of codes per group for a product of so many terms: the fewest that hold all terms, at
    most 64.
    """
    return min(MAX_GROUP_WORDS, 1 << max(0, -(-terms // CODES) - 1).bit_length())


def quantised(table: Floats, width: int) -> tuple[Words, Floats]:
    """Quantises f32 [*rows, K] in groups of 4 `width` along K; returns (codes i32 [*rows, C width], scales f32 [*rows,
    C]).
    """
    *rows, terms = table.shape
    groups = groups_of(terms, width)
    flat, count = table.reshape(-1, terms), prod(rows)
    codes, scales = np.empty((count, groups * width), np.int32), np.empty((count, groups), np.float32)
    step = max(1, PIECE // terms)
    for at in range(0, count, step):
        part = np.ascontiguousarray(flat[at : at + step], np.float32)
        padded = np.pad(part, [(0, 0), (0, CODES * width * groups - terms)]).reshape(len(part), groups, CODES * width)
        scales[at : at + step], inverses = scales_of(magnitudes(padded), power=False)
        codes[at : at + step] = packed(codes_of(padded, inverses)).reshape(len(part), -1)
    return codes.reshape(*rows, -1), scales.reshape(*rows, -1)


def magnitudes(groups: Floats) -> Magnitudes:
    """Returns max |x| of each group as a word: f32 [..., 4w] -> uint32 [...]."""
    found: Magnitudes = (groups.view(np.uint32) & ~np.uint32(SIGN)).max(-1)
    return found


def scales_of(greatest: Magnitudes, power: bool) -> tuple[Floats, Floats]:
    """Returns (scales, inverses) for groups of these magnitudes, as `codes.scale_of`."""
    whole = greatest < INFINITY
    some = whole & (greatest >= TINY)
    largest = np.where(some, greatest, ONE)
    if power:
        exponents = largest >> np.uint32(23)
        scales = ((exponents - np.uint32(6)) << np.uint32(23)).view(np.float32)
        inverses = ((np.uint32(260) - exponents) << np.uint32(23)).view(np.float32)
    else:
        scales = largest.view(np.float32) / np.float32(127)
        inverses = np.float32(127) / largest.view(np.float32)
    scales = np.where(some, scales, np.float32(0))
    return np.where(whole, scales, NAN.view(np.float32)), np.where(some, inverses, np.float32(0))


def codes_of(groups: Floats, inverses: Floats, halves: Words | None = None) -> NDArray[np.int8]:
    """Returns the codes of f32 [..., 4w], given the inverses [...] of their scales, as `codes.code_of`.

    `halves`, i32 of the shape of `groups`, has 16 random bits for each code.
    """
    # Values are arbitrary where the inverse is 0; elsewhere they are finite.
    steps = np.where(inverses[..., None] > 0, groups, np.float32(0)) * inverses[..., None]
    if halves is None:
        found = np.rint(steps).astype(np.int32)
    else:
        found = (np.rint(steps * np.float32(1 << 16)).astype(np.int32) + halves) >> 16
    return np.clip(found, -LARGEST, LARGEST).astype(np.int8)


def packed(codes: NDArray[np.int8]) -> Words:
    """Packs four codes into each word, the first in its lowest bits; returns one row."""
    return np.ascontiguousarray(codes).reshape(-1).view("<i4").astype(np.int32, copy=False)


def restored(codes: Words, scales: Floats, terms: int) -> Floats:
    """Dequantises to f32 [*rows, terms]: every code times its group's scale."""
    *rows, groups = scales.shape
    small = np.ascontiguousarray(codes, "<i4").view(np.int8).reshape(*rows, groups, -1)
    return (small.astype(np.float32) * scales[..., None]).reshape(*rows, -1)[..., :terms]
