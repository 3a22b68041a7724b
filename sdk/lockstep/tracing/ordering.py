"""Rules: order along an axis - positions of extrema, sorting, the largest few - and products.

A rank is a count of what comes before: with n coordinates, sorting compares n x n pairs. That is meant for experts,
classes and codes, not for vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lockstep.numerics.scalar import Op
from lockstep.protocol.errors import LoweringError
from lockstep.protocol.programs.program import Fold
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.indexing import gather
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.reductions import extremum, kept

MAX_FACTORS = 64
"""Coordinates of an axis whose product is taken: a chain of multiplications, not a fold."""


# --- extrema and where they are ----------------------------------------------------------------------------


def _first(low: Lowering, x: Node, axes: tuple[int, ...], mode: Fold) -> Node:
    """Row-major position, over the axes, of the first extremum; of the first of all where there is a NaN."""
    peak = kept(low, x, axes, low.graph.fold(mode, axes, x))
    beyond = low.test(Op.FLT, x, peak) if mode == Fold.MAX else low.test(Op.FLT, peak, x)
    position = low.graph.number(0, I32, x.shape)
    for axis in axes:
        position = low.i(Op.IADD, low.i(Op.IMUL, position, x.shape[axis]), low.graph.iota(x.shape, axis))
    # Positions are exact in binary32 below 2^24, the most terms of a fold.
    candidates = low.select(beyond, float(1 << 24), low.cast(position, F32), F32)
    return low.graph.apply(Op.F2I, low.graph.fold(Fold.MIN, axes, candidates), dtype=I32)


def _arg(mode: Fold) -> Callable[..., Any]:
    def lower(low: Lowering, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        axes = low.axes(x, dim)
        at = _first(low, low.cast(x, F32), axes, mode) if axes else low.graph.number(0, I32)
        return low.graph.reshape(at, low.shape)

    return lower


rule("argmax")(_arg(Fold.MAX))
rule("argmin")(_arg(Fold.MIN))


def _with_position(mode: Fold) -> Callable[..., Any]:
    def lower(low: Lowering, x: Node, dim: int, keepdim: bool = False) -> tuple[Node, Node]:
        axes = low.axes(x, dim)
        at = _first(low, x, axes, mode) if axes else low.graph.number(0, I32)
        return extremum(low, x, dim, mode), low.graph.reshape(at, low.shape)

    return lower


rule("max.dim")(_with_position(Fold.MAX))
rule("min.dim")(_with_position(Fold.MIN))


# --- sorting -----------------------------------------------------------------------------------------------


def _sorted_positions(low: Lowering, x: Node, dim: int, largest: bool, count: int) -> Node:
    """i32: the positions along `dim` of the first `count` in order; of equals, the earlier one first."""
    last = len(x.shape) - 1
    order = [*(i for i in range(len(x.shape)) if i != dim), dim]
    rows = low.graph.permute(x, order)
    outer, n = rows.shape[:-1], rows.shape[-1]
    pairs = (*outer, n, n)
    mine = low.graph.expand(low.graph.reshape(rows, (*outer, n, 1)), pairs)
    other = low.graph.expand(low.graph.reshape(rows, (*outer, 1, n)), pairs)
    less, equal = (Op.FLT, Op.FEQ) if x.dtype == F32 else (Op.ILT, Op.IEQ)
    ahead = low.test(less, mine, other) if largest else low.test(less, other, mine)
    earlier = low.test(Op.ILT, low.graph.iota(pairs, last + 1), low.graph.iota(pairs, last))
    tied = low.i(Op.IAND, low.test(equal, mine, other), earlier)
    rank = low.graph.fold(Fold.ISUM, [last + 1], low.i(Op.IOR, ahead, tied))
    wanted = (*outer, count, n)
    hit = low.test(Op.IEQ, low.graph.reshape(rank, (*outer, 1, n)), low.graph.iota(wanted, last))
    at = low.graph.fold(Fold.ISUM, [last + 1], low.select(hit, low.graph.iota(wanted, last + 1), 0, I32))
    return low.graph.permute(at, [order.index(i) for i in range(len(order))])


def _ordered(low: Lowering, x: Node, dim: int, largest: bool, count: int) -> tuple[Node, Node]:
    if not x.shape:
        return x, low.graph.number(0, I32)
    dim %= len(x.shape)
    at = _sorted_positions(low, x, dim, largest, count)
    return gather(low, x, dim, at), at


@rule("sort", "sort.stable")
def sort(
    low: Lowering, x: Node, dim: int = -1, descending: bool = False, *, stable: bool = True
) -> tuple[Node, Node]:  # fmt: skip
    """Values in order and their positions, equals in their own order; NaNs have no place."""
    return _ordered(low, x, dim, descending, x.shape[dim] if x.shape else 1)


@rule("topk")
def topk(
    low: Lowering, x: Node, count: int, dim: int = -1, largest: bool = True, _sorted: bool = True
) -> tuple[Node, Node]:
    """The first `count` in order and their positions."""
    return _ordered(low, x, dim, largest, count)


@rule("histc")
def histc(low: Lowering, x: Node, bins: int = 100, min: float = 0, max: float = 0) -> Node:  # noqa: A002  (torch's)
    """The number of elements in each of `bins` equal parts of [min, max]; others are not counted."""
    if min >= max:
        raise LoweringError("a histogram between the data's own extremes is not supported", hint="give min and max")
    flat = low.graph.reshape(low.cast(x, F32), (x.elements,))
    share = low.f(Op.FDIV, low.f(Op.FSUB, flat, float(min)), float(max - min))
    part = low.i(Op.IMIN, low.cast(low.f(Op.FMUL, share, float(bins)), I32), bins - 1)
    inside = low.i(Op.IAND, low.test(Op.FLE, float(min), flat), low.test(Op.FLE, flat, float(max)))
    hit = low.i(Op.IAND, low.test(Op.IEQ, low.graph.iota((bins, x.elements), 0), part), inside)
    return low.cast(low.graph.fold(Fold.ISUM, [1], low.graph.expand(hit, (bins, x.elements))), low.dtype)


# --- products ----------------------------------------------------------------------------------------------


def _running(low: Lowering, factors: Node) -> list[Node]:
    """Products of the first 1, 2, ... coordinates of the first axis, each with an extent of 1 there."""
    count = factors.shape[0]
    if count > MAX_FACTORS:
        raise LoweringError(
            f"a product of {count} factors is not supported",
            hint=f"take products of at most {MAX_FACTORS}, or sum logarithms",
        )
    products = [low.graph.slice(factors, 0, 0, 1)]
    for i in range(1, count):
        factor = low.graph.slice(factors, 0, i, 1)
        op = low.f(Op.FMUL, products[-1], factor) if low.dtype == F32 else low.i(Op.IMUL, products[-1], factor)
        products.append(op)
    return products


@rule("prod", "prod.dim_int")
def prod(low: Lowering, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """A product over some axes, in ascending order."""
    axes = low.axes(x, dim)
    rest = [i for i in range(len(x.shape)) if i not in axes]
    shape, count = tuple(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)
    factors = low.graph.reshape(low.graph.permute(low.cast(x, low.dtype), [*axes, *rest]), (count, *shape))
    return low.graph.reshape(_running(low, factors)[-1], low.shape)


@rule("cumprod")
def cumprod(low: Lowering, x: Node, dim: int, **_kwargs: Any) -> Node:
    """Running products along an axis."""
    order = [dim % len(x.shape), *(i for i in range(len(x.shape)) if i != dim % len(x.shape))]
    products = low.graph.concat(_running(low, low.graph.permute(low.cast(x, low.dtype), order)), 0)
    return low.graph.permute(products, [order.index(i) for i in range(len(order))])
