"""Distances between rows, all pairs of them, by formulas of torch: `cdist`, `pdist`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

_BY_DIFFERENCES = 25
"""The most rows for which torch subtracts every pair; of more it multiplies matrices."""


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """[..., M, D] and [..., N, D] -> [..., M, N]."""
    many = max(x1.shape[-2], x2.shape[-2]) > _BY_DIFFERENCES and compute_mode.endswith("if_necessary")
    if p == 2 and (many or compute_mode == "use_mm_for_euclid_dist"):
        # |x - y|^2 = |x|^2 - 2 x y + |y|^2.
        squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1, keepdim=True).mT - 2 * (x1 @ x2.mT)
        return _root(squares.clamp(min=0))
    return _length(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:  # noqa: A002  (torch's name)
    """The distance of every row to every later one."""
    first, second = torch.triu_indices(input.shape[0], input.shape[0], 1)
    return _length(input[first] - input[second], p)


def _root(squares: Tensor) -> Tensor:
    """The square root; the slope at zero is zero, as torch's is."""
    zero = squares == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def _length(difference: Tensor, p: float) -> Tensor:
    """The p-norm along the last axis; where it is zero, so is its gradient."""
    if p == 2:
        return _root(difference.square().sum(-1))
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1) + 0 * size.sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == float("inf"):
        return size.amax(-1)
    # Neither power has a slope at zero that is finite, so neither meets it.
    zero = size == 0
    powers = torch.where(zero, 0.0, torch.where(zero, 1.0, size).pow(p)).sum(-1)
    none = powers == 0
    return torch.where(none, 0.0, torch.where(none, 1.0, powers).pow(1 / p))


FORMULAS: dict[Any, Callable[..., Any]] = {torch.cdist: cdist, torch.pdist: pdist, F.pdist: pdist}
