"""Quantises floats to small integer codes and sums their products exactly, in Python integers (docs/protocol.md,
section 2).

A group is 4w values with one scale. `scale_of` defines the scale; C++, CUDA and Solidity each have a function of that
name.

    >>> scale_of(0x42FE0000, power=False)           # 127.0: the scale is 1, and so is its inverse
    (1065353216, 1065353216)
    >>> unpacked(packed([1, -2, 127, -128]))
    [1, -2, 127, -128]
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.numerics import scalar

LARGEST = 127
"""Largest code that quantisation gives; words of a foreign state may hold -128."""
TINY = 0x0D800000
"""2^-100: a group whose greatest magnitude is below gets codes 0 and scale +0, so that every inverse is finite."""
_127 = 0x42FE0000
_2_16 = 0x47800000


def scale_of(a: int, power: bool) -> tuple[int, int]:
    """Returns (scale, inverse) for a group of greatest magnitude a: 2^(e - 6) for a in [2^e, 2^(e+1)) if `power`, else
    a / 127 rounded.

    The inverse is +0 where all codes are 0: for a below TINY, and, with scale NaN, for an infinite or NaN a.
    """
    if a >= scalar.INFINITY:
        return scalar.NAN, 0
    if a < TINY:
        return 0, 0
    if power:
        exponent = a >> 23
        return (exponent - 6) << 23, (260 - exponent) << 23
    return scalar.fdiv(a, _127), scalar.fdiv(_127, a)


def code_of(x: int, inverse: int, random: int | None) -> int:
    """Returns the code of one value: x * inverse, rounded to nearest even, or stochastically with 16 random bits;
    within +-127.
    """
    if inverse == 0:
        return 0
    scaled = scalar.fmul(x, inverse)
    if random is None:
        code = _signed(scalar.f2i(scaled))
    else:
        code = (_signed(scalar.f2i(scalar.fmul(scaled, _2_16))) + random) >> 16
    return max(-LARGEST, min(code, LARGEST))


def magnitude(words: Sequence[int]) -> int:
    """Returns max |x| as a word; NaN counts as greater than infinity."""
    return max(word & ~scalar.SIGN for word in words)


def packed(codes: Sequence[int]) -> int:
    """Packs four codes into a word, the first one in its lowest bits."""
    return sum((code & 0xFF) << 8 * j for j, code in enumerate(codes))


def unpacked(word: int) -> list[int]:
    """Unpacks the four codes of a word, -128 to 127."""
    return [((word >> 8 * j & 0xFF) ^ 0x80) - 0x80 for j in range(4)]


def group_product(a: Sequence[int], b: Sequence[int], scale_a: int, scale_b: int) -> int:
    """Returns the term of one group in a qdot: I2F(S) * (scale_a * scale_b), where S is the exact sum of products of
    codes.
    """
    total = sum(x * y for u, v in zip(a, b, strict=True) for x, y in zip(unpacked(u), unpacked(v), strict=True))
    return scalar.fmul(scalar.i2f(total & scalar.MASK), scalar.fmul(scale_a, scale_b))


def _signed(word: int) -> int:
    return word - (1 << 32) if word & scalar.SIGN else word
