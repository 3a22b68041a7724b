"""Pairwise distances between rows as torch formulas: `cdist`, `pdist`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

_BY_DIFFERENCES = 25
"""Largest number of rows for which torch subtracts every pair; for more it uses a matrix product."""


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Tensor:
    """The p-norm distance of every row of x1 [..., M, D] to every row of x2 [..., N, D] -> [..., M, N]."""
    many = max(x1.shape[-2], x2.shape[-2]) > _BY_DIFFERENCES and compute_mode.endswith("if_necessary")
    if p == 2 and (many or compute_mode == "use_mm_for_euclid_dist"):
        # |x - y|^2 = |x|^2 - 2 x y + |y|^2.
        squares = x1.square().sum(-1, keepdim=True) + x2.square().sum(-1, keepdim=True).mT - 2 * (x1 @ x2.mT)
        return _root(squares.clamp(min=0))
    return _length(x1.unsqueeze(-2) - x2.unsqueeze(-3), p)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:  # noqa: A002  (torch's name)
    """Distances of every row [N, D] to every later row -> [N (N - 1) / 2]."""
    first, second = torch.triu_indices(input.shape[0], input.shape[0], 1)
    return _length(input[first] - input[second], p)


def _root(squares: Tensor) -> Tensor:
    """The square root; its gradient at zero is zero, as in torch."""
    zero = squares == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def _length(difference: Tensor, p: float) -> Tensor:
    """The p-norm along the last axis; its gradient is zero where the norm is zero."""
    if p == 2:
        return _root(difference.square().sum(-1))
    size = difference.abs()
    if p == 0:
        return (size != 0).to(size.dtype).sum(-1) + 0 * size.sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == float("inf"):
        return size.amax(-1)
    # Neither power has a finite derivative at zero, so zeros are replaced before.
    zero = size == 0
    powers = torch.where(zero, 0.0, torch.where(zero, 1.0, size).pow(p)).sum(-1)
    none = powers == 0
    return torch.where(none, 0.0, torch.where(none, 1.0, powers).pow(1 / p))


FORMULAS: dict[Any, Callable[..., Any]] = {torch.cdist: cdist, torch.pdist: pdist, F.pdist: pdist}
