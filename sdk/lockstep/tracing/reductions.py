"""Rules for folds: sums, extrema, matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from lockstep.numerics.scalar import Opcode
from lockstep.numerics.tables import width_of
from lockstep.protocol.programs.program import CODES, Fold
from lockstep.tracing.graph import BOOL, F32, I32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.pointwise import power


def kept(low: Lowering, x: Node, axes: Sequence[int], folded: Node) -> Node:
    """Restores the folded `axes` of x as extents of 1."""
    return low.graph.reshape(folded, [1 if i in axes else n for i, n in enumerate(x.shape)])


def total(low: Lowering, x: Node, axes: Sequence[int]) -> Node:
    """The sum over axes, which stay with extent 1."""
    if not axes:
        return x
    if x.elements == 0:
        return low.graph.number(0.0, F32, [1 if i in axes else n for i, n in enumerate(x.shape)])
    return kept(low, x, axes, low.graph.fold(Fold.SUM, axes, x))


def average(low: Lowering, x: Node, axes: Sequence[int]) -> Node:
    """The mean over axes, which stay with extent 1."""
    return low.f(Opcode.FMUL, total(low, x, axes), 1 / prod(x.shape[i] for i in axes))


@rule("sum", "sum.dim_IntList")
def sum_(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False, **_kwargs: Any) -> Node:
    """The sum over some axes."""
    axes = low.axes(x, dims)
    if low.dtype == F32:
        return low.graph.reshape(total(low, low.cast(x, F32), axes), low.shape)
    return low.graph.reshape(low.graph.fold(Fold.ISUM, axes, low.cast(x, I32)) if axes else x, low.shape)


@rule("mean", "mean.dim")
def mean(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False, **_kwargs: Any) -> Node:
    """The mean over some axes."""
    return low.graph.reshape(average(low, low.cast(x, F32), low.axes(x, dims)), low.shape)


def extremum(low: Lowering, x: Node, dims: Any, mode: Fold) -> Node:
    axes = low.axes(x, dims)
    if axes and x.dtype != F32:
        return low.graph.reshape(_integer_extremum(low, x, axes, mode), low.shape)
    return low.graph.reshape(low.graph.fold(mode, axes, x) if axes else x, low.shape)


def _integer_extremum(low: Lowering, x: Node, axes: Sequence[int], mode: Fold) -> Node:
    """Computes an i32 extremum by halves of 16 bits, which are exact in binary32: of the upper halves, then of the
    lower halves of the elements that have this upper half."""
    if x.dtype == BOOL:
        return low.graph.apply(Opcode.F2I, low.graph.fold(mode, axes, low.cast(x, F32)), dtype=I32)
    high, rest = low.i(Opcode.ISHR, x, 16), low.cast(low.i(Opcode.IAND, x, 0xFFFF), F32)
    peak = low.graph.apply(Opcode.F2I, low.graph.fold(mode, axes, low.cast(high, F32)), dtype=I32)
    reached = low.test(Opcode.IEQ, high, kept(low, x, axes, peak))
    beyond = -1.0 if mode == Fold.MAX else float(1 << 16)
    lower = low.graph.fold(mode, axes, low.select(reached, rest, beyond, F32))
    return low.i(Opcode.IOR, low.i(Opcode.ISHL, peak, 16), low.graph.apply(Opcode.F2I, lower, dtype=I32))


@rule("aminmax")
def aminmax(low: Lowering, x: Node, *, dim: int | None = None, keepdim: bool = False) -> tuple[Node, Node]:
    """Returns the minimum and the maximum over an axis, or over all."""
    return extremum(low, x, dim, Fold.MIN), extremum(low, x, dim, Fold.MAX)


@rule("nansum")
def nansum(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False, **_kwargs: Any) -> Node:
    """The sum of the elements that are not NaN."""
    return sum_(low, low.select(low.test(Opcode.FEQ, x, x), x, 0.0, F32) if x.dtype == F32 else x, dims)


@rule("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(low: Lowering, x: Node, dims: Any = None) -> Node:
    """Counts the elements that are not zero."""
    axes, hit = low.axes(x, dims), low.cast(x, BOOL)
    return low.graph.reshape(low.graph.fold(Fold.ISUM, axes, hit) if axes else low.cast(hit, I32), low.shape)


@rule("any", "any.dim", "any.dims")
def any_(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
    """Returns whether at least one element is not zero."""
    axes, hit = low.axes(x, dims), low.cast(x, BOOL)
    count = low.graph.fold(Fold.ISUM, axes, hit) if axes else low.cast(hit, I32)
    return low.graph.reshape(low.test(Opcode.ILT, 0, count), low.shape)


@rule("all", "all.dim", "all.dims")
def all_(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
    """Returns whether every element is not zero."""
    return low.negation(any_(low, low.negation(low.cast(x, BOOL)), dims, keepdim))


@rule("amax", "max")
def amax(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
    """The maximum over some axes."""
    return extremum(low, x, dims, Fold.MAX)


@rule("amin", "min")
def amin(low: Lowering, x: Node, dims: Any = None, keepdim: bool = False) -> Node:
    """The minimum over some axes."""
    return extremum(low, x, dims, Fold.MIN)


@rule("var.correction")
def var(low: Lowering, x: Node, dims: Any = None, correction: float = 1, keepdim: bool = False) -> Node:
    """The variance over some axes."""
    axes = low.axes(x, dims)
    centred = low.f(Opcode.FSUB, x, average(low, x, axes))
    n = prod(x.shape[i] for i in axes)
    squares = total(low, low.f(Opcode.FMUL, centred, centred), axes)
    return low.graph.reshape(low.f(Opcode.FMUL, squares, 1 / max(n - correction, 0)), low.shape)


@rule("std.correction")
def std(low: Lowering, x: Node, dims: Any = None, correction: float = 1, keepdim: bool = False) -> Node:
    """The standard deviation over some axes."""
    return low.f(Opcode.FSQRT, var(low, x, dims, correction, keepdim))


@rule("var_mean.correction")
def var_mean(
    low: Lowering, x: Node, dims: Any = None, correction: float = 1, keepdim: bool = False
) -> tuple[Node, Node]:
    """Returns the variance and the mean over some axes."""
    return var(low, x, dims, correction, keepdim), mean(low, x, dims, keepdim)


@rule("std_mean.correction")
def std_mean(
    low: Lowering, x: Node, dims: Any = None, correction: float = 1, keepdim: bool = False
) -> tuple[Node, Node]:
    """Returns the standard deviation and the mean over some axes."""
    return std(low, x, dims, correction, keepdim), mean(low, x, dims, keepdim)


@rule("norm.Scalar", "norm.ScalarOpt_dim")
def norm(low: Lowering, x: Node, order: float | None = 2, dims: Any = None, keepdim: bool = False) -> Node:
    """The norm of an order over some axes."""
    return vector_norm(low, x, 2 if order is None else order, dims, keepdim)


@rule("linalg_vector_norm")
def vector_norm(low: Lowering, x: Node, order: float = 2, dims: Any = None, keepdim: bool = False, **_k: Any) -> Node:
    """(sum of |x|^order)^(1 / order) over some axes; order 0 counts nonzero elements, infinite orders give an extremum
    of |x|.
    """
    axes = low.axes(x, dims)
    if order == 2:
        return low.graph.reshape(low.f(Opcode.FSQRT, total(low, low.f(Opcode.FMUL, x, x), axes)), low.shape)
    size = low.f(Opcode.FABS, x)
    if order in (inf, -inf):
        mode = Fold.MAX if order > 0 else Fold.MIN
        return low.graph.reshape(low.graph.fold(mode, axes, size) if axes else size, low.shape)
    if order == 0:
        counted = low.cast(low.negation(low.test(Opcode.FEQ, x, 0.0)), F32)
        return low.graph.reshape(total(low, counted, axes), low.shape)
    powers = size if order == 1 else power(low, size, order)
    sums = total(low, powers, axes)
    return low.graph.reshape(sums if order == 1 else power(low, sums, 1 / order), low.shape)


@rule("cumsum")
def cumsum(low: Lowering, x: Node, dim: int, **_kwargs: Any) -> Node:
    """Computes running sums, each as a fold over the elements up to its own."""
    dim, n = dim % len(x.shape), x.shape[dim]
    last = low.graph.permute(low.cast(x, F32), [*(i for i in range(len(x.shape)) if i != dim), dim])
    rest = last.shape[:-1]
    not_later = low.test(Opcode.ILE, low.graph.iota((n, n), 1), low.graph.iota((n, n), 0))
    terms = low.graph.expand(low.graph.reshape(last, (*rest, 1, n)), (*rest, n, n))
    weights = low.graph.expand(low.cast(not_later, F32), (*rest, n, n))
    sums = low.graph.fold(Fold.DOT, [len(rest) + 1], weights, terms)
    order = list(range(len(rest)))
    order.insert(dim, len(rest))
    return low.cast(low.graph.permute(sums, order), low.dtype)


# --- matrix products ---------------------------------------------------------------------------------------


def product(low: Lowering, a: Node, b: Node) -> Node:
    """Multiplies [..., M, K] x [..., K, N] -> [..., M, N] in float32."""
    if a.shape[-1] == 0:
        return low.graph.number(0.0, F32, (*a.shape[:-1], b.shape[-1]))
    left, right = _rows(low, a, b)
    shape = (*left.shape[:-2], right.shape[-2], left.shape[-1])
    axis = len(shape) - 1
    return low.graph.fold(Fold.DOT, [axis], low.graph.expand(left, shape), low.graph.expand(right, shape))


def chosen_product(low: Lowering, a: Node, b: Node) -> Node:
    """Multiplies [..., M, K] x [..., K, N] -> [..., M, N] in the arithmetic that the job's policy selects."""
    limbs = low.products.limbs(low.graph.origin, a, b)
    made = integer_dot(low, *_rows(low, a, b), limbs) if limbs else product(low, a, b)
    low.products.made(made, a, b)
    return made


def _rows(low: Lowering, a: Node, b: Node) -> tuple[Node, Node]:
    """Reshapes factors to [..., M, 1, K] and [..., 1, N, K], so that a product is a fold over the last axis."""
    *batch, m, k = a.shape
    rank = len(batch)
    swapped = low.graph.permute(b, [*range(rank), rank + 1, rank])
    return low.graph.reshape(a, (*batch, m, 1, k)), low.graph.reshape(swapped, (*batch, 1, b.shape[-1], k))


def integer_dot(low: Lowering, a: Node, b: Node, limbs: int) -> Node:
    """Sum over the last axis of a b, in integers; the other axes broadcast. Each operand is quantised along k.

    With two limbs, x = high + low, the groups along k are (high, high), (high, low), (low, high). A gradient is rounded
    stochastically in its last limb.
    """
    width = width_of(a.shape[-1])
    (high_a, *low_a), (high_b, *low_b) = (_limbs(low, x, width, limbs) for x in (a, b))
    if limbs == 1:
        return low.graph.qdot(width, *zip(high_a, high_b, strict=True))
    left = [_joined(low, parts) for parts in zip(high_a, high_a, low_a[0], strict=True)]
    right = [_joined(low, parts) for parts in zip(high_b, low_b[0], high_b, strict=True)]
    return low.graph.qdot(width, *zip(left, right, strict=True))


def _joined(low: Lowering, parts: Sequence[Node]) -> Node:
    return low.graph.concat(parts, len(parts[0].shape) - 1)


def _limbs(low: Lowering, x: Node, width: int, count: int) -> list[tuple[Node, Node]]:
    """Returns (codes, scales) of x [*rows, K], then of each remaining quantisation residual."""
    stochastic = low.products.is_gradient(low.graph.origin, x)
    if count == 1:
        return [low.graph.quant(x, width, stochastic=stochastic)]
    codes, scales = low.graph.quant(x, width)
    rest = low.graph.residual_of(x, codes, scales) or low.f(
        Opcode.FSUB, x, dequantised(low, codes, scales, width, x.shape[-1])
    )
    return [(codes, scales), low.graph.quant(rest, width, stochastic=stochastic)]


def dequantised(low: Lowering, codes: Node, scales: Node, width: int, terms: int) -> Node:
    """Dequantises to f32 [*rows, terms]: every code times its group's scale."""
    *rows, words = codes.shape
    lane = low.graph.expand(low.graph.reshape(codes, (*rows, words, 1)), (*rows, words, 4))
    # Extracts code j of a word, sign-extended from its byte.
    up = low.graph.iota((*(1,) * len(rows), 1, 4), len(rows) + 1, 24, -8)
    code = low.cast(low.i(Opcode.ISHR, low.i(Opcode.ISHL, lane, up), 24), F32)
    grouped = low.graph.reshape(code, (*rows, words // width, CODES * width))
    scale = low.graph.reshape(scales, (*rows, words // width, 1))
    flat = low.graph.reshape(low.f(Opcode.FMUL, grouped, scale), (*rows, 4 * words))
    return low.graph.slice(flat, len(rows), 0, terms)


def _whole_product(low: Lowering, a: Node, b: Node) -> Node:
    """Multiplies integer matrices; stores every product of two elements."""
    left, right = _rows(low, low.cast(a, I32), low.cast(b, I32))
    return low.graph.fold(Fold.ISUM, [len(a.shape)], low.i(Opcode.IMUL, left, right))


@rule("mm", "bmm")
def mm(low: Lowering, a: Node, b: Node) -> Node:
    """Matrix product, or a batch of them."""
    return chosen_product(low, a, b) if low.dtype == F32 else _whole_product(low, a, b)


@rule("addmm", "baddbmm")
def addmm(low: Lowering, bias: Node, a: Node, b: Node, beta: float = 1, alpha: float = 1) -> Node:
    """beta bias + alpha a b."""
    result = low.f(Opcode.FMUL, chosen_product(low, a, b), float(alpha))
    return low.f(Opcode.FADD, result, low.f(Opcode.FMUL, bias, float(beta)))


@rule("mv")
def mv(low: Lowering, a: Node, x: Node) -> Node:
    """Matrix-vector product."""
    return low.graph.fold(Fold.DOT, [1], a, low.graph.expand(x, a.shape))


@rule("dot")
def dot(low: Lowering, a: Node, b: Node) -> Node:
    """Inner product of two vectors."""
    return low.graph.fold(Fold.DOT, [0], a, b)
