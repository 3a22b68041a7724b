"""Routes rows to groups by data (mixture of experts): splits by counts, multiplies each group by its matrix, joins.

    parts = x.split(counts.tolist())
    y = torch.cat([F.linear(part, weight[i]) for i, part in enumerate(parts)])

The number of rows of a group is not known before the step. Every row is multiplied by every matrix, as zeros where it
belongs to another group, and the joined result is the sum over groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.known import KnownValues

_HINT = "of rows that are split by counts of the data, torch.nn.functional.linear and torch.cat are known"


class Counts(list[Any]):
    """The list that `counts.tolist()` returns during a trace; its numbers depend on data."""

    def __init__(self, counts: torch.Tensor) -> None:
        super().__init__(_Unknown() for _ in range(counts.shape[0]))
        self.counts = counts


class _Unknown:
    """A number that depends on data; using it is an error."""

    def __index__(self) -> int:
        raise LoweringError("tolist of a tensor that depends on data is not supported", hint=_HINT)


class RoutedRows:
    """The rows of one group, at their positions among all rows."""

    def __init__(self, rows: torch.Tensor, own: torch.Tensor, counts: Counts, index: int) -> None:
        self.rows = torch.where(own.view(-1, *(1,) * (rows.dim() - 1)), rows, 0.0)
        """All rows, with zeros for rows of other groups."""
        self.own = own
        """bool [S]: marks the rows of the group."""
        self.counts, self.index = counts, index
        """The counts by which the rows were split, and the index of the group among them."""

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, _args: Any = (), _kwargs: Any = None) -> Any:
        raise LoweringError(
            f"{getattr(func, '__name__', func)} of rows that depend on data is not supported", hint=_HINT
        )


@contextmanager
def counting(known: KnownValues) -> Iterator[None]:
    """Makes `tolist` of an integer vector that depends on data return `Counts`: torch's own `tolist` cannot be
    traced.
    """
    original = FakeTensor.tolist

    def tolist(x: FakeTensor) -> Any:
        unknown = x.dim() == 1 and not x.is_floating_point() and known.real(x) is None
        return Counts(x) if unknown else original(x)

    FakeTensor.tolist = tolist  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        FakeTensor.tolist = original  # type: ignore[method-assign]


def split(x: torch.Tensor, split_size: Any, dim: int = 0) -> Any:
    """`Tensor.split`; unknown counts give groups."""
    if not isinstance(split_size, Counts):
        return x.split(split_size, dim)
    if dim % x.dim():
        raise LoweringError(
            f"a split of axis {dim} by counts that depend on data is not supported", hint="split rows: dim=0"
        )
    ends = split_size.counts.cumsum(0).unsqueeze(1)
    before = torch.arange(x.shape[0]).unsqueeze(0) < ends
    own = torch.cat([before[:1], before[1:] & ~before[:-1]])
    return tuple(RoutedRows(x, mask, split_size, i) for i, mask in enumerate(own))


def linear(x: Any, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """`F.linear`, also for the rows of a group."""
    if not isinstance(x, RoutedRows):
        return F.linear(x, weight, bias)
    return RoutedRows(F.linear(x.rows, weight, bias), x.own, x.counts, x.index)


def joined(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.cat`; all groups in order are joined by their sum, because each has zeros at the rows of the others."""
    groups = [t for t in tensors if isinstance(t, RoutedRows)]
    if not groups:
        return torch.cat(tensors, *args, **kwargs)  # type: ignore[arg-type]
    counts = groups[0].counts
    whole = [t.index for t in groups if t.counts is counts] == list(range(len(counts)))
    # INVARIANT: joined rows stand where they stood before they were split.
    if args[:1] not in ((), (0,)) or any(kwargs.values()) or not whole or len(groups) < len(tensors):
        raise LoweringError(
            "groups of rows joined with other tensors, in another order, or along another axis", hint=_HINT
        )
    total: torch.Tensor = groups[0].rows
    for group in groups[1:]:
        total = total + group.rows
    return total
