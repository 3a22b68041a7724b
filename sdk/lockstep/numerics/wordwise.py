"""Scalar operations on arrays of words in numpy: `scalar.py` element by element.

Of numpy's floats it uses only the five operations that IEEE 754 rounds correctly, in binary32 and binary64; everything
else is integer arithmetic. The self-test detects a numpy that rounds otherwise.

>>> [hex(w) for w in ffma(np.uint32([0x3F800001]), np.uint32([0x3F800001]), np.uint32([0xBF800002])).tolist()]
['0x28800000']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lockstep.numerics import polynomials as poly
from lockstep.numerics.scalar import INFINITY, NAN, NEGATIVE_INFINITY, ONE, SIGN, SMALLEST_NORMAL, TWO, TWO_23, Opcode

Words: TypeAlias = npt.NDArray[np.uint32]

_LOW = np.uint64((1 << 29) - 1)
_HALF = np.uint64(1 << 28)
"""Bits of a binary64 below a binary32's last place: the value of a tie."""
_TINY = 2.0**-124
"""Below this magnitude a binary32 has fewer places, and ties fall on other bits."""


def _word(value: int) -> Words:
    return np.full((), value, np.uint32)


def _floats(words: Words) -> npt.NDArray[np.float32]:
    return words.view(np.float32)


def _canonical(result: npt.NDArray[np.float32]) -> Words:
    words = np.ascontiguousarray(result, np.float32).view(np.uint32).reshape(result.shape)
    nan = np.isnan(result)
    return np.where(nan, _word(NAN), words) if nan.any() else words


def _is_nan(a: Words) -> npt.NDArray[np.bool_]:
    return (a & _word(SIGN - 1)) > _word(INFINITY)


def _bools(result: npt.NDArray[np.bool_]) -> Words:
    return result.astype(np.uint32)


def _signed(a: Words) -> npt.NDArray[np.int32]:
    return a.view(np.int32)


# --- binary32 -----------------------------------------------------------------------------------------------


def fadd(a: Words, b: Words) -> Words:
    """a + b."""
    return _canonical(_floats(a) + _floats(b))


def fsub(a: Words, b: Words) -> Words:
    """a - b."""
    return _canonical(_floats(a) - _floats(b))


def fmul(a: Words, b: Words) -> Words:
    """a * b."""
    return _canonical(_floats(a) * _floats(b))


def fdiv(a: Words, b: Words) -> Words:
    """a / b."""
    return _canonical(_floats(a) / _floats(b))


def fsqrt(a: Words) -> Words:
    """Square root."""
    return _canonical(np.sqrt(_floats(a)))


def ffma(a: Words, b: Words, c: Words) -> Words:
    """a * b + c with one rounding.

    The product is exact in binary64, and the sum is rounded to binary64 first. Only ties of binary32 and subnormals can
    then be rounded wrongly; these few are rounded to odd before (Boldo and Melquiond, "Emulation of FMA and correctly
    rounded sums", IEEE Transactions on Computers 57, 2008).
    """
    product = np.multiply(_floats(a), _floats(b), dtype=np.float64)
    addend = _floats(c).astype(np.float64)
    total = np.asarray(product + addend)
    bits = total.view(np.uint64)
    unsure = ((bits & _LOW) == _HALF) | (np.abs(total) < _TINY)
    if unsure.any():
        product, addend = np.broadcast_arrays(product, addend)
        total[unsure] = _to_odd(product[unsure], addend[unsure], total[unsure])
    return _canonical(total.astype(np.float32))


def _to_odd(
    p: npt.NDArray[np.float64], c: npt.NDArray[np.float64], total: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """p + c, rounded to odd: unless exact, the neighbour whose last bit is 1; all arguments finite."""
    # Computes the rounding error of the sum (Knuth, "The Art of Computer Programming" 2, section 4.2.2, theorem B).
    above = total - p
    lost = (p - (total - above)) + (c - above)
    bits = total.view(np.int64)
    even = (lost != 0) & (bits & 1 == 0)
    return (bits + np.where(even, np.where((lost > 0) == (total > 0), 1, -1), 0)).view(np.float64)


def fneg(a: Words) -> Words:
    """-a."""
    return np.where(_is_nan(a), _word(NAN), a ^ _word(SIGN))


def fabs(a: Words) -> Words:
    """|a|."""
    return np.where(_is_nan(a), _word(NAN), a & _word(SIGN - 1))


def fcanon(a: Words) -> Words:
    """a itself; any NaN becomes the canonical one."""
    return np.where(_is_nan(a), _word(NAN), a)


def _order(a: Words) -> npt.NDArray[np.int32]:
    """Maps words to integers in the order of numbers, -0 below +0."""
    return np.where(a & _word(SIGN) != 0, ~_signed(a & _word(SIGN - 1)), _signed(a))


def fmin(a: Words, b: Words) -> Words:
    """The lesser in the total order; NaN if either is NaN."""
    return np.where(_is_nan(a) | _is_nan(b), _word(NAN), np.where(_order(a) < _order(b), a, b))


def fmax(a: Words, b: Words) -> Words:
    """The greater in the total order; NaN if either is NaN."""
    return np.where(_is_nan(a) | _is_nan(b), _word(NAN), np.where(_order(a) < _order(b), b, a))


def flt(a: Words, b: Words) -> Words:
    """1 if a < b, else 0."""
    return _bools(_floats(a) < _floats(b))


def fle(a: Words, b: Words) -> Words:
    """1 if a <= b, else 0."""
    return _bools(_floats(a) <= _floats(b))


def feq(a: Words, b: Words) -> Words:
    """1 if a == b, else 0."""
    return _bools(_floats(a) == _floats(b))


# --- functions: the same sequences as in scalar.py ------------------------------------------------------------


def _horner(coefficients: tuple[int, ...], x: Words) -> Words:
    p, *lower = coefficients
    result = np.full(x.shape, p, np.uint32)
    for coefficient in lower:
        result = ffma(result, x, _word(coefficient))
    return result


def fexp(x: Words) -> Words:
    """exp(x)."""
    x = fmax(fmin(x, _word(poly.EXP_HIGHEST)), _word(poly.EXP_LOWEST))
    magic = _word(poly.ROUND_TO_INTEGER)
    shifted = ffma(x, _word(poly.LOG2_E), magic)
    n = fsub(shifted, magic)
    r = ffma(n, fneg(_word(poly.LN2_HI)), x)
    r = ffma(n, fneg(_word(poly.LN2_LO)), r)
    p = _horner(poly.EXP, r)
    k = isub(shifted, magic)
    half = ishr(k, _word(1))
    rest = isub(k, half)
    bias, places = _word(127), _word(23)
    return fmul(fmul(p, ishl(iadd(half, bias), places)), ishl(iadd(rest, bias), places))


def flog(x: Words) -> Words:
    """log(x)."""
    subnormal = ilt(x, _word(SMALLEST_NORMAL))
    y = select(subnormal, fmul(x, _word(TWO_23)), x)
    k = ishr(isub(y, _word(poly.SQRT_HALF)), _word(23))
    m = isub(y, ishl(k, _word(23)))
    n = i2f(isub(k, select(subnormal, _word(23), _word(0))))
    f = fsub(m, _word(ONE))
    p = _horner(poly.LOG, f)
    tail = ffma(fmul(f, f), p, fmul(n, _word(poly.LN2_LO)))
    r = ffma(n, _word(poly.LN2_HI), fadd(f, tail))
    r = select(ieq(x, _word(INFINITY)), _word(INFINITY), r)
    r = select(iand(flt(x, _word(ONE)), fle(x, _word(0))), _word(NAN), r)
    r = select(feq(x, _word(0)), _word(NEGATIVE_INFINITY), r)
    return select(feq(x, x), r, _word(NAN))


def ftanh(x: Words) -> Words:
    """tanh(x)."""
    a = fabs(x)
    z = fmul(a, a)
    small = ffma(fmul(a, z), _horner(poly.TANH, z), a)
    large = fsub(_word(ONE), fdiv(_word(TWO), fadd(fexp(fadd(a, a)), _word(ONE))))
    r = select(flt(a, _word(poly.TANH_SMALL)), small, large)
    return fcanon(ior(r, iand(x, _word(SIGN))))


# --- integers -----------------------------------------------------------------------------------------------


def iadd(a: Words, b: Words) -> Words:
    """a + b, wrapping."""
    return a + b


def isub(a: Words, b: Words) -> Words:
    """a - b, wrapping."""
    return a - b


def imul(a: Words, b: Words) -> Words:
    """a * b, wrapping."""
    return a * b


def _divided(a: Words, b: Words) -> npt.NDArray[np.int64]:
    x, y = _signed(a).astype(np.int64), _signed(b).astype(np.int64)
    magnitude = np.abs(x) // np.maximum(np.abs(y), 1)
    return np.where(y == 0, 0, np.where((x < 0) == (y < 0), magnitude, -magnitude))


def idiv(a: Words, b: Words) -> Words:
    """a / b rounded towards zero; x / 0 = 0 and INT_MIN / -1 = INT_MIN."""
    return _divided(a, b).astype(np.uint32)


def irem(a: Words, b: Words) -> Words:
    """a - (a / b) * b; x rem 0 = 0."""
    x, y = _signed(a).astype(np.int64), _signed(b).astype(np.int64)
    return np.where(y == 0, 0, x - _divided(a, b) * y).astype(np.uint32)


def iand(a: Words, b: Words) -> Words:
    """Bitwise and."""
    return a & b


def ior(a: Words, b: Words) -> Words:
    """Bitwise or."""
    return a | b


def ixor(a: Words, b: Words) -> Words:
    """Bitwise exclusive or."""
    return a ^ b


def ishl(a: Words, b: Words) -> Words:
    """a shifted left by b mod 32."""
    return a << (b & _word(31))


def ishr(a: Words, b: Words) -> Words:
    """a shifted right by b mod 32, filled with copies of the sign."""
    shifted: npt.NDArray[np.int32] = np.asarray(_signed(a) >> _signed(b & _word(31)))
    return shifted.view(np.uint32)


def iushr(a: Words, b: Words) -> Words:
    """a shifted right by b mod 32, filled with zeros."""
    return a >> (b & _word(31))


def ilt(a: Words, b: Words) -> Words:
    """1 if a < b as signed integers, else 0."""
    return _bools(_signed(a) < _signed(b))


def ile(a: Words, b: Words) -> Words:
    """1 if a <= b as signed integers, else 0."""
    return _bools(_signed(a) <= _signed(b))


def ieq(a: Words, b: Words) -> Words:
    """1 if the words are the same, else 0."""
    return _bools(a == b)


def imin(a: Words, b: Words) -> Words:
    """The lesser as signed integers."""
    return np.minimum(_signed(a), _signed(b)).view(np.uint32)


def imax(a: Words, b: Words) -> Words:
    """The greater as signed integers."""
    return np.maximum(_signed(a), _signed(b)).view(np.uint32)


# --- between the two, and words as such ---------------------------------------------------------------------


def i2f(a: Words) -> Words:
    """The float nearest to a signed integer, ties to even."""
    return _canonical(_signed(a).astype(np.float64).astype(np.float32))


def f2i(a: Words) -> Words:
    """The signed integer nearest to a float, ties to even; saturates, and NaN gives 0."""
    whole = np.clip(np.rint(_floats(a).astype(np.float64)), -(2.0**31), 2.0**31 - 1)
    return np.where(np.isnan(whole), 0, whole).astype(np.int64).astype(np.uint32)


def select(c: Words, a: Words, b: Words) -> Words:
    """a if c is not the zero word, else b."""
    return np.where(c != 0, a, b)


def mov(a: Words) -> Words:
    """a itself, NaN payloads included."""
    return a


APPLY: dict[Opcode, Callable[..., Any]] = {
    Opcode.MOV: mov,
    Opcode.IMM: mov,
    Opcode.FADD: fadd,
    Opcode.FSUB: fsub,
    Opcode.FMUL: fmul,
    Opcode.FDIV: fdiv,
    Opcode.FFMA: ffma,
    Opcode.FSQRT: fsqrt,
    Opcode.FNEG: fneg,
    Opcode.FABS: fabs,
    Opcode.FMIN: fmin,
    Opcode.FMAX: fmax,
    Opcode.FEXP: fexp,
    Opcode.FLOG: flog,
    Opcode.FTANH: ftanh,
    Opcode.FLT: flt,
    Opcode.FLE: fle,
    Opcode.FEQ: feq,
    Opcode.SELECT: select,
    Opcode.IADD: iadd,
    Opcode.ISUB: isub,
    Opcode.IMUL: imul,
    Opcode.IDIV: idiv,
    Opcode.IREM: irem,
    Opcode.IAND: iand,
    Opcode.IOR: ior,
    Opcode.IXOR: ixor,
    Opcode.ISHL: ishl,
    Opcode.ISHR: ishr,
    Opcode.IUSHR: iushr,
    Opcode.ILT: ilt,
    Opcode.ILE: ile,
    Opcode.IEQ: ieq,
    Opcode.IMIN: imin,
    Opcode.IMAX: imax,
    Opcode.I2F: i2f,
    Opcode.F2I: f2i,
    Opcode.FCANON: fcanon,
}
"""Maps an opcode to its function, which takes as many arrays as `ARITY` says."""
