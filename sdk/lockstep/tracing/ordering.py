"""Rules for order along an axis (positions of extrema, sorting, top k) and for products.

An element's rank counts the elements before it, so sorting n elements compares n x n pairs. This suits experts, classes
and codes; it is too expensive for vocabularies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.protocol.programs.program import Fold
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.indexing import gather
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.reductions import extremum, kept

MAX_FACTORS = 64
"""Most elements along an axis whose product is taken: a product is a chain of multiplications, not a fold."""


# --- extrema and where they are ----------------------------------------------------------------------------


def _first(low: Lowering, x: Node, axes: tuple[int, ...], mode: Fold) -> Node:
    """Returns the row-major position, over the axes, of the first extremum; of the first NaN if there is one."""
    peak = kept(low, x, axes, low.graph.fold(mode, axes, x))
    beyond = low.test(Opcode.FLT, x, peak) if mode == Fold.MAX else low.test(Opcode.FLT, peak, x)
    position = low.graph.number(0, I32, x.shape)
    for axis in axes:
        position = low.i(Opcode.IADD, low.i(Opcode.IMUL, position, x.shape[axis]), low.graph.iota(x.shape, axis))
    # Positions below 2^24 are exact in binary32; a fold has no more terms than that.
    candidates = low.select(beyond, float(1 << 24), low.cast(position, F32), F32)
    return low.graph.apply(Opcode.F2I, low.graph.fold(Fold.MIN, axes, candidates), dtype=I32)


def _arg(mode: Fold) -> Callable[..., Any]:
    def lower(low: Lowering, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        axes = low.axes(x, dim)
        at = _first(low, low.cast(x, F32), axes, mode) if axes else low.graph.number(0, I32)
        return low.graph.reshape(at, low.shape)

    return lower


argmax = rule("argmax")(_arg(Fold.MAX))
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


def _ranks(low: Lowering, rows: Node, largest: bool, nans: bool = False) -> Node:
    """Ranks the elements of rows [..., n]: i32, the number of elements before each; among equals the earlier comes
    first.

    NaNs have no rank, or with `nans` the last ranks.
    """
    outer, n = rows.shape[:-1], rows.shape[-1]
    last = len(outer)
    pairs = (*outer, n, n)
    mine = low.graph.expand(low.graph.reshape(rows, (*outer, n, 1)), pairs)
    other = low.graph.expand(low.graph.reshape(rows, (*outer, 1, n)), pairs)
    less, equal = (Opcode.FLT, Opcode.FEQ) if rows.dtype == F32 else (Opcode.ILT, Opcode.IEQ)
    ahead = low.test(less, mine, other) if largest else low.test(less, other, mine)
    earlier = low.test(Opcode.ILT, low.graph.iota(pairs, last + 1), low.graph.iota(pairs, last))
    same = low.test(equal, mine, other)
    if nans and rows.dtype == F32:
        mine_is, other_is = (low.negation(low.test(Opcode.FEQ, x, x)) for x in (mine, other))
        ahead = low.i(Opcode.IOR, ahead, low.i(Opcode.IAND, mine_is, low.negation(other_is)))
        same = low.i(Opcode.IOR, same, low.i(Opcode.IAND, mine_is, other_is))
    tied = low.i(Opcode.IAND, same, earlier)
    return low.graph.fold(Fold.ISUM, [last + 1], low.i(Opcode.IOR, ahead, tied))


def _last_axis(x: Node, dim: int) -> list[int]:
    return [*(i for i in range(len(x.shape)) if i != dim), dim]


def _sorted_positions(low: Lowering, x: Node, dim: int, largest: bool, count: int) -> Node:
    """Returns i32 positions along `dim` of the first `count` elements in order; among equals the earlier comes
    first.
    """
    last = len(x.shape) - 1
    order = _last_axis(x, dim)
    rows = low.graph.permute(x, order)
    outer, n = rows.shape[:-1], rows.shape[-1]
    rank = _ranks(low, rows, largest)
    wanted = (*outer, count, n)
    hit = low.test(Opcode.IEQ, low.graph.reshape(rank, (*outer, 1, n)), low.graph.iota(wanted, last))
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
    """Returns sorted values and their positions; the sort is stable. NaNs are not supported."""
    return _ordered(low, x, dim, descending, x.shape[dim] if x.shape else 1)


@rule("topk")
def topk(
    low: Lowering, x: Node, count: int, dim: int = -1, largest: bool = True, _sorted: bool = True
) -> tuple[Node, Node]:
    """Returns the `count` largest (or smallest) values in order, with their positions."""
    return _ordered(low, x, dim, largest, count)


def _chosen(
    low: Lowering, x: Node, dim: int | None, rank: Callable[[Node, Node, int], Node | int]
) -> tuple[Node, Node]:
    """Selects the element of a given ascending rank along an axis, NaNs last. Returns (value, position).

    `rank(rows, ranks, n)` gives the rank for each row, with extent 1.
    """
    flat = low.graph.reshape(x, (x.elements,)) if dim is None or not x.shape else x
    order = _last_axis(flat, (dim or 0) % len(flat.shape))
    rows = low.graph.permute(flat, order)
    last, n = len(rows.shape) - 1, rows.shape[-1]
    ranks = _ranks(low, rows, largest=False, nans=True)
    hit = low.test(Opcode.IEQ, ranks, rank(rows, ranks, n))
    at = low.graph.fold(Fold.ISUM, [last], low.select(hit, low.graph.iota(rows.shape, last), 0, I32))
    value = gather(low, rows, last, low.graph.reshape(at, (*rows.shape[:-1], 1)))
    return low.graph.reshape(value, low.shape), low.graph.reshape(at, low.shape)


def _nans(low: Lowering, rows: Node) -> Node | int:
    """Counts the NaNs of each row."""
    if rows.dtype != F32:
        return 0
    last = len(rows.shape) - 1
    count = low.graph.fold(Fold.ISUM, [last], low.negation(low.test(Opcode.FEQ, rows, rows)))
    return low.graph.reshape(count, (*rows.shape[:-1], 1))


@rule("kthvalue")
def kthvalue(low: Lowering, x: Node, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Node, Node]:
    """Returns the k-th smallest value, counted from 1, and its position."""
    return _chosen(low, x, dim, lambda _rows, _ranks, _n: k - 1)


@rule("median.dim")
def median(low: Lowering, x: Node, dim: int | None, keepdim: bool = False) -> tuple[Node, Node]:
    """Returns the median (the lower of two middle values) and its position; the first NaN if there is one."""

    def rank(rows: Node, _ranks: Node, n: int) -> Node | int:
        nans = _nans(low, rows)
        return low.select(low.test(Opcode.ILT, 0, nans), low.i(Opcode.ISUB, n, nans), (n - 1) // 2, I32)

    return _chosen(low, x, dim, rank)


@rule("nanmedian.dim")
def nanmedian(low: Lowering, x: Node, dim: int | None, keepdim: bool = False) -> tuple[Node, Node]:
    """Returns the median of the values that are not NaN (the lower of two middle values) and its position."""

    def rank(rows: Node, _ranks: Node, n: int) -> Node | int:
        return low.i(Opcode.ISHR, low.i(Opcode.IMAX, low.i(Opcode.ISUB, n - 1, _nans(low, rows)), 0), 1)

    return _chosen(low, x, dim, rank)


rule("median")(lambda low, x: median(low, x, None)[0])
rule("nanmedian")(lambda low, x: nanmedian(low, x, None)[0])


@rule("mode")
def mode(low: Lowering, x: Node, dim: int = -1, keepdim: bool = False) -> tuple[Node, Node]:
    """Returns the most frequent value (the smallest of several) and its last position."""

    def rank(rows: Node, ranks: Node, n: int) -> Node:
        last = len(rows.shape) - 1
        pairs = [low.graph.expand(low.graph.reshape(rows, (*rows.shape[:-1], *shape)), (*rows.shape, n))
                 for shape in ((n, 1), (1, n))]  # fmt: skip
        equal = low.test(Opcode.FEQ if rows.dtype == F32 else Opcode.IEQ, *pairs)
        count = low.cast(low.graph.fold(Fold.ISUM, [last + 1], equal), F32)
        most = low.graph.reshape(low.graph.fold(Fold.MAX, [last], count), (*rows.shape[:-1], 1))
        candidates = low.select(low.test(Opcode.FEQ, count, most), low.cast(ranks, F32), float(1 << 24), F32)
        least = low.graph.reshape(low.graph.fold(Fold.MIN, [last], candidates), (*rows.shape[:-1], 1))
        return low.graph.apply(Opcode.F2I, low.f(Opcode.FSUB, low.f(Opcode.FADD, least, most), 1.0), dtype=I32)

    return _chosen(low, x, dim, rank)


@rule("isin.Tensor_Tensor", "isin.Tensor_Scalar", "isin.Scalar_Tensor")
def isin(
    low: Lowering, x: Node | float, among: Node | float, assume_unique: bool = False, invert: bool = False
) -> Node:
    """True for elements of x that occur in `among`."""
    dtype = F32 if any(isinstance(v, float) or (isinstance(v, Node) and v.dtype == F32) for v in (x, among)) else I32
    x, among = low.cast(x, dtype), low.cast(among, dtype)
    pairs = (*x.shape, among.elements)
    listed = low.graph.reshape(among, (among.elements,))
    equal = low.test(Opcode.FEQ if dtype == F32 else Opcode.IEQ, low.graph.reshape(x, (*x.shape, 1)), listed)
    count = low.graph.fold(Fold.ISUM, [len(x.shape)], low.graph.expand(equal, pairs))
    return low.test(Opcode.IEQ, count, 0) if invert else low.test(Opcode.ILT, 0, count)


@rule("histc")
def histc(low: Lowering, x: Node, bins: int = 100, min: float = 0, max: float = 0) -> Node:  # noqa: A002  (torch's)
    """Histogram: counts the elements in `bins` equal parts of [min, max]; elements outside are not counted."""
    if min >= max:
        raise LoweringError("a histogram between the data's own extremes is not supported", hint="give min and max")
    flat = low.graph.reshape(low.cast(x, F32), (x.elements,))
    share = low.f(Opcode.FDIV, low.f(Opcode.FSUB, flat, float(min)), float(max - min))
    part = low.i(Opcode.IMIN, low.cast(low.f(Opcode.FMUL, share, float(bins)), I32), bins - 1)
    inside = low.i(Opcode.IAND, low.test(Opcode.FLE, float(min), flat), low.test(Opcode.FLE, flat, float(max)))
    hit = low.i(Opcode.IAND, low.test(Opcode.IEQ, low.graph.iota((bins, x.elements), 0), part), inside)
    return low.cast(low.graph.fold(Fold.ISUM, [1], low.graph.expand(hit, (bins, x.elements))), low.dtype)


# --- running extrema ---------------------------------------------------------------------------------------


def _prefixes(low: Lowering, x: Node, dim: int, beyond: float) -> tuple[Node, list[int]]:
    """Builds all prefixes: [..., n, n], where row i holds the elements up to i and then `beyond`.

    Also returns the axes' inverse permutation.
    """
    order = _last_axis(x, dim % len(x.shape))
    rows = low.graph.permute(x, order)
    outer, n = rows.shape[:-1], rows.shape[-1]
    pairs, last = (*outer, n, n), len(outer)
    not_later = low.test(Opcode.ILE, low.graph.iota(pairs, last + 1), low.graph.iota(pairs, last))
    seen = low.graph.expand(low.graph.reshape(rows, (*outer, 1, n)), pairs)
    return low.select(not_later, seen, beyond, x.dtype), [order.index(i) for i in range(len(order))]


def _running_extremum(mode: Fold) -> Callable[..., Any]:
    def lower(low: Lowering, x: Node, dim: int) -> tuple[Node, Node]:
        if not x.shape:
            return x, low.graph.number(0, I32)
        sign = -1 if mode == Fold.MAX else 1
        edge: float = sign * (math.inf if x.dtype == F32 else (1 << 31) - 1)
        seen, back = _prefixes(low, x, dim, edge)
        last = len(x.shape)
        shape, low.shape = low.shape, seen.shape[:-1]
        found = extremum(low, seen, last, mode)
        low.shape = shape
        reached = low.test(
            Opcode.FEQ if x.dtype == F32 else Opcode.IEQ, seen, low.graph.reshape(found, (*found.shape, 1))
        )
        if x.dtype == F32:
            reached = low.i(Opcode.IOR, reached, low.negation(low.test(Opcode.FEQ, seen, seen)))
        earlier = low.test(Opcode.ILE, low.graph.iota(seen.shape, last), low.graph.iota(seen.shape, last - 1))
        places = low.select(
            low.i(Opcode.IAND, reached, earlier), low.cast(low.graph.iota(seen.shape, last), F32), -1.0, F32
        )
        at = low.graph.apply(Opcode.F2I, low.graph.fold(Fold.MAX, [last], places), dtype=I32)
        return low.graph.permute(found, back), low.graph.permute(at, back)

    return lower


rule("cummax")(_running_extremum(Fold.MAX))
rule("cummin")(_running_extremum(Fold.MIN))


@rule("logcumsumexp")
def logcumsumexp(low: Lowering, x: Node, dim: int) -> Node:
    """log of the running sums of exp(x), stabilised by the maximum of each prefix."""
    if not x.shape:
        return x
    seen, back = _prefixes(low, x, dim, -math.inf)
    last = len(x.shape)
    peak = low.graph.fold(Fold.MAX, [last], seen)
    peak = low.select(low.test(Opcode.FEQ, low.f(Opcode.FABS, peak), math.inf), 0.0, peak, F32)
    apart = low.f(Opcode.FSUB, seen, low.graph.reshape(peak, (*peak.shape, 1)))
    sums = low.graph.fold(Fold.SUM, [last], low.f(Opcode.FEXP, apart))
    return low.graph.permute(low.f(Opcode.FADD, low.f(Opcode.FLOG, sums), peak), back)


# --- products ----------------------------------------------------------------------------------------------


def _running(low: Lowering, factors: Node) -> list[Node]:
    """Returns the products of the first 1, 2, ... coordinates along the first axis, each with extent 1 there."""
    count = factors.shape[0]
    if count > MAX_FACTORS:
        raise LoweringError(
            f"a product of {count} factors is not supported",
            hint=f"take products of at most {MAX_FACTORS}, or sum logarithms",
        )
    products = [low.graph.slice(factors, 0, 0, 1)]
    for i in range(1, count):
        factor = low.graph.slice(factors, 0, i, 1)
        op = low.f(Opcode.FMUL, products[-1], factor) if low.dtype == F32 else low.i(Opcode.IMUL, products[-1], factor)
        products.append(op)
    return products


@rule("prod", "prod.dim_int")
def prod(low: Lowering, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
    """The product over axes, in ascending order."""
    axes = low.axes(x, dim)
    rest = [i for i in range(len(x.shape)) if i not in axes]
    shape, count = tuple(x.shape[i] for i in rest), math.prod(x.shape[i] for i in axes)
    factors = low.graph.reshape(low.graph.permute(low.cast(x, low.dtype), [*axes, *rest]), (count, *shape))
    return low.graph.reshape(_running(low, factors)[-1], low.shape)


@rule("cumprod")
def cumprod(low: Lowering, x: Node, dim: int, **_kwargs: Any) -> Node:
    """Cumulative products along an axis."""
    order = [dim % len(x.shape), *(i for i in range(len(x.shape)) if i != dim % len(x.shape))]
    products = low.graph.concat(_running(low, low.graph.permute(low.cast(x, low.dtype), order)), 0)
    return low.graph.permute(products, [order.index(i) for i in range(len(order))])
