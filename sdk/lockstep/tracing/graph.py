"""The tensor graph between torch and a Program: pure, shaped, shared by content.

A `Node` is a value with a logical shape; a `Graph` builds nodes bottom-up and returns the same node for the same value,
so duplicate work disappears here and nothing depends on names. `selection.py` later decides which nodes become ops of
the Program: views cost nothing and elementwise nodes fuse.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.numerics import scalar, tables
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import CHUNK, STOCHASTIC, Fold, Quant, groups_of
from lockstep.protocol.programs.rules import MAX_TERMS

F32, I32, BOOL = "f32", "i32", "bool"
"""Dtypes of a node; a bool is an i32 of 0 or 1."""

ROW_TERMS = CHUNK**2
"""Terms in a row of a sum that is too long for one fold: such a sum is folded by rows, then over the rows' results.

The largest tensor has 2^15 rows.
"""
MAX_PARTS = 255
"""Most parts of one concat: its encoding counts operands in one byte."""

VIEWS = frozenset({"permute", "reshape", "expand", "slice", "flip", "window"})
"""Node kinds that only re-index their single argument."""


@dataclass(frozen=True)
class Origin:
    """The origin of a node in the user's code; used in messages, never hashed."""

    module: str = ""
    """Path of the module, such as `blocks.2.attn`; "" outside of modules."""
    aten: str = ""
    """Name of the torch operation, such as `aten.mm`."""
    place: str = ""
    """Location in the user's forward, `file.py:12 source line`."""
    inside: bool = False
    """True if the node was made inside a module's forward, or by the backward pass through one."""
    backward: bool = False
    """True if autograd made the node."""

    @property
    def name(self) -> str:
        """Joins the module path and the operation by a dot."""
        return ".".join(part for part in (self.module, self.aten.removeprefix("aten.")) if part)


@dataclass(frozen=True, eq=False)
class Node:
    """One value of the graph; equal nodes are the same object."""

    index: int
    kind: str
    """state, const, context, imm, iota, apply, fold, quant, qdot, gather, concat, random, draw, or one of `VIEWS`."""
    dtype: str
    shape: tuple[int, ...]
    args: tuple[Node, ...] = ()
    attrs: tuple = ()
    origin: Origin = field(default_factory=Origin)

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def base(self) -> Node:
        """The node under a chain of views."""
        return self.args[0].base if self.kind in VIEWS else self


@dataclass(frozen=True)
class ConstantTable:
    """The words of a constant; equal constants are recognised by their digest."""

    digest: bytes
    """SHA-256 of the words."""
    data: bytes | memoryview = field(compare=False, repr=False)
    """Little-endian words, read-only: the model's own memory, possibly memory-mapped."""


def float_bits(value: float) -> int:
    """The binary32 word nearest to a Python number (rounded once), NaN canonical."""
    if value != value:
        return scalar.NAN
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return scalar.INFINITY if value > 0 else scalar.NEGATIVE_INFINITY


def int_bits(value: int) -> int:
    """Returns the 32-bit word of an integer. Raises LoweringError if it does not fit in 32 bits."""
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError(f"{value} does not fit in 32 bits")
    return value & scalar.MASK


class Graph:
    """Builds nodes, with one method for each op; new nodes are attributed to `origin`."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.origin = Origin()
        self._known: dict[tuple, Node] = {}
        self._rounded: dict[tuple[int, int], int] = {}
        self._values: dict[int, NDArray[Any]] = {}

    def _node(
        self, kind: str, dtype: str, shape: Sequence[int], args: tuple[Node, ...] = (), attrs: tuple = ()
    ) -> Node:
        key = (kind, dtype, tuple(shape), tuple(a.index for a in args), attrs)
        if key not in self._known:
            node = Node(len(self.nodes), kind, dtype, tuple(shape), args, attrs, self.origin)
            self.nodes.append(node)
            self._known[key] = node
        return self._known[key]

    # --- sources ------------------------------------------------------------------------------------------

    def state(self, entry: int, dtype: str, shape: Sequence[int]) -> Node:
        """Returns the input state tensor at `entry`."""
        return self._node("state", dtype, shape, attrs=(entry,))

    def const(self, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> Node:
        """Returns a constant of little-endian words, without copying them; a single element becomes an immediate."""
        if len(data) == 4:
            return self.word(int.from_bytes(data, "little"), dtype, shape)
        flat = self._node("const", dtype, (len(data) // 4,), attrs=(ConstantTable(sha256(data).digest(), data),))
        return self.reshape(flat, shape)

    def word(self, bits: int, dtype: str, shape: Sequence[int] = ()) -> Node:
        """Returns a node with the same 32-bit word everywhere."""
        return self._node("imm", dtype, shape, attrs=(bits,))

    def number(self, value: float, dtype: str, shape: Sequence[int] = ()) -> Node:
        """Returns a node with the same number everywhere, rounded to the dtype once."""
        bits = float_bits(float(value)) if dtype == F32 else int_bits(int(value))
        return self.word(bits, dtype, shape)

    def iota(self, shape: Sequence[int], axis: int, start: int = 0, step: int = 1) -> Node:
        """Returns i32 coordinates: start + step x coordinate along `axis`."""
        int_bits(start), int_bits(start + step * max(shape[axis] - 1, 0))
        strides = tuple(step if a == axis else 0 for a in range(len(shape)))
        return self._node("iota", I32, shape, attrs=(start, strides))

    def context(self, word: int) -> Node:
        """Returns a word of the step's context as an i32 scalar: 0 is the round, 1 the slot, 2 the step t."""
        return self._node("context", I32, (), attrs=(word,))

    def random(self, count: int, stream: int) -> Node:
        """Returns i32 [count]: Philox words of a random stream."""
        return self._node("random", I32, (count,), attrs=(stream,))

    def draw(self, first: int, rows: int, length: int) -> Node:
        """Returns i32 [rows, length]: dataset rows number first, first + 1, ... of this step's sample."""
        return self._node("draw", I32, (rows, length), attrs=(first,))

    # --- elementwise --------------------------------------------------------------------------------------

    def apply(self, op: Opcode, *args: Node, dtype: str) -> Node:
        """Applies one scalar operation to arguments that are broadcast to one shape."""
        shape = broadcast_shape([a.shape for a in args])
        if all(a.kind == "imm" for a in args):
            return self.word(scalar.apply(op, *(a.attrs[0] for a in args)), dtype, shape)
        # x * 1 equals x bit for bit except for NaN payloads, and no f32 instruction returns a NaN payload.
        if op == Opcode.FMUL and args[1].kind == "imm" and args[1].attrs[0] == scalar.ONE:
            return self.expand(args[0], shape)
        if op == Opcode.FMUL and args[0].kind == "imm" and args[0].attrs[0] == scalar.ONE:
            return self.expand(args[1], shape)
        if op == Opcode.SELECT and args[0].kind == "imm":
            return self.expand(args[1] if args[0].attrs[0] else args[2], shape)
        return self._node("apply", dtype, shape, tuple(self.expand(a, shape) for a in args), (int(op),))

    def bitcast(self, x: Node, dtype: str) -> Node:
        """Returns a node with the same words under another dtype."""
        if x.dtype == dtype:
            return x
        if x.kind == "imm":
            return self.word(x.attrs[0], dtype, x.shape)
        return self._node("apply", dtype, x.shape, (x,), (int(Opcode.MOV),))

    # --- views --------------------------------------------------------------------------------------------

    def permute(self, x: Node, order: Sequence[int]) -> Node:
        """Transposes a node: axis i of the result is axis order[i] of x."""
        order = tuple(order)
        if x.kind == "permute":
            return self.permute(x.args[0], [x.attrs[0][i] for i in order])
        shape = tuple(x.shape[i] for i in order)
        if order == tuple(range(len(order))):
            return x
        return self._uniform(x, shape) or self._node("permute", x.dtype, shape, (x,), (order,))

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """Returns a node with the same elements in row-major order under another shape."""
        shape = tuple(shape)
        if x.kind == "reshape":
            return self.reshape(x.args[0], shape)
        if shape == x.shape:
            return x
        return self._uniform(x, shape) or self._node("reshape", x.dtype, shape, (x,))

    def expand(self, x: Node, shape: Sequence[int]) -> Node:
        """Broadcasts by torch's rules: leading axes are added, extents of 1 repeat."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        if len(shape) > len(x.shape):
            x = self.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape)
            return self.expand(x, shape)
        if x.kind == "expand":
            return self.expand(x.args[0], shape)
        return self._uniform(x, shape) or self._node("expand", x.dtype, shape, (x,))

    def slice(self, x: Node, axis: int, start: int, length: int, step: int = 1) -> Node:
        """Selects `length` coordinates start, start + step, ... of one axis."""
        if start == 0 and step == 1 and length == x.shape[axis]:
            return x
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        if length == 0:
            return self.number(0, x.dtype, shape)
        return self._uniform(x, shape) or self._node("slice", x.dtype, shape, (x,), (axis, start, step))

    def window(self, x: Node, axis: int, count: int, step: int, size: int, dilation: int = 1) -> Node:
        """Splits one axis into [count, size] windows: coordinate (i, j) is i x step + j x dilation of x; windows may
        overlap.
        """
        shape = (*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return self._uniform(x, shape) or self._node("window", x.dtype, shape, (x,), (axis, step, dilation))

    def flip(self, x: Node, axes: Sequence[int]) -> Node:
        """Reverses a node along axes."""
        return self._uniform(x, x.shape) or self._node("flip", x.dtype, x.shape, (x,), (tuple(sorted(axes)),))

    def _uniform(self, x: Node, shape: Sequence[int]) -> Node | None:
        return self.word(x.attrs[0], x.dtype, shape) if x.kind == "imm" else None

    # --- the rest -----------------------------------------------------------------------------------------

    def fold(self, mode: Fold, axes: Sequence[int], *args: Node) -> Node:
        """Folds over the axes, which vanish; `dot` takes two nodes of equal shape, the other modes one.

        If there are more terms than a fold may have, folds rows of `ROW_TERMS` terms, then the rows' results.
        """
        axes = tuple(sorted(axes))
        rest = [i for i in range(len(args[0].shape)) if i not in axes]
        shape = tuple(args[0].shape[i] for i in rest)
        moved = tuple(self.permute(a, [*rest, *axes]) for a in args)
        terms = prod(args[0].shape[i] for i in axes)
        if terms > MAX_TERMS:
            return self._fold_by_rows(mode, shape, terms, moved)
        return self._node("fold", I32 if mode == Fold.ISUM else F32, shape, moved, (int(mode), len(axes)))

    def _fold_by_rows(self, mode: Fold, shape: tuple[int, ...], terms: int, args: tuple[Node, ...]) -> Node:
        """Folds args [*shape, ...] over all axes after `shape`: first each row of ROW_TERMS terms and the shorter last
        one, then their results.
        """
        rank, whole = len(shape), terms // ROW_TERMS * ROW_TERMS
        flat = [self.reshape(a, (*shape, terms)) for a in args]
        rows = [self.reshape(self.slice(a, rank, 0, whole), (*shape, whole // ROW_TERMS, ROW_TERMS)) for a in flat]
        results = [self.fold(mode, [rank + 1], *rows)]
        if whole < terms:
            last = self.fold(mode, [rank], *(self.slice(a, rank, whole, terms - whole) for a in flat))
            results.append(self.reshape(last, (*shape, 1)))
        again = Fold.SUM if mode == Fold.DOT else mode
        return self.fold(again, [rank], self.concat(results, rank))

    def quant(self, x: Node, width: int, *, stochastic: bool = False) -> tuple[Node, Node]:
        """Quantises x [*rows, K] to codes i32 [*rows, C width] and scales f32 [*rows, C], in groups of 4 `width`
        consecutive k.

        Stochastic rounding of the same tensor always uses the same random words. Codes and scales of a constant are
        constants: a Program holds only the codes of a frozen weight, not the weight.
        """
        *rows, terms = x.shape
        groups = groups_of(terms, width)
        # A single scale would become an immediate, but `qdot` reads scales from memory.
        if not stochastic and prod(rows) * groups > 1 and (table := self.table(x)) is not None:
            words, factors = tables.quantised(table, width)
            return self._words(words, I32), self._words(factors, F32)
        stream = 0
        if stochastic:
            stream = self._rounded.setdefault((x.index, width), STOCHASTIC + len(self._rounded))
        codes = self._node("quant", I32, (*rows, groups * width), (x,), (Quant.CODES, width, stream))
        return codes, self._node("quant", F32, (*rows, groups), (x,), (Quant.SCALES, width, 0))

    def table(self, x: Node) -> NDArray[np.float32] | None:
        """Returns the values of a view of an f32 constant; None if x is computed."""
        if x.index in self._values:
            return self._values[x.index]
        if x.kind == "const" and x.dtype == F32:
            return np.frombuffer(x.attrs[0].data, "<f4").reshape(x.shape)
        if x.kind not in ("permute", "reshape", "slice"):
            return None
        base = self.table(x.args[0])
        if base is None:
            return None
        if x.kind == "slice":
            axis, start, step = x.attrs
            return base[(slice(None),) * axis + (slice(start, start + step * x.shape[axis], step),)]
        return base.transpose(x.attrs[0]) if x.kind == "permute" else base.reshape(x.shape)

    def residual_of(self, x: Node, codes: Node, scales: Node) -> Node | None:
        """Returns the quantisation residual of a constant: its values minus the dequantised codes; None if x is
        computed.

        The residual is never emitted by itself: it serves as input of the next limb's quantisation.
        """
        values, words, factors = self.table(x), self._values.get(codes.index), self._values.get(scales.index)
        if values is None or words is None or factors is None:
            return None
        rest = values - tables.restored(words, factors, x.shape[-1])
        return self._words(rest, F32)

    def _words(self, values: NDArray[Any], dtype: str) -> Node:
        data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).reshape(-1)
        node = self.const(dtype, values.shape, data.view(np.uint8).data.toreadonly())
        self._values[node.index] = values
        return node

    def qdot(self, width: int, codes: Sequence[Node], scales: Sequence[Node]) -> Node:
        """Quantised dot product, f32 [*out]: sums over groups the integer dot product of two operands' codes times both
        scales.

        Each operand's codes are [*rows, C width] and its scales [*rows, C]; the rows broadcast to `out`.
        """
        groups = scales[0].shape[-1]
        out = broadcast_shape([s.shape[:-1] for s in scales])
        # Selects the first word of every group; `qdot` reads the rest of the group after it.
        firsts = [self.reshape(c, (*c.shape[:-1], groups, width)) for c in codes]
        firsts = [self.slice(f, len(f.shape) - 1, 0, 1) for f in firsts]
        firsts = [self.reshape(f, f.shape[:-1]) for f in firsts]
        args = tuple(self.expand(x, (*out, groups)) for x in (*firsts, *scales))
        return self._node("qdot", F32, out, args, (width,))

    def gather(self, table: Node, index: Node) -> Node:
        """Looks up table [R, *shape] by index i32 [*shape] -> [*shape]: element `index` of every column; +0 outside
        0..R-1.
        """
        return self._node("gather", table.dtype, index.shape, (table, index))

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        """Concatenates parts along an axis; parts without elements are dropped."""
        parts = [p for p in parts if p.elements] or parts[:1]
        if len(parts) == 1:
            return parts[0]
        if len(parts) > MAX_PARTS:
            whole = [self.concat(parts[i : i + MAX_PARTS], axis) for i in range(0, len(parts), MAX_PARTS)]
            return self.concat(whole, axis)
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        return self._node("concat", parts[0].dtype, shape, tuple(parts), (axis,))


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns the common broadcast shape."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(column) for column in zip(*padded, strict=True))
