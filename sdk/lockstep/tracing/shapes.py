"""Rules for views, constants and concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.numerics.scalar import Opcode
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.lowering import RULES, Lowering, rule


@rule("view", "_unsafe_view")
def reshape(low: Lowering, x: Node, _shape: Sequence[int]) -> Node:
    """Reshapes in row-major order."""
    return low.graph.reshape(x, low.shape)


@rule("expand")
def expand(low: Lowering, x: Node, _shape: Sequence[int], **_kwargs: Any) -> Node:
    """Broadcasts to another shape."""
    return low.graph.expand(x, low.shape)


@rule("permute")
def permute(low: Lowering, x: Node, order: Sequence[int]) -> Node:
    """Permutes the axes."""
    return low.graph.permute(x, [d % len(x.shape) for d in order])


@rule("transpose.int")
def transpose(low: Lowering, x: Node, a: int, b: int) -> Node:
    """Exchanges two axes."""
    order = list(range(len(x.shape)))
    if order:
        order[a], order[b] = order[b], order[a]
    return low.graph.permute(x, order)


@rule("t")
def t(low: Lowering, x: Node) -> Node:
    """Transposes a matrix."""
    return x if len(x.shape) < 2 else transpose(low, x, 0, 1)


@rule("unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims")
def squeeze(low: Lowering, x: Node, *_dims: Any) -> Node:
    """Removes axes of extent 1."""
    return low.graph.reshape(x, low.shape)


@rule("slice.Tensor")
def slice_(
    low: Lowering, x: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    """Selects every step-th coordinate from `start` to `end`."""
    dim, n = dim % len(x.shape), x.shape[dim]
    start = 0 if start is None else start
    first = min(max(start + n if start < 0 else start, 0), n)
    return low.graph.slice(x, dim, first, low.shape[dim], step)


@rule("select.int")
def select(low: Lowering, x: Node, dim: int, index: int) -> Node:
    """Selects one coordinate of an axis, which vanishes."""
    dim = dim % len(x.shape)
    return low.graph.reshape(low.graph.slice(x, dim, index % x.shape[dim], 1), low.shape)


@rule("flip")
def flip(low: Lowering, x: Node, dims: Sequence[int]) -> Node:
    """Reverses along axes."""
    return low.graph.flip(x, [d % len(x.shape) for d in dims])


@rule("split.Tensor", "unsafe_split.Tensor")
def split(low: Lowering, x: Node, size: int, dim: int = 0) -> list[Node]:
    """Splits an axis into equal parts; the last may be shorter."""
    n = x.shape[dim]
    return split_with_sizes(low, x, [min(size, n - at) for at in range(0, n, size)], dim)


@rule("split_with_sizes", "unsafe_split_with_sizes")
def split_with_sizes(low: Lowering, x: Node, sizes: Sequence[int], dim: int = 0) -> list[Node]:
    """Splits an axis into parts of given sizes."""
    dim, at, parts = dim % len(x.shape), 0, []
    for size in sizes:
        parts.append(low.graph.slice(x, dim, at, size))
        at += size
    return parts


@rule("unbind.int")
def unbind(low: Lowering, x: Node, dim: int = 0) -> list[Node]:
    """Splits an axis into its coordinates."""
    dim = dim % len(x.shape)
    rest = (*x.shape[:dim], *x.shape[dim + 1 :])
    return [low.graph.reshape(low.graph.slice(x, dim, i, 1), rest) for i in range(x.shape[dim])]


@rule("cat")
def cat(low: Lowering, parts: Sequence[Node], dim: int = 0) -> Node:
    """Concatenates along an axis."""
    return low.graph.concat([low.cast(p, low.dtype) for p in parts], dim % len(low.shape))


@rule("stack")
def stack(low: Lowering, parts: Sequence[Node], dim: int = 0) -> Node:
    """Concatenates along a new axis."""
    dim = dim % len(low.shape)
    one = (*low.shape[:dim], 1, *low.shape[dim + 1 :])
    return low.graph.concat([low.graph.reshape(low.cast(p, low.dtype), one) for p in parts], dim)


@rule("repeat")
def repeat(low: Lowering, x: Node, times: Sequence[int]) -> Node:
    """Tiles a tensor."""
    x = low.graph.reshape(x, (1,) * (len(times) - len(x.shape)) + x.shape)
    paired = [n for pair in zip(times, x.shape, strict=True) for n in pair]
    ones = [n for d in x.shape for n in (1, d)]
    return low.graph.reshape(low.graph.expand(low.graph.reshape(x, ones), paired), low.shape)


@rule("constant_pad_nd")
def pad(low: Lowering, x: Node, widths: Sequence[int], value: float = 0) -> Node:
    """Pads with a constant."""
    for i in range(0, len(widths), 2):
        x = padded(low, x, len(x.shape) - 1 - i // 2, widths[i], widths[i + 1], value)
    return x


def padded(low: Lowering, x: Node, dim: int, before: int, after: int, value: float = 0) -> Node:
    """Pads one axis with a constant before and after; negative widths crop."""
    if before < 0 or after < 0:
        x = low.graph.slice(x, dim, max(-before, 0), x.shape[dim] + min(before, 0) + min(after, 0))

    def fill(n: int) -> list[Node]:
        return [low.graph.number(value, x.dtype, (*x.shape[:dim], n, *x.shape[dim + 1 :]))] if n > 0 else []

    return low.graph.concat([*fill(before), x, *fill(after)], dim)


def dilated(low: Lowering, x: Node, axis: int, step: int, fill: float = 0) -> Node:
    """Inserts step - 1 fill values between adjacent coordinates of an axis."""
    if step == 1:
        return x
    n = x.shape[axis]
    one = low.graph.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    wide = padded(low, one, axis + 1, 0, step - 1, fill)
    joined = low.graph.reshape(wide, (*x.shape[:axis], n * step, *x.shape[axis + 1 :]))
    return low.graph.slice(joined, axis, 0, (n - 1) * step + 1)


@rule("slice_backward")
def slice_backward(low: Lowering, grad: Node, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Node:
    """Puts the gradient in the slice's place, with zeros elsewhere."""
    if grad.elements == 0:
        return low.graph.number(0, grad.dtype, sizes)
    dim, n = dim % len(sizes), sizes[dim]
    first = min(max(start + n if start < 0 else start, 0), n)
    spaced = dilated(low, grad, dim, step)
    return padded(low, spaced, dim, first, n - first - spaced.shape[dim])


def complement(low: Lowering, a: Any, b: Any) -> Node | None:
    """Returns the sum of two concatenations, each zero where the other is not, as one concatenation (gradients of two
    halves); else None.
    """
    if not (isinstance(a, Node) and isinstance(b, Node) and a.kind == b.kind == "concat" and a.attrs == b.attrs):
        return None
    if [p.shape for p in a.args] != [p.shape for p in b.args]:
        return None
    parts = []
    for left, right in zip(a.args, b.args, strict=True):
        if not (_is_zero(left) or _is_zero(right)):
            return None
        parts.append(right if _is_zero(left) else left)
    return low.graph.concat(parts, a.attrs[0])


def _is_zero(x: Node) -> bool:
    return x.kind == "imm" and x.attrs[0] == 0


@rule("select_backward")
def select_backward(low: Lowering, grad: Node, sizes: Sequence[int], dim: int, index: int) -> Node:
    """Puts the gradient in the selected coordinate's place, with zeros elsewhere."""
    dim = dim % len(sizes)
    one = low.graph.reshape(grad, (*sizes[:dim], 1, *sizes[dim + 1 :]))
    index %= sizes[dim]
    return padded(low, one, dim, index, sizes[dim] - index - 1)


@rule("slice_scatter")
def slice_scatter(
    low: Lowering, x: Node, part: Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Node:
    """x with a slice replaced by `part`."""
    if part.elements == 0:
        return x
    dim, n = dim % len(x.shape), x.shape[dim]
    first = 0 if start is None else start + n if start < 0 else start
    if step != 1:
        spaced = dilated(low, part, dim, step)
        full = padded(low, spaced, dim, first, n - first - spaced.shape[dim])
        at = low.i(Opcode.ISUB, low.graph.iota(x.shape, dim), first)
        hit = low.i(Opcode.IAND, low.test(Opcode.IEQ, low.i(Opcode.IREM, at, step), 0), low.test(Opcode.ILE, 0, at))
        return low.select(low.i(Opcode.IAND, hit, low.test(Opcode.ILT, at, spaced.shape[dim])), full, x, low.dtype)
    after = first + part.shape[dim]
    parts = [low.graph.slice(x, dim, 0, first)] if first else []
    parts.append(part)
    parts += [low.graph.slice(x, dim, after, n - after)] if after < n else []
    return low.graph.concat(parts, dim)


@rule("select_scatter")
def select_scatter(low: Lowering, x: Node, part: Node, dim: int, index: int) -> Node:
    """x with one coordinate of an axis replaced by `part`."""
    dim = dim % len(x.shape)
    one = low.graph.reshape(part, (*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    return slice_scatter(low, x, one, dim, index % x.shape[dim])


@rule("tril")
def tril(low: Lowering, x: Node, diagonal: int = 0) -> Node:
    """Sets the elements above a diagonal to zero."""
    row, column = _coordinates(low, x)
    return low.select(low.test(Opcode.ILE, low.i(Opcode.ISUB, column, row), diagonal), x, 0, x.dtype)


@rule("triu")
def triu(low: Lowering, x: Node, diagonal: int = 0) -> Node:
    """Sets the elements below a diagonal to zero."""
    row, column = _coordinates(low, x)
    return low.select(low.test(Opcode.ILE, diagonal, low.i(Opcode.ISUB, column, row)), x, 0, x.dtype)


def _coordinates(low: Lowering, x: Node) -> tuple[Node, Node]:
    rank = len(x.shape)
    return low.graph.iota(x.shape, rank - 2), low.graph.iota(x.shape, rank - 1)


# --- constants ---------------------------------------------------------------------------------------------


@rule("full", "full_like", "new_full")
def full(low: Lowering, *args: Any, **_kwargs: Any) -> Node:
    """Creates a tensor with one value everywhere."""
    value = args[-1]
    return low.graph.expand(low.cast(value, low.dtype), low.shape)


@rule("fill.Scalar", "fill.Tensor")
def fill(low: Lowering, _x: Node, value: Any) -> Node:
    """Fills a tensor with one value."""
    return low.graph.expand(low.cast(value, low.dtype), low.shape)


@rule("scalar_tensor")
def scalar_tensor(low: Lowering, value: float, **_kwargs: Any) -> Node:
    """Creates a tensor of rank 0 from a number."""
    return low.graph.number(value, low.dtype)


def _filled(value: int) -> Any:
    def lower(low: Lowering, *_args: Any, **_kwargs: Any) -> Node:
        return low.graph.number(value, low.dtype, low.shape)

    return lower


for _name in (
    "zeros", "zeros_like", "new_zeros", "empty.memory_format", "empty_like", "new_empty", "empty_strided",
    "new_empty_strided", "empty_permuted", "_new_zeros_with_same_feature_meta",
):  # fmt: skip
    # What torch leaves undefined is zero: a Program defines every bit.
    rule(_name)(_filled(0))
for _name in ("ones", "ones_like", "new_ones"):
    rule(_name)(_filled(1))


@rule("arange", "arange.start", "arange.start_step")
def arange(low: Lowering, *args: Any, **_kwargs: Any) -> Node:
    """Creates the numbers start, start + step, ..."""
    start, step = (0 if len(args) == 1 else args[0]), (args[2] if len(args) == 3 else 1)
    if low.dtype == F32 and (start != int(start) or step != int(step)):
        counted = low.cast(low.graph.iota(low.shape, 0), F32)
        return low.f(Opcode.FADD, float(start), low.f(Opcode.FMUL, counted, float(step)))
    return low.cast(low.graph.iota(low.shape, 0, int(start), int(step)), low.dtype)


@rule("linspace")
def linspace(low: Lowering, start: float, end: float, steps: int, **_kwargs: Any) -> Node:
    """Creates `steps` equally spaced numbers from start to end, each rounded once."""
    return low.graph.const(F32, low.shape, np.linspace(start, end, steps).astype("<f4").tobytes())


@rule("logspace")
def logspace(low: Lowering, start: float, end: float, steps: int, base: float = 10.0, **_kwargs: Any) -> Node:
    """Creates `steps` powers of the base with equally spaced exponents from start to end, each rounded once."""
    return low.graph.const(F32, low.shape, (base ** np.linspace(start, end, steps)).astype("<f4").tobytes())


@rule("eye", "eye.m")
def eye(low: Lowering, *_args: Any, **_kwargs: Any) -> Node:
    """Creates a matrix with ones on the diagonal."""
    return low.cast(low.test(Opcode.IEQ, low.graph.iota(low.shape, 0), low.graph.iota(low.shape, 1)), low.dtype)


# --- diagonals ---------------------------------------------------------------------------------------------


def _diagonal_of(low: Lowering, shape: Sequence[int], offset: int, a: int, b: int) -> tuple[list[int], int, int, int]:
    """Returns (axes with the two last, first flat position, length, stride) of a diagonal of two axes."""
    a, b = a % len(shape), b % len(shape)
    rows, columns = shape[a], shape[b]
    first = offset if offset >= 0 else -offset * columns
    length = min(rows + min(offset, 0), columns - max(offset, 0))
    return [*(i for i in range(len(shape)) if i not in (a, b)), a, b], first, length, columns + 1


@rule("diagonal", "diagonal_copy")
def diagonal(low: Lowering, x: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """Extracts the diagonal of axes dim1 and dim2, which becomes the last axis."""
    order, first, length, distance = _diagonal_of(low, x.shape, offset, dim1, dim2)
    last = low.graph.permute(x, order)
    outer = last.shape[:-2]
    flat = low.graph.reshape(last, (*outer, last.shape[-2] * last.shape[-1]))
    return low.graph.slice(flat, len(outer), first, length, distance)


@rule("diagonal_backward")
def diagonal_backward(low: Lowering, grad: Node, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Node:
    """Puts the gradient on the diagonal of a matrix of zeros."""
    order, first, _, distance = _diagonal_of(low, sizes, offset, dim1, dim2)
    rows, columns = (sizes[i] for i in order[-2:])
    axis = len(grad.shape) - 1
    spaced = dilated(low, grad, axis, distance)
    flat = padded(low, spaced, axis, first, rows * columns - first - spaced.shape[axis])
    last = low.graph.reshape(flat, [sizes[i] for i in order])
    return low.graph.permute(last, [order.index(i) for i in range(len(order))])


@rule("diagonal_scatter")
def diagonal_scatter(low: Lowering, x: Node, part: Node, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Node:
    """x with a diagonal replaced by `part`."""
    if part.elements == 0:
        return x
    placed, own = (
        diagonal_backward(low, y, x.shape, offset, dim1, dim2) for y in (part, low.graph.number(1, I32, part.shape))
    )
    return low.select(own, placed, x, low.dtype)


# --- sources -----------------------------------------------------------------------------------------------


def _draw(low: Lowering, first: int, rows: int, length: int) -> Node:
    return low.graph.draw(first, rows, length)


def _random_words(low: Lowering, count: int, stream: int) -> Node:
    return low.graph.random(count, stream)


def _context(low: Lowering, word: int) -> Node:
    return low.graph.context(word)


RULES.update({"lockstep.draw": _draw, "lockstep.random_words": _random_words, "lockstep.context": _context})
