"""Embedding tables as torch formulas: bags of embeddings, rows of bounded norm, dense gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError


def embedding(
    input: Tensor,  # noqa: A002  (torch's names)
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Looks up rows of a table; the gradient is dense, whatever `sparse` is."""
    if max_norm is not None:
        _renormalise(input, weight, max_norm, norm_type)
    rows = F.embedding(input, weight, padding_idx)
    if not scale_grad_by_freq:
        return rows
    flat = input.reshape(-1)
    times = (flat.unsqueeze(1) == flat.unsqueeze(0)).sum(1).view(*input.shape, 1)
    return rows.detach() + (rows - rows.detach()) / times


def _renormalise(index: Tensor, weight: Tensor, bound: float, order: float) -> None:
    """Rescales, in place, the rows that are read and exceed the bound on their norm, as torch does."""
    with torch.no_grad():
        read = (torch.arange(weight.shape[0]).unsqueeze(1) == index.reshape(1, -1)).any(1, keepdim=True)
        length = torch.linalg.vector_norm(weight, order, 1, keepdim=True)
        weight.mul_(torch.where(read & (length > bound), bound / (length + 1e-7), 1.0))


def embedding_bag(
    input: Tensor,  # noqa: A002
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Reduces the rows of each bag to their sum, mean or maximum; an empty bag gives zeros."""
    if mode not in ("sum", "mean", "max") or (per_sample_weights is not None and mode != "sum"):
        raise LoweringError(f"bags by {mode}, weighted or not", hint="use sum, mean or max; only sums have weights")
    if scale_grad_by_freq and mode == "max":
        raise LoweringError("bags by maximum with gradients scaled by frequency", hint="leave scale_grad_by_freq off")
    rows = embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
    counted = torch.ones_like(input, dtype=torch.bool)
    if padding_idx is not None:
        counted = input != padding_idx % weight.shape[0]
    if mode != "max":
        factor = counted.to(weight.dtype) if per_sample_weights is None else per_sample_weights * counted
        rows = rows * factor.unsqueeze(-1)
    if input.dim() == 2:
        return _reduced(rows, counted, mode)
    if offsets is None or input.dim() != 1:
        raise LoweringError("a flat list of rows without offsets", hint="pass rows [B, L], or offsets [B]")
    first = offsets[:-1] if include_last_offset else offsets
    # Row i belongs to the last bag whose offset is at most i.
    bag = (first.unsqueeze(1) <= torch.arange(input.shape[0]).unsqueeze(0)).sum(0) - 1
    if mode == "max":
        own = (bag.unsqueeze(0) == torch.arange(first.shape[0]).unsqueeze(1)) & counted
        return _reduced(rows.unsqueeze(0).expand(first.shape[0], *rows.shape), own, mode)
    sums = torch.zeros(first.shape[0], rows.shape[1]).index_add(0, bag, rows)
    if mode == "sum":
        return sums
    counts = torch.zeros(first.shape[0]).index_add(0, bag, counted.to(rows.dtype))
    return sums / counts.clamp(min=1).unsqueeze(1)


def _reduced(rows: Tensor, counted: Tensor, mode: str) -> Tensor:
    """Reduces the rows of each bag: [B, L, D] -> [B, D]. `counted` masks rows out."""
    if mode == "sum":
        return rows.sum(1)
    if mode == "mean":
        return rows.sum(1) / counted.sum(1, keepdim=True).clamp(min=1)
    best = torch.where(counted.unsqueeze(-1), rows, float("-inf")).max(1).values
    return torch.where(counted.any(1, keepdim=True), best, 0.0)


def torch_embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    """Formula for `torch.embedding`, whose argument order differs from `F.embedding`."""
    return embedding(indices, weight, padding_idx if padding_idx >= 0 else None, None, 2.0, scale_grad_by_freq)


FORMULAS: dict[Any, Any] = {
    F.embedding: embedding,
    torch.embedding: torch_embedding,
    F.embedding_bag: embedding_bag,
}
