"""Test vectors for the scalar operations: random words, and the structured ones that break floating point.

The classes follow Berkeley TestFloat (Hauser, "TestFloat-3e", 2018): significands with few ones or few
zeros, every pair and triple of special values, exponents near each other and near the ends; and, for
each operation, what hurts it: near halfway cases, cancellation, subnormal results, perfect squares, the
boundaries of the polynomials.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt

from lockstep.numerics import polynomials as poly
from lockstep.numerics.scalar import ARITY, Opcode, apply

Words = npt.NDArray[np.uint32]
_Class = Callable[[np.random.Generator, int], list[Words]]

_POSITIVE = (
    0x00000000, 0x00000001, 0x00000002, 0x00400000, 0x007FFFFF, 0x00800000, 0x00800001, 0x00FFFFFF, 0x33800000,
    0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x40000000, 0x4B000000, 0x4B800001, 0x7EFFFFFF, 0x7F7FFFFF, 0x7F800000,
    0x7F800001, 0x7FC00000, 0x7FFFFFFF,
)  # fmt: skip
SPECIAL: tuple[int, ...] = (*_POSITIVE, *(x | 0x80000000 for x in _POSITIVE))
"""Zeros, subnormals, ends of each range, 1 and its neighbours, infinities, quiet and signalling NaNs, of both signs."""

_INTEGERS = (
    0, 1, 2, 3, 7, 31, 32, 33, 255, 0xFFFF, 0x10000, 0x7FFFFFFE, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF,
)  # fmt: skip
_INTEGER_OPS = range(Opcode.IADD, Opcode.I2F + 1)


def vectors(op: Opcode, n: int, seed: int) -> tuple[Words, Words, Words]:
    """Returns operands (a, b, c) of `op`: three uint32[n], a function of (op, n, seed) alone.

    Operands that the operation does not read are zero. The special combinations come first, so a small n holds them
    only in part.
    """
    rng = np.random.default_rng([seed, op])
    values = _INTEGERS if op in _INTEGER_OPS else SPECIAL
    arity = ARITY[op]
    grid = np.array(list(product(values, repeat=arity)), dtype=np.uint32).reshape(-1, arity).T
    if grid.shape[1] > n // 4:
        grid = rng.permutation(grid, axis=1)[:, : n // 4]
    classes = _classes(op)
    rest = n - grid.shape[1]
    parts = [np.vstack([grid, np.zeros((3 - arity, grid.shape[1]), np.uint32)])]
    for i, kind in enumerate(classes):
        count = rest * (i + 1) // len(classes) - rest * i // len(classes)
        operands = kind(rng, count)[:arity]
        parts.append(np.vstack([*operands, *[np.zeros(count, np.uint32)] * (3 - arity)]))
    a, b, c = np.hstack(parts)
    return np.ascontiguousarray(a), np.ascontiguousarray(b), np.ascontiguousarray(c)


def _classes(op: Opcode) -> list[_Class]:
    if op in _INTEGER_OPS:
        return [_random, _small_integers]
    extra: dict[Opcode, list[_Class]] = {
        Opcode.FADD: [_near_opposite],
        Opcode.FSUB: [_near_equal],
        Opcode.FLT: [_near_equal],
        Opcode.FLE: [_near_equal],
        Opcode.FEQ: [_near_equal],
        Opcode.FMIN: [_near_equal],
        Opcode.FMAX: [_near_equal],
        Opcode.FMUL: [_product_at_the_ends],
        Opcode.FDIV: [_quotient_at_the_ends, _near_exact_quotient],
        Opcode.FFMA: [_near_minus_product, _near_minus_product, _halfway_product, _product_at_the_ends],
        Opcode.FSQRT: [_near_square],
        Opcode.FEXP: [_exp_domain, _exp_reduction],
        Opcode.FLOG: [_positive, _log_reduction],
        Opcode.FTANH: [_tanh_domain, _tanh_boundary],
        Opcode.F2I: [_near_integers],
    }
    return [_random, _sparse, _close_exponents, *extra.get(op, [])]


# --- classes of operands: (rng, n) -> (a, b, c), each uint32[n] ------------------------------------------------


def _random(rng: np.random.Generator, n: int) -> list[Words]:
    return [rng.integers(0, 1 << 32, n, dtype=np.uint32) for _ in range(3)]


def _sparse_word(rng: np.random.Generator, n: int, low: int = 0, high: int = 255) -> Words:
    """Returns significands 0...01...10...0, or with one or two bits set, or their complements; biased exponents in
    [low, high).
    """
    x, y = (np.uint32(1) << rng.integers(0, 24, n, dtype=np.uint32) for _ in range(2))
    shape = rng.integers(0, 4, n)
    fraction = np.choose(shape, [x | y, x - y, ~(x | y), ~(x - y)]) & np.uint32(0x7FFFFF)
    exponent = rng.integers(low, high, n, dtype=np.uint32)
    sign = rng.integers(0, 2, n, dtype=np.uint32)
    word: Words = fraction | (exponent << np.uint32(23)) | (sign << np.uint32(31))
    return word


def _sparse(rng: np.random.Generator, n: int) -> list[Words]:
    return [_sparse_word(rng, n, 0, 256) for _ in range(3)]


def _close_exponents(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns exponents within 30 of each other, around 1 or at either end; c is near the product."""
    centre = rng.choice(np.array([16, 127, 238]), n)
    words = [_sparse_word(rng, n) if i == 1 else _random(rng, n)[0] for i in range(3)]
    exponents = [centre + rng.integers(-16, 17, n), centre + rng.integers(-16, 17, n)]
    exponents.append(exponents[0] + exponents[1] - 127 + rng.integers(-50, 30, n))
    return [_with_exponent(w, e) for w, e in zip(words, exponents, strict=True)]


def _with_exponent(w: Words, exponent: npt.NDArray[np.int64]) -> Words:
    return (w & np.uint32(0x807FFFFF)) | (np.clip(exponent, 0, 254).astype(np.uint32) << np.uint32(23))


def _step(rng: np.random.Generator, w: Words, most: int = 3) -> Words:
    """Returns words a few units in the last place away."""
    return w + rng.integers(-most, most + 1, len(w)).astype(np.int32).view(np.uint32)


def _near_equal(rng: np.random.Generator, n: int) -> list[Words]:
    a = np.where(rng.integers(0, 2, n) == 0, _sparse_word(rng, n), _random(rng, n)[0]).astype(np.uint32)
    return [a, _step(rng, a), _step(rng, a)]


def _near_opposite(rng: np.random.Generator, n: int) -> list[Words]:
    a, b, c = _near_equal(rng, n)
    return [a, b ^ np.uint32(0x80000000), c]


def _product_at_the_ends(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns products around subnormals and overflow; c is small or a neighbour of the product."""
    a, b = _random(rng, n)[0], np.where(rng.integers(0, 2, n) == 0, _sparse_word(rng, n), _random(rng, n)[0])
    ea = rng.integers(1, 254, n)
    target = np.where(rng.integers(0, 4, n) == 0, rng.integers(252, 258, n), rng.integers(-26, 4, n))
    b = _with_exponent(b.astype(np.uint32), target + 127 - ea)
    c = _with_exponent(_random(rng, n)[0], rng.integers(0, 30, n))
    return [_with_exponent(a, ea), b, c]


def _quotient_at_the_ends(rng: np.random.Generator, n: int) -> list[Words]:
    a, b, _ = _random(rng, n)
    ea = rng.integers(1, 254, n)
    target = np.where(rng.integers(0, 4, n) == 0, rng.integers(252, 258, n), rng.integers(-26, 4, n))
    return [_with_exponent(a, ea), _with_exponent(b, ea + 127 - target), b]


def _near_exact_quotient(rng: np.random.Generator, n: int) -> list[Words]:
    b, q, _ = _close_exponents(rng, n)
    return [_step(rng, _product(b, q), 1), b, q]


def _product(a: Words, b: Words) -> Words:
    with np.errstate(all="ignore"):
        return (a.view(np.float32) * b.view(np.float32)).view(np.uint32)


def _near_minus_product(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns operands in which c (almost) cancels the rounded product, so that its low half remains."""
    a, b, _ = _close_exponents(rng, n)
    return [a, b, _step(rng, _product(a, b)) ^ np.uint32(0x80000000)]


def _halfway_product(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns products near half a unit in the last place of c, and sums near a tie."""
    a, b, c = _sparse_word(rng, n, 60, 190), _sparse_word(rng, n, 60, 190), _random(rng, n)[0]
    exponent = ((a >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int64)
    exponent += ((b >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int64) - 127 + rng.integers(21, 28, n)
    return [a, b, _with_exponent(c, exponent)]


def _near_square(rng: np.random.Generator, n: int) -> list[Words]:
    root = (rng.integers(1, 1 << 12, n).astype(np.float32) * 2.0 ** rng.integers(-60, 50, n)).astype(np.float32)
    return [_step(rng, _product(root.view(np.uint32), root.view(np.uint32))) & np.uint32(0x7FFFFFFF)] * 3


def _uniform(rng: np.random.Generator, n: int, low: float, high: float) -> Words:
    return rng.uniform(low, high, n).astype(np.float32).view(np.uint32)


def _exp_domain(rng: np.random.Generator, n: int) -> list[Words]:
    return [_uniform(rng, n, -106, 91)] * 3


def _exp_reduction(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns values around (k + 1/2) ln 2, where the rounded quotient changes, around the clamps and the first
    subnormals.
    """
    middle = ((rng.integers(-151, 129, n) + rng.choice(np.array([0.0, 0.5]), n)) * np.log(2)).astype(np.float32)
    return [_step(rng, middle.view(np.uint32), 40)] * 3


def _positive(rng: np.random.Generator, n: int) -> list[Words]:
    return [rng.integers(0, 0x7F800001, n, dtype=np.uint32)] * 3


def _log_reduction(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns values around 1, around sqrt(2) 2^k, where the exponent changes, and through the subnormals."""
    near_root = _with_exponent(np.full(n, poly.SQRT_HALF, np.uint32), rng.integers(0, 255, n))
    near_one = np.full(n, 0x3F800000, np.uint32)
    subnormal = rng.integers(0, 1 << 23, n, dtype=np.uint32)
    around = np.choose(rng.integers(0, 3, n), [near_root, near_one, subnormal])
    return [_step(rng, around, 3000)] * 3


def _tanh_domain(rng: np.random.Generator, n: int) -> list[Words]:
    return [_uniform(rng, n, -10, 10)] * 3


def _tanh_boundary(rng: np.random.Generator, n: int) -> list[Words]:
    sign = rng.integers(0, 2, n, dtype=np.uint32) << np.uint32(31)
    return [_step(rng, np.full(n, poly.TANH_SMALL, np.uint32) | sign, 100_000)] * 3


def _near_integers(rng: np.random.Generator, n: int) -> list[Words]:
    """Returns halves of integers of every size, and their neighbours."""
    half = rng.integers(-(1 << 40), 1 << 40, n) >> rng.integers(0, 40, n)
    return [_step(rng, (half / 2).astype(np.float32).view(np.uint32), 1)] * 3


def _small_integers(rng: np.random.Generator, n: int) -> list[Words]:
    return [rng.integers(-40, 40, n).astype(np.int32).view(np.uint32) for _ in range(3)]


def golden() -> str:
    """Returns the committed sample tests/vectors/float32.json: 16 vectors of each operation with results."""
    rows: list[str] = []
    for op in Opcode:
        for a, b, c in zip(*(w.tolist() for w in vectors(op, 16, seed=2)), strict=True):
            words = [f"{w:08x}" for w in (a, b, c, apply(op, a, b, c))]
            rows.append(json.dumps([op.name.lower(), *words]))
    columns = json.dumps(["op", "a", "b", "c", "result"])
    return f'{{"columns": {columns},\n"vectors": [\n' + ",\n".join(rows) + "\n]}\n"


if __name__ == "__main__":
    print(golden(), end="")
