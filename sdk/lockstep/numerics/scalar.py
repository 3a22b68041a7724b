"""The meaning of every scalar operation, in Python integers on 32-bit words.

This file is the specification: `kernels/f32.hpp`, `Float32.sol` and `Int32.sol` give the same bits on
every input. A word is an int in [0, 2^32); each operation reads it as a binary32 or as a two's
complement integer. Floating point is IEEE 754-2019 binary32, round to nearest, ties to even, with
subnormals and signed zeros; every NaN result is 0x7fc00000. Nothing is undefined: each operation gives a
word for every combination of words.

    >>> hex(fadd(0x3F800000, 0x3F800000))
    '0x40000000'
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

from lockstep.numerics import polynomials as poly
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.programs.opcodes import ARITY as ARITY
from lockstep.protocol.programs.opcodes import FUNCTIONS as FUNCTIONS
from lockstep.protocol.programs.opcodes import Opcode as Opcode

MASK = 0xFFFFFFFF
SIGN = 0x80000000
INFINITY = 0x7F800000
NEGATIVE_INFINITY = 0xFF800000
NAN = 0x7FC00000
"""The canonical NaN: the only NaN that a float operation returns."""

ONE = 0x3F800000
TWO = 0x40000000
TWO_23 = 0x4B000000
SMALLEST_NORMAL = 0x00800000


# --- binary32: words to exact numbers and back ---------------------------------------------------------


def is_nan(a: int) -> bool:
    """Returns True if the word is a NaN, canonical or not."""
    return (a & ~SIGN) > INFINITY


def _unpack(a: int) -> tuple[int, int]:
    """Returns (signed significand, exponent) of a finite word; its value is significand * 2^exponent."""
    biased = (a >> 23) & 0xFF
    magnitude = (a & 0x7FFFFF) | (0x800000 if biased else 0)
    return (-magnitude if a & SIGN else magnitude), max(biased, 1) - 150


def _round(significand: int, exponent: int, sign: int) -> int:
    """Rounds +-significand * 2^exponent to the nearest word, ties to even; significand >= 0, sign is 0 or SIGN.

    The value may be inexact only if the significand has 26 bits or more and its lowest one is the sticky bit.
    """
    if significand == 0:
        return sign
    # Exponent of the result's last place: that of the 24th bit, but not below that of subnormals.
    last_place = max(significand.bit_length() - 24 + exponent, -149)
    shift = last_place - exponent
    if shift <= 0:
        kept = significand << -shift
    else:
        kept, rest, half = significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1)
        kept += rest > half or (rest == half and kept & 1)
    # A normal `kept` has its leading bit at 2^23, which adds the missing 1 to the exponent.
    return sign | min(((last_place + 149) << 23) + kept, INFINITY)


# --- binary32: the correctly rounded operations --------------------------------------------------------


def fadd(a: int, b: int) -> int:
    """a + b."""
    return ffma(a, ONE, b)


def fsub(a: int, b: int) -> int:
    """a - b."""
    return fadd(a, b if is_nan(b) else b ^ SIGN)


def fmul(a: int, b: int) -> int:
    """a * b."""
    # Adding a zero of the product's sign changes nothing, not even the sign of a zero.
    return ffma(a, b, (a ^ b) & SIGN)


def ffma(a: int, b: int, c: int) -> int:
    """a * b + c with one rounding."""
    if is_nan(a) or is_nan(b) or is_nan(c):
        return NAN
    sign = (a ^ b) & SIGN
    if INFINITY in (a & ~SIGN, b & ~SIGN):
        if 0 in (a & ~SIGN, b & ~SIGN) or c == INFINITY | (sign ^ SIGN):
            return NAN
        return sign | INFINITY
    if c & ~SIGN == INFINITY:
        return c
    (ma, ea), (mb, eb), (mc, ec) = _unpack(a), _unpack(b), _unpack(c)
    exponent = min(ea + eb, ec)
    total = (ma * mb << (ea + eb - exponent)) + (mc << (ec - exponent))
    if total == 0:
        # IEEE 754-2019, 6.3: a zero sum is +0 unless both terms are negative (zeros included).
        return sign & c
    return _round(abs(total), exponent, SIGN if total < 0 else 0)


def fdiv(a: int, b: int) -> int:
    """a / b."""
    if is_nan(a) or is_nan(b):
        return NAN
    sign, x, y = (a ^ b) & SIGN, a & ~SIGN, b & ~SIGN
    if x == y and x in (0, INFINITY):
        return NAN
    if x == INFINITY or y == 0:
        return sign | INFINITY
    if x == 0 or y == INFINITY:
        return sign
    (mx, ex), (my, ey) = _unpack(x), _unpack(y)
    quotient, remainder = divmod(mx << 64, my)
    return _round(quotient | (remainder != 0), ex - ey - 64, sign)


def fsqrt(a: int) -> int:
    """Square root; sqrt(-0) = -0, NaN below zero."""
    if is_nan(a) or a & ~SIGN == 0:
        return fcanon(a)
    if a & SIGN:
        return NAN
    if a == INFINITY:
        return a
    significand, exponent = _unpack(a)
    # Scaling by 2^65 or 2^64 makes the exponent even and leaves at least 32 bits of the root.
    shift = 64 + (exponent & 1)
    root = isqrt(significand << shift)
    return _round(root | (root * root != significand << shift), (exponent - shift) // 2, 0)


def fneg(a: int) -> int:
    """-a."""
    return NAN if is_nan(a) else a ^ SIGN


def fabs(a: int) -> int:
    """|a|."""
    return NAN if is_nan(a) else a & ~SIGN


def fcanon(a: int) -> int:
    """a itself; any NaN becomes the canonical one."""
    return NAN if is_nan(a) else a


# --- binary32: order -----------------------------------------------------------------------------------


def _order(a: int) -> int:
    """Maps a word to an integer in the total order of docs/numerics.md: -inf < ... < -0 < +0 < ... < +inf."""
    return ~(a & ~SIGN) if a & SIGN else a


def fmin(a: int, b: int) -> int:
    """The lesser in the total order (-0 < +0); NaN if either is NaN."""
    if is_nan(a) or is_nan(b):
        return NAN
    return a if _order(a) < _order(b) else b


def fmax(a: int, b: int) -> int:
    """The greater in the total order (-0 < +0); NaN if either is NaN."""
    if is_nan(a) or is_nan(b):
        return NAN
    return b if _order(a) < _order(b) else a


def flt(a: int, b: int) -> int:
    """1 if a < b, else 0; comparisons with NaN give 0; -0 == +0."""
    return int(fle(a, b) and not feq(a, b))


def fle(a: int, b: int) -> int:
    """1 if a <= b, else 0; comparisons with NaN give 0; -0 == +0."""
    if is_nan(a) or is_nan(b):
        return 0
    return int(_order(a) <= _order(b) or (a | b) & ~SIGN == 0)


def feq(a: int, b: int) -> int:
    """1 if a == b, else 0; comparisons with NaN give 0; -0 == +0."""
    if is_nan(a) or is_nan(b):
        return 0
    return int(a == b or (a | b) & ~SIGN == 0)


# --- binary32: functions. Each line is one operation above: this sequence is the definition of the funct


def fexp(x: int) -> int:
    """exp(x) within 0.9 ulp: exp(-inf) = +0, overflow gives +inf, tiny results are subnormal."""
    x = fmax(fmin(x, poly.EXP_HIGHEST), poly.EXP_LOWEST)
    # x = n ln 2 + r in two steps (Cody and Waite, "Software Manual for the Elementary Functions", 1980).
    shifted = ffma(x, poly.LOG2_E, poly.ROUND_TO_INTEGER)
    n = fsub(shifted, poly.ROUND_TO_INTEGER)
    r = ffma(n, fneg(poly.LN2_HI), x)
    r = ffma(n, fneg(poly.LN2_LO), r)
    p = _horner(poly.EXP, r)
    # 2^n is applied as two normal powers of two, -75 <= n/2 <= 64; only the last product rounds.
    k = isub(shifted, poly.ROUND_TO_INTEGER)
    half = ishr(k, 1)
    rest = isub(k, half)
    return fmul(fmul(p, ishl(iadd(half, 127), 23)), ishl(iadd(rest, 127), 23))


def flog(x: int) -> int:
    """log(x) within 0.9 ulp: NaN below zero, log(+-0) = -inf, log(+inf) = +inf, log(1) = +0."""
    subnormal = ilt(x, SMALLEST_NORMAL)
    y = select(subnormal, fmul(x, TWO_23), x)
    # Splits y = 2^k m with sqrt(1/2) <= m < sqrt(2) on the bits.
    k = ishr(isub(y, poly.SQRT_HALF), 23)
    m = isub(y, ishl(k, 23))
    n = i2f(isub(k, select(subnormal, 23, 0)))
    f = fsub(m, ONE)
    p = _horner(poly.LOG, f)
    tail = ffma(fmul(f, f), p, fmul(n, poly.LN2_LO))
    r = ffma(n, poly.LN2_HI, fadd(f, tail))
    r = select(ieq(x, INFINITY), INFINITY, r)
    r = select(iand(flt(x, ONE), fle(x, 0)), NAN, r)
    r = select(feq(x, 0), NEGATIVE_INFINITY, r)
    return select(feq(x, x), r, NAN)


def ftanh(x: int) -> int:
    """tanh(x) within 1.4 ulp; odd to the last bit, tanh(-0) = -0."""
    a = fabs(x)
    z = fmul(a, a)
    small = ffma(fmul(a, z), _horner(poly.TANH, z), a)
    large = fsub(ONE, fdiv(TWO, fadd(fexp(fadd(a, a)), ONE)))
    r = select(flt(a, poly.TANH_SMALL), small, large)
    return fcanon(ior(r, iand(x, SIGN)))


def _horner(coefficients: tuple[int, ...], x: int) -> int:
    p, *lower = coefficients
    for coefficient in lower:
        p = ffma(p, x, coefficient)
    return p


# --- two's complement integers -------------------------------------------------------------------------


def signed(a: int) -> int:
    """Interprets the word as an integer in [-2^31, 2^31)."""
    return a - (1 << 32) if a & SIGN else a


def iadd(a: int, b: int) -> int:
    """a + b, wrapping."""
    return (a + b) & MASK


def isub(a: int, b: int) -> int:
    """a - b, wrapping."""
    return (a - b) & MASK


def imul(a: int, b: int) -> int:
    """a * b, wrapping."""
    return (a * b) & MASK


def idiv(a: int, b: int) -> int:
    """a / b rounded towards zero; x / 0 = 0 and INT_MIN / -1 = INT_MIN."""
    if b == 0:
        return 0
    quotient = abs(signed(a)) // abs(signed(b))
    return (-quotient if (a ^ b) & SIGN else quotient) & MASK


def irem(a: int, b: int) -> int:
    """a - (a / b) * b, of a's sign; x rem 0 = 0 and INT_MIN rem -1 = 0."""
    if b == 0:
        return 0
    remainder = abs(signed(a)) % abs(signed(b))
    return (-remainder if a & SIGN else remainder) & MASK


def iand(a: int, b: int) -> int:
    """Bitwise and."""
    return a & b


def ior(a: int, b: int) -> int:
    """Bitwise or."""
    return a | b


def ixor(a: int, b: int) -> int:
    """Bitwise exclusive or."""
    return a ^ b


def ishl(a: int, b: int) -> int:
    """a shifted left by b mod 32."""
    return (a << (b & 31)) & MASK


def ishr(a: int, b: int) -> int:
    """a shifted right by b mod 32, filled with copies of the sign."""
    return (signed(a) >> (b & 31)) & MASK


def iushr(a: int, b: int) -> int:
    """a shifted right by b mod 32, filled with zeros."""
    return a >> (b & 31)


def ilt(a: int, b: int) -> int:
    """1 if a < b as signed integers, else 0."""
    return int(signed(a) < signed(b))


def ile(a: int, b: int) -> int:
    """1 if a <= b as signed integers, else 0."""
    return int(signed(a) <= signed(b))


def ieq(a: int, b: int) -> int:
    """Returns 1 if the words are equal, else 0."""
    return int(a == b)


def imin(a: int, b: int) -> int:
    """The lesser as signed integers."""
    return a if signed(a) < signed(b) else b


def imax(a: int, b: int) -> int:
    """The greater as signed integers."""
    return b if signed(a) < signed(b) else a


# --- between the two, and words as such ----------------------------------------------------------------


def i2f(a: int) -> int:
    """The float nearest to a signed integer, ties to even; 0 gives +0."""
    return _round(abs(signed(a)), 0, a & SIGN)


def f2i(a: int) -> int:
    """The signed integer nearest to a float, ties to even; saturates, and NaN gives 0."""
    if is_nan(a):
        return 0
    if a & ~SIGN >= 0x4F000000:  # 2^31
        return SIGN if a & SIGN else ~SIGN & MASK
    significand, exponent = _unpack(a & ~SIGN)
    whole, rest = divmod(significand << 150 + exponent, 1 << 150)
    whole += rest > 1 << 149 or (rest == 1 << 149 and whole & 1)
    return (-whole if a & SIGN else whole) & MASK


def select(c: int, a: int, b: int) -> int:
    """a if c is not the zero word, else b."""
    return a if c else b


def mov(a: int) -> int:
    """a itself, NaN payloads included."""
    return a


# --- the table of opcodes ------------------------------------------------------------------------------

_UNARY: dict[Opcode, Callable[[int], int]] = {
    Opcode.MOV: mov,
    Opcode.IMM: mov,
    Opcode.FSQRT: fsqrt,
    Opcode.FNEG: fneg,
    Opcode.FABS: fabs,
    Opcode.FEXP: fexp,
    Opcode.FLOG: flog,
    Opcode.FTANH: ftanh,
    Opcode.I2F: i2f,
    Opcode.F2I: f2i,
    Opcode.FCANON: fcanon,
}
_BINARY: dict[Opcode, Callable[[int, int], int]] = {
    Opcode.FADD: fadd,
    Opcode.FSUB: fsub,
    Opcode.FMUL: fmul,
    Opcode.FDIV: fdiv,
    Opcode.FMIN: fmin,
    Opcode.FMAX: fmax,
    Opcode.FLT: flt,
    Opcode.FLE: fle,
    Opcode.FEQ: feq,
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
}
_TERNARY: dict[Opcode, Callable[[int, int, int], int]] = {Opcode.FFMA: ffma, Opcode.SELECT: select}


def apply(op: int, a: int, b: int = 0, c: int = 0) -> int:
    """Applies an operation to words. Raises ProgramInvalid for an unknown opcode."""
    if op in _BINARY:
        return _BINARY[Opcode(op)](a, b)
    if op in _UNARY:
        return _UNARY[Opcode(op)](a)
    if op in _TERNARY:
        return _TERNARY[Opcode(op)](a, b, c)
    raise ProgramInvalid(f"{op} is no scalar operation", hint=f"opcodes are 0 to {max(Opcode)}, see scalar.Opcode")
