"""Rules for convolution and pooling as folds over overlapping windows (Dumoulin and Visin 2016, chapters 2 to 4).

Shapes: N images, C channels in, O channels out, g groups, P output and S input extents, K kernel extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, inf, prod

import numpy as np

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import LoweringError
from lockstep.protocol.programs.program import Fold
from lockstep.tracing.graph import F32, I32, Node
from lockstep.tracing.lowering import Lowering, Unlowered, rule
from lockstep.tracing.reductions import integer_dot, total
from lockstep.tracing.shapes import dilated, padded

MAX_SPATIAL = 2
"""Most spatial axes: an op has eight axes, and a window needs two per spatial axis."""


@dataclass(frozen=True)
class Window:
    """The windows of a kernel along one axis: tap j of output i reads input i x step + j x dilation - pad."""

    size: int
    step: int = 1
    pad: int = 0
    dilation: int = 1

    @property
    def reach(self) -> int:
        """The distance from the first tap to the last."""
        return self.dilation * (self.size - 1) + 1

    @property
    def tiles(self) -> bool:
        """True if the windows tile the input: adjacent, starting at 0."""
        return self.size == self.step and not self.pad and self.dilation == 1


def windows_of(
    sizes: Sequence[int], steps: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> list[Window]:
    rank = len(sizes)
    if rank > MAX_SPATIAL:
        raise LoweringError(
            f"windows along {rank} axes are not supported", hint="an op has eight axes: windows along one or two fit"
        )
    columns = [list(c) * rank if len(c) == 1 else list(c) for c in (sizes, steps or sizes, pads, dilations)]
    return [Window(*column) for column in zip(*columns, strict=True)]


def unfolded(low: Lowering, x: Node, windows: Sequence[Window], counts: Sequence[int], fill: float = 0) -> Node:
    """Extracts windows [A, B, S...] -> [A, B, P, K, P, K...]: the input that each tap of each output reads, `fill`
    outside of x.
    """
    # Padding comes first: it copies anyway, and the windows are then views.
    axes = list(enumerate(zip(windows, counts, strict=True), 2))[::-1]
    for axis, (w, count) in axes:
        x = padded(low, x, axis, w.pad, (count - 1) * w.step + w.reach - w.pad - x.shape[axis], fill)
    for axis, (w, count) in axes:
        x = low.graph.window(x, axis, count, w.step, w.size, w.dilation)
    return x


def spread(low: Lowering, y: Node, windows: Sequence[Window], extents: Sequence[int], fill: float = 0) -> Node:
    """Inverts window reads [A, B, P...] -> [A, B, S, K, S, K...]: at (s, j) the output whose tap K - 1 - j reads s,
    else `fill`.
    """
    axes = list(enumerate(zip(windows, extents, strict=True), 2))[::-1]
    for axis, (w, extent) in axes:
        y = dilated(low, y, axis, w.step, fill)
        before = w.reach - 1 - w.pad
        y = padded(low, y, axis, before, extent + w.reach - 1 - before - y.shape[axis], fill)
    for axis, (w, extent) in axes:
        y = low.graph.window(y, axis, extent, 1, w.size, w.dilation)
    return y


# --- convolution -------------------------------------------------------------------------------------------


def _taps_last(low: Lowering, x: Node, groups: int, rank: int) -> Node:
    """Moves taps last, by group: [N, C, P, K, P, K] -> [N, g, 1, P, P, C/g, K, K]."""
    n, channels, *rest = x.shape
    split = low.graph.reshape(x, (n, groups, 1, channels // groups, *rest))
    outputs, taps = range(4, 4 + 2 * rank, 2), range(5, 5 + 2 * rank, 2)
    return low.graph.permute(split, [0, 1, 2, *outputs, 3, *taps])


def dot(low: Lowering, a: Node, b: Node, terms: int) -> Node:
    """Sums a b over the last `terms` axes, the others broadcast, in the arithmetic that the job's policy selects."""
    if limbs := low.products.limbs(low.graph.origin, a, b):
        rows_a, rows_b = (low.graph.reshape(x, (*x.shape[:-terms], prod(x.shape[-terms:]))) for x in (a, b))
        made = integer_dot(low, rows_a, rows_b, limbs)
    else:
        shape = tuple(map(max, a.shape, b.shape))
        axes = range(len(shape) - terms, len(shape))
        made = low.graph.fold(Fold.DOT, axes, low.graph.expand(a, shape), low.graph.expand(b, shape))
    low.products.made(made, a, b)
    return made


def correlate(low: Lowering, x: Node, weight: Node, windows: Sequence[Window], groups: int) -> Node:
    """Cross-correlation of x [N, C, S...] with weight [O, C/g, K...] -> [N, O, P...]."""
    rank, out = len(windows), weight.shape[0]
    counts = [
        (n + 2 * w.pad - w.reach) // w.step + 1 for n, w in zip(x.shape[2:], windows, strict=True)
    ]  # fmt: skip
    read = _taps_last(low, unfolded(low, x, windows, counts), groups, rank)
    kernel = low.graph.reshape(weight, (1, groups, out // groups, *(1,) * rank, *weight.shape[1:]))
    return low.graph.reshape(dot(low, read, kernel, 1 + rank), (x.shape[0], out, *counts))


def correlate_to_input(
    low: Lowering, grad: Node, weight: Node, windows: Sequence[Window], groups: int, extents: Sequence[int]
) -> Node:
    """Gradient of x: grad [N, O, P...], weight [O, C/g, K...] -> [N, C, S...]."""
    rank, out = len(windows), weight.shape[0]
    kernel = low.graph.reshape(weight, (groups, out // groups, *weight.shape[1:]))
    kernel = low.graph.permute(kernel, [0, 2, 1, *range(3, 3 + rank)])
    shape = (grad.shape[0], groups * weight.shape[1], *extents)
    if all(w.tiles for w in windows):
        return _tiled_to_input(low, grad, kernel, shape)
    if any(w.step > 1 for w in windows):
        return _stepped_to_input(low, grad, kernel, windows, shape)
    read = _taps_last(low, spread(low, grad, windows, extents), groups, rank)
    kernel = low.graph.flip(kernel, range(3, 3 + rank))
    kernel = low.graph.reshape(kernel, (1, *kernel.shape[:2], *(1,) * rank, *kernel.shape[2:]))
    return low.graph.reshape(dot(low, read, kernel, 1 + rank), shape)


def _tiled_to_input(low: Lowering, grad: Node, kernel: Node, shape: tuple[int, ...]) -> Node:
    """Gradient of x for adjacent windows, where one tap reads each input; kernel [g, C/g, O/g, K...]."""
    groups, channels, out, *taps = kernel.shape
    n, _, *counts = grad.shape
    rank = len(taps)
    pairs = [e for i in range(rank) for e in (4 + 2 * i, 5 + 2 * i)]
    ones = [e for count in counts for e in (count, 1)]
    left = low.graph.permute(
        low.graph.reshape(grad, (n, groups, 1, out, *ones)), [0, 1, 2, *pairs, 3]
    )  # fmt: skip
    ones = [e for tap in taps for e in (1, tap)]
    right = low.graph.permute(kernel, [0, 1, *range(3, 3 + rank), 2])
    right = low.graph.reshape(right, (1, groups, channels, *ones, out))
    covered = [c * k for c, k in zip(counts, taps, strict=True)]
    result = low.graph.reshape(dot(low, left, right, 1), (n, groups * channels, *covered))
    for i, extent in enumerate(shape[2:]):
        result = padded(low, result, 2 + i, 0, extent - covered[i])
    return result


@dataclass(frozen=True)
class Remainder:
    """The taps that read the inputs step x q + r for one remainder r.

    Tap number t < taps of these is tap first + t x apart of the kernel; through it, output q + last - t x back reads
    input number q.
    """

    first: int
    taps: int
    apart: int
    last: int
    back: int


def phases_of(window: Window) -> list[Remainder]:
    """Returns the phases of the remainders 0 .. step - 1; `taps` is 0 for inputs that no tap reads."""
    common = gcd(window.step, window.dilation)
    found = []
    for remainder in range(window.step):
        reading = [j for j in range(window.size) if (remainder + window.pad - j * window.dilation) % window.step == 0]
        first = reading[0] if reading else 0
        last = (remainder + window.pad - first * window.dilation) // window.step
        found.append(Remainder(first, len(reading), window.step // common, last, window.dilation // common))
    return found


def _stepped_to_input(
    low: Lowering, grad: Node, kernel: Node, windows: Sequence[Window], shape: tuple[int, ...]
) -> Node:
    """Gradient of x for steps above 1: one product per remainder, whose inputs are read by the same taps, without
    inserted zeros.

    kernel [g, C/g, O/g, K...]
    """
    rank, (groups, channels) = len(windows), kernel.shape[:2]
    counts = [-(-extent // w.step) for extent, w in zip(shape[2:], windows, strict=True)]
    parts = []
    for phases in product(*map(phases_of, windows)):
        if not all(phase.taps for phase in phases):
            parts.append(low.graph.number(0, F32, (*shape[:2], *counts)))
            continue
        own, read = kernel, grad
        for axis, (phase, count) in enumerate(zip(phases, counts, strict=True)):
            own = low.graph.slice(own, 3 + axis, phase.first, phase.taps, phase.apart)
            before = phase.back * (phase.taps - 1) - phase.last
            read = padded(low, read, 2 + axis, before, count + phase.last - read.shape[2 + axis])
        for axis, (phase, count) in reversed(list(enumerate(zip(phases, counts, strict=True)))):
            read = low.graph.window(read, 2 + axis, count, 1, phase.taps, phase.back)
        read = _taps_last(low, read, groups, rank)
        own = low.graph.flip(own, range(3, 3 + rank))
        own = low.graph.reshape(own, (1, groups, channels, *(1,) * rank, *own.shape[2:]))
        parts.append(low.graph.reshape(dot(low, read, own, 1 + rank), (*shape[:2], *counts)))
    for axis, (window, count) in reversed(list(enumerate(zip(windows, counts, strict=True), 2))):
        joined = []
        for at in range(0, len(parts), window.step):
            ones = [
                low.graph.reshape(p, (*p.shape[: axis + 1], 1, *p.shape[axis + 1 :]))
                for p in parts[at : at + window.step]
            ]
            whole = low.graph.concat(ones, axis + 1)
            whole = low.graph.reshape(whole, (*whole.shape[:axis], count * window.step, *whole.shape[axis + 2 :]))
            joined.append(low.graph.slice(whole, axis, 0, shape[axis]))
        parts = joined
    return parts[0]


def correlate_to_weight(low: Lowering, grad: Node, x: Node, windows: Sequence[Window], groups: int) -> Node:
    """Gradient of the weight: grad [N, O, P...], x [N, C, S...] -> [O, C/g, K...]."""
    rank, (n, out, *counts) = len(windows), grad.shape
    channels = x.shape[1] // groups
    left = low.graph.reshape(grad, (n, groups, out // groups, 1, *(1,) * rank, *counts))
    left = low.graph.permute(left, [1, 2, 3, *range(4, 4 + rank), 0, *range(4 + rank, 4 + 2 * rank)])
    read = unfolded(low, x, windows, counts)
    right = low.graph.reshape(read, (n, groups, 1, channels, *read.shape[2:]))
    outputs, taps = range(4, 4 + 2 * rank, 2), range(5, 5 + 2 * rank, 2)
    right = low.graph.permute(right, [1, 2, 3, *taps, 0, *outputs])
    return low.graph.reshape(dot(low, left, right, 1 + rank), (out, channels, *[w.size for w in windows]))


@rule("convolution")
def convolution(
    low: Lowering,
    x: Node,
    weight: Node,
    bias: Node | None,
    steps: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    _output_pads: Sequence[int],
    groups: int,
) -> Node:
    """Cross-correlation with the weight, plus bias; or its transpose (`transposed`)."""
    windows = windows_of(weight.shape[2:], steps, pads, dilations)
    if transposed:
        y = correlate_to_input(low, x, weight, windows, groups, low.shape[2:])
    else:
        y = correlate(low, x, weight, windows, groups)
    if bias is None:
        return y
    return low.f(Opcode.FADD, y, low.graph.reshape(bias, (*bias.shape, *(1,) * len(windows))))


@rule("convolution_backward")
def convolution_backward(
    low: Lowering,
    grad: Node,
    x: Node,
    weight: Node,
    _bias: Sequence[int] | None,
    steps: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    transposed: bool,
    _output_pads: Sequence[int],
    groups: int,
    wanted: Sequence[bool],
) -> list[Node | Unlowered]:
    """Returns the gradients of x, weight and bias."""
    windows = windows_of(weight.shape[2:], steps, pads, dilations)
    unasked = Unlowered("a gradient that was not asked for")
    gradients: list[Node | Unlowered] = [unasked, unasked, unasked]
    if wanted[0]:
        if transposed:
            gradients[0] = correlate(low, grad, weight, windows, groups)
        else:
            gradients[0] = correlate_to_input(low, grad, weight, windows, groups, x.shape[2:])
    if wanted[1]:
        outer, inner = (x, grad) if transposed else (grad, x)
        gradients[1] = correlate_to_weight(low, outer, inner, windows, groups)
    if wanted[2]:
        axes = (0, *range(2, len(grad.shape)))
        gradients[2] = low.graph.reshape(total(low, grad, axes), (grad.shape[1],))
    return gradients


# --- pooling -----------------------------------------------------------------------------------------------


def _images(low: Lowering, x: Node) -> Node:
    """Adds the batch axis if it is missing: [C, S, S] or [N, C, S, S] -> [N, C, S, S]."""
    return low.graph.reshape(x, (1,) * (4 - len(x.shape)) + x.shape)


def _each(low: Lowering, x: Node, windows: Sequence[Window], counts: Sequence[int], fill: float) -> list[Node]:
    """Returns the inputs of each tap, in row-major order of the taps: each [N, C, P...]."""
    read = unfolded(low, x, windows, counts, fill)
    taps = []
    for at in product(*(range(w.size) for w in windows)):
        part = read
        for i, j in enumerate(at):
            part = low.graph.slice(part, 3 + 2 * i, j, 1)
        taps.append(low.graph.reshape(part, (*x.shape[:2], *counts)))
    return taps


def _positions(low: Lowering, rows: int, columns: int) -> Node:
    """Returns i32 [1, 1, rows, columns]: the row-major position of each pixel."""
    return low.graph.reshape(low.graph.iota((rows * columns,), 0), (1, 1, rows, columns))


@rule("max_pool2d_with_indices")
def max_pool(
    low: Lowering,
    x: Node,
    sizes: Sequence[int],
    steps: Sequence[int] = (),
    pads: Sequence[int] = (0,),
    dilations: Sequence[int] = (1,),
    _ceil: bool = False,
) -> tuple[Node, Node]:
    """Returns the maximum of each window and the position of the first element that reaches it."""
    windows, counts = windows_of(list(sizes) * (2 // len(sizes)), steps, pads, dilations), low.shape[-2:]
    images = _images(low, x)
    taps = _each(low, images, windows, counts, -inf)
    where = _each(low, _positions(low, *images.shape[2:]), windows, counts, -1)
    best, at = taps[0], where[0]
    for value, position in zip(taps[1:], where[1:], strict=True):
        at = low.select(low.test(Opcode.FLT, best, value), position, at, I32)
        best = low.f(Opcode.FMAX, best, value)
    at = low.graph.expand(at, best.shape)
    return low.graph.reshape(best, low.shape), low.graph.reshape(at, low.shape)


@rule("max_pool2d_with_indices_backward")
def max_pool_backward(
    low: Lowering,
    grad: Node,
    x: Node,
    sizes: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    _ceil: bool,
    indices: Node,
) -> Node:
    """Routes the gradient of each window to the position of its maximum."""
    windows = windows_of(list(sizes) * (2 // len(sizes)), steps, pads, dilations)
    shape, grad, indices = _images(low, x).shape, _images(low, grad), _images(low, indices)
    own = low.graph.reshape(_positions(low, *shape[2:]), (1, 1, shape[2], 1, shape[3], 1))
    chosen = _spread_pool(low, indices, windows, shape[2:], -1)
    terms = low.select(low.test(Opcode.IEQ, chosen, own), _spread_pool(low, grad, windows, shape[2:], 0), 0.0, F32)
    return low.graph.reshape(_gathered(low, terms), x.shape)


def _gathered(low: Lowering, terms: Node) -> Node:
    """Sums over the windows that read an input: [A, B, S, K, S, K] -> [A, B, S, 1, S, 1]."""
    return total(low, terms, [axis for axis in (3, 5) if terms.shape[axis] > 1])


def _spread_pool(
    low: Lowering, y: Node, windows: Sequence[Window], extents: Sequence[int], fill: float
) -> Node:  # fmt: skip
    """As `spread`, but adjacent windows give every input its single reader: [.., S, 1, S, 1]."""
    if not all(w.tiles for w in windows):
        return spread(low, y, windows, extents, fill)
    (a, b), (h, w) = y.shape[:2], y.shape[2:]
    paired = (a, b, h, windows[0].size, w, windows[1].size)
    repeated = low.graph.expand(low.graph.reshape(y, (a, b, h, 1, w, 1)), paired)
    repeated = low.graph.reshape(repeated, (a, b, h * windows[0].size, w * windows[1].size))
    for axis, extent in enumerate(extents, 2):
        repeated = padded(low, repeated, axis, 0, extent - repeated.shape[axis], fill)
    return low.graph.reshape(repeated, (a, b, extents[0], 1, extents[1], 1))


def _weights(
    windows: Sequence[Window], counts: Sequence[int], extents: Sequence[int], inner: bool, divisor: int | None
) -> np.ndarray:
    """Returns f32 [P, P]: the factor for the sum of each window."""
    sides = []
    for w, count, extent in zip(windows, counts, extents, strict=True):
        first = np.arange(count) * w.step - w.pad
        last = np.minimum(first + w.size, extent + w.pad)
        sides.append(np.minimum(last, extent) - np.maximum(first, 0) if inner else last - first)
    areas = np.outer(*sides) if divisor is None else np.full(tuple(counts), divisor)
    return (1 / areas).astype(np.float32)


def _weighted(low: Lowering, y: Node, weights: np.ndarray) -> Node:
    if (weights == weights.flat[0]).all():
        return low.f(Opcode.FMUL, y, float(weights.flat[0]))
    return low.f(Opcode.FMUL, y, low.graph.const(F32, weights.shape, weights.astype("<f4").tobytes()))


def _averaged(
    sizes: Sequence[int], steps: Sequence[int], pads: Sequence[int], counts: Sequence[int], extents: Sequence[int]
) -> list[Window]:
    """Returns the windows of an average.

    A single window on an axis is cropped to the padded input, so that all elements count.
    """
    return [
        replace(w, size=whole, step=whole) if count == 1 and w.size > (whole := n + 2 * w.pad) else w
        for w, count, n in zip(
            windows_of(list(sizes) * (2 // len(sizes)), steps, pads, [1]), counts, extents, strict=True
        )
    ]


@rule("avg_pool2d")
def average_pool(
    low: Lowering,
    x: Node,
    sizes: Sequence[int],
    steps: Sequence[int] = (),
    pads: Sequence[int] = (0,),
    _ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Node:
    """Mean of each window; `count_include_pad` decides whether padding counts."""
    images, counts = _images(low, x), low.shape[-2:]
    windows = _averaged(sizes, steps, pads, counts, images.shape[2:])
    sums = total(low, unfolded(low, images, windows, counts), (3, 5))
    weights = _weights(windows, counts, images.shape[2:], not count_include_pad, divisor)
    return low.graph.reshape(_weighted(low, low.graph.reshape(sums, (*images.shape[:2], *counts)), weights), low.shape)


@rule("avg_pool2d_backward")
def average_pool_backward(
    low: Lowering,
    grad: Node,
    x: Node,
    sizes: Sequence[int],
    steps: Sequence[int],
    pads: Sequence[int],
    _ceil: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Node:
    """Sums the weighted gradients of the windows that read each input."""
    grad, extents = _images(low, grad), x.shape[-2:]
    windows = _averaged(sizes, steps, pads, grad.shape[2:], extents)
    weights = _weights(windows, grad.shape[2:], extents, not count_include_pad, divisor)
    terms = _spread_pool(low, _weighted(low, grad, weights), windows, extents, 0)
    return low.graph.reshape(_gathered(low, terms), x.shape)


def _shares(low: Lowering, outputs: int, inputs: int) -> Node:
    """Returns f32 [P, S]: row i averages the inputs floor(i S / P) .. ceil((i + 1) S / P) - 1."""
    table = np.zeros((outputs, inputs), np.float32)
    for i in range(outputs):
        first, after = i * inputs // outputs, -(-(i + 1) * inputs // outputs)
        table[i, first:after] = 1 / (after - first)
    return low.graph.const(F32, table.shape, table.astype("<f4").tobytes())


def _along(low: Lowering, x: Node, rows: Node, columns: Node) -> Node:
    """rows [P, S] x [N, C, S, S] x columns^T -> [N, C, P, P]."""
    n, c, h, w = x.shape
    (p, _), (q, _) = rows.shape, columns.shape
    wide = dot(low, low.graph.reshape(x, (n, c, h, 1, w)), low.graph.reshape(columns, (1, 1, 1, q, w)), 1)
    turned = low.graph.reshape(low.graph.permute(wide, [0, 1, 3, 2]), (n, c, 1, q, h))
    return dot(low, turned, low.graph.reshape(rows, (1, 1, p, 1, h)), 1)


@rule("_adaptive_avg_pool2d")
def adaptive_average_pool(low: Lowering, x: Node, _size: Sequence[int]) -> Node:
    """Means of windows that cover the input evenly."""
    images, (p, q) = _images(low, x), low.shape[-2:]
    h, w = images.shape[2:]
    return low.graph.reshape(_along(low, images, _shares(low, p, h), _shares(low, q, w)), low.shape)


@rule("_adaptive_avg_pool2d_backward")
def adaptive_average_pool_backward(low: Lowering, grad: Node, x: Node) -> Node:
    """Gradient of `adaptive_average_pool`: each input sums its share of the windows' gradients."""
    grad, (h, w) = _images(low, grad), x.shape[-2:]
    rows, columns = (low.graph.permute(_shares(low, *pq), [1, 0]) for pq in ((grad.shape[2], h), (grad.shape[3], w)))
    return low.graph.reshape(_along(low, grad, rows, columns), x.shape)
