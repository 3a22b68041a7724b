"""Writes and repetitions at positions given by an index or a mask, as torch formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.known import KnownValues


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:  # noqa: A002  (torch's names)
    """Writes consecutive elements of the source where a mask is true."""
    input, mask = torch.broadcast_tensors(input, mask)  # noqa: A001
    # If the mask is constant along trailing axes, whole rows of the source are written.
    split = mask.dim()
    while split and (mask.stride(split - 1) == 0 or mask.shape[split - 1] == 1):
        split -= 1
    columns = math.prod(mask.shape[split:])
    whole = source.numel() // columns
    rows = source.reshape(-1)[: whole * columns].view(whole, columns)
    own = mask.reshape(*mask.shape[:split], -1)[..., 0].reshape(-1)
    if not whole:
        return input.clone()
    found = rows.index_select(0, (_counted(own) - 1).clamp(0, whole - 1))
    return torch.where(mask, found.view(mask.shape), input)


def _counted(mask: Tensor) -> Tensor:
    """Cumulative count of true elements in a flat mask: within rows, plus the counts of earlier rows."""
    n = mask.shape[0]
    width = max(math.isqrt(n), 1)
    padded = torch.cat([mask, torch.zeros(-n % width, dtype=torch.bool)]).view(-1, width)
    within = padded.to(torch.int64).cumsum(1)
    before = within[:, -1].cumsum(0) - within[:, -1]
    return (within + before.unsqueeze(1)).reshape(-1)[:n]


def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:  # noqa: A002
    """The in-place form of `masked_scatter`."""
    return input.copy_(masked_scatter(input, mask, source))


def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:  # noqa: A002
    """Writes (or adds) elements at positions of the flattened tensor."""
    flat = input.reshape(-1)
    return flat.index_put((index.reshape(-1),), source.reshape(-1), accumulate).view(input.shape)


def take(input: Tensor, index: Tensor) -> Tensor:  # noqa: A002
    """Reads elements at positions of the flattened tensor."""
    return input.reshape(-1)[index]


def index_fill(input: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:  # noqa: A002
    """Writes one value at the indexed positions of an axis.

    If the value is a tensor, the write goes through a mask, so that its gradient counts each position once, as torch's.
    """
    if not isinstance(value, Tensor):
        return torch.index_fill(input, dim, index, value)
    own = torch.zeros(input.shape).index_fill(dim, index, 1.0) != 0
    return torch.where(own, value, input)


def index_reduce(
    input: Tensor,  # noqa: A002
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Tensor:
    """Reduces slices of the source into the indexed positions of an axis."""
    shape = [1] * source.dim()
    shape[dim] = -1
    spread = index.view(shape).expand(source.shape)
    return input.scatter_reduce(dim, spread, source, reduce, include_self=include_self)


def fill_diagonal_(input: Tensor, fill_value: float, wrap: bool = False) -> Tensor:  # noqa: A002
    """Writes a number on the diagonal, in place."""
    if input.dim() > 2 and len(set(input.shape)) > 1:
        raise LoweringError(f"the diagonal of {list(input.shape)}", hint="all extents must be the same")
    rows, columns = input.shape[0], input.shape[1]
    step = columns + 1 if input.dim() == 2 else sum(rows**k for k in range(input.dim()))
    count = input.numel() if wrap and input.dim() == 2 else min(rows, columns) * columns if input.dim() == 2 else None
    flat = torch.arange(input.numel())
    own = (flat % step == 0) & (flat < (input.numel() if count is None else count))
    return input.masked_fill_(own.view(input.shape), fill_value)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:  # noqa: A002
    """Returns all combinations of r elements as rows, in the order of `itertools.combinations`."""
    make = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = list(make(range(input.shape[0]), r))
    return input[torch.tensor(rows)] if rows else input.new_empty(0, r)


class PlaceFormulas:
    """Formulas that need the values of constants; one object per trace."""

    def __init__(self, known: KnownValues) -> None:
        self.known = known
        self.formulas: dict[Any, Callable[..., Any]] = {
            **dict.fromkeys((torch.repeat_interleave, torch.Tensor.repeat_interleave), self.repeat_interleave),
            **dict.fromkeys((torch.tensor_split, torch.Tensor.tensor_split), self.tensor_split),
        }

    def repeat_interleave(self, input: Any, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002
        """Repeats elements. If the counts depend on data, the total must be given."""
        repeats = kwargs.get("repeats", args[0] if args else None)
        if not isinstance(repeats, Tensor) or self.known.real(repeats) is not None:
            return torch.repeat_interleave(input, *args, **kwargs)
        size = kwargs.get("output_size")
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if size is None:
            raise LoweringError(
                "repeat_interleave by counts of data", hint="give output_size, the number of all elements of the result"
            )
        rows, axis = (input.reshape(-1), 0) if dim is None else (input, dim)
        ends = repeats.expand(rows.shape[axis]).cumsum(0)
        at = (ends.unsqueeze(0) <= torch.arange(size).unsqueeze(1)).sum(1)
        return rows.index_select(axis, at.clamp(max=rows.shape[axis] - 1))

    def tensor_split(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        """Splits a tensor; the sections may be given as a constant tensor."""
        given = args[0] if args else kwargs.get("tensor_indices_or_sections")
        if not isinstance(given, Tensor):
            return torch.tensor_split(input, *args, **kwargs)
        value = self.known.real(given)
        if value is None:
            raise LoweringError("a split at places of data", hint="a Program's shapes are fixed: use constant places")
        with _disable_current_modes():
            places: Any = value.tolist()
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        return torch.tensor_split(input, places, dim)


FORMULAS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.masked_scatter, torch.Tensor.masked_scatter), masked_scatter),
    torch.Tensor.masked_scatter_: masked_scatter_,
    **dict.fromkeys((torch.take, torch.Tensor.take), take),
    **dict.fromkeys((torch.index_fill, torch.Tensor.index_fill), index_fill),
    **dict.fromkeys((torch.put, torch.Tensor.put), put),
    torch.Tensor.put_: lambda x, *args, **kwargs: x.copy_(put(x, *args, **kwargs)),
    **dict.fromkeys((torch.index_reduce, torch.Tensor.index_reduce), index_reduce),
    torch.Tensor.index_reduce_: lambda x, *args, **kwargs: x.copy_(index_reduce(x, *args, **kwargs)),
    torch.Tensor.fill_diagonal_: fill_diagonal_,
    torch.combinations: combinations,
}
