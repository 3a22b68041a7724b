"""Rules for functions composed of others: log1p and expm1, hyperbolic and inverse circular functions, activations."""

from __future__ import annotations

import math
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.pointwise import cos, erf, sigmoid, sin

# --- near one and zero -------------------------------------------------------------------------------------


@rule("log1p")
def log1p(low: Lowering, x: Node) -> Node:
    """log(1 + x), to a few units in the last place where x is small (Goldberg 1991, theorem 4)."""
    u = low.f(Opcode.FADD, 1.0, x)
    ratio = low.f(Opcode.FDIV, low.f(Opcode.FMUL, x, low.f(Opcode.FLOG, u)), low.f(Opcode.FSUB, u, 1.0))
    near = low.select(low.test(Opcode.FEQ, u, 1.0), x, ratio, F32)
    return low.select(low.test(Opcode.FEQ, x, math.inf), x, near, F32)


@rule("expm1")
def expm1(low: Lowering, x: Node) -> Node:
    """exp(x) - 1, to a few units in the last place where x is small (Higham 2002, algorithm 1.2)."""
    u = low.f(Opcode.FEXP, x)
    less = low.f(Opcode.FSUB, u, 1.0)
    ratio = low.f(Opcode.FDIV, low.f(Opcode.FMUL, less, x), low.f(Opcode.FLOG, u))
    plain = low.test(Opcode.FLT, 1.0, low.f(Opcode.FABS, x))
    return low.select(low.test(Opcode.FEQ, u, 1.0), x, low.select(plain, less, ratio, F32), F32)


@rule("exp2")
def exp2(low: Lowering, x: Node) -> Node:
    """2 ** x."""
    return low.f(Opcode.FEXP, low.f(Opcode.FMUL, x, math.log(2)))


@rule("logaddexp")
def logaddexp(low: Lowering, a: Node, b: Node) -> Node:
    """log(exp(a) + exp(b)) without overflow; two equal infinities give that infinity."""
    apart = low.select(low.test(Opcode.FEQ, a, b), 0.0, low.f(Opcode.FABS, low.f(Opcode.FSUB, a, b)), F32)
    return low.f(Opcode.FADD, low.f(Opcode.FMAX, a, b), _log_of_one_and(low, apart))


def _log_of_one_and(low: Lowering, x: Node) -> Node:
    """log(1 + exp(-x)) for x >= 0."""
    return low.f(Opcode.FLOG, low.f(Opcode.FADD, 1.0, low.f(Opcode.FEXP, low.f(Opcode.FNEG, x))))


@rule("xlogy.Tensor")
def xlogy(low: Lowering, x: Node, y: Node) -> Node:
    """x log(y); 0 where x is 0."""
    return low.select(low.test(Opcode.FEQ, x, 0.0), 0.0, low.f(Opcode.FMUL, x, low.f(Opcode.FLOG, y)), F32)


@rule("erfc")
def erfc(low: Lowering, x: Node) -> Node:
    """1 - erf(x), with the absolute error of `erf`."""
    return low.f(Opcode.FSUB, 1.0, erf(low, x))


# --- hyperbolic --------------------------------------------------------------------------------------------


@rule("sinh")
def sinh(low: Lowering, x: Node) -> Node:
    """(exp(x) - exp(-x)) / 2."""
    less = expm1(low, low.f(Opcode.FABS, x))
    half = low.f(Opcode.FMUL, 0.5, low.f(Opcode.FADD, less, low.f(Opcode.FDIV, less, low.f(Opcode.FADD, less, 1.0))))
    return low.select(low.test(Opcode.FLT, x, 0.0), low.f(Opcode.FNEG, half), half, F32)


@rule("cosh")
def cosh(low: Lowering, x: Node) -> Node:
    """(exp(x) + exp(-x)) / 2."""
    u = low.f(Opcode.FEXP, low.f(Opcode.FABS, x))
    return low.f(Opcode.FMUL, 0.5, low.f(Opcode.FADD, u, low.f(Opcode.FDIV, 1.0, u)))


@rule("asinh")
def asinh(low: Lowering, x: Node) -> Node:
    """sign(x) log(|x| + sqrt(x^2 + 1))."""
    size = low.f(Opcode.FABS, x)
    square = low.f(Opcode.FMUL, x, x)
    root = low.f(Opcode.FSQRT, low.f(Opcode.FADD, square, 1.0))
    value = log1p(low, low.f(Opcode.FADD, size, low.f(Opcode.FDIV, square, low.f(Opcode.FADD, 1.0, root))))
    return low.select(low.test(Opcode.FLT, x, 0.0), low.f(Opcode.FNEG, value), value, F32)


@rule("acosh")
def acosh(low: Lowering, x: Node) -> Node:
    """log(x + sqrt(x^2 - 1)) for x >= 1."""
    less = low.f(Opcode.FSUB, x, 1.0)
    root = low.f(Opcode.FSQRT, low.f(Opcode.FMUL, less, low.f(Opcode.FADD, x, 1.0)))
    return log1p(low, low.f(Opcode.FADD, less, root))


@rule("atanh")
def atanh(low: Lowering, x: Node) -> Node:
    """log((1 + x) / (1 - x)) / 2."""
    return low.f(
        Opcode.FMUL, 0.5, log1p(low, low.f(Opcode.FDIV, low.f(Opcode.FMUL, 2.0, x), low.f(Opcode.FSUB, 1.0, x)))
    )


# --- circular ----------------------------------------------------------------------------------------------


@rule("tan")
def tan(low: Lowering, x: Node) -> Node:
    """sin(x) / cos(x)."""
    return low.f(Opcode.FDIV, sin(low, x), cos(low, x))


_ATAN = (8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1)
"""Minimax on [-tan(pi / 8), tan(pi / 8)] (Moshier 1989, Cephes atanf)."""


@rule("atan")
def atan(low: Lowering, x: Node) -> Node:
    """Arc tangent: absolute error below 2e-7."""
    size = low.f(Opcode.FABS, x)
    far, middle = (
        low.test(Opcode.FLT, math.tan(3 * math.pi / 8), size),
        low.test(Opcode.FLT, math.tan(math.pi / 8), size),
    )
    turned = low.f(Opcode.FDIV, low.f(Opcode.FSUB, size, 1.0), low.f(Opcode.FADD, size, 1.0))
    r = low.select(middle, turned, size, F32)
    r = low.select(far, low.f(Opcode.FDIV, -1.0, size), r, F32)
    start = low.select(far, math.pi / 2, low.select(middle, math.pi / 4, 0.0, F32), F32)
    z = low.f(Opcode.FMUL, r, r)
    series = low.cast(_ATAN[0], F32)
    for coefficient in _ATAN[1:]:
        series = low.f(Opcode.FFMA, series, z, coefficient)
    value = low.f(Opcode.FADD, start, low.f(Opcode.FFMA, low.f(Opcode.FMUL, series, z), r, r))
    return low.select(low.test(Opcode.FLT, x, 0.0), low.f(Opcode.FNEG, value), value, F32)


@rule("asin")
def asin(low: Lowering, x: Node) -> Node:
    """atan(x / sqrt(1 - x^2))."""
    return atan(low, low.f(Opcode.FDIV, x, _other_leg(low, x)))


@rule("acos")
def acos(low: Lowering, x: Node) -> Node:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    ratio = low.f(Opcode.FDIV, low.f(Opcode.FSUB, 1.0, x), low.f(Opcode.FADD, 1.0, x))
    return low.f(Opcode.FMUL, 2.0, atan(low, low.f(Opcode.FSQRT, ratio)))


def _other_leg(low: Lowering, x: Node) -> Node:
    return low.f(Opcode.FSQRT, low.f(Opcode.FMUL, low.f(Opcode.FSUB, 1.0, x), low.f(Opcode.FADD, 1.0, x)))


@rule("atan2")
def atan2(low: Lowering, y: Node, x: Node) -> Node:
    """The angle of the point (x, y); 0 where x = y = 0."""
    both = low.i(Opcode.IAND, low.test(Opcode.FEQ, x, 0.0), low.test(Opcode.FEQ, y, 0.0))
    angle = low.select(both, 0.0, atan(low, low.f(Opcode.FDIV, y, x)), F32)
    half = low.select(low.test(Opcode.FLT, y, 0.0), -math.pi, math.pi, F32)
    return low.select(low.test(Opcode.FLT, x, 0.0), low.f(Opcode.FADD, angle, half), angle, F32)


# --- activations -------------------------------------------------------------------------------------------


def soft_plus(low: Lowering, x: Node) -> Node:
    """log(1 + exp(x)), without overflow."""
    return low.f(Opcode.FADD, low.f(Opcode.FMAX, x, 0.0), _log_of_one_and(low, low.f(Opcode.FABS, x)))


@rule("softplus")
def softplus(low: Lowering, x: Node, beta: float = 1, threshold: float = 20) -> Node:
    """log(1 + exp(beta x)) / beta; x where beta x exceeds the threshold."""
    z = low.f(Opcode.FMUL, x, float(beta))
    value = low.f(Opcode.FMUL, soft_plus(low, z), 1 / beta)
    return low.select(low.test(Opcode.FLT, float(threshold), z), x, value, F32)


@rule("softplus_backward")
def softplus_backward(low: Lowering, grad: Node, x: Node, beta: float, threshold: float) -> Node:
    """grad sigmoid(beta x); grad where beta x exceeds the threshold."""
    z = low.f(Opcode.FMUL, x, float(beta))
    slope = low.f(Opcode.FMUL, grad, sigmoid(low, z))
    return low.select(low.test(Opcode.FLT, float(threshold), z), grad, slope, F32)


@rule("log_sigmoid_forward")
def log_sigmoid(low: Lowering, x: Node) -> tuple[Node, Node]:
    """Returns (log(sigmoid(x)), exp(-|x|)); the logarithm does not overflow."""
    size = low.f(Opcode.FABS, x)
    return low.f(Opcode.FSUB, low.f(Opcode.FMIN, x, 0.0), _log_of_one_and(low, size)), low.f(
        Opcode.FEXP, low.f(Opcode.FNEG, size)
    )


@rule("log_sigmoid_backward")
def log_sigmoid_backward(low: Lowering, grad: Node, x: Node, _buffer: Node) -> Node:
    """grad sigmoid(-x)."""
    return low.f(Opcode.FMUL, grad, sigmoid(low, low.f(Opcode.FNEG, x)))


@rule("elu")
def elu(low: Lowering, x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    """scale x above zero, else alpha scale (exp(input_scale x) - 1) (Clevert 2016, equation 16)."""
    below = low.f(Opcode.FMUL, expm1(low, low.f(Opcode.FMUL, x, float(input_scale))), float(alpha * scale))
    return low.select(low.test(Opcode.FLT, 0.0, x), low.f(Opcode.FMUL, x, float(scale)), below, F32)


@rule("elu_backward")
def elu_backward(
    low: Lowering, grad: Node, alpha: float, scale: float, input_scale: float, is_result: bool, x: Node
) -> Node:
    """grad times the slope of ELU at x; `is_result` says that x is ELU's result instead of its input."""
    positive = low.f(Opcode.FMUL, grad, float(scale))
    if is_result:
        slope = low.f(Opcode.FMUL, low.f(Opcode.FADD, x, float(alpha * scale)), float(input_scale))
    else:
        raised = low.f(Opcode.FEXP, low.f(Opcode.FMUL, x, float(input_scale)))
        slope = low.f(Opcode.FMUL, raised, float(alpha * scale * input_scale))
    return low.select(low.test(Opcode.FLT, 0.0, x), positive, low.f(Opcode.FMUL, grad, slope), F32)


@rule("celu")
def celu(low: Lowering, x: Node, alpha: float = 1) -> Node:
    """x above zero, else alpha (exp(x / alpha) - 1) (Barron 2017, equation 2)."""
    return elu(low, x, alpha, 1, 1 / alpha)


@rule("leaky_relu")
def leaky_relu(low: Lowering, x: Node, slope: float = 0.01) -> Node:
    """x above zero, else slope x."""
    return low.select(low.test(Opcode.FLT, 0.0, x), x, low.f(Opcode.FMUL, x, float(slope)), F32)


@rule("leaky_relu_backward")
def leaky_relu_backward(low: Lowering, grad: Node, x: Node, slope: float, _is_result: bool) -> Node:
    """grad above zero, else slope grad."""
    return low.select(low.test(Opcode.FLT, 0.0, x), grad, low.f(Opcode.FMUL, grad, float(slope)), F32)


@rule("_prelu_kernel")
def prelu(low: Lowering, x: Node, weight: Node) -> Node:
    """x above zero, else weight x."""
    return low.select(low.test(Opcode.FLT, 0.0, x), x, low.f(Opcode.FMUL, weight, x), F32)


@rule("_prelu_kernel_backward")
def prelu_backward(low: Lowering, grad: Node, x: Node, weight: Node) -> tuple[Node, Node]:
    """Returns the gradients of x and of the weight, for each element (no sum over a shared weight)."""
    above = low.test(Opcode.FLT, 0.0, x)
    of_x = low.select(above, grad, low.f(Opcode.FMUL, weight, grad), F32)
    return of_x, low.select(above, 0.0, low.f(Opcode.FMUL, x, grad), F32)


@rule("hardtanh")
def hardtanh(low: Lowering, x: Node, lower: float = -1, upper: float = 1) -> Node:
    """min(max(x, lower), upper)."""
    return low.f(Opcode.FMIN, low.f(Opcode.FMAX, x, float(lower)), float(upper))


@rule("hardtanh_backward")
def hardtanh_backward(low: Lowering, grad: Node, x: Node, lower: float, upper: float) -> Node:
    """grad strictly between the bounds, else 0."""
    inside = low.i(Opcode.IAND, low.test(Opcode.FLT, float(lower), x), low.test(Opcode.FLT, x, float(upper)))
    return low.select(inside, grad, 0.0, F32)


@rule("hardshrink")
def hardshrink(low: Lowering, x: Node, limit: float = 0.5) -> Node:
    """x; 0 where |x| <= limit."""
    return low.select(low.test(Opcode.FLE, low.f(Opcode.FABS, x), float(limit)), 0.0, x, F32)


@rule("softshrink")
def softshrink(low: Lowering, x: Node, limit: float = 0.5) -> Node:
    """Moves x towards zero by the limit; 0 where |x| <= limit."""
    nearer = low.f(Opcode.FADD, x, low.select(low.test(Opcode.FLT, x, 0.0), float(limit), -float(limit), F32))
    return low.select(low.test(Opcode.FLE, low.f(Opcode.FABS, x), float(limit)), 0.0, nearer, F32)


@rule("hardshrink_backward", "softshrink_backward")
def shrink_backward(low: Lowering, grad: Node, x: Node, limit: float) -> Node:
    """grad; 0 where |x| <= limit."""
    return low.select(low.test(Opcode.FLE, low.f(Opcode.FABS, x), float(limit)), 0.0, grad, F32)


@rule("threshold")
def threshold(low: Lowering, x: Node, limit: float, value: float) -> Node:
    """x where x > limit, else the value."""
    if x.dtype != F32:
        return low.select(low.test(Opcode.ILE, x, int(limit)), int(value), x, I32)
    return low.select(low.test(Opcode.FLE, x, float(limit)), float(value), x, F32)


@rule("hardsigmoid")
def hardsigmoid(low: Lowering, x: Node) -> Node:
    """min(max(x + 3, 0), 6) / 6 (Howard 2019, section 5.2)."""
    return low.f(Opcode.FDIV, hardtanh(low, low.f(Opcode.FADD, x, 3.0), 0, 6), 6.0)


@rule("hardsigmoid_backward")
def hardsigmoid_backward(low: Lowering, grad: Node, x: Node) -> Node:
    """grad / 6 strictly between -3 and 3, else 0."""
    return hardtanh_backward(low, low.f(Opcode.FDIV, grad, 6.0), x, -3, 3)


@rule("hardswish")
def hardswish(low: Lowering, x: Node) -> Node:
    """x min(max(x + 3, 0), 6) / 6 (Howard 2019, section 5.2)."""
    return low.f(Opcode.FDIV, low.f(Opcode.FMUL, x, hardtanh(low, low.f(Opcode.FADD, x, 3.0), 0, 6)), 6.0)


@rule("hardswish_backward")
def hardswish_backward(low: Lowering, grad: Node, x: Node) -> Node:
    """grad (x / 3 + 1 / 2) between -3 and 3; 0 below, grad above."""
    slope = low.f(Opcode.FMUL, grad, low.f(Opcode.FADD, low.f(Opcode.FDIV, x, 3.0), 0.5))
    above = low.select(low.test(Opcode.FLT, x, 3.0), slope, grad, F32)
    return low.select(low.test(Opcode.FLE, x, -3.0), 0.0, above, F32)


@rule("mish")
def mish(low: Lowering, x: Node) -> Node:
    """x tanh(log(1 + exp(x))) (Misra 2019, section 2)."""
    return low.f(Opcode.FMUL, x, low.f(Opcode.FTANH, soft_plus(low, x)))


@rule("mish_backward")
def mish_backward(low: Lowering, grad: Node, x: Node) -> Node:
    """grad (t + x sigmoid(x) (1 - t^2)), t = tanh(log(1 + exp(x)))."""
    t = low.f(Opcode.FTANH, soft_plus(low, x))
    bend = low.f(Opcode.FMUL, low.f(Opcode.FMUL, x, sigmoid(low, x)), low.f(Opcode.FSUB, 1.0, low.f(Opcode.FMUL, t, t)))
    return low.f(Opcode.FMUL, grad, low.f(Opcode.FADD, t, bend))


def _halves(low: Lowering, x: Node, dim: int) -> tuple[int, Node, Node]:
    dim %= len(x.shape)
    half = x.shape[dim] // 2
    return dim, low.graph.slice(x, dim, 0, half), low.graph.slice(x, dim, half, half)


@rule("glu")
def glu(low: Lowering, x: Node, dim: int = -1) -> Node:
    """a sigmoid(b), where a and b are the two halves of x along an axis (Dauphin 2017, equation 1)."""
    _, a, b = _halves(low, x, dim)
    return low.f(Opcode.FMUL, a, sigmoid(low, b))


@rule("glu_backward")
def glu_backward(low: Lowering, grad: Node, x: Node, dim: int) -> Node:
    """Returns the gradient of both halves, concatenated: grad s for a, grad a s (1 - s) for b, with s = sigmoid(b)."""
    dim, a, b = _halves(low, x, dim)
    s = sigmoid(low, b)
    of_a = low.f(Opcode.FMUL, grad, s)
    of_b = low.f(Opcode.FMUL, low.f(Opcode.FMUL, of_a, a), low.f(Opcode.FSUB, 1.0, s))
    return low.graph.concat([of_a, of_b], dim)


# --- remainders and what is not finite ---------------------------------------------------------------------


@rule("fmod.Scalar", "fmod.Tensor")
def fmod(low: Lowering, a: Node, b: Any) -> Node:
    """a - b trunc(a / b)."""
    if low.dtype != F32:
        return low.i(Opcode.IREM, a, b)
    return low.f(Opcode.FSUB, a, low.f(Opcode.FMUL, b, low.truncate(low.f(Opcode.FDIV, a, b))))


@rule("isinf")
def isinf(low: Lowering, x: Node) -> Node:
    """True where |x| is infinite."""
    return low.test(Opcode.FEQ, low.f(Opcode.FABS, low.cast(x, F32)), math.inf)


_LARGEST = 3.4028234663852886e38


@rule("nan_to_num")
def nan_to_num(
    low: Lowering, x: Node, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Node:
    """Replaces NaN by 0 and infinities by the largest finite numbers, or each by the given number."""
    high = _LARGEST if posinf is None else float(posinf)
    deep = -_LARGEST if neginf is None else float(neginf)
    y = low.select(
        low.test(Opcode.FEQ, x, math.inf), high, low.select(low.test(Opcode.FEQ, x, -math.inf), deep, x, F32), F32
    )
    return low.select(low.test(Opcode.FEQ, x, x), y, float(nan or 0.0), F32)
