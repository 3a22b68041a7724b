"""The coefficients of exp, log and tanh, as binary32 bit patterns.

`scalar.py` imports this table; `kernels/f32.hpp` and `Float32.sol` repeat it, and a test compares all three.

The fits are minimax in relative error, by iteratively reweighted least squares (Lawson, 1961) on 3000
Chebyshev nodes. Each coefficient was rounded to binary32 lowest degree first, and the remaining ones
were fitted again to absorb its error (the better-known lattice form of that idea: Brisebarre and
Chevillard, "Efficient polynomial L-infinity approximations", ARITH 2007). The figure beside each table
is the relative error of the rounded polynomial in exact arithmetic.
"""

from __future__ import annotations

LOG2_E = 0x3FB8AA3B
"""1 / ln 2 = 1.442695..."""

LN2_HI = 0x3F317218
"""ln 2 rounded to binary32."""

LN2_LO = 0xB102E308
"""ln 2 - LN2_HI rounded to binary32; negative."""

ROUND_TO_INTEGER = 0x4B400000
"""1.5 * 2^23: adding it to |x| < 2^22 leaves the nearest integer in the low bits of the sum."""

EXP_LOWEST = 0xC2D00000
"""-104: below it, exp rounds to +0."""

EXP_HIGHEST = 0x42B20000
"""89: above it, exp rounds to +infinity."""

EXP = (0x3AB526AC, 0x3C091CC7, 0x3D2AAC58, 0x3E2AAA49, 0x3EFFFFFE, 0x3F800000, 0x3F800000)
"""Polynomial of exp(r) for |r| <= ln(2)/2, highest degree (6) first; relative error 2^-28.25."""

SQRT_HALF = 0x3F3504F3
"""sqrt(1/2): log reduces its argument to [sqrt(1/2), sqrt(2))."""

LOG = (
    0xBD9C64EF, 0x3E02AF63, 0xBE06C121, 0x3E116C97, 0xBE2A3945,
    0x3E4CD00E, 0xBE800113, 0x3EAAAAAA, 0xBF000000,
)  # fmt: skip
"""Polynomial of (log(1 + f) - f) / f^2 for sqrt(1/2) <= 1 + f < sqrt(2), highest degree (8) first; relative error
2^-27.35.
"""

TANH_SMALL = 0x3F200000
"""0.625: below, tanh is an odd polynomial; from there on it is 1 - 2 / (exp(2 |x|) + 1)."""

TANH = (0xBBBA8672, 0x3CA8FC67, 0xBD5C1AD2, 0x3E08837B, 0xBEAAAA99)
"""Polynomial of (tanh(x) - x) / x^3 in x^2 for |x| <= 0.625, highest degree (4) first; relative error of tanh(x)
2^-27.72.
"""
