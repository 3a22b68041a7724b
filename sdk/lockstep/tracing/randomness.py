"""Rules: numbers that torch would draw from its generator, by Philox words of the job.

A uniform number is the upper 24 bits of a word, divided by 2^24.
"""

from __future__ import annotations

import math
from typing import Any

from lockstep.numerics.scalar import Op
from lockstep.tracing.graph import F32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.pointwise import cos

FIRST_STREAM = 3 << 29
"""Stream of the first draw of a Program; the others follow, in the graph's order. Dropout's lie below."""
_BITS = 24


def _words(low: Lowering, shape: tuple[int, ...]) -> Node:
    low.draws += 1
    return low.graph.reshape(low.graph.random(math.prod(shape), FIRST_STREAM + low.draws - 1), shape)


def _uniform(low: Lowering, shape: tuple[int, ...]) -> Node:
    """Uniform numbers in [0, 1)."""
    bits = low.i(Op.IAND, low.i(Op.ISHR, _words(low, shape), 32 - _BITS), (1 << _BITS) - 1)
    return low.f(Op.FMUL, low.cast(bits, F32), 2.0**-_BITS)


def _normal(low: Lowering, shape: tuple[int, ...]) -> Node:
    """Mean 0, variance 1 (Box and Muller 1958, equation 1)."""
    # 1 - u lies in (0, 1], where the logarithm is finite.
    radius = low.f(Op.FSQRT, low.f(Op.FMUL, -2.0, low.f(Op.FLOG, low.f(Op.FSUB, 1.0, _uniform(low, shape)))))
    return low.f(Op.FMUL, radius, cos(low, low.f(Op.FMUL, 2 * math.pi, _uniform(low, shape))))


@rule("rand", "rand_like")
def rand(low: Lowering, *_args: Any, **_kwargs: Any) -> Node:
    """Uniform in [0, 1)."""
    return _uniform(low, low.shape)


@rule("randn", "randn_like")
def randn(low: Lowering, *_args: Any, **_kwargs: Any) -> Node:
    """Normal, of mean 0 and variance 1."""
    return _normal(low, low.shape)


@rule("uniform")
def uniform(low: Lowering, _x: Node, start: float = 0, end: float = 1, **_kwargs: Any) -> Node:
    """Uniform between two numbers."""
    return low.f(Op.FADD, low.f(Op.FMUL, _uniform(low, low.shape), float(end - start)), float(start))


@rule("normal_functional")
def normal(low: Lowering, _x: Node, mean: float = 0, std: float = 1, **_kwargs: Any) -> Node:
    """Normal, of a mean and a standard deviation."""
    return low.f(Op.FADD, low.f(Op.FMUL, _normal(low, low.shape), float(std)), float(mean))


@rule("exponential")
def exponential(low: Lowering, _x: Node, rate: float = 1, **_kwargs: Any) -> Node:
    """-log(1 - u) / rate."""
    drawn = low.f(Op.FLOG, low.f(Op.FSUB, 1.0, _uniform(low, low.shape)))
    return low.f(Op.FMUL, drawn, -1 / rate)


@rule("bernoulli.p")
def bernoulli_p(low: Lowering, _x: Node, p: float = 0.5, **_kwargs: Any) -> Node:
    """1 with probability p, which is rounded to 24 bits, else 0."""
    limit = round(p * (1 << _BITS)) / (1 << _BITS)
    return low.cast(low.test(Op.FLT, _uniform(low, low.shape), limit), low.dtype)


@rule("bernoulli", "bernoulli.Tensor")
def bernoulli(low: Lowering, x: Node, p: Node | None = None, **_kwargs: Any) -> Node:
    """1 with the probability that an element is, else 0."""
    return low.cast(low.test(Op.FLT, _uniform(low, low.shape), x if p is None else p), low.dtype)
