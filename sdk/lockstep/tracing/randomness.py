"""Rules for random numbers: Philox words of the job replace torch's generator.

A uniform number is the upper 24 bits of a word, divided by 2^24. A rule that needs a number strictly between 0 and 1
takes the upper 23 bits plus one half; where small numbers matter, 31 bits plus one half.
"""

from __future__ import annotations

import math
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.tracing.activations import leaky_relu, leaky_relu_backward, log1p
from lockstep.tracing.graph import BOOL, F32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.ordering import argmax, topk
from lockstep.tracing.pointwise import Number, ceil, cos, sin
from lockstep.tracing.reductions import total

FIRST_STREAM = 3 << 29
"""Random stream of the first draw of a Program; later draws follow in the graph's order. Dropout uses lower streams."""
_BITS = 24


def _words(low: Lowering, shape: tuple[int, ...]) -> Node:
    low.draws += 1
    return low.graph.reshape(low.graph.random(math.prod(shape), FIRST_STREAM + low.draws - 1), shape)


def _uniform(low: Lowering, shape: tuple[int, ...]) -> Node:
    """Draws numbers from the uniform distribution on [0, 1)."""
    bits = low.i(Opcode.IAND, low.i(Opcode.ISHR, _words(low, shape), 32 - _BITS), (1 << _BITS) - 1)
    return low.f(Opcode.FMUL, low.cast(bits, F32), 2.0**-_BITS)


def _normal(low: Lowering, shape: tuple[int, ...]) -> Node:
    """Draws standard normal numbers: mean 0, variance 1 (Box and Muller 1958, equation 1)."""
    # 1 - u is in (0, 1], where the logarithm is finite.
    radius = low.f(
        Opcode.FSQRT, low.f(Opcode.FMUL, -2.0, low.f(Opcode.FLOG, low.f(Opcode.FSUB, 1.0, _uniform(low, shape))))
    )
    return low.f(Opcode.FMUL, radius, cos(low, low.f(Opcode.FMUL, 2 * math.pi, _uniform(low, shape))))


def _open(low: Lowering, shape: tuple[int, ...]) -> Node:
    """Draws uniform numbers strictly between 0 and 1, in 2^23 equal steps."""
    bits = low.i(Opcode.IAND, low.i(Opcode.ISHR, _words(low, shape), 9), (1 << 23) - 1)
    return low.f(Opcode.FMUL, low.f(Opcode.FADD, low.cast(bits, F32), 0.5), 2.0**-23)


def _waiting(low: Lowering, shape: tuple[int, ...]) -> Node:
    """Draws positive exponential numbers of mean 1, with small values resolved to 2^-31: the smallest of them decides a
    race.
    """
    bits = low.i(Opcode.IAND, _words(low, shape), (1 << 31) - 1)
    u = low.f(Opcode.FMUL, low.f(Opcode.FADD, low.cast(bits, F32), 0.5), 2.0**-31)
    return low.f(Opcode.FNEG, log1p(low, low.f(Opcode.FNEG, u)))


def _below(low: Lowering, shape: tuple[int, ...], count: int) -> Node:
    """Draws uniform integers 0 .. count - 1: the upper half of word x count (Lemire 2019, section 3, without
    rejection).

    The probabilities of two integers differ by at most count / 2^32 of their value.
    """
    if not 0 < count <= 1 << 31:
        raise LoweringError(f"a draw out of {count} integers is not supported", hint="use bounds at most 2^31 apart")

    def upper(x: Node) -> Node:
        return low.i(Opcode.IAND, low.i(Opcode.ISHR, x, 16), 0xFFFF)

    # As unsigned 32-bit numbers, none of the sums below overflows.
    words = _words(low, shape)
    w_high, w_low = upper(words), low.i(Opcode.IAND, words, 0xFFFF)
    n_high, n_low = count >> 16, count & 0xFFFF
    first = low.i(Opcode.IADD, low.i(Opcode.IMUL, w_high, n_low), upper(low.i(Opcode.IMUL, w_low, n_low)))
    if not n_high:
        return upper(first)
    second = low.i(Opcode.IADD, low.i(Opcode.IMUL, w_low, n_high), low.i(Opcode.IAND, first, 0xFFFF))
    high = low.i(Opcode.IADD, low.i(Opcode.IMUL, w_high, n_high), upper(first))
    return low.i(Opcode.IADD, high, upper(second))


def _integers(low: Lowering, start: int, end: int) -> Node:
    return low.cast(low.i(Opcode.IADD, _below(low, low.shape, int(end) - int(start)), int(start)), low.dtype)


@rule("rand", "rand.generator", "rand_like", "rand_like.generator")
def rand(low: Lowering, *_args: Any, **_kwargs: Any) -> Node:
    """Draws uniform numbers in [0, 1)."""
    return _uniform(low, low.shape)


@rule("randn", "randn.generator", "randn_like", "randn_like.generator")
def randn(low: Lowering, *_args: Any, **_kwargs: Any) -> Node:
    """Draws normal numbers of mean 0 and variance 1."""
    return _normal(low, low.shape)


@rule("uniform")
def uniform(low: Lowering, _x: Node, start: float = 0, end: float = 1, **_kwargs: Any) -> Node:
    """Draws uniform numbers from `start` to `end`."""
    return low.f(Opcode.FADD, low.f(Opcode.FMUL, _uniform(low, low.shape), float(end - start)), float(start))


@rule("normal_functional")
def normal(low: Lowering, _x: Node, mean: float = 0, std: float = 1, **_kwargs: Any) -> Node:
    """Draws normal numbers of a given mean and standard deviation."""
    return low.f(Opcode.FADD, low.f(Opcode.FMUL, _normal(low, low.shape), float(std)), float(mean))


@rule("exponential")
def exponential(low: Lowering, _x: Node, rate: float = 1, **_kwargs: Any) -> Node:
    """Draws exponential numbers: -log(1 - u) / rate."""
    drawn = low.f(Opcode.FLOG, low.f(Opcode.FSUB, 1.0, _uniform(low, low.shape)))
    return low.f(Opcode.FMUL, drawn, -1 / rate)


@rule("bernoulli.p")
def bernoulli_p(low: Lowering, _x: Node, p: float = 0.5, **_kwargs: Any) -> Node:
    """Draws 1 with probability p, rounded to 24 bits, else 0."""
    limit = round(p * (1 << _BITS)) / (1 << _BITS)
    return low.cast(low.test(Opcode.FLT, _uniform(low, low.shape), limit), low.dtype)


@rule("bernoulli", "bernoulli.Tensor")
def bernoulli(low: Lowering, x: Node, p: Node | None = None, **_kwargs: Any) -> Node:
    """Draws 1 with the probability that the input's element gives, else 0."""
    return low.cast(low.test(Opcode.FLT, _uniform(low, low.shape), x if p is None else p), low.dtype)


# --- integers ----------------------------------------------------------------------------------------------


@rule("randint", "randint.generator")
def randint(low: Lowering, end: int, *_args: Any, **_kwargs: Any) -> Node:
    """Draws uniform integers in 0 .. end - 1."""
    return _integers(low, 0, end)


@rule("randint.low", "randint.low_generator")
def randint_from(low: Lowering, start: int, end: int, *_args: Any, **_kwargs: Any) -> Node:
    """Draws uniform integers in start .. end - 1."""
    return _integers(low, start, end)


@rule("randint_like", "randint_like.generator")
def randint_like(low: Lowering, _x: Node, end: int, *_args: Any, **_kwargs: Any) -> Node:
    """Draws uniform integers in 0 .. end - 1, in the shape of x."""
    return _integers(low, 0, end)


@rule("randint_like.low_dtype", "randint_like.low_generator_dtype")
def randint_like_from(low: Lowering, _x: Node, start: int, end: int, *_args: Any, **_kwargs: Any) -> Node:
    """Draws uniform integers in start .. end - 1, in the shape of x."""
    return _integers(low, start, end)


@rule("randperm", "randperm.generator")
def randperm(low: Lowering, count: int, **_kwargs: Any) -> Node:
    """Draws a permutation by sorting `count` random words, stable among equals (Knuth 1969, section 3.4.2)."""
    return low.cast(topk(low, _words(low, (count,)), count, largest=False)[1], low.dtype)


@rule("multinomial")
def multinomial(low: Lowering, weights: Node, count: int, replacement: bool = False, **_kwargs: Any) -> Node:
    """Samples positions by weight: the largest weight / exponential number (Efraimidis and Spirakis 2006, algorithm A).

    With replacement, each sample draws numbers of its own.
    """
    last = len(weights.shape) - 1
    if replacement or count == 1:
        *rows, n = weights.shape
        each = low.graph.reshape(weights, (*rows, 1, n))
        return argmax(low, low.f(Opcode.FDIV, each, _waiting(low, (*rows, count, n))), last + 1)
    return topk(low, low.f(Opcode.FDIV, weights, _waiting(low, weights.shape)), count, last)[1]


# --- other distributions -----------------------------------------------------------------------------------


def _scaled(low: Lowering, mean: Number, std: Number) -> Node:
    return low.f(Opcode.FADD, low.f(Opcode.FMUL, _normal(low, low.shape), std), mean)


@rule("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float")
def normal_of(low: Lowering, mean: Number, std: Number = 1.0, *_args: Any, **_kwargs: Any) -> Node:
    """Draws normal numbers of elementwise means and standard deviations."""
    return _scaled(low, mean, std)


@rule("log_normal")
def log_normal(low: Lowering, _x: Node, mean: float = 1, std: float = 2, **_kwargs: Any) -> Node:
    """Draws exp(z), with z normal of the given mean and standard deviation."""
    return low.f(Opcode.FEXP, _scaled(low, float(mean), float(std)))


@rule("cauchy")
def cauchy(low: Lowering, _x: Node, median: float = 0, sigma: float = 1, **_kwargs: Any) -> Node:
    """Draws Cauchy numbers: median + sigma tan(pi (u - 1/2)), evaluated by the distance from the pole (Devroye 1986,
    section II.2.1).
    """
    apart = low.f(Opcode.FSUB, _open(low, low.shape), 0.5)
    angle = low.f(Opcode.FMUL, math.pi, low.f(Opcode.FSUB, 0.5, low.f(Opcode.FABS, apart)))
    size = low.f(Opcode.FMUL, float(sigma), low.f(Opcode.FDIV, cos(low, angle), sin(low, angle)))
    return low.f(
        Opcode.FADD, float(median), low.select(low.test(Opcode.FLT, apart, 0.0), low.f(Opcode.FNEG, size), size, F32)
    )


@rule("geometric")
def geometric(low: Lowering, _x: Node, p: float, **_kwargs: Any) -> Node:
    """Draws the number of trials up to the first success: log(u) / log(1 - p), rounded up (Devroye 1986, section
    X.2).
    """
    trials = low.f(Opcode.FMUL, low.f(Opcode.FLOG, _open(low, low.shape)), 1 / math.log1p(-p) if p < 1 else 0.0)
    return low.cast(low.f(Opcode.FMAX, ceil(low, trials), 1.0), low.dtype)


_TRIES = 6


@rule("_standard_gamma")
def standard_gamma(low: Lowering, shape: Node, **_kwargs: Any) -> Node:
    """Draws Gamma numbers of scale 1: the first accepted of six candidates (Marsaglia and Tsang 2000, section 2).

    If all six are rejected, in fewer than one of 2 x 10^8 draws, the sixth is used. For a shape below 1, draws with
    shape + 1 and multiplies by u^(1 / shape).
    """
    small = low.test(Opcode.FLT, shape, 1.0)
    d = low.f(Opcode.FSUB, low.select(small, low.f(Opcode.FADD, shape, 1.0), shape, F32), 1 / 3)
    c = low.f(Opcode.FDIV, 1.0, low.f(Opcode.FSQRT, low.f(Opcode.FMUL, 9.0, d)))
    result, found = low.cast(0.0, F32), low.cast(False, BOOL)
    for turn in range(_TRIES):
        x = _normal(low, low.shape)
        root = low.f(Opcode.FFMA, c, x, 1.0)
        v = low.f(Opcode.FMUL, low.f(Opcode.FMUL, root, root), root)
        log_v = low.f(Opcode.FLOG, low.f(Opcode.FMAX, v, 1e-30))
        bound = low.f(
            Opcode.FFMA,
            d,
            low.f(Opcode.FADD, low.f(Opcode.FSUB, 1.0, v), log_v),
            low.f(Opcode.FMUL, low.f(Opcode.FMUL, 0.5, x), x),
        )
        accepted = low.i(
            Opcode.IAND,
            low.test(Opcode.FLT, low.f(Opcode.FLOG, _open(low, low.shape)), bound),
            low.test(Opcode.FLT, 0.0, v),
        )
        value = low.f(Opcode.FMUL, d, low.f(Opcode.FMAX, v, 1e-30))
        result = low.select(found, result, value, F32) if turn else value
        found = low.i(Opcode.IOR, found, accepted) if turn else accepted
    boost = low.f(Opcode.FEXP, low.f(Opcode.FDIV, low.f(Opcode.FLOG, _open(low, low.shape)), shape))
    return low.f(Opcode.FMUL, result, low.select(small, boost, 1.0, F32))


@rule("_sample_dirichlet")
def sample_dirichlet(low: Lowering, shape: Node, **_kwargs: Any) -> Node:
    """Draws Dirichlet vectors: Gamma numbers divided by their sum (Devroye 1986, section XI.4.1)."""
    parts = standard_gamma(low, shape)
    return low.f(Opcode.FDIV, parts, total(low, parts, [len(shape.shape) - 1]))


# --- layers ------------------------------------------------------------------------------------------------


@rule("rrelu_with_noise_functional")
def rrelu(
    low: Lowering, x: Node, noise: Node, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, *_args: Any
) -> tuple[Node, Node]:
    """x above zero, else x times a slope: a uniform draw in training, else the mean slope (Xu 2015, section 2.4).

    Returns (result, slopes).
    """
    if not training:
        return leaky_relu(low, x, (lower + upper) / 2), noise
    drawn = low.f(Opcode.FADD, low.f(Opcode.FMUL, _uniform(low, x.shape), float(upper - lower)), float(lower))
    slope = low.select(low.test(Opcode.FLE, x, 0.0), drawn, 1.0, F32)
    return low.f(Opcode.FMUL, x, slope), slope


@rule("rrelu_with_noise_backward")
def rrelu_backward(
    low: Lowering, grad: Node, x: Node, noise: Node, lower: float, upper: float, training: bool, is_result: bool
) -> Node:
    """grad times the slope drawn in the forward pass."""
    if training and upper - lower > 1e-6:
        return low.f(Opcode.FMUL, grad, noise)
    return leaky_relu_backward(low, grad, x, (lower + upper) / 2, is_result)


@rule("native_dropout")
def native_dropout(low: Lowering, x: Node, p: float, training: bool | None) -> tuple[Node, Node]:
    """Keeps each element with probability 1 - p and divides it by 1 - p, else 0.

    Returns (result, mask of kept elements).
    """
    if training is False:
        return x, low.graph.number(1, BOOL, x.shape)
    kept = low.test(Opcode.FLT, _uniform(low, x.shape), round((1 - p) * (1 << _BITS)) / (1 << _BITS))
    return low.select(kept, low.f(Opcode.FMUL, x, 1 / (1 - p) if p < 1 else 0.0), 0.0, F32), kept


@rule("native_dropout_backward")
def native_dropout_backward(low: Lowering, grad: Node, kept: Node, scale: float) -> Node:
    """grad times the scale where the element was kept, else 0."""
    return low.select(kept, low.f(Opcode.FMUL, grad, float(scale)), 0.0, F32)
