"""Bounds on attention scores: finds masks that can make a score infinite, or a whole row -inf.

A constant is bounded by its values, a selection by the bounds of both sides, and a value that the model computes counts
as finite: only masks are searched. Unknown bounds are infinite.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.numerics.scalar import Opcode
from lockstep.tracing.graph import F32, Node
from lockstep.tracing.lowering import Lowering

MAX_ELEMENTS = 1 << 26
"""Largest number of elements for which bounds are computed; larger arrays have unknown bounds."""
DEPTH = 32
"""Most operations between a softmax and its masks; a value farther away counts as computed."""

Array = NDArray[np.float32]
Bounds = tuple[Array, Array]
"""(lower, upper) bounds of each element: arrays of the node's rank, with extent 1 along axes on which all are equal."""


def may_be_empty(low: Lowering, x: Node, axes: Sequence[int]) -> bool:
    """True if some row of x over the axes may consist of -inf only."""
    least, _ = _Search(low).bounds(x, DEPTH)
    return bool(np.isneginf(least.max(axis=tuple(axes), initial=-np.inf)).any())


def may_be_infinite(low: Lowering, x: Node, axes: Sequence[int]) -> bool:
    """True if the maximum of some row of x over the axes may be -inf or +inf."""
    _, most = _Search(low).bounds(x, DEPTH)
    return bool(np.isposinf(most).any()) or may_be_empty(low, x, axes)


class _Search:
    """One search from a node to its masks."""

    def __init__(self, low: Lowering) -> None:
        self.low = low
        self._known: dict[int, Bounds] = {}

    def bounds(self, x: Node, depth: int) -> Bounds:
        """Returns the bounds of a node's elements."""
        if x.index not in self._known:
            self._known[x.index] = self._found(x, depth)
        return self._known[x.index]

    def _found(self, x: Node, depth: int) -> Bounds:
        rank = len(x.shape)
        if (value := self._value(x)) is not None:
            # A NaN gives no bound.
            return np.fmax(value, -np.inf), np.fmin(value, np.inf)
        if x.kind == "state":
            return _everywhere(rank, -np.inf, np.inf)
        if x.kind in ("permute", "reshape", "expand", "slice", "flip") and depth:
            least, most = self.bounds(x.args[0], depth - 1)
            return _viewed(x, least), _viewed(x, most)
        if x.kind == "apply" and x.dtype == F32 and depth:
            with np.errstate(all="ignore"):
                return self._applied(x, depth - 1)
        parts = x.args[:1] if x.kind == "window" else x.args if x.kind == "concat" else ()
        if parts and depth:
            pairs = [self.bounds(part, depth - 1) for part in parts]
            return _everywhere(rank, min(p[0].min() for p in pairs), max(p[1].max() for p in pairs))
        return _computed(rank)

    def _value(self, x: Node) -> Array | None:
        """Returns the values of a node that depends on no input; None if it has too many or none."""
        if x.kind == "imm":
            words = np.array(x.attrs[0], np.uint32)
            return _everywhere(len(x.shape), words.view(np.float32) if x.dtype == F32 else words.view(np.int32), 0)[0]
        value = self.low.fixed(x) if x.elements <= MAX_ELEMENTS else None
        return None if value is None else value.detach().to(torch.float32).numpy()

    def _applied(self, x: Node, depth: int) -> Bounds:
        rank, op = len(x.shape), x.attrs[0]
        if op == Opcode.FLOG:
            return _everywhere(rank, -np.inf, 1.0)
        if op == Opcode.SELECT:
            condition = self._condition(x.args[0])
            (least_a, most_a), (least_b, most_b) = (self.bounds(a, depth) for a in x.args[1:])
            if condition is None:
                return np.minimum(least_a, least_b), np.maximum(most_a, most_b)
            return np.where(condition, least_a, least_b), np.where(condition, most_a, most_b)
        if op not in (Opcode.FADD, Opcode.FSUB, Opcode.FMUL, Opcode.FNEG, Opcode.FMAX, Opcode.FMIN):
            return _computed(rank)
        least, most = self.bounds(x.args[0], depth)
        if op == Opcode.FNEG:
            return -most, -least
        below, above = self.bounds(x.args[1], depth)
        if op in (Opcode.FMAX, Opcode.FMIN):
            choose = np.maximum if op == Opcode.FMAX else np.minimum
            return choose(least, below), choose(most, above)
        if op == Opcode.FMUL:
            products = [a * b for a in (least, most) for b in (below, above)]
            return np.minimum.reduce([_or(p, -np.inf) for p in products]), np.maximum.reduce(
                [_or(p, np.inf) for p in products]
            )
        if op == Opcode.FSUB:
            below, above = -above, -below
        return _or(least + below, -np.inf), _or(most + above, np.inf)

    def _condition(self, x: Node) -> NDArray[np.bool_] | None:
        """Returns a condition's values, through the views that repeat it; None if it depends on data."""
        if (value := self._value(x)) is not None:
            return value != 0
        if x.kind not in ("permute", "reshape", "expand", "slice", "flip"):
            return None
        inner = self._condition(x.args[0])
        return None if inner is None else _viewed(x, inner.astype(np.float32)) != 0


def _everywhere(rank: int, least: float | Array, most: float | Array) -> Bounds:
    one = (1,) * rank
    return np.full(one, least, np.float32), np.full(one, most, np.float32)


def _computed(rank: int) -> Bounds:
    """Returns the bounds of a value that the model computes and that is not part of a mask: any finite number."""
    return _everywhere(rank, -1.0, 1.0)


def _or(values: Array, unknown: float) -> Array:
    return np.where(np.isnan(values), np.float32(unknown), values)


def _viewed(x: Node, values: Array) -> Array:
    """Applies a view to known values."""
    inner = x.args[0]
    if x.kind == "permute":
        return values.transpose(x.attrs[0])
    if x.kind == "expand" or values.size == 1:
        return values.reshape((1,) * len(x.shape)) if values.size == 1 else values
    if x.kind == "flip":
        return np.flip(values, x.attrs[0])
    if x.kind == "slice":
        axis, start, step = x.attrs
        if values.shape[axis] == 1:
            return values
        return values[(slice(None),) * axis + (slice(start, start + step * x.shape[axis], step),)]
    if [n for n in inner.shape if n > 1] == [n for n in x.shape if n > 1]:
        # A reshape that adds or drops axes of one element keeps the extents of 1 along the other axes.
        kept = iter([values.shape[i] for i, n in enumerate(inner.shape) if n > 1])
        return values.reshape([next(kept) if n > 1 else 1 for n in x.shape])
    if prod(inner.shape) > MAX_ELEMENTS:
        return np.full((1,) * len(x.shape), values.min() if np.isneginf(values.min()) else values.max(), np.float32)
    return np.broadcast_to(values, inner.shape).reshape(x.shape)
