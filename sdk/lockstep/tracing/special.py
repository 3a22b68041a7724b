"""Rules for special functions: gamma, error and Bessel functions, and elementwise functions composed of others.

Each approximation cites its source; docs/lowerings.md states its error.
"""

from __future__ import annotations

import math
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.tracing.activations import exp2, log1p, xlogy
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.pointwise import Number, cos, sin
from lockstep.tracing.reductions import vector_norm


def polynomial(low: Lowering, coefficients: tuple[float, ...], x: Node) -> Node:
    """Evaluates a polynomial by Horner's scheme; the first coefficient belongs to the highest power."""
    result = low.cast(coefficients[0], F32)
    for coefficient in coefficients[1:]:
        result = low.f(Opcode.FFMA, result, x, coefficient)
    return result


def _negative(low: Lowering, x: Node) -> Node:
    """True where the sign bit is set, including -0."""
    return low.test(Opcode.ILT, low.graph.bitcast(x, I32), 0)


def _signed(low: Lowering, size: Node, like: Node) -> Node:
    """Returns the magnitude with the sign bit of `like`."""
    return low.select(_negative(low, like), low.f(Opcode.FNEG, size), size, F32)


def _half_turn(low: Lowering, x: Node) -> tuple[Node, Node]:
    """Returns (sin(pi x), cos(pi x)), both up to one common sign; x is first reduced by its nearest integer,
    exactly.
    """
    r = low.f(Opcode.FMUL, low.f(Opcode.FSUB, x, low.rounded(x)), math.pi)
    return sin(low, r), cos(low, r)


# --- gamma -------------------------------------------------------------------------------------------------

_SHIFT = 1.428456135094165802001953125
_ABOVE = (14.02614328749964766, 43.74732405540314316, 50.59547402616588964,
          26.90456680562548195, 6.595765571169314946, 0.6007854010515290065)  # fmt: skip
_BELOW = (24.0, 50.0, 35.0, 10.0, 1.0)
"""Denominator of Lanczos's approximation as one quotient of positive coefficients (Lanczos 1964, equation 31; Maddock
2006, lanczos6m24).
"""


def _log_gamma_above_one(low: Lowering, x: Node) -> Node:
    over = low.f(Opcode.FDIV, 1.0, x)
    total = low.f(Opcode.FDIV, polynomial(low, _ABOVE, over), polynomial(low, _BELOW, over))
    log_base = low.f(Opcode.FSUB, low.f(Opcode.FLOG, low.f(Opcode.FADD, x, _SHIFT - 0.5)), 1.0)
    return low.f(Opcode.FFMA, low.f(Opcode.FSUB, x, 0.5), log_base, low.f(Opcode.FLOG, total))


@rule("lgamma")
def lgamma(low: Lowering, x: Node) -> Node:
    """log |gamma(x)|: by one upward recurrence step for |x| < 1, by reflection for x < 0."""
    x = low.cast(x, F32)
    size = low.f(Opcode.FABS, x)
    small = low.test(Opcode.FLT, size, 1.0)
    up = _log_gamma_above_one(low, low.select(small, low.f(Opcode.FADD, size, 1.0), size, F32))
    positive = low.f(Opcode.FSUB, up, low.select(small, low.f(Opcode.FLOG, size), 0.0, F32))
    sine = low.f(Opcode.FABS, _half_turn(low, x)[0])
    mirrored = low.f(
        Opcode.FSUB, low.f(Opcode.FLOG, low.f(Opcode.FDIV, math.pi, low.f(Opcode.FMUL, size, sine))), positive
    )
    return low.select(low.test(Opcode.FLT, x, 0.0), mirrored, positive, F32)


_PSI = (-1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12)
"""Coefficients of the asymptotic series of digamma (Abramowitz and Stegun 1964, 6.3.18)."""


@rule("digamma")
def digamma(low: Lowering, x: Node) -> Node:
    """d log gamma(x) / dx: the asymptotic series after six upward recurrence steps; by reflection for x < 0."""
    x = low.cast(x, F32)
    below = low.test(Opcode.FLT, x, 0.0)
    y = low.select(below, low.f(Opcode.FSUB, 1.0, x), x, F32)
    far = low.f(Opcode.FADD, y, 6.0)
    over = low.f(Opcode.FDIV, 1.0, far)
    square = low.f(Opcode.FMUL, over, over)
    series = low.f(Opcode.FFMA, over, -0.5, low.f(Opcode.FMUL, square, polynomial(low, _PSI, square)))
    # 1 / y + ... + 1 / (y + 5) in pairs from both ends: the products y (y + 5), (y + 1) (y + 4), (y + 2) (y + 3) differ
    # by constants.
    ends = low.f(Opcode.FMUL, y, low.f(Opcode.FADD, y, 5.0))
    pairs = low.f(Opcode.FDIV, 1.0, ends)
    for apart in (4.0, 6.0):
        pairs = low.f(Opcode.FADD, pairs, low.f(Opcode.FDIV, 1.0, low.f(Opcode.FADD, ends, apart)))
    stepped = low.f(Opcode.FMUL, pairs, low.f(Opcode.FFMA, 2.0, y, 5.0))
    value = low.f(Opcode.FSUB, low.f(Opcode.FADD, low.f(Opcode.FLOG, far), series), stepped)
    sine, cosine = _half_turn(low, x)
    turned = low.f(Opcode.FSUB, value, low.f(Opcode.FMUL, math.pi, low.f(Opcode.FDIV, cosine, sine)))
    turned = low.select(low.test(Opcode.FEQ, sine, 0.0), math.nan, turned, F32)
    return low.select(below, turned, value, F32)


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66)
_STEPS = 10


def _power(low: Lowering, x: Node, n: int) -> Node:
    result = x
    for _ in range(n - 1):
        result = low.f(Opcode.FMUL, result, x)
    return result


@rule("polygamma")
def polygamma(low: Lowering, n: int, x: Node) -> Node:
    """The n-th derivative of digamma, after ten upward recurrence steps (Abramowitz and Stegun 1964, 6.4.11).

    For x < 0 the first derivative is reflected; higher ones are NaN.
    """
    if n == 0:
        return digamma(low, x)
    if n > 8:
        raise LoweringError(f"the {n}-th derivative of digamma is not supported", hint="use one of at most 8")
    x = low.cast(x, F32)
    below = low.test(Opcode.FLT, x, 0.0)
    y = low.select(below, low.f(Opcode.FSUB, 1.0, x), x, F32)
    over = low.f(Opcode.FDIV, 1.0, low.f(Opcode.FADD, y, float(_STEPS)))
    terms = [b * math.factorial(2 * k + n + 1) / math.factorial(2 * k + 2) for k, b in enumerate(_BERNOULLI)]
    square = low.f(Opcode.FMUL, over, over)
    series = low.f(
        Opcode.FFMA, low.f(Opcode.FMUL, square, polynomial(low, tuple(terms[::-1]), square)), 1.0, math.factorial(n - 1)
    )
    series = low.f(Opcode.FMUL, _power(low, over, n), low.f(Opcode.FFMA, over, math.factorial(n) / 2, series))
    steps = low.cast(0.0, F32)
    for k in reversed(range(_STEPS)):
        each = low.f(Opcode.FDIV, 1.0, low.f(Opcode.FADD, y, float(k)) if k else y)
        steps = low.f(Opcode.FADD, steps, _power(low, each, n + 1))
    value = low.f(Opcode.FMUL, low.f(Opcode.FFMA, steps, math.factorial(n), series), (-1.0) ** (n - 1))
    if n > 1:
        return low.select(below, math.nan, value, F32)
    each = low.f(Opcode.FDIV, math.pi, _half_turn(low, x)[0])
    return low.select(below, low.f(Opcode.FSUB, low.f(Opcode.FMUL, each, each), value), value, F32)


@rule("mvlgamma")
def mvlgamma(low: Lowering, x: Node, p: int) -> Node:
    """log of the multivariate gamma function (Muirhead 1982, theorem 2.1.12)."""
    result = low.cast(p * (p - 1) / 4 * math.log(math.pi), F32)
    for j in range(p):
        result = low.f(Opcode.FADD, result, lgamma(low, low.f(Opcode.FSUB, x, j / 2) if j else x))
    return low.graph.expand(result, low.shape)


# --- error functions ---------------------------------------------------------------------------------------

_MIDDLE = (59.109374720, 159.29113202, 50.434271938, 3.3871327179), (67.187563600, 78.757757664, 17.895169469, 1.0)
_TAIL = (0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777), (0.12021132975, 0.73700164250, 1.0)
_FAR = (0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150), (0.012258202635, 0.24197894225, 1.0)


def _quantile(low: Lowering, q: Node, tail: Node) -> Node:
    """The normal quantile of 1/2 + q, given the smaller tail 1/2 - |q| (Wichura 1988, algorithm AS 241, PPND7)."""

    def quotient(parts: tuple[tuple[float, ...], tuple[float, ...]], at: Node) -> Node:
        return low.f(Opcode.FDIV, *(polynomial(low, part, at) for part in parts))

    middle = low.f(Opcode.FMUL, q, quotient(_MIDDLE, low.f(Opcode.FFMA, low.f(Opcode.FNEG, q), q, 0.180625)))
    r = low.f(Opcode.FSQRT, low.f(Opcode.FNEG, low.f(Opcode.FLOG, tail)))
    near, far = (quotient(parts, low.f(Opcode.FSUB, r, start)) for parts, start in ((_TAIL, 1.6), (_FAR, 5.0)))
    size = low.select(low.test(Opcode.FLE, r, 5.0), near, far, F32)
    size = low.select(low.test(Opcode.FEQ, tail, 0.0), math.inf, size, F32)
    outer = low.select(low.test(Opcode.FLT, q, 0.0), low.f(Opcode.FNEG, size), size, F32)
    return low.select(low.test(Opcode.FLE, low.f(Opcode.FABS, q), 0.425), middle, outer, F32)


@rule("special_ndtri")
def ndtri(low: Lowering, p: Node) -> Node:
    """The quantile of the standard normal distribution."""
    p = low.cast(p, F32)
    return _quantile(low, low.f(Opcode.FSUB, p, 0.5), low.f(Opcode.FMIN, p, low.f(Opcode.FSUB, 1.0, p)))


@rule("erfinv")
def erfinv(low: Lowering, x: Node) -> Node:
    """Inverse error function: the normal quantile of (1 + x) / 2, divided by sqrt(2)."""
    x = low.cast(x, F32)
    tail = low.f(Opcode.FMUL, 0.5, low.f(Opcode.FSUB, 1.0, low.f(Opcode.FABS, x)))
    return low.f(Opcode.FMUL, math.sqrt(0.5), _quantile(low, low.f(Opcode.FMUL, 0.5, x), tail))


_ERFC = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368,
         -1.26551223)  # fmt: skip
"""Coefficients of erfc with relative error below 1.2e-7 (Press 1992, section 6.2, erfcc)."""


def _scaled_tail(low: Lowering, size: Node) -> Node:
    """exp(x^2) erfc(x) for x >= 0."""
    t = low.f(Opcode.FDIV, 1.0, low.f(Opcode.FFMA, 0.5, size, 1.0))
    return low.f(Opcode.FMUL, t, low.f(Opcode.FEXP, polynomial(low, _ERFC, t)))


def _exp_of_square(low: Lowering, x: Node, sign: float) -> Node:
    """exp(sign x^2), corrected for the rounding of the square."""
    square = low.f(Opcode.FMUL, x, x)
    rest = low.f(Opcode.FFMA, x, x, low.f(Opcode.FNEG, square))
    e = low.f(Opcode.FEXP, low.f(Opcode.FMUL, square, sign))
    made = low.f(Opcode.FFMA, e, low.f(Opcode.FMUL, rest, sign), e)
    return low.select(low.test(Opcode.FLT, square, 80.0), made, e, F32)


@rule("special_erfcx")
def erfcx(low: Lowering, x: Node) -> Node:
    """exp(x^2) erfc(x)."""
    x = low.cast(x, F32)
    above = _scaled_tail(low, low.f(Opcode.FABS, x))
    below = low.f(Opcode.FSUB, low.f(Opcode.FMUL, 2.0, _exp_of_square(low, x, 1.0)), above)
    return low.select(low.test(Opcode.FLT, x, 0.0), below, above, F32)


@rule("special_log_ndtr")
def log_ndtr(low: Lowering, x: Node) -> Node:
    """log of the normal distribution function: log(erfcx(-t) / 2) - t^2 where x < -1, t = x / sqrt(2), else log1p."""
    t = low.f(Opcode.FMUL, low.cast(x, F32), math.sqrt(0.5))
    tail = _scaled_tail(low, low.f(Opcode.FABS, t))
    low_side = low.f(Opcode.FSUB, low.f(Opcode.FLOG, low.f(Opcode.FMUL, 0.5, tail)), low.f(Opcode.FMUL, t, t))
    half = low.f(Opcode.FMUL, low.f(Opcode.FMUL, 0.5, tail), _exp_of_square(low, t, -1.0))
    upper = low.select(low.test(Opcode.FLT, t, 0.0), low.f(Opcode.FSUB, 1.0, half), half, F32)
    return low.select(low.test(Opcode.FLT, x, -1.0), low_side, log1p(low, low.f(Opcode.FNEG, upper)), F32)


# --- Bessel functions --------------------------------------------------------------------------------------

_I0_NEAR = (0.0045813, 0.0360768, 0.2659732, 1.2067492, 3.0899424, 3.5156229, 1.0)
_I0_FAR = (0.00392377, -0.01647633, 0.02635537, -0.02057706, 0.00916281, -0.00157565, 0.00225319, 0.01328592,
           0.39894228)  # fmt: skip
_I1_NEAR = (0.00032411, 0.00301532, 0.02658733, 0.15084934, 0.51498869, 0.87890594, 0.5)
_I1_FAR = (-0.00420059, 0.01787654, -0.02895312, 0.02282967, -0.01031555, 0.00163801, -0.00362018, -0.03988024,
           0.39894228)  # fmt: skip
"""Coefficients of the modified Bessel functions, relative error about 2e-7 (Abramowitz and Stegun 1964, 9.8.1 to
9.8.4).
"""


def _bessel(low: Lowering, x: Node, odd: bool, scaled: bool) -> Node:
    near_parts, far_parts = (_I1_NEAR, _I1_FAR) if odd else (_I0_NEAR, _I0_FAR)
    x = low.cast(x, F32)
    size = low.f(Opcode.FABS, x)
    t = low.f(Opcode.FMUL, size, 1 / 3.75)
    near = polynomial(low, near_parts, low.f(Opcode.FMUL, t, t))
    near = low.f(Opcode.FMUL, near, size) if odd else near
    far = low.f(Opcode.FDIV, polynomial(low, far_parts, low.f(Opcode.FDIV, 1.0, t)), low.f(Opcode.FSQRT, size))
    if scaled:
        near = low.f(Opcode.FMUL, near, low.f(Opcode.FEXP, low.f(Opcode.FNEG, size)))
    else:
        far = low.f(Opcode.FMUL, far, low.f(Opcode.FEXP, size))
    value = low.select(low.test(Opcode.FLE, t, 1.0), near, far, F32)
    return _signed(low, value, x) if odd else value


@rule("i0")
def i0(low: Lowering, x: Node) -> Node:
    """The modified Bessel function of order 0."""
    return _bessel(low, x, odd=False, scaled=False)


@rule("special_i0e")
def i0e(low: Lowering, x: Node) -> Node:
    """exp(-|x|) i0(x), the scaled modified Bessel function of order 0."""
    return _bessel(low, x, odd=False, scaled=True)


@rule("special_i1")
def i1(low: Lowering, x: Node) -> Node:
    """The modified Bessel function of order 1."""
    return _bessel(low, x, odd=True, scaled=False)


@rule("special_i1e")
def i1e(low: Lowering, x: Node) -> Node:
    """exp(-|x|) i1(x), the scaled modified Bessel function of order 1."""
    return _bessel(low, x, odd=True, scaled=True)


# --- logarithms and powers ---------------------------------------------------------------------------------


@rule("special_entr")
def entr(low: Lowering, x: Node) -> Node:
    """Entropy term -x log(x); 0 at 0, -inf below 0."""
    x = low.cast(x, F32)
    value = low.f(Opcode.FNEG, xlogy(low, x, x))
    return low.select(low.test(Opcode.FLT, x, 0.0), -math.inf, value, F32)


@rule("logit")
def logit(low: Lowering, x: Node, eps: float | None = None) -> Node:
    """log(x / (1 - x)), with x clamped to eps .. 1 - eps if eps is given."""
    x = low.cast(x, F32)
    if eps is not None:
        x = low.f(Opcode.FMIN, low.f(Opcode.FMAX, x, eps), 1 - eps)
    return low.f(Opcode.FLOG, low.f(Opcode.FDIV, x, low.f(Opcode.FSUB, 1.0, x)))


@rule("logit_backward")
def logit_backward(low: Lowering, grad: Node, x: Node, eps: float | None = None) -> Node:
    """grad / (x (1 - x)); outside of the clamp range 0, or NaN without a clamp."""
    lower, outside = (0.0, math.nan) if eps is None else (eps, 0.0)
    inside = low.i(Opcode.IAND, low.test(Opcode.FLE, lower, x), low.test(Opcode.FLE, x, 1 - lower))
    slope = low.f(Opcode.FDIV, grad, low.f(Opcode.FMUL, x, low.f(Opcode.FSUB, 1.0, x)))
    return low.select(inside, slope, outside, F32)


@rule("xlogy.Scalar_Self", "xlogy.Scalar_Other")
def xlogy_scalar(low: Lowering, x: Number, y: Number) -> Node:
    """x log(y); 0 where x is 0."""
    return xlogy(low, low.cast(x, F32), low.cast(y, F32))


@rule("special_xlog1py", "special_xlog1py.self_scalar", "special_xlog1py.other_scalar")
def xlog1py(low: Lowering, x: Number, y: Number) -> Node:
    """x log(1 + y); 0 where x is 0."""
    product = low.f(Opcode.FMUL, x, log1p(low, low.cast(y, F32)))
    zero = low.test(Opcode.FEQ, x, 0.0)
    return low.select(zero, low.select(low.test(Opcode.FEQ, y, y), 0.0, math.nan, F32), product, F32)


@rule("logaddexp2")
def logaddexp2(low: Lowering, a: Node, b: Node) -> Node:
    """log2(2^a + 2^b) without overflow; two equal infinities give that infinity."""
    apart = low.select(low.test(Opcode.FEQ, a, b), 0.0, low.f(Opcode.FABS, low.f(Opcode.FSUB, a, b)), F32)
    tail = log1p(low, exp2(low, low.f(Opcode.FNEG, apart)))
    return low.f(Opcode.FFMA, tail, 1 / math.log(2), low.f(Opcode.FMAX, a, b))


@rule("ldexp.Tensor")
def ldexp(low: Lowering, x: Node, n: Node) -> Node:
    """x 2^n; for integer n as two powers of two, so that neither overflows alone."""
    if n.dtype == F32:
        return low.f(Opcode.FMUL, x, exp2(low, n))
    n = low.i(Opcode.IMIN, low.i(Opcode.IMAX, n, -252), 252)
    half = low.i(Opcode.ISHR, n, 1)
    for part in (half, low.i(Opcode.ISUB, n, half)):
        x = low.f(Opcode.FMUL, x, low.graph.bitcast(low.i(Opcode.ISHL, low.i(Opcode.IADD, part, 127), 23), F32))
    return x


@rule("hypot")
def hypot(low: Lowering, a: Node, b: Node) -> Node:
    """sqrt(a^2 + b^2) without overflow."""
    a, b = low.f(Opcode.FABS, a), low.f(Opcode.FABS, b)
    most = low.f(Opcode.FMAX, a, b)
    share = low.f(Opcode.FDIV, low.f(Opcode.FMIN, a, b), most)
    root = low.f(Opcode.FMUL, most, low.f(Opcode.FSQRT, low.f(Opcode.FFMA, share, share, 1.0)))
    plain = low.i(Opcode.IOR, low.test(Opcode.FEQ, most, 0.0), low.test(Opcode.FEQ, most, math.inf))
    return low.select(plain, most, root, F32)


@rule("dist")
def dist(low: Lowering, a: Node, b: Node, order: float = 2) -> Node:
    """The norm of a - b."""
    return vector_norm(low, low.f(Opcode.FSUB, a, b), order)


# --- angles, signs, parts ----------------------------------------------------------------------------------


@rule("sinc")
def sinc(low: Lowering, x: Node) -> Node:
    """sin(pi x) / (pi x); 1 at 0."""
    turned = low.f(Opcode.FMUL, x, math.pi)
    return low.select(low.test(Opcode.FEQ, x, 0.0), 1.0, low.f(Opcode.FDIV, sin(low, turned), turned), F32)


@rule("deg2rad")
def deg2rad(low: Lowering, x: Node) -> Node:
    """pi x / 180."""
    return low.f(Opcode.FMUL, x, math.pi / 180)


@rule("rad2deg")
def rad2deg(low: Lowering, x: Node) -> Node:
    """180 x / pi."""
    return low.f(Opcode.FMUL, x, 180 / math.pi)


@rule("frac")
def frac(low: Lowering, x: Node) -> Node:
    """The fractional part: x - trunc(x)."""
    return low.f(Opcode.FSUB, x, low.truncate(x))


@rule("copysign.Tensor", "copysign.Scalar")
def copysign(low: Lowering, x: Node, like: Number) -> Node:
    """|x| with the sign bit of `like`, including -0."""
    return _signed(low, low.f(Opcode.FABS, x), low.cast(like, F32))


@rule("signbit")
def signbit(low: Lowering, x: Node) -> Node:
    """True where the sign bit is set, including -0."""
    return _negative(low, x)


@rule("heaviside")
def heaviside(low: Lowering, x: Node, at_zero: Node) -> Node:
    """0 for x < 0, 1 for x > 0, `at_zero` for x = 0."""
    if low.dtype != F32:
        return low.select(low.test(Opcode.IEQ, x, 0), at_zero, low.test(Opcode.ILT, 0, x), low.dtype)
    step = low.cast(low.test(Opcode.FLT, 0.0, x), F32)
    return low.select(low.test(Opcode.FEQ, x, 0.0), at_zero, step, F32)


def _known_extremum(op: Opcode) -> Any:
    def lower(low: Lowering, a: Node, b: Node) -> Node:
        a, b = low.cast(a, low.dtype), low.cast(b, low.dtype)
        if low.dtype != F32:
            return low.i(Opcode.IMAX if op == Opcode.FMAX else Opcode.IMIN, a, b)
        either = low.select(low.test(Opcode.FEQ, a, a), low.f(op, a, b), b, F32)
        return low.select(low.test(Opcode.FEQ, b, b), either, a, F32)

    return lower


rule("fmax")(_known_extremum(Opcode.FMAX))
rule("fmin")(_known_extremum(Opcode.FMIN))


@rule("isposinf")
def isposinf(low: Lowering, x: Node) -> Node:
    """True where x is +infinity."""
    return low.test(Opcode.FEQ, low.cast(x, F32), math.inf)


@rule("isneginf")
def isneginf(low: Lowering, x: Node) -> Node:
    """True where x is -infinity."""
    return low.test(Opcode.FEQ, low.cast(x, F32), -math.inf)


@rule("round.decimals")
def round_decimals(low: Lowering, x: Node, *, decimals: int = 0) -> Node:
    """Rounds to a number of decimal places, ties to even."""
    scale = 10.0 ** abs(decimals)
    there, back = (Opcode.FMUL, Opcode.FDIV) if decimals >= 0 else (Opcode.FDIV, Opcode.FMUL)
    return low.f(back, low.rounded(low.f(there, x, scale)), scale)
