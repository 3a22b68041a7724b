"""Convolution and pooling over three axes or uneven windows, as torch formulas.

An op has eight axes and a window needs two per spatial axis, so depth is split off first and images remain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError

Three = int | Sequence[int]


def _three(value: Any, default: Any = None) -> tuple[int, int, int]:
    if value is None or (not isinstance(value, int) and len(value) == 0):
        value = default
    if isinstance(value, int):
        return (value, value, value)
    return tuple(value) * (3 // len(value))


# --- convolution -------------------------------------------------------------------------------------------


def _frames(x: Tensor, size: int, step: int, dilation: int) -> Tensor:
    """Extracts the slices along depth that each output reads: [N, C, D, H, W] -> [N, C, P, H, W, K]."""
    return x.unfold(2, dilation * (size - 1) + 1, step)[..., ::dilation]


def conv3d(
    input: Tensor,  # noqa: A002  (torch's names)
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Three = 1,
    padding: Any = 0,
    dilation: Three = 1,
    groups: int = 1,
) -> Tensor:
    """3-D convolution: a 2-D convolution whose channels include the slices of a window along depth."""
    if input.dim() == 4:
        return conv3d(input.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
    steps, apart = _three(stride), _three(dilation)
    out, channels, *sizes = weight.shape
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(apart, sizes, strict=True)]
        input = F.pad(input, [w for span in reversed(spans) for w in (span // 2, span - span // 2)])  # noqa: A001
    pads = (0, 0, 0) if isinstance(padding, str) else _three(padding)
    if pads[0]:
        input = F.pad(input, (0, 0, 0, 0, pads[0], pads[0]))  # noqa: A001
    read = _frames(input, sizes[0], steps[0], apart[0])
    n, c, depth, h, w, k = read.shape
    images = read.permute(0, 2, 1, 5, 3, 4).reshape(n * depth, c * k, h, w)
    kernel = weight.reshape(out, channels * k, *sizes[1:])
    y = F.conv2d(images, kernel, bias, steps[1:], pads[1:], apart[1:], groups)
    return y.view(n, depth, *y.shape[1:]).transpose(1, 2)


def conv_transpose3d(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Three = 1,
    padding: Three = 0,
    output_padding: Three = 0,
    groups: int = 1,
    dilation: Three = 1,
) -> Tensor:
    """Transposed 3-D convolution: each slice gives the slices of a window, which are summed."""
    if input.dim() == 4:
        args = (stride, padding, output_padding, groups, dilation)
        return conv_transpose3d(input.unsqueeze(0), weight, bias, *args).squeeze(0)
    steps, pads, more, apart = map(_three, (stride, padding, output_padding, dilation))
    n, c, depth, h, w = input.shape
    _, out, k, *sizes = weight.shape
    images = input.transpose(1, 2).reshape(n * depth, c, h, w)
    kernel = weight.reshape(c, out * k, *sizes)
    y = F.conv_transpose2d(images, kernel, None, steps[1:], pads[1:], more[1:], groups, apart[1:])
    y = y.view(n, depth, groups * out, k, *y.shape[2:])
    extent = (depth - 1) * steps[0] - 2 * pads[0] + apart[0] * (k - 1) + more[0] + 1
    # `fold` adds the windows along depth as columns.
    columns = y.permute(0, 2, 4, 5, 3, 1)
    flat = columns.reshape(-1, k, depth)
    flat = F.fold(flat, (extent, 1), (k, 1), (apart[0], 1), (pads[0], 0), (steps[0], 1))
    y = flat.view(*columns.shape[:4], extent).permute(0, 1, 4, 2, 3)
    return y if bias is None else y + bias.view(-1, 1, 1, 1)


# --- pooling -----------------------------------------------------------------------------------------------


def _outputs(n: int, size: int, step: int, pad: int, dilation: int, ceil: bool) -> int:
    """Counts the windows by torch's rule: no window starts in the padding after the input."""
    span = n + 2 * pad - dilation * (size - 1) - 1
    count = (span + (step - 1 if ceil else 0)) // step + 1
    return count - 1 if ceil and (count - 1) * step >= n + pad else count


def max_pool3d(
    input: Tensor,  # noqa: A002
    kernel_size: Three,
    stride: Any = None,
    padding: Three = 0,
    dilation: Three = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Maximum of each window: over height and width of every slice, then along depth."""
    sizes, pads, apart = _three(kernel_size), _three(padding), _three(dilation)
    steps = _three(stride, sizes)
    *outer, depth, height, width = input.shape
    x = input.reshape(-1, depth, height, width)
    y, at = F.max_pool2d(x, sizes[1:], steps[1:], pads[1:], apart[1:], ceil_mode, return_indices=True)
    count = _outputs(depth, sizes[0], steps[0], pads[0], apart[0], ceil_mode)
    reach = (count - 1) * steps[0] + apart[0] * (sizes[0] - 1) + 1
    y = F.pad(y, (0, 0, 0, 0, pads[0], reach - pads[0] - depth), value=-math.inf)
    y = y.unfold(1, apart[0] * (sizes[0] - 1) + 1, steps[0])[..., :: apart[0]]
    best, tap = y.max(-1)
    best = best.view(*outer, *best.shape[1:])
    if not return_indices:
        return best
    slices = torch.arange(count).view(-1, 1, 1) * steps[0] - pads[0] + tap * apart[0]
    indices = at.gather(1, slices) + slices * (height * width)
    return best, indices.view(best.shape)


def avg_pool3d(
    input: Tensor,  # noqa: A002
    kernel_size: Three,
    stride: Any = None,
    padding: Three = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window: sums over images, then along depth, divided by each window's number of elements."""
    sizes, pads = _three(kernel_size), _three(padding)
    steps = _three(stride, sizes)
    *outer, depth, height, width = input.shape
    x = input.reshape(-1, depth, height, width)
    y = F.avg_pool2d(x, sizes[1:], steps[1:], pads[1:], ceil_mode, divisor_override=1)
    count = _outputs(depth, sizes[0], steps[0], pads[0], 1, ceil_mode)
    y = F.pad(y, (0, 0, 0, 0, pads[0], (count - 1) * steps[0] + sizes[0] - pads[0] - depth))
    y = y.unfold(1, sizes[0], steps[0]).sum(-1)
    if divisor_override is None:
        parts = zip((depth, height, width), y.shape[1:], sizes, steps, pads, strict=True)
        sides = [_counted(*part, padded=count_include_pad) for part in parts]
        whole = [1 / (a * b * c) for a in sides[0] for b in sides[1] for c in sides[2]]
        same = all(v == whole[0] for v in whole)
        y = y * (whole[0] if same else torch.tensor(whole).view(y.shape[1:]))
    else:
        y = y / divisor_override
    return y.view(*outer, *y.shape[1:])


def _counted(n: int, count: int, size: int, step: int, pad: int, *, padded: bool) -> list[int]:
    """Counts the elements of each window along one axis, with or without its padding."""
    found = []
    for i in range(count):
        first = i * step - pad
        last = min(first + size, n + pad)
        found.append(last - first if padded else min(last, n) - max(first, 0))
    return found


def _parts(n: int, count: int) -> list[tuple[int, int]]:
    """Returns (first, end) of the windows that cover an axis evenly."""
    return [(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]


def _sizes(size: Any, extents: Sequence[int]) -> list[int]:
    given = [size] * len(extents) if isinstance(size, int) or size is None else list(size) * (len(extents) // len(size))
    return [n if s is None else s for s, n in zip(given, extents, strict=True)]


def adaptive_avg_pool3d(input: Tensor, output_size: Any) -> Tensor:  # noqa: A002
    """Means of windows that cover the input evenly, one axis after another."""
    counts = _sizes(output_size, input.shape[-3:])
    if counts == [1, 1, 1]:
        return input.mean((-1, -2, -3), keepdim=True)
    *outer, depth, height, width = input.shape
    x = F.adaptive_avg_pool2d(input.reshape(-1, depth, height, width), (counts[1], counts[2]))
    shares = torch.zeros(counts[0], depth).tolist()
    for row, (first, end) in zip(shares, _parts(depth, counts[0]), strict=True):
        row[first:end] = [1 / (end - first)] * (end - first)
    y = torch.tensor(shares) @ x.reshape(x.shape[0], depth, -1)
    return y.view(*outer, *counts)


def _adaptive_max_pool(x: Tensor, size: Any, rank: int, return_indices: bool) -> Any:
    """Maximum of windows that cover the input evenly.

    The last axis comes first, so that among equals the first wins.
    """
    counts = _sizes(size, x.shape[-rank:])
    extents = x.shape[-rank:]
    at = torch.arange(math.prod(extents)).view(extents).expand(x.shape)
    for axis in range(-1, -rank - 1, -1):
        parts = _parts(x.shape[axis], counts[axis])
        longest = max(end - first for first, end in parts)
        # A shorter window is padded with copies of its last element, which is never the first among equals.
        taken = torch.tensor([min(first + j, end - 1) for first, end in parts for j in range(longest)])
        shape = (counts[axis], longest)
        best = x.index_select(axis, taken).unflatten(axis, shape).max(axis)
        if return_indices:
            spread = at.index_select(axis, taken).unflatten(axis, shape)
            at = spread.gather(axis, best.indices.unsqueeze(axis)).squeeze(axis)
        x = best.values
    return (x, at) if return_indices else x


def _adaptive_max(rank: int, *, always: bool = False) -> Callable[..., Any]:
    """Returns `adaptive_max_pool` of a rank; `always` returns indices too, as one of torch's two functions does."""

    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:  # noqa: A002
        return _adaptive_max_pool(input, output_size, rank, return_indices or always)

    return pool


def _max_unpool(rank: int) -> Callable[..., Any]:
    def unpool(
        input: Tensor,  # noqa: A002
        indices: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> Tensor:
        def each(value: Any) -> list[int]:
            return [value] * rank if isinstance(value, int) else list(value)

        sizes, pads = each(kernel_size), each(padding)
        steps = sizes if stride is None else each(stride)
        extents = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(input.shape[-rank:], steps, pads, sizes, strict=True)]
        if output_size is not None:
            extents = list(output_size)[-rank:]
        outer = input.shape[:-rank]
        flat = torch.zeros(*outer, math.prod(extents))
        return flat.scatter(-1, indices.flatten(-rank), input.flatten(-rank)).view(*outer, *extents)

    return unpool


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:  # noqa: A002
    """x / (k + alpha mean of squares over neighbouring channels) ** beta (Krizhevsky 2012, section 3.3)."""
    squares = input.square().movedim(1, -1)
    means = F.pad(squares, (size // 2, (size - 1) // 2)).unfold(-1, size, 1).mean(-1).movedim(-1, 1)
    return input / (means * alpha + k).pow(beta)


def lp_pool3d(
    input: Tensor,  # noqa: A002
    norm_type: float,
    kernel_size: Three,
    stride: Any = None,
    ceil_mode: bool = False,
) -> Tensor:
    """p-norm of each window, as in torch: a negative sum gives minus the root of its magnitude."""
    means = avg_pool3d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (means.sign() * F.relu(means.abs())).mul(math.prod(_three(kernel_size))).pow(1 / norm_type)


def interpolate(
    input: Tensor,  # noqa: A002
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """`F.interpolate`; the mode `area` for volumes takes means of windows that cover the input evenly."""
    if mode != "area" or input.dim() != 5:
        return F.interpolate(input, size, scale_factor, mode, *args, **kwargs)
    if size is None:
        scales = _three(scale_factor) if isinstance(scale_factor, int) else scale_factor
        scales = [scales] * 3 if isinstance(scales, float) else scales
        size = [math.floor(n * s) for n, s in zip(input.shape[2:], scales, strict=True)]
    return adaptive_avg_pool3d(input, size)


def _fractional(*_args: Any, **_kwargs: Any) -> Any:
    raise LoweringError("fractional pooling, whose windows torch draws", hint="use max_pool or adaptive_max_pool")


FORMULAS: dict[Any, Callable[..., Any]] = {
    F.conv3d: conv3d,
    F.conv_transpose3d: conv_transpose3d,
    **dict.fromkeys((F.max_pool3d, torch.max_pool3d), max_pool3d),
    F.max_pool3d_with_indices: lambda *args, **kwargs: max_pool3d(*args, **{**kwargs, "return_indices": True}),
    F.avg_pool3d: avg_pool3d,
    F.adaptive_avg_pool3d: adaptive_avg_pool3d,
    F.interpolate: interpolate,
    F.local_response_norm: local_response_norm,
    F.lp_pool3d: lp_pool3d,
    **{getattr(F, f"adaptive_max_pool{n}d"): _adaptive_max(n) for n in (1, 2, 3)},
    torch.adaptive_max_pool1d: _adaptive_max(1, always=True),
    **{getattr(F, f"adaptive_max_pool{n}d_with_indices"): _adaptive_max(n, always=True) for n in (1, 2, 3)},
    **{getattr(F, f"max_unpool{n}d"): _max_unpool(n) for n in (1, 2, 3)},
    **{getattr(F, f"fractional_max_pool{n}d{s}"): _fractional for n in (2, 3) for s in ("", "_with_indices")},
}
