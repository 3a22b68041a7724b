"""Rules for resampling along an axis: rolls, overlapping frames, padding at borders, pixel shuffles, resizing.

Overlapping frames are added tap by tap, in ascending order; beyond `MAX_TAPS` taps they are a one-hot product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, prod
from typing import Any

import numpy as np

from lockstep.numerics.scalar import Opcode
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.reductions import product, total
from lockstep.tracing.shapes import dilated, padded
from lockstep.tracing.windows import Window, dot, unfolded, windows_of

MAX_TAPS = 16


@rule("roll")
def roll(low: Lowering, x: Node, shifts: Sequence[int], dims: Sequence[int] = ()) -> Node:
    """Rotates along axes: elements that leave at one end enter at the other."""
    if not dims:
        flat = low.graph.reshape(x, (x.elements,))
        return low.graph.reshape(_rolled(low, flat, shifts[0], 0), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(low, x, shift, dim % len(x.shape))
    return x


def _rolled(low: Lowering, x: Node, shift: int, dim: int) -> Node:
    n = x.shape[dim]
    start = -shift % n
    if start == 0:
        return x
    return low.graph.concat([low.graph.slice(x, dim, start, n - start), low.graph.slice(x, dim, 0, start)], dim)


# --- overlapping frames ------------------------------------------------------------------------------------


def overlapped(low: Lowering, y: Node, axis: int, extent: int, w: Window) -> Node:
    """Overlap-add [.., P, K, ..] -> [.., S, ..]: element (i, j) is added at i x step + j x dilation - pad, if that is
    inside.
    """
    count, size = y.shape[axis], y.shape[axis + 1]
    rest = (*y.shape[:axis], *y.shape[axis + 2 :])
    if w.tiles:
        flat = low.graph.reshape(y, (*y.shape[:axis], count * size, *y.shape[axis + 2 :]))
        return padded(low, flat, axis, 0, extent - count * size)
    if size > MAX_TAPS:
        return _by_hits(low, y, axis, extent, w)
    result: Node | None = None
    for j in range(size):
        tap = low.graph.reshape(low.graph.slice(y, axis + 1, j, 1), (*rest[:axis], count, *rest[axis:]))
        spaced = dilated(low, tap, axis, w.step)
        before = j * w.dilation - w.pad
        placed = padded(low, spaced, axis, before, extent - before - spaced.shape[axis])
        result = placed if result is None else low.f(Opcode.FADD, result, placed)
    assert result is not None
    return result


def _by_hits(low: Lowering, y: Node, axis: int, extent: int, w: Window) -> Node:
    count, size = y.shape[axis], y.shape[axis + 1]
    places = np.arange(count)[:, None] * w.step + np.arange(size) * w.dilation - w.pad
    at = low.graph.const(I32, (1, count * size), places.astype("<i4").tobytes())
    hit = low.test(Opcode.IEQ, low.graph.iota((extent, count * size), 0), at)
    others = [i for i in range(len(y.shape)) if i not in (axis, axis + 1)]
    columns = low.graph.permute(y, [axis, axis + 1, *others])
    outer = columns.shape[2:]
    sums = product(low, low.cast(hit, F32), low.graph.reshape(columns, (count * size, prod(outer))))
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(outer) + 1)]
    return low.graph.permute(low.graph.reshape(sums, (extent, *outer)), order)


@rule("unfold")
def unfold(low: Lowering, x: Node, dim: int, size: int, step: int) -> Node:
    """Extracts frames of an axis; the coordinates within a frame become a new last axis."""
    if not x.shape:
        return low.graph.reshape(x, low.shape)
    dim %= len(x.shape)
    framed = low.graph.window(x, dim, low.shape[dim], step, size)
    order = [i for i in range(len(framed.shape)) if i != dim + 1]
    return low.graph.permute(framed, [*order, dim + 1])


@rule("unfold_backward")
def unfold_backward(low: Lowering, grad: Node, sizes: Sequence[int], dim: int, size: int, step: int) -> Node:
    """Sums the frames' gradients at each coordinate."""
    if not sizes:
        return low.graph.reshape(grad, ())
    dim %= len(sizes)
    last = len(grad.shape) - 1
    framed = low.graph.permute(grad, [*range(dim + 1), last, *range(dim + 1, last)])
    return overlapped(low, framed, dim, sizes[dim], Window(size, step))


@rule("im2col")
def im2col(
    low: Lowering,
    x: Node,
    sizes: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    steps: Sequence[int],
) -> Node:
    """Extracts sliding windows: [N, C, S, S] -> [N, C K K, P P]."""
    batched = low.graph.reshape(x, (1,) * (4 - len(x.shape)) + x.shape)
    windows = windows_of(sizes, steps, pads, dilations)
    counts = [(n + 2 * w.pad - w.reach) // w.step + 1 for n, w in zip(batched.shape[2:], windows, strict=True)]
    read = low.graph.permute(unfolded(low, batched, windows, counts), [0, 1, 3, 5, 2, 4])
    return low.graph.reshape(read, low.shape)


@rule("col2im")
def col2im(
    low: Lowering,
    x: Node,
    extents: Sequence[int],
    sizes: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    steps: Sequence[int],
) -> Node:
    """Sums sliding windows: [N, C K K, P P] -> [N, C, S, S], the adjoint of `im2col`."""
    windows = windows_of(sizes, steps, pads, dilations)
    counts = [(n + 2 * w.pad - w.reach) // w.step + 1 for n, w in zip(extents, windows, strict=True)]
    n = x.shape[0] if len(x.shape) == 3 else 1
    y = low.graph.reshape(x, (n, x.elements // (n * prod(sizes) * prod(counts)), *sizes, *counts))
    y = low.graph.permute(y, [0, 1, 4, 2, 5, 3])
    for axis in (4, 2):
        y = overlapped(low, y, axis, extents[axis // 2 - 1], windows[axis // 2 - 1])
    return low.graph.reshape(y, low.shape)


# --- borders -----------------------------------------------------------------------------------------------


def _by_axis(widths: Sequence[int], rank: int) -> list[tuple[int, int, int]]:
    """Converts torch's padding widths, which begin with the last axis, to (axis, before, after)."""
    return [(rank - 1 - i // 2, widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]


def _mirrored(low: Lowering, x: Node, axis: int, before: int, after: int) -> Node:
    n = x.shape[axis]
    parts = [x]
    if before:
        parts.insert(0, low.graph.flip(low.graph.slice(x, axis, 1, before), [axis]))
    if after:
        parts.append(low.graph.flip(low.graph.slice(x, axis, n - 1 - after, after), [axis]))
    return low.graph.concat(parts, axis)


@rule("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(low: Lowering, x: Node, widths: Sequence[int]) -> Node:
    """Pads with the elements mirrored at the borders; the border elements are not repeated."""
    for axis, before, after in _by_axis(widths, len(x.shape)):
        x = _mirrored(low, x, axis, before, after)
    return x


def _folded_back(
    low: Lowering, grad: Node, widths: Sequence[int], bent: Callable[[Node, int], Node], reach: int
) -> Node:
    """Returns the gradient of the interior plus the gradients of the borders, `reach` from its ends, as `bent` maps
    them.
    """
    for axis, before, after in reversed(_by_axis(widths, len(grad.shape))):
        n = grad.shape[axis] - before - after
        inner = low.graph.slice(grad, axis, before, n)
        for first, width in ((0, before), (before + n, after)):
            if width:
                part = bent(low.graph.slice(grad, axis, first, width), axis)
                rest = n - reach - part.shape[axis]
                place = reach if first == 0 else rest
                inner = low.f(Opcode.FADD, inner, padded(low, part, axis, place, n - place - part.shape[axis]))
        grad = inner
    return grad


@rule("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def reflection_pad_backward(low: Lowering, grad: Node, _x: Node, widths: Sequence[int]) -> Node:
    """Sums the gradients of each element and of its mirror images."""
    return _folded_back(low, grad, widths, lambda part, axis: low.graph.flip(part, [axis]), 1)


@rule("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(low: Lowering, x: Node, widths: Sequence[int]) -> Node:
    """Pads by repeating the borders."""
    for axis, before, after in _by_axis(widths, len(x.shape)):
        n = x.shape[axis]
        ends = []
        for at, width in ((0, before), (n - 1, after)):
            one = low.graph.slice(x, axis, at, 1)
            shape = (*x.shape[:axis], width, *x.shape[axis + 1 :])
            ends.append([low.graph.expand(one, shape)] if width else [])
        x = low.graph.concat([*ends[0], x, *ends[1]], axis)
    return x


@rule("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(low: Lowering, grad: Node, _x: Node, widths: Sequence[int]) -> Node:
    """Sums the gradients of each element and of its copies."""
    return _folded_back(low, grad, widths, lambda part, axis: total(low, part, [axis]), 0)


# --- shuffled pixels ---------------------------------------------------------------------------------------


@rule("pixel_shuffle")
def pixel_shuffle(low: Lowering, x: Node, factor: int) -> Node:
    """Moves channels to pixels: [.., C r r, H, W] -> [.., C, H r, W r] (Shi 2016, equation 4)."""
    *outer, channels, h, w = x.shape
    k = len(outer)
    split = low.graph.reshape(x, (*outer, channels // factor**2, factor, factor, h, w))
    order = [*range(k), k, k + 3, k + 1, k + 4, k + 2]
    return low.graph.reshape(low.graph.permute(split, order), low.shape)


@rule("pixel_unshuffle")
def pixel_unshuffle(low: Lowering, x: Node, factor: int) -> Node:
    """Moves pixels to channels: [.., C, H r, W r] -> [.., C r r, H, W]."""
    *outer, channels, h, w = x.shape
    k = len(outer)
    split = low.graph.reshape(x, (*outer, channels, h // factor, factor, w // factor, factor))
    order = [*range(k), k, k + 2, k + 4, k + 1, k + 3]
    return low.graph.reshape(low.graph.permute(split, order), low.shape)


@rule("channel_shuffle")
def channel_shuffle(low: Lowering, x: Node, groups: int) -> Node:
    """Interleaves the channels of g groups (Zhang 2018, section 3.1)."""
    n, channels, *rest = x.shape
    split = low.graph.reshape(x, (n, groups, channels // groups, *rest))
    return low.graph.reshape(low.graph.permute(split, [0, 2, 1, *range(3, 3 + len(rest))]), x.shape)


# --- images of another size --------------------------------------------------------------------------------

Shares = Callable[[int, int, bool, float | None], np.ndarray]
"""Maps (outputs P, inputs S, align_corners, scale) to f64 [P, S]: the weight of each input in each output."""


def _sources(outputs: int, inputs: int, corners: bool, scale: float | None) -> np.ndarray:
    """Returns the position of each output among the inputs."""
    if corners:
        return np.arange(outputs) * ((inputs - 1) / (outputs - 1) if outputs > 1 else 0.0)
    return (np.arange(outputs) + 0.5) * (1 / scale if scale else inputs / outputs) - 0.5


def _nearest(outputs: int, inputs: int, _corners: bool, scale: float | None) -> np.ndarray:
    shares = np.zeros((outputs, inputs))
    step = np.float32(1 / scale if scale else inputs / outputs)
    for i in range(outputs):
        shares[i, min(floor(np.float32(i) * step), inputs - 1)] = 1
    return shares


def _linear(outputs: int, inputs: int, corners: bool, scale: float | None) -> np.ndarray:
    shares = np.zeros((outputs, inputs))
    for i, at in enumerate(_sources(outputs, inputs, corners, scale)):
        at = max(at, 0.0)
        first = min(floor(at), inputs - 1)
        part = at - first if first < inputs - 1 else 0.0
        shares[i, first] += 1 - part
        shares[i, min(first + 1, inputs - 1)] += part
    return shares


def _nearest_exact(outputs: int, inputs: int, _corners: bool, scale: float | None) -> np.ndarray:
    shares = np.zeros((outputs, inputs))
    step = np.float32(1 / scale if scale else inputs / outputs)
    for i in range(outputs):
        shares[i, min(floor((np.float32(i) + np.float32(0.5)) * step), inputs - 1)] = 1
    return shares


_CUBIC = -0.75
"""The parameter a of the cubic kernel (Keys 1981, equation 4), as in torch."""


def _cubic(outputs: int, inputs: int, corners: bool, scale: float | None) -> np.ndarray:
    shares = np.zeros((outputs, inputs))
    for i, at in enumerate(_sources(outputs, inputs, corners, scale)):
        first = floor(at)
        for k in range(-1, 3):
            d = abs(at - first - k)
            inner = ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1
            outer = ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC
            shares[i, min(max(first + k, 0), inputs - 1)] += inner if d <= 1 else outer
    return shares


def _triangle(d: float) -> float:
    return max(1 - abs(d), 0.0)


def _keys(d: float) -> float:
    """The cubic kernel with a = -1/2 (Keys 1981, equation 4), which torch uses for antialiasing."""
    a, d = -0.5, abs(d)
    if d < 1:
        return ((a + 2) * d - (a + 3)) * d * d + 1
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a if d < 2 else 0.0


def _filtered(weight: Callable[[float], float], reach: int) -> Shares:
    """Returns a filter as wide as the spacing of the outputs, so that no input is skipped (`antialias=True`)."""

    def shares(outputs: int, inputs: int, corners: bool, scale: float | None) -> np.ndarray:
        found = np.zeros((outputs, inputs))
        step = 1 / scale if scale else inputs / outputs
        if corners:
            step = (inputs - 1) / (outputs - 1) if outputs > 1 else 0.0
        wide = max(step, 1.0)
        for i in range(outputs):
            centre = step * (i + 0.5)
            first, after = (int(centre + side * reach * wide + 0.5) for side in (-1, 1))
            for j in range(max(first, 0), min(after, inputs)):
                found[i, j] = weight((j - centre + 0.5) / wide)
        return found / found.sum(1, keepdims=True)

    return shares


def _table(low: Lowering, shares: np.ndarray) -> Node:
    return low.graph.const(F32, shares.shape, shares.astype("<f4").tobytes())


def _resized(low: Lowering, x: Node, tables: Sequence[np.ndarray]) -> Node:
    """Multiplies x [N, C, S...] by a table [P, S] along each of its last axes."""
    for k, shares in enumerate(tables):
        if shares.shape[0] == shares.shape[1] and (shares == np.eye(len(shares))).all():
            continue
        axis = 2 + k
        rest = [i for i in range(len(x.shape)) if i != axis]
        rows = low.graph.permute(x, [*rest, axis])
        outer = rows.shape[:-1]
        y = dot(low, low.graph.reshape(rows, (*outer, 1, rows.shape[-1])),
                low.graph.reshape(_table(low, shares), (*(1,) * len(outer), *shares.shape)), 1)  # fmt: skip
        order = list(range(len(outer)))
        order.insert(axis, len(outer))
        x = low.graph.permute(y, order)
    return x


def _upsampling(shares: Shares, rank: int, has_corners: bool) -> tuple[Any, Any]:
    def tables(sizes: Sequence[int], extents: Sequence[int], rest: tuple[Any, ...]) -> list[np.ndarray]:
        corners, scales = (rest[0], rest[1:]) if has_corners else (False, rest)
        given = [*scales, *[None] * (rank - len(scales))]
        return [shares(p, s, corners, g) for p, s, g in zip(sizes, extents, given, strict=True)]

    def forward(low: Lowering, x: Node, sizes: Sequence[int], *rest: Any) -> Node:
        return _resized(low, x, tables(sizes, x.shape[2:], rest))

    def backward(low: Lowering, grad: Node, sizes: Sequence[int], extents: Sequence[int], *rest: Any) -> Node:
        return _resized(low, grad, [t.T.copy() for t in tables(sizes, extents[2:], rest)])

    return forward, backward


for _name, _shares, _rank, _has_corners in (
    ("upsample_nearest1d", _nearest, 1, False),
    ("upsample_nearest2d", _nearest, 2, False),
    ("upsample_nearest3d", _nearest, 3, False),
    ("_upsample_nearest_exact1d", _nearest_exact, 1, False),
    ("_upsample_nearest_exact2d", _nearest_exact, 2, False),
    ("_upsample_nearest_exact3d", _nearest_exact, 3, False),
    ("upsample_linear1d", _linear, 1, True),
    ("upsample_bilinear2d", _linear, 2, True),
    ("upsample_trilinear3d", _linear, 3, True),
    ("upsample_bicubic2d", _cubic, 2, True),
    ("_upsample_bilinear2d_aa", _filtered(_triangle, 1), 2, True),
    ("_upsample_bicubic2d_aa", _filtered(_keys, 2), 2, True),
):
    _forward, _backward = _upsampling(_shares, _rank, _has_corners)
    rule(_name)(_forward)
    rule(f"{_name}_backward")(_backward)
