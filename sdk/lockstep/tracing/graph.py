"""The tensor graph between torch and a Program: pure, shaped, shared by content.

A `Node` is a value with a logical shape; a `Graph` builds nodes bottom-up and returns the same node for the same
value, so duplicate work disappears here and nothing depends on names. What an op of a Program is, is decided
later (`selection.py`): views cost nothing and elementwise nodes fuse.
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
"""dtypes of a node; a bool is an i32 of 0 or 1."""

ROW_TERMS = CHUNK**2
"""Terms of a row of a sum too long for one fold: a row has one level of partials, the largest tensor 2^15 rows."""
MAX_PARTS = 255
"""The most parts of one concat: its descriptor counts operands in one byte."""

VIEWS = frozenset({"permute", "reshape", "expand", "slice", "flip", "window"})
"""Node kinds that only re-index their one argument."""


@dataclass(frozen=True)
class Origin:
    """The origin of a node in the user's code, for messages; never part of a root."""

    module: str = ""
    """Path of the module, `blocks.2.attn`; "" outside any."""
    aten: str = ""
    """The torch operation, `aten.mm`."""
    place: str = ""
    """`file.py:12  source line` of the user's forward."""
    inside: bool = False
    """True if a module's forward made the node, or a backward through one."""
    backward: bool = False
    """True if autograd made the node."""

    @property
    def name(self) -> str:
        """The module path and the operation, joined by a dot."""
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
        """Number of elements."""
        return prod(self.shape)

    @property
    def base(self) -> Node:
        """The node under a chain of views."""
        return self.args[0].base if self.kind in VIEWS else self


@dataclass(frozen=True)
class ConstantTable:
    """The words of a constant: equal ones are known by their digest."""

    digest: bytes
    """SHA-256."""
    data: bytes | memoryview = field(compare=False, repr=False)
    """Read-only, little-endian: a model's own memory, mapped or not."""


def float_bits(value: float) -> int:
    """The binary32 word nearest to a Python number (rounded once), NaN canonical."""
    if value != value:
        return scalar.NAN
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return scalar.INFINITY if value > 0 else scalar.NEGATIVE_INFINITY


def int_bits(value: int) -> int:
    """The word of an integer that fits in 32 bits."""
    if not -(1 << 31) <= value < 1 << 31:
        raise OverflowError(f"{value} does not fit in 32 bits")
    return value & scalar.MASK


class Graph:
    """Builds nodes, a method for each op; new nodes are attributed to `origin`."""

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
        """Input state tensor at `entry`."""
        return self._node("state", dtype, shape, attrs=(entry,))

    def const(self, dtype: str, shape: Sequence[int], data: bytes | memoryview) -> Node:
        """A table of little-endian words, which are not copied; one element becomes an immediate."""
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
        """i32: start + step x coordinate along `axis`."""
        int_bits(start), int_bits(start + step * max(shape[axis] - 1, 0))
        strides = tuple(step if a == axis else 0 for a in range(len(shape)))
        return self._node("iota", I32, shape, attrs=(start, strides))

    def context(self, word: int) -> Node:
        """i32 scalar: 0 round, 1 slot, 2 t."""
        return self._node("context", I32, (), attrs=(word,))

    def random(self, count: int, stream: int) -> Node:
        """i32 [count]: Philox words."""
        return self._node("random", I32, (count,), attrs=(stream,))

    def draw(self, first: int, rows: int, length: int) -> Node:
        """i32 [rows, length]: dataset rows first, first + 1, ... of this step's sample."""
        return self._node("draw", I32, (rows, length), attrs=(first,))

    # --- elementwise --------------------------------------------------------------------------------------

    def apply(self, op: Opcode, *args: Node, dtype: str) -> Node:
        """One scalar operation on arguments broadcast to one shape."""
        shape = broadcast_shape([a.shape for a in args])
        if all(a.kind == "imm" for a in args):
            return self.word(scalar.apply(op, *(a.attrs[0] for a in args)), dtype, shape)
        # x * 1 is x bit for bit, but for a NaN's payload, which no f32 instruction returns.
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
        """Axis i of the result is axis order[i] of x."""
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
        """Broadcast by torch's rules: leading axes are added, extents of 1 repeat."""
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
        """`length` coordinates start, start + step, ... of one axis."""
        if start == 0 and step == 1 and length == x.shape[axis]:
            return x
        shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
        if length == 0:
            return self.number(0, x.dtype, shape)
        return self._uniform(x, shape) or self._node("slice", x.dtype, shape, (x,), (axis, start, step))

    def window(self, x: Node, axis: int, count: int, step: int, size: int, dilation: int = 1) -> Node:
        """One axis becomes two, [count, size]: coordinate i x step + j x dilation of x; windows may overlap."""
        shape = (*x.shape[:axis], count, size, *x.shape[axis + 1 :])
        return self._uniform(x, shape) or self._node("window", x.dtype, shape, (x,), (axis, step, dilation))

    def flip(self, x: Node, axes: Sequence[int]) -> Node:
        """Reverses a node along axes."""
        return self._uniform(x, x.shape) or self._node("flip", x.dtype, x.shape, (x,), (tuple(sorted(axes)),))

    def _uniform(self, x: Node, shape: Sequence[int]) -> Node | None:
        return self.word(x.attrs[0], x.dtype, shape) if x.kind == "imm" else None

    # --- the rest -----------------------------------------------------------------------------------------

    def fold(self, mode: Fold, axes: Sequence[int], *args: Node) -> Node:
        """Chunked chain over the axes, which vanish; two equal shapes for `dot`, else one.

        More terms than a fold may have are folded by rows of `ROW_TERMS`, and the rows' results once more.
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
        one, then their results."""
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
        """(codes i32 [*rows, C width], scales f32 [*rows, C]) of x [*rows, K], in groups of 4 `width` consecutive k.

        The same tensor rounded twice is rounded by the same random words. A constant's are constants: of a frozen
        weight its codes alone become part of the Program.
        """
        *rows, terms = x.shape
        groups = groups_of(terms, width)
        # A single scale would be an immediate, and scales are read from memory.
        if not stochastic and prod(rows) * groups > 1 and (table := self.table(x)) is not None:
            words, factors = tables.quantised(table, width)
            return self._words(words, I32), self._words(factors, F32)
        stream = 0
        if stochastic:
            stream = self._rounded.setdefault((x.index, width), STOCHASTIC + len(self._rounded))
        codes = self._node("quant", I32, (*rows, groups * width), (x,), (Quant.CODES, width, stream))
        return codes, self._node("quant", F32, (*rows, groups), (x,), (Quant.SCALES, width, 0))

    def table(self, x: Node) -> NDArray[np.float32] | None:
        """The values of a view of an f32 constant; None if x is computed."""
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
        """A constant without what its codes and scales stand for: no op, no constant of a Program by itself."""
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
        """f32 [*out]: over groups in order, the integer sum of two operands' codes times both scales.

        Each operand's codes are [*rows, C width] and its scales [*rows, C]; the rows broadcast to `out`.
        """
        groups = scales[0].shape[-1]
        out = broadcast_shape([s.shape[:-1] for s in scales])
        # The first word of every group: a group is what it reads from there on.
        firsts = [self.reshape(c, (*c.shape[:-1], groups, width)) for c in codes]
        firsts = [self.slice(f, len(f.shape) - 1, 0, 1) for f in firsts]
        firsts = [self.reshape(f, f.shape[:-1]) for f in firsts]
        args = tuple(self.expand(x, (*out, groups)) for x in (*firsts, *scales))
        return self._node("qdot", F32, out, args, (width,))

    def gather(self, table: Node, index: Node) -> Node:
        """table [R, *shape], index i32 [*shape] -> [*shape]: row index of every column, +0 outside 0..R-1."""
        return self._node("gather", table.dtype, index.shape, (table, index))

    def concat(self, parts: Sequence[Node], axis: int) -> Node:
        """Concatenates parts along an axis, without those that have no elements."""
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
    """The shape to which all broadcast."""
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(max(column) for column in zip(*padded, strict=True))
