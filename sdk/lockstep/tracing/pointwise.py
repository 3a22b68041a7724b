"""Rules for elementwise operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.tracing.graph import BOOL, F32, I32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.shapes import complement

Number = Node | float


def _is_float(*xs: Number) -> bool:
    return any(x.dtype == F32 if isinstance(x, Node) else isinstance(x, float) for x in xs)


# --- arithmetic --------------------------------------------------------------------------------------------


@rule("add.Tensor", "add.Scalar")
def add(low: Lowering, a: Number, b: Number, alpha: float = 1) -> Node:
    """a + alpha b; a logical or for bools."""
    if low.dtype == F32:
        whole = complement(low, a, b) if alpha == 1 else None
        return whole or low.f(Opcode.FADD, a, b if alpha == 1 else low.f(Opcode.FMUL, b, float(alpha)))
    if low.dtype == BOOL:
        return low.graph.apply(Opcode.IOR, low.cast(a, BOOL), low.cast(b, BOOL), dtype=BOOL)
    return low.i(Opcode.IADD, a, b if alpha == 1 else low.i(Opcode.IMUL, b, int(alpha)))


@rule("sub.Tensor", "sub.Scalar")
def sub(low: Lowering, a: Number, b: Number, alpha: float = 1) -> Node:
    """a - alpha b."""
    if low.dtype == F32:
        return low.f(Opcode.FSUB, a, b if alpha == 1 else low.f(Opcode.FMUL, b, float(alpha)))
    return low.i(Opcode.ISUB, a, b if alpha == 1 else low.i(Opcode.IMUL, b, int(alpha)))


@rule("rsub.Scalar", "rsub.Tensor")
def rsub(low: Lowering, a: Number, b: Number, alpha: float = 1) -> Node:
    """b - alpha a."""
    return sub(low, b, a, alpha)


@rule("mul.Tensor", "mul.Scalar")
def mul(low: Lowering, a: Number, b: Number) -> Node:
    """a b; a logical and for bools."""
    return low.f(Opcode.FMUL, a, b) if low.dtype == F32 else low.i(Opcode.IMUL, a, b)


@rule("div.Tensor", "div.Scalar")
def div(low: Lowering, a: Number, b: Number) -> Node:
    """a / b as floats."""
    return low.f(Opcode.FDIV, a, b)


@rule("div.Tensor_mode")
def div_mode(low: Lowering, a: Number, b: Number, rounding_mode: str | None = None) -> Node:
    """a / b, rounded down or towards zero if a rounding mode is given."""
    if low.dtype == I32:
        return floor_divide(low, a, b) if rounding_mode == "floor" else low.i(Opcode.IDIV, a, b)
    quotient = low.f(Opcode.FDIV, a, b)
    return {"floor": floor, "trunc": trunc, None: lambda _, x: x}[rounding_mode](low, quotient)


@rule("floor_divide", "floor_divide.Scalar")
def floor_divide(low: Lowering, a: Number, b: Number) -> Node:
    """Integer division rounded down."""
    if _is_float(a, b):
        return floor(low, low.f(Opcode.FDIV, a, b))
    x, y = low.cast(a, I32), low.cast(b, I32)
    rest = low.i(Opcode.IREM, x, y)
    below = low.test(Opcode.ILT, low.i(Opcode.IXOR, rest, y), 0)
    inexact = low.negation(low.test(Opcode.IEQ, rest, 0))
    return low.i(Opcode.ISUB, low.i(Opcode.IDIV, x, y), low.i(Opcode.IAND, below, inexact))


@rule("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(low: Lowering, a: Number, b: Number) -> Node:
    """a - b floor(a / b)."""
    if _is_float(a, b):
        return low.f(Opcode.FSUB, a, low.f(Opcode.FMUL, b, floor(low, low.f(Opcode.FDIV, a, b))))
    x, y = low.cast(a, I32), low.cast(b, I32)
    rest = low.i(Opcode.IREM, x, y)
    below = low.test(Opcode.ILT, low.i(Opcode.IXOR, rest, y), 0)
    inexact = low.negation(low.test(Opcode.IEQ, rest, 0))
    return low.i(Opcode.IADD, rest, low.select(low.i(Opcode.IAND, below, inexact), y, 0, I32))


@rule("addcmul")
def addcmul(low: Lowering, x: Node, a: Node, b: Node, value: float = 1) -> Node:
    """x + value a b."""
    return low.f(Opcode.FADD, x, low.f(Opcode.FMUL, low.f(Opcode.FMUL, a, float(value)), b))


@rule("addcdiv")
def addcdiv(low: Lowering, x: Node, a: Node, b: Node, value: float = 1) -> Node:
    """x + value a / b."""
    return low.f(Opcode.FADD, x, low.f(Opcode.FDIV, low.f(Opcode.FMUL, a, float(value)), b))


@rule("lerp.Scalar", "lerp.Tensor")
def lerp(low: Lowering, a: Node, b: Node, weight: Number) -> Node:
    """a + weight (b - a)."""
    return low.f(Opcode.FADD, a, low.f(Opcode.FMUL, weight, low.f(Opcode.FSUB, b, a)))


@rule("neg")
def neg(low: Lowering, x: Node) -> Node:
    """-x."""
    return low.f(Opcode.FNEG, x) if x.dtype == F32 else low.i(Opcode.ISUB, 0, x)


@rule("abs")
def absolute(low: Lowering, x: Node) -> Node:
    """|x|."""
    return low.f(Opcode.FABS, x) if x.dtype == F32 else low.i(Opcode.IMAX, x, low.i(Opcode.ISUB, 0, x))


@rule("reciprocal")
def reciprocal(low: Lowering, x: Node) -> Node:
    """1 / x."""
    return low.f(Opcode.FDIV, 1.0, x)


@rule("sqrt")
def sqrt(low: Lowering, x: Node) -> Node:
    """Correctly rounded square root."""
    return low.f(Opcode.FSQRT, x)


@rule("rsqrt")
def rsqrt(low: Lowering, x: Node) -> Node:
    """1 / sqrt(x)."""
    return low.f(Opcode.FDIV, 1.0, low.f(Opcode.FSQRT, x))


@rule("pow.Tensor_Scalar")
def power(low: Lowering, x: Node, exponent: float) -> Node:
    """x ** e: by multiplications or roots for small exponents, else exp(e log x)."""
    if low.dtype != F32:
        return _integer_power(low, x, low.cast(exponent, I32))
    x = low.cast(x, F32)
    if not math.isfinite(exponent):
        return _signed_power(low, x, low.cast(exponent, F32))
    if exponent < 0:
        return low.f(Opcode.FDIV, 1.0, power(low, x, -exponent))
    if exponent == 0.5:
        return low.f(Opcode.FSQRT, x)
    if exponent == int(exponent) and exponent <= 16:
        result: Node | None = None
        square, left = x, int(exponent)
        while left:
            if left & 1:
                result = square if result is None else low.f(Opcode.FMUL, result, square)
            left >>= 1
            square = low.f(Opcode.FMUL, square, square) if left else square
        return result if result is not None else low.graph.number(1.0, F32, x.shape)
    if exponent == int(exponent) and not is_positive(low, x):
        size = low.f(Opcode.FEXP, low.f(Opcode.FMUL, float(exponent), low.f(Opcode.FLOG, low.f(Opcode.FABS, x))))
        return _with_sign(low, x, size) if exponent % 2 else size
    return low.f(Opcode.FEXP, low.f(Opcode.FMUL, float(exponent), low.f(Opcode.FLOG, x)))


def _integer_power(low: Lowering, x: Node, exponent: Node) -> Node:
    """x ** e by the bits of e.

    Powers beyond 2^31 overflow an i32; those of -1, 0 and 1 depend on the last bit of e alone, and so do all powers of
    negative e.
    """
    size = low.i(Opcode.IMAX, exponent, low.i(Opcode.ISUB, 0, exponent))
    size = low.select(low.test(Opcode.ILT, 31, size), low.i(Opcode.IOR, low.i(Opcode.IAND, size, 1), 30), size, I32)
    result, square = low.cast(1, I32), x
    for bit in range(5):
        taken = low.i(Opcode.IAND, low.i(Opcode.ISHR, size, bit), 1)
        result = low.i(Opcode.IMUL, result, low.select(taken, square, 1, I32))
        square = low.i(Opcode.IMUL, square, square)
    unit = low.test(Opcode.IEQ, low.i(Opcode.IMUL, x, x), 1)
    gone = low.i(Opcode.IAND, low.test(Opcode.ILT, exponent, 0), low.negation(unit))
    return low.select(gone, 0, result, I32)


@rule("pow.Tensor_Tensor", "pow.Scalar")
def power_tensor(low: Lowering, x: Number, exponent: Node) -> Node:
    """exp(e log x) for positive x; for other x only integral exponents are defined."""
    if low.dtype != F32:
        return _integer_power(low, low.cast(x, I32), exponent)
    base, exponent = low.cast(x, F32), low.cast(exponent, F32)
    if x not in (1, math.inf) and is_positive(low, base):
        return low.f(Opcode.FEXP, low.f(Opcode.FMUL, exponent, low.f(Opcode.FLOG, base)))
    return _signed_power(low, base, exponent)


def _signed_power(low: Lowering, x: Node, e: Node) -> Node:
    """x ** e with the special cases of C's `pow` (C99, F.9.4.4)."""
    size = low.f(Opcode.FABS, x)
    result = low.f(Opcode.FEXP, low.f(Opcode.FMUL, e, low.f(Opcode.FLOG, size)))
    forever = low.test(Opcode.FEQ, low.f(Opcode.FABS, e), math.inf)
    one = low.i(Opcode.IOR, low.test(Opcode.FEQ, e, 0.0), low.test(Opcode.FEQ, x, 1.0))
    one = low.i(Opcode.IOR, one, low.i(Opcode.IAND, low.test(Opcode.FEQ, size, 1.0), forever))
    result = low.select(one, 1.0, result, F32)
    half = low.f(Opcode.FMUL, e, 0.5)
    whole, even = (low.test(Opcode.FEQ, low.rounded(y), y) for y in (e, half))
    odd = low.i(Opcode.IAND, whole, low.negation(even))
    result = low.select(odd, _with_sign(low, x, result), result, F32)
    below = low.i(Opcode.IAND, low.test(Opcode.FLT, x, 0.0), low.test(Opcode.FLT, -math.inf, x))
    # A fractional power of a negative number is NaN; any number to the power 0 is 1.
    none = low.i(Opcode.IAND, below, low.negation(whole))
    return low.select(none, math.nan, result, F32)


def _with_sign(low: Lowering, x: Node, size: Node) -> Node:
    """Returns the magnitude with the sign of x, including the sign of zero."""
    return low.select(low.test(Opcode.ILT, low.graph.bitcast(x, I32), 0), low.f(Opcode.FNEG, size), size, F32)


def is_positive(low: Lowering, x: Node, depth: int = 6) -> bool:
    """True if the value is positive for all data, as far as `depth` levels of its arguments show."""
    return _least(low, x, depth) > 0


def _least(low: Lowering, x: Node, depth: int) -> int:
    """Sign of a lower bound: 1 if x > 0 (up to underflow), 0 if x >= 0, -1 if unknown."""
    value = low.fixed(x) if x.kind != "imm" else None
    if x.kind == "imm":
        word = np.array(x.attrs[0], np.uint32).view(np.float32)
        return 1 if word > 0 else 0 if word == 0 else -1
    if value is not None:
        value = value.detach()
        return 1 if bool((value > 0).all()) else 0 if bool((value >= 0).all()) else -1
    if not depth:
        return -1
    parts = [_least(low, a, depth - 1) for a in x.args]
    if x.kind in ("permute", "reshape", "expand", "slice", "flip", "concat"):
        return min(parts)
    if x.kind != "apply" or x.dtype != F32:
        return -1
    op = x.attrs[0]
    if op == Opcode.FEXP:
        return 1
    if op == Opcode.FABS or (op == Opcode.FMUL and x.args[0] is x.args[1]):
        return max(parts[0], 0)
    if op == Opcode.FMAX:
        return max(parts)
    if op == Opcode.FADD:
        return max(parts) if min(parts) >= 0 else -1
    if op in (Opcode.FMUL, Opcode.FDIV, Opcode.FSQRT, Opcode.FMIN):
        return min(parts)
    return min(parts[1:]) if op == Opcode.SELECT else -1


# --- functions ---------------------------------------------------------------------------------------------


@rule("exp")
def exp(low: Lowering, x: Node) -> Node:
    """e ** x."""
    return low.f(Opcode.FEXP, x)


@rule("log")
def log(low: Lowering, x: Node) -> Node:
    """Natural logarithm."""
    return low.f(Opcode.FLOG, x)


@rule("log2", "log10")
def log_base(low: Lowering, x: Node) -> Node:
    """Logarithm to base 2 or 10."""
    base = 2.0 if low.graph.origin.aten.endswith("log2") else 10.0
    return low.f(Opcode.FMUL, low.f(Opcode.FLOG, x), 1 / math.log(base))


@rule("tanh")
def tanh(low: Lowering, x: Node) -> Node:
    """Hyperbolic tangent."""
    return low.f(Opcode.FTANH, x)


@rule("tanh_backward")
def tanh_backward(low: Lowering, grad: Node, y: Node) -> Node:
    """grad (1 - y^2)."""
    return low.f(Opcode.FMUL, grad, low.f(Opcode.FSUB, 1.0, low.f(Opcode.FMUL, y, y)))


@rule("sigmoid")
def sigmoid(low: Lowering, x: Node) -> Node:
    """1 / (1 + exp(-x))."""
    return low.f(Opcode.FDIV, 1.0, low.f(Opcode.FADD, 1.0, low.f(Opcode.FEXP, low.f(Opcode.FNEG, x))))


@rule("sigmoid_backward")
def sigmoid_backward(low: Lowering, grad: Node, y: Node) -> Node:
    """grad y (1 - y)."""
    return low.f(Opcode.FMUL, grad, low.f(Opcode.FMUL, y, low.f(Opcode.FSUB, 1.0, y)))


@rule("silu")
def silu(low: Lowering, x: Node) -> Node:
    """x sigmoid(x)."""
    return low.f(Opcode.FMUL, x, sigmoid(low, x))


@rule("silu_backward")
def silu_backward(low: Lowering, grad: Node, x: Node) -> Node:
    """grad s (1 + x (1 - s)), s = sigmoid(x)."""
    s = sigmoid(low, x)
    slope = low.f(Opcode.FADD, 1.0, low.f(Opcode.FMUL, x, low.f(Opcode.FSUB, 1.0, s)))
    return low.f(Opcode.FMUL, grad, low.f(Opcode.FMUL, s, slope))


_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100059e-15)
"""Three binary32 numbers whose sum is pi / 2 (Cody and Waite 1980, chapter 8)."""
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
"""Minimax on [-pi / 4, pi / 4] (Moshier 1989, Cephes sinf and cosf)."""


def _series(low: Lowering, coefficients: tuple[float, ...], z: Node) -> Node:
    result = low.cast(coefficients[0], F32)
    for coefficient in coefficients[1:]:
        result = low.f(Opcode.FFMA, result, z, coefficient)
    return result


def _circular(low: Lowering, x: Node, quarters: int) -> Node:
    """sin(x + quarters x pi / 2); absolute error about 1e-7 for |x| < 1e5, meaningless for |x| > 1e9."""
    turns = low.graph.apply(Opcode.F2I, low.f(Opcode.FMUL, x, 2 / math.pi), dtype=I32)
    back, r = low.f(Opcode.FNEG, low.cast(turns, F32)), x
    for part in _HALF_PI:
        r = low.f(Opcode.FFMA, back, part, r)
    z = low.f(Opcode.FMUL, r, r)
    sine = low.f(Opcode.FFMA, low.f(Opcode.FMUL, r, z), _series(low, _SIN, z), r)
    cosine = low.f(Opcode.FFMA, low.f(Opcode.FMUL, z, z), _series(low, _COS, z), low.f(Opcode.FFMA, z, -0.5, 1.0))
    quadrant = low.i(Opcode.IADD, turns, quarters) if quarters else turns
    value = low.select(low.i(Opcode.IAND, quadrant, 1), cosine, sine, F32)
    return low.select(low.i(Opcode.IAND, quadrant, 2), low.f(Opcode.FNEG, value), value, F32)


@rule("sin")
def sin(low: Lowering, x: Node) -> Node:
    """Sine of radians."""
    return _circular(low, x, 0)


@rule("cos")
def cos(low: Lowering, x: Node) -> Node:
    """Cosine of radians."""
    return _circular(low, x, 1)


@rule("erf")
def erf(low: Lowering, x: Node) -> Node:
    """Error function, absolute error below 1.5e-7 plus rounding (Abramowitz and Stegun 1964, 7.1.26)."""
    magnitude = low.f(Opcode.FABS, x)
    t = low.f(Opcode.FDIV, 1.0, low.f(Opcode.FFMA, 0.3275911, magnitude, 1.0))
    series = low.cast(1.061405429, F32)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = low.f(Opcode.FFMA, series, t, coefficient)
    tail = low.f(
        Opcode.FMUL, low.f(Opcode.FMUL, series, t), low.f(Opcode.FEXP, low.f(Opcode.FNEG, low.f(Opcode.FMUL, x, x)))
    )
    positive = low.f(Opcode.FSUB, 1.0, tail)
    return low.select(low.test(Opcode.FLT, x, 0.0), low.f(Opcode.FNEG, positive), positive, F32)


_GELU_CUBE = 0.044715


def _gelu_tanh(low: Lowering, x: Node) -> tuple[Node, Node]:
    scale = math.sqrt(2 / math.pi)
    square = low.f(Opcode.FMUL, x, x)
    inner = low.f(Opcode.FMUL, low.f(Opcode.FMUL, scale, x), low.f(Opcode.FFMA, _GELU_CUBE, square, 1.0))
    slope = low.f(Opcode.FMUL, scale, low.f(Opcode.FFMA, 3 * _GELU_CUBE, square, 1.0))
    return low.f(Opcode.FTANH, inner), slope


def _normal_cdf(low: Lowering, x: Node) -> Node:
    return low.f(Opcode.FFMA, 0.5, erf(low, low.f(Opcode.FMUL, x, math.sqrt(0.5))), 0.5)


@rule("gelu")
def gelu(low: Lowering, x: Node, approximate: str = "none") -> Node:
    """x Phi(x), or its tanh form (Hendrycks and Gimpel 2016, section 2)."""
    if approximate == "none":
        return low.f(Opcode.FMUL, x, _normal_cdf(low, x))
    t, _ = _gelu_tanh(low, x)
    half = low.f(Opcode.FMUL, 0.5, x)
    return low.f(Opcode.FFMA, half, t, half)


@rule("gelu_backward")
def gelu_backward(low: Lowering, grad: Node, x: Node, approximate: str = "none") -> Node:
    """grad times the derivative of gelu at x."""
    if approximate == "none":
        density = low.f(Opcode.FEXP, low.f(Opcode.FMUL, low.f(Opcode.FMUL, x, x), -0.5))
        scaled = low.f(Opcode.FMUL, x, low.f(Opcode.FMUL, density, 1 / math.sqrt(2 * math.pi)))
        return low.f(Opcode.FMUL, grad, low.f(Opcode.FADD, _normal_cdf(low, x), scaled))
    t, slope = _gelu_tanh(low, x)
    half = low.f(Opcode.FMUL, 0.5, x)
    bend = low.f(Opcode.FMUL, low.f(Opcode.FMUL, half, low.f(Opcode.FSUB, 1.0, low.f(Opcode.FMUL, t, t))), slope)
    return low.f(Opcode.FMUL, grad, low.f(Opcode.FADD, low.f(Opcode.FFMA, 0.5, t, 0.5), bend))


@rule("relu")
def relu(low: Lowering, x: Node) -> Node:
    """max(x, 0)."""
    return low.f(Opcode.FMAX, x, 0.0) if x.dtype == F32 else low.i(Opcode.IMAX, x, 0)


@rule("threshold_backward")
def threshold_backward(low: Lowering, grad: Node, x: Node, threshold: float) -> Node:
    """grad where x > threshold, else 0."""
    return low.select(low.test(Opcode.FLT, float(threshold), x), grad, 0.0, F32)


@rule("round")
def round_(low: Lowering, x: Node) -> Node:
    """Rounds to the nearest integer, ties to even."""
    if x.dtype != F32:
        return x
    return low.rounded(x)


@rule("trunc")
def trunc(low: Lowering, x: Node) -> Node:
    """Rounds towards zero."""
    if x.dtype != F32:
        return x
    return low.truncate(x)


@rule("floor")
def floor(low: Lowering, x: Node) -> Node:
    """Rounds towards minus infinity."""
    if x.dtype != F32:
        return x
    near = low.rounded(x)
    return low.select(low.test(Opcode.FLT, x, near), low.f(Opcode.FSUB, near, 1.0), near, F32)


@rule("ceil")
def ceil(low: Lowering, x: Node) -> Node:
    """Rounds towards plus infinity."""
    if x.dtype != F32:
        return x
    near = low.rounded(x)
    return low.select(low.test(Opcode.FLT, near, x), low.f(Opcode.FADD, near, 1.0), near, F32)


@rule("sign", "sgn")
def sign(low: Lowering, x: Node) -> Node:
    """-1, 0 or 1."""
    if x.dtype == F32:
        return low.f(
            Opcode.FSUB, low.cast(low.test(Opcode.FLT, 0.0, x), F32), low.cast(low.test(Opcode.FLT, x, 0.0), F32)
        )
    return low.i(Opcode.ISUB, low.test(Opcode.ILT, 0, x), low.test(Opcode.ILT, x, 0))


# --- comparison and choice ---------------------------------------------------------------------------------


def _comparison(float_op: Opcode, int_op: Opcode, swap: bool, negate: bool) -> Any:
    def lower(low: Lowering, a: Number, b: Number) -> Node:
        first, second = (b, a) if swap else (a, b)
        result = low.test(float_op if _is_float(a, b) else int_op, first, second)
        return low.negation(result) if negate else result

    return lower


for _name, _args in {
    "lt": (Opcode.FLT, Opcode.ILT, False, False),
    "gt": (Opcode.FLT, Opcode.ILT, True, False),
    "le": (Opcode.FLE, Opcode.ILE, False, False),
    "ge": (Opcode.FLE, Opcode.ILE, True, False),
    "eq": (Opcode.FEQ, Opcode.IEQ, False, False),
    "ne": (Opcode.FEQ, Opcode.IEQ, False, True),
}.items():
    rule(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(*_args))


@rule("isnan")
def isnan(low: Lowering, x: Node) -> Node:
    """True where x is NaN: x != x."""
    return low.negation(low.test(Opcode.FEQ, x, x))


@rule("maximum")
def maximum(low: Lowering, a: Node, b: Node) -> Node:
    """Returns the larger of two; NaN if one is NaN."""
    return low.f(Opcode.FMAX, a, b) if low.dtype == F32 else low.i(Opcode.IMAX, a, b)


@rule("minimum")
def minimum(low: Lowering, a: Node, b: Node) -> Node:
    """Returns the smaller of two; NaN if one is NaN."""
    return low.f(Opcode.FMIN, a, b) if low.dtype == F32 else low.i(Opcode.IMIN, a, b)


@rule("clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor")
def clamp(
    low: Lowering, x: Node, minimum_: Number | None = None, maximum_: Number | None = None, **bounds: Any
) -> Node:
    """min(max(x, lower), upper)."""
    lower, upper = bounds.get("min", minimum_), bounds.get("max", maximum_)
    is_float = low.dtype == F32
    if lower is not None:
        x = low.f(Opcode.FMAX, x, lower) if is_float else low.i(Opcode.IMAX, x, lower)
    if upper is not None:
        x = low.f(Opcode.FMIN, x, upper) if is_float else low.i(Opcode.IMIN, x, upper)
    return x


@rule("clamp_max", "clamp_max.Tensor")
def clamp_max(low: Lowering, x: Node, upper: Number) -> Node:
    """min(x, upper)."""
    return clamp(low, x, None, upper)


@rule("where.self")
def where(low: Lowering, condition: Node, a: Number, b: Number) -> Node:
    """Returns a where the condition holds, else b."""
    return low.select(condition, a, b, low.dtype)


@rule("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(low: Lowering, x: Node, mask: Node, value: Number) -> Node:
    """Returns the value where the mask holds, else x."""
    return low.select(mask, value, x, low.dtype)


@rule("logical_not")
def logical_not(low: Lowering, x: Node) -> Node:
    """Logical negation: x == 0."""
    return low.negation(low.cast(x, BOOL))


@rule("bitwise_not")
def bitwise_not(low: Lowering, x: Node) -> Node:
    """Inverts every bit; negates a bool."""
    return low.negation(x) if x.dtype == BOOL else low.i(Opcode.IXOR, x, -1)


def _bitwise(op: Opcode, logical: bool) -> Any:
    def lower(low: Lowering, a: Number, b: Number) -> Node:
        if logical:
            a, b = low.cast(a, BOOL), low.cast(b, BOOL)
        return low.graph.apply(op, low.cast(a, I32), low.cast(b, I32), dtype=low.dtype)

    return lower


for _name, _op in {"and": Opcode.IAND, "or": Opcode.IOR, "xor": Opcode.IXOR}.items():
    rule(*(f"bitwise_{_name}.{form}" for form in ("Tensor", "Scalar", "Scalar_Tensor")))(_bitwise(_op, logical=False))
    rule(f"logical_{_name}")(_bitwise(_op, logical=True))
for _name, _op in {"lshift": Opcode.ISHL, "rshift": Opcode.ISHR}.items():
    rule(f"__{_name}__.Tensor", f"__{_name}__.Scalar")(_bitwise(_op, logical=False))


@rule(*(f"bitwise_left_shift.{form}" for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))
def left_shift(low: Lowering, x: Number, places: Number) -> Node:
    """x 2^places; 0 if places >= 32."""
    return low.select(low.test(Opcode.ILT, places, 32), low.i(Opcode.ISHL, x, places), 0, I32)


@rule(*(f"bitwise_right_shift.{form}" for form in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")))
def right_shift(low: Lowering, x: Number, places: Number) -> Node:
    """x / 2^places, rounded down."""
    return low.i(Opcode.ISHR, x, low.i(Opcode.IMIN, places, 31))


# --- copies and casts --------------------------------------------------------------------------------------


@rule("_to_copy")
def to_copy(low: Lowering, x: Node, *_args: Any, **_kwargs: Any) -> Node:
    """Converts to another dtype."""
    return low.cast(x, low.dtype)


@rule("view.dtype")
def view_dtype(low: Lowering, x: Node, dtype: Any) -> Node:
    """Reinterprets the same 32-bit words as another dtype."""
    if dtype not in (torch.float32, torch.int32):
        raise LoweringError(f"words read as {dtype}", hint="read words of 32 bits as float32 or int32")
    return low.graph.bitcast(x, low.dtype)


@rule("clone", "detach", "alias", "lift", "lift_fresh_copy")
def same(low: Lowering, x: Node, **_kwargs: Any) -> Node:
    """Returns its argument: the values do not change."""
    return x


@rule("copy")
def copy(low: Lowering, x: Node, source: Node, *_args: Any) -> Node:
    """Copies the source, broadcast to the shape of x, in the dtype of x."""
    return low.graph.expand(low.cast(source, low.dtype), low.shape)
