"""Rules for indexing: reads rows of a table; adds or writes by index as one-hot matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.protocol.programs.program import Fold
from lockstep.tracing.graph import BOOL, F32, I32, VIEWS, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.reductions import product

MAX_FACTORS = 64
"""Most sources per axis for a scatter that multiplies: each is one factor of a chain."""


def take(low: Lowering, table: Node, index: Node) -> Node:
    """Reads rows: table [R, *rest], index [*at] -> [*at, *rest]; rows outside 0..R-1 are zero."""
    rows, *rest = table.shape
    base = table
    while base.kind in VIEWS:
        base = base.args[0]
    if base.kind == "iota":
        # A gather reads its index from memory, so a computed index is stored first.
        table = low.i(Opcode.IADD, table, 0)
    out = (*index.shape, *rest)
    above = low.graph.reshape(table, (rows, *(1,) * len(index.shape), *rest))
    at = low.graph.reshape(index, (*index.shape, *(1,) * len(rest)))
    return low.graph.gather(low.graph.expand(above, (rows, *out)), low.graph.expand(at, out))


def scattered(low: Lowering, grad: Node, index: Node, rows: int, skip: int = -1) -> Node:
    """Sums grad [*at, *rest] into [rows, *rest] by index [*at], as a product with a one-hot matrix."""
    count = prod(index.shape)
    rest = grad.shape[len(index.shape) :]
    columns = prod(rest)
    if count * columns == 0:
        return low.graph.number(0, grad.dtype, (rows, *rest))
    flat = low.graph.reshape(index, (1, count))
    row = low.graph.iota((rows, count), 0)
    hit = low.test(Opcode.IEQ, row, flat)
    if skip >= 0:
        hit = low.i(Opcode.IAND, hit, low.negation(low.test(Opcode.IEQ, row, skip)))
    terms = low.graph.reshape(grad, (count, columns))
    if grad.dtype != F32:
        each = low.select(low.graph.reshape(hit, (rows, count, 1)), terms, 0, I32)
        result = low.graph.fold(Fold.ISUM, [1], low.graph.expand(each, (rows, count, columns)))
    else:
        result = product(low, low.cast(hit, F32), terms)
    return low.graph.reshape(result, (rows, *rest))


@rule("index_select")
def index_select(low: Lowering, x: Node, dim: int, index: Node) -> Node:
    """Selects rows of an axis."""
    dim = dim % len(x.shape)
    first = low.graph.permute(x, [dim, *(i for i in range(len(x.shape)) if i != dim)])
    taken = take(low, first, index)
    order = list(range(1, len(x.shape)))
    order.insert(dim, 0)
    return low.graph.permute(taken, order) if index.shape else low.graph.reshape(taken, low.shape)


@rule("index_add")
def index_add(low: Lowering, x: Node, dim: int, index: Node, source: Node, alpha: float = 1) -> Node:
    """x plus alpha times the source, added to the rows of one axis that the index names."""
    dim = dim % len(x.shape)
    order = [dim, *(i for i in range(len(x.shape)) if i != dim)]
    sums = scattered(low, low.graph.permute(source, order), index, x.shape[dim])
    return low.f(
        Opcode.FADD,
        x,
        low.f(Opcode.FMUL, low.graph.permute(sums, [order.index(i) for i in range(len(order))]), float(alpha)),
    )


@rule("index_fill.int_Scalar")
def index_fill(low: Lowering, x: Node, dim: int, index: Node, value: float) -> Node:
    """x with one value at the indexed rows of one axis."""
    dim, n, count = dim % max(len(x.shape), 1), x.shape[dim] if x.shape else 1, index.elements
    named = low.graph.reshape(_wrapped(low, index, n), (1, count))
    hits = low.graph.fold(Fold.ISUM, [1], low.test(Opcode.IEQ, low.graph.iota((n, count), 0), named))
    own = low.graph.reshape(low.test(Opcode.ILT, 0, hits), [n if axis == dim else 1 for axis in range(len(x.shape))])
    return low.select(own, value, x, low.dtype)


def _wrapped(low: Lowering, index: Node, rows: int) -> Node:
    return low.select(low.test(Opcode.ILT, index, 0), low.i(Opcode.IADD, index, rows), index, I32)


@dataclass(frozen=True)
class _Places:
    """The positions that several index tensors name together: rows of the indexed axes, moved to the front and
    merged.
    """

    index: Node
    """i32 [*at]: positions 0 .. prod(extents) - 1."""
    order: tuple[int, ...]
    """Axes of x: the indexed axes first, then the rest."""
    extents: tuple[int, ...]
    """Extents of the indexed axes."""
    at: int
    """Position in the result at which the axes of the index begin."""

    def rows(self, low: Lowering, x: Node) -> Node:
        """Returns x as [prod(extents), *rest]."""
        moved = low.graph.permute(x, self.order)
        return low.graph.reshape(moved, (prod(self.extents), *moved.shape[len(self.extents) :]))

    def of_result(self) -> list[int]:
        """Returns the permutation from [*at, *rest] to torch's order of the result's axes."""
        count, rest = len(self.index.shape), len(self.order) - len(self.extents)
        axes = list(range(count, count + rest))
        return [*axes[: self.at], *range(count), *axes[self.at :]]


def _places(low: Lowering, x: Node, indices: Sequence[Node | None]) -> _Places:
    axes = [i for i, index in enumerate(indices) if index is not None]
    given = [index for index in indices if index is not None]
    if any(index.dtype != I32 for index in given):
        raise LoweringError(
            "a boolean mask as index is not supported", hint="use torch.where: shapes may not depend on data"
        )
    flat = low.graph.number(0, I32)
    for axis, index in zip(axes, given, strict=True):
        flat = low.i(Opcode.IADD, low.i(Opcode.IMUL, flat, x.shape[axis]), _wrapped(low, index, x.shape[axis]))
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    rest = [i for i in range(len(x.shape)) if i not in axes]
    return _Places(flat, (*axes, *rest), tuple(x.shape[i] for i in axes), axes[0] if adjacent else 0)


@rule("index.Tensor")
def index_tensor(low: Lowering, x: Node, indices: Sequence[Node | None]) -> Node:
    """Advanced indexing: x[..., index, index, ...]."""
    places = _places(low, x, indices)
    return low.graph.permute(take(low, places.rows(low, x), places.index), places.of_result())


@rule("index_put")
def index_put(low: Lowering, x: Node, indices: Sequence[Node | None], values: Node, accumulate: bool = False) -> Node:
    """x with values added to, or written at, the indexed positions; several values written to one position are
    summed.
    """
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == BOOL and values.elements == 1:
        mask = low.graph.reshape(indices[0], (*indices[0].shape, *(1,) * (len(x.shape) - len(indices[0].shape))))
        value = low.graph.reshape(low.cast(values, low.dtype), ())
        if accumulate:
            value = low.f(Opcode.FADD, x, value) if low.dtype == F32 else low.i(Opcode.IADD, x, value)
        return low.select(mask, value, x, low.dtype)
    places = _places(low, x, indices)
    table = places.rows(low, x)
    order = places.of_result()
    front = (*places.index.shape, *table.shape[1:])
    seen = low.graph.expand(values, [front[i] for i in order])
    terms = low.graph.permute(seen, [order.index(i) for i in range(len(order))])
    sums = scattered(low, terms, places.index, table.shape[0])
    if accumulate:
        result = low.f(Opcode.FADD, table, sums) if low.dtype == F32 else low.i(Opcode.IADD, table, sums)
    else:
        ones = low.graph.number(1.0, F32, places.index.shape)
        hits = scattered(low, ones, places.index, table.shape[0])
        hit = low.graph.reshape(low.test(Opcode.FLT, 0.0, hits), (table.shape[0], *(1,) * (len(table.shape) - 1)))
        result = low.select(hit, sums, table, low.dtype)
    moved = low.graph.reshape(result, [x.shape[i] for i in places.order])
    return low.graph.permute(moved, [places.order.index(i) for i in range(len(places.order))])


@rule("gather")
def gather(low: Lowering, x: Node, dim: int, index: Node, sparse_grad: bool = False) -> Node:
    """Gathers along one axis: x[..., index[...], ...]."""
    dim = dim % max(len(x.shape), 1)
    for axis, n in enumerate(index.shape):
        if axis != dim:
            x = low.graph.slice(x, axis, 0, n)
    rows = x.shape[dim]
    first = low.graph.permute(x, [dim, *(i for i in range(len(x.shape)) if i != dim)])
    one = (rows, *(1 if i == dim else n for i, n in enumerate(index.shape)))
    table = low.graph.expand(low.graph.reshape(first, one), (rows, *index.shape))
    return low.graph.gather(table, index)


def _cut(low: Lowering, x: Node, dim: int, index: Node) -> Node:
    """Returns the part of x that a scatter along `dim` can reach: the index's extents on the other axes."""
    for axis, n in enumerate(index.shape):
        x = x if axis == dim else low.graph.slice(x, axis, 0, n)
    return x


def _put_back(low: Lowering, x: Node, part: Node) -> Node:
    """Returns x with the leading part of its coordinates replaced by `part`."""
    for axis in reversed([i for i, n in enumerate(part.shape) if n != x.shape[i]]):
        outer = x
        for other in range(axis):
            outer = low.graph.slice(outer, other, 0, part.shape[other])
        rest = low.graph.slice(outer, axis, part.shape[axis], x.shape[axis] - part.shape[axis])
        part = low.graph.concat([part, rest], axis)
    return part


def _along_last(low: Lowering, x: Node, dim: int, index: Node) -> tuple[list[int], Node]:
    """Returns (axes with `dim` last, bool [..., rows, count]: 1 where an index names the row)."""
    order = [*(i for i in range(len(x.shape)) if i != dim), dim]
    at = low.graph.permute(index, order)
    outer, count = at.shape[:-1], at.shape[-1]
    row = low.graph.iota((*outer, x.shape[dim], count), len(outer))
    hit = low.test(Opcode.IEQ, row, low.graph.reshape(at, (*outer, 1, count)))
    return order, hit


def _scattered_along(low: Lowering, order: Sequence[int], hit: Node, source: Node) -> Node:
    """Sums source [..., count] by row, and restores the order of the axes."""
    last = len(order) - 1
    terms = low.graph.permute(source, order)
    spread = low.graph.expand(low.graph.reshape(terms, (*terms.shape[:-1], 1, terms.shape[-1])), hit.shape)
    if source.dtype == F32:
        sums = low.graph.fold(Fold.DOT, [last + 1], low.cast(hit, F32), spread)
    else:
        sums = low.graph.fold(Fold.ISUM, [last + 1], low.select(hit, spread, 0, I32))
    return low.graph.permute(sums, [order.index(i) for i in range(len(order))])


@dataclass(frozen=True)
class _Scatter:
    """A scatter along one axis: its target, and a one-hot matrix of positions and sources."""

    x: Node
    """The part of the target that the scatter can reach."""
    source: Node
    order: list[int]
    hit: Node

    def sums(self, low: Lowering, source: Node | None = None) -> Node:
        """Returns the sum of the sources of each position."""
        return _scattered_along(low, self.order, self.hit, self.source if source is None else source)

    def written(self, low: Lowering) -> Node:
        """Returns a bool: 1 where at least one source is written."""
        return low.test(Opcode.FLT, 0.0, self.sums(low, low.graph.number(1.0, F32, self.source.shape)))

    def extremum(self, low: Lowering, mode: Fold) -> Node:
        """Returns the extremum of the sources of each position; an infinity if there is no source."""
        terms = low.graph.permute(self.source, self.order)
        spread = low.graph.expand(low.graph.reshape(terms, (*terms.shape[:-1], 1, terms.shape[-1])), self.hit.shape)
        none = float("-inf") if mode == Fold.MAX else float("inf")
        found = low.graph.fold(mode, [len(self.hit.shape) - 1], low.select(self.hit, spread, none, F32))
        return low.graph.permute(found, [self.order.index(i) for i in range(len(self.order))])

    def product(self, low: Lowering) -> Node:
        """Returns the product of the sources of each position, factor by factor; 1 if there is no source."""
        terms = low.graph.permute(self.source, self.order)
        spread = low.graph.expand(low.graph.reshape(terms, (*terms.shape[:-1], 1, terms.shape[-1])), self.hit.shape)
        factors = low.select(self.hit, spread, 1.0, F32)
        last, count = len(self.hit.shape) - 1, self.hit.shape[-1]
        if count > MAX_FACTORS:
            raise LoweringError(
                f"scattered products of up to {count} factors",
                hint=f"at most {MAX_FACTORS} sources along the axis: or scatter the sum of logarithms",
            )
        found = low.graph.slice(factors, last, 0, 1)
        for i in range(1, count):
            found = low.f(Opcode.FMUL, found, low.graph.slice(factors, last, i, 1))
        found = low.graph.reshape(found, factors.shape[:-1])
        return low.graph.permute(found, [self.order.index(i) for i in range(len(self.order))])


def _scatter_of(low: Lowering, x: Node, dim: int, index: Node, source: Node | float) -> _Scatter:
    dim %= max(len(x.shape), 1)
    reached = _cut(low, x, dim, index)
    given = low.cast(source, low.dtype)
    for axis, n in enumerate(index.shape):
        given = low.graph.slice(given, axis, 0, n) if len(given.shape) == len(index.shape) else given
    order, hit = _along_last(low, reached, dim, index)
    return _Scatter(reached, low.graph.expand(given, index.shape), order, hit)


@rule("scatter_add")
def scatter_add(low: Lowering, x: Node, dim: int, index: Node, source: Node) -> Node:
    """x with the source added at index[...] along one axis."""
    at = _scatter_of(low, x, dim, index, source)
    added = low.f(Opcode.FADD, at.x, at.sums(low)) if low.dtype == F32 else low.i(Opcode.IADD, at.x, at.sums(low))
    return _put_back(low, x, added)


@rule("scatter.src", "scatter.value")
def scatter(low: Lowering, x: Node, dim: int, index: Node, source: Node | float) -> Node:
    """x with the source written at index[...] along one axis; several sources for one position are summed."""
    at = _scatter_of(low, x, dim, index, source)
    return _put_back(low, x, low.select(at.written(low), at.sums(low), at.x, low.dtype))


@rule("scatter_reduce.two")
def scatter_reduce(
    low: Lowering, x: Node, dim: int, index: Node, source: Node, reduce: str, *, include_self: bool = True
) -> Node:
    """Returns x with the sum, mean, product or extremum of each position's sources; the old value is included unless
    `include_self` is False.
    """
    if low.dtype != F32:
        raise LoweringError(f"a scattered {reduce} of {low.dtype} is not supported", hint="convert to float32 first")
    at = _scatter_of(low, x, dim, index, source)
    if reduce == "prod":
        found = at.product(low)
        found = low.f(Opcode.FMUL, at.x, found) if include_self else low.select(at.written(low), found, at.x, F32)
        return _put_back(low, x, found)
    if reduce in ("amax", "amin"):
        mode, op = (Fold.MAX, Opcode.FMAX) if reduce == "amax" else (Fold.MIN, Opcode.FMIN)
        found = at.extremum(low, mode)
        found = low.f(op, at.x, found) if include_self else low.select(at.written(low), found, at.x, F32)
        return _put_back(low, x, found)
    start = at.x if include_self else low.select(at.written(low), 0.0, at.x, F32)
    sums = low.f(Opcode.FADD, start, at.sums(low))
    if reduce == "mean":
        count = at.sums(low, low.graph.number(1.0, F32, index.shape))
        count = low.f(Opcode.FADD, count, 1.0) if include_self else low.f(Opcode.FMAX, count, 1.0)
        sums = low.f(Opcode.FDIV, sums, count)
    return _put_back(low, x, sums)


@rule("bucketize.Tensor")
def bucketize(low: Lowering, x: Node, boundaries: Node, *, out_int32: bool = False, right: bool = False) -> Node:
    """Counts the boundaries below each x (with `right`: at or below it)."""
    (n,) = boundaries.shape
    values = low.graph.reshape(x, (*x.shape, 1))
    below = low.test(Opcode.FLE if right else Opcode.FLT, boundaries, values)
    return low.graph.fold(Fold.ISUM, [len(x.shape)], low.graph.expand(below, (*x.shape, n)))


@rule("bucketize.Scalar")
def bucketize_scalar(low: Lowering, x: float, boundaries: Node, **options: bool) -> Node:
    """Counts the boundaries below a number (with `right`: at or below it)."""
    return bucketize(low, low.cast(x, F32), low.cast(boundaries, F32), **options)


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    low: Lowering,
    ordered: Node,
    x: Node | float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Node | None = None,
) -> Node:
    """Counts the elements of a sorted row below each value (with `right`: at or below it); each row of values may have
    its own sorted row.
    """
    if sorter is not None:
        ordered = gather(low, ordered, -1, sorter)
    dtype = F32 if isinstance(x, float) or F32 in (ordered.dtype, getattr(x, "dtype", I32)) else I32
    rows, values = low.cast(ordered, dtype), low.cast(x, dtype)
    n, own = rows.shape[-1], len(rows.shape) > 1
    rows = low.graph.reshape(rows, (*rows.shape[:-1], 1, n) if own else (n,))
    values = low.graph.reshape(values, (*values.shape, 1))
    if right or side == "right":
        beyond = low.test(Opcode.FLT if dtype == F32 else Opcode.ILT, values, rows)
    else:
        beyond = low.test(Opcode.FLE if dtype == F32 else Opcode.ILE, values, rows)
    passed = low.graph.expand(low.negation(beyond), (*values.shape[:-1], n))
    return low.graph.fold(Fold.ISUM, [len(values.shape) - 1], passed)
