"""Samples images at computed positions, as torch formulas: `grid_sample`, `affine_grid`.

Pixels are rows of a table [positions, channels], as in an embedding, so the gradient is a one-hot product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError

_CUBIC = -0.75
"""The parameter a of the cubic kernel (Keys 1981, equation 4), as in torch."""


def grid_sample(
    input: Tensor,  # noqa: A002  (torch's names)
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """Samples [N, C, S...] at grid [N, P..., rank], positions from -1 to 1 (Jaderberg 2015, section 3.3) -> [N, C,
    P...].
    """
    rank, corners = input.dim() - 2, bool(align_corners)
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and rank != 2) or rank not in (2, 3):
        raise LoweringError(f"grid_sample by {mode} along {rank} axes", hint="use bilinear or nearest")
    if padding_mode not in ("zeros", "border", "reflection"):
        raise LoweringError(f"grid_sample with the padding {padding_mode!r}", hint="zeros, border or reflection")
    extents, outputs = input.shape[2:], grid.shape[1:-1]
    # The grid lists coordinates from the last axis to the first.
    places = [_unscaled(grid[..., rank - 1 - k].reshape(grid.shape[0], -1), n, corners) for k, n in enumerate(extents)]
    read = _Reader(input)
    if mode == "bicubic":
        result = _cubic(read, places, extents, padding_mode, corners)
    else:
        places = [_padded(x, n, padding_mode, corners) for x, n in zip(places, extents, strict=True)]
        if mode == "nearest":
            result = read.at([x.detach().round() for x in places])
        else:
            first = [x.detach().floor() for x in places]
            parts = [x - low for x, low in zip(places, first, strict=True)]
            terms = []
            for side in itertools.product((0, 1), repeat=rank):
                weight: Any = 1
                for part, up in zip(parts, side, strict=True):
                    weight = weight * (part if up else 1 - part)
                found = read.at([low + up for low, up in zip(first, side, strict=True)])
                terms.append(found * weight.unsqueeze(-1))
            result = sum(terms[1:], terms[0])
    return result.movedim(-1, 1).reshape(*input.shape[:2], *outputs)


class _Reader:
    """Reads rows [N, P, C] of images [N, C, S...]; zeros outside of them."""

    def __init__(self, images: Tensor) -> None:
        self.rows, self.channels, *self.extents = images.shape
        self.table = images.movedim(1, -1).reshape(-1, self.channels)

    def at(self, places: list[Tensor]) -> Tensor:
        """Returns the rows at integer positions [N, P], one tensor per axis."""
        index: Any = torch.arange(self.rows).unsqueeze(1)
        inside: Any = True
        for place, n in zip(places, self.extents, strict=True):
            inside = inside & (place >= 0) & (place <= n - 1)
            index = index * n + place.clamp(0, n - 1).to(torch.int64)
        found = F.embedding(index.reshape(-1), self.table).view(*index.shape, self.channels)
        return torch.where(inside.unsqueeze(-1), found, 0.0)


def _unscaled(x: Tensor, n: int, corners: bool) -> Tensor:
    """Maps -1 .. 1 to the centres of the first and last element (`corners`), or to their outer edges."""
    return (x + 1) / 2 * (n - 1) if corners else ((x + 1) * n - 1) / 2


def _clipped(x: Tensor, n: int) -> Tensor:
    """Clamps to 0 .. n - 1; the gradient is zero at the borders and beyond, as in torch."""
    return torch.where((x > 0) & (x < n - 1), x, x.detach().clamp(0, n - 1))


def _padded(x: Tensor, n: int, padding: str, corners: bool) -> Tensor:
    if padding == "border":
        return _clipped(x, n)
    if padding == "zeros":
        return x
    low, span = (0.0, n - 1.0) if corners else (-0.5, float(n))
    if span == 0:
        return x * 0
    # Reflects back and forth: after an odd number of spans the direction is reversed.
    away = torch.where(x < low, low - x, x - low)
    passed = (away.detach() / span).floor()
    left = away - passed * span
    back = passed.remainder(2) != 0
    return _clipped(torch.where(back, span - left + low, left + low), n)


def _cubic(read: _Reader, places: list[Tensor], extents: Any, padding: str, corners: bool) -> Tensor:
    first = [x.detach().floor() for x in places]
    weights = [_keys(x - low) for x, low in zip(places, first, strict=True)]
    near = [
        [_padded(low + k, n, padding, corners) for k in range(-1, 3)] for low, n in zip(first, extents, strict=True)
    ]
    result: Any = 0
    for i in range(4):
        row: Any = 0
        for j in range(4):
            row = row + read.at([near[0][i].round(), near[1][j].round()]) * weights[1][j].unsqueeze(-1)
        result = result + row * weights[0][i].unsqueeze(-1)
    return result


def _keys(t: Tensor) -> list[Tensor]:
    """The cubic weights of the four positions around a fraction t."""
    a = _CUBIC

    def outer(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    def inner(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    return [outer(t + 1), inner(t), inner(1 - t), outer(2 - t)]


def affine_grid(theta: Tensor, size: Any, align_corners: bool | None = None) -> Tensor:
    """Returns the positions [N, S..., rank] to which theta [N, rank, rank + 1] maps an image's own positions."""
    extents = list(size)[2:]
    rank = len(extents)
    sides = []
    for k, n in enumerate(extents):
        if align_corners:
            at = [-1 + 2 * i / (n - 1) if n > 1 else 0.0 for i in range(n)]
        else:
            at = [(2 * i + 1) / n - 1 for i in range(n)]
        sides.append(torch.tensor(at).view([n if axis == k else 1 for axis in range(rank)]))
    result: Any = theta[:, :, rank].view(-1, *[1] * rank, rank)
    for k, side in enumerate(reversed(sides)):
        result = result + side.unsqueeze(-1) * theta[:, :, k].reshape(-1, *[1] * rank, rank)
    return result


def grid_sampler(input: Tensor, grid: Tensor, mode: int, padding_mode: int, align_corners: bool) -> Tensor:  # noqa: A002
    """`torch.grid_sampler`."""
    padding = ("zeros", "border", "reflection")[padding_mode]
    return grid_sample(input, grid, ("bilinear", "nearest", "bicubic")[mode], padding, align_corners)


FORMULAS: dict[Any, Callable[..., Any]] = {
    F.grid_sample: grid_sample,
    torch.grid_sampler: grid_sampler,
    F.affine_grid: affine_grid,
    torch.affine_grid_generator: affine_grid,
}
