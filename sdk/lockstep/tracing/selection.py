"""Selects the ops of a Program for the nodes of a tensor graph.

Nodes are visited once, in order of creation. Views rewrite strides. Elementwise nodes remain expressions until they
must be stored for a fold, a gather, a concat, the state, several consumers, or a map's limits. A fold with a single
reader is stored in the order in which that reader, through its views, reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import Alias, Fold, Program, Quant, Tag
from lockstep.protocol.programs.rules import MAX_AXES
from lockstep.tracing.affine import ExpressionPool, FoldChain, Leaf, Val, Views
from lockstep.tracing.emission import Emission
from lockstep.tracing.fusion import cost, dearest, factors, is_batch_innermost, is_cheap, is_row, k_stride
from lockstep.tracing.graph import VIEWS, Node
from lockstep.tracing.placement import Placement


class Uses:
    """The nodes that the outputs need, and the readers of each node."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        seen: dict[int, Node] = {}
        stack = list(outputs)
        while stack:
            node = stack.pop()
            if node.index not in seen:
                seen[node.index] = node
                stack.extend(node.args)
        self.nodes = [seen[i] for i in sorted(seen)]
        """Nodes in order of creation."""
        self._outputs = {o.index for o in outputs}
        self._readers: dict[int, list[Node]] = {n.index: [] for n in self.nodes}
        for node in self.nodes:
            for arg in dict.fromkeys(node.args):
                self._readers[arg.index].append(node)
        self._count: dict[int, int] = {}
        for node in reversed(self.nodes):
            readers = self._readers[node.index]
            # A tensor's scales are read wherever its codes are read.
            self._count[node.index] = (node.index in self._outputs) + sum(
                self._count[r.index] if r.kind in VIEWS else not (r.kind == "quant" and r.attrs[0] == Quant.SCALES)
                for r in readers
            )

    def several(self, node: Node) -> bool:
        """Returns True if the node is read more than once, through its views."""
        return self._count[node.index] > 1

    def only_view(self, node: Node) -> Node | None:
        """Returns the view that is the node's only reader; None otherwise."""
        readers = self._readers[node.index]
        alone = node.index not in self._outputs and len(readers) == 1 and readers[0].kind in VIEWS
        return readers[0] if alone else None


class Selection:
    """Selects the ops of a graph, with a method for each kind of node."""

    def __init__(self, outputs: Sequence[Node | None]) -> None:
        self._uses = Uses([o for o in outputs if o is not None])
        self._pool = ExpressionPool()
        self._views = Views(self._pool)
        self._emission = Emission(self._views)
        self._placed = Placement(self._views, self._emission)
        kinds = {"apply": self._apply, "fold": self._fold, "quant": self._quant, "qdot": self._qdot}
        kinds |= {"gather": self._gather, "concat": self._concat}
        for node in self._uses.nodes:
            if node.kind not in VIEWS:
                kinds.get(node.kind, self._source)(node)
        self._aliases = [self._output(node) for node in outputs]

    def program(self, entries: tuple[TensorHeader | None, ...]) -> Program:
        """Returns the Program that maps a state with these entries to the outputs.

        Raises LoweringError beyond a size bound.
        """
        return self._emission.program(entries, self._aliases)

    def _source(self, node: Node) -> None:
        self._placed.put(node, self._emission.source(node))

    def _output(self, node: Node | None) -> Alias:
        if node is None:
            return Alias(Alias.EMPTY_KIND)
        if node.kind == "state":
            return Alias(Alias.STATE_KIND, node.attrs[0])
        return self._emission.output(self._placed.value(node), node)

    # --- maps ---------------------------------------------------------------------------------------------

    def _apply(self, node: Node) -> None:
        while True:
            vals = self._placed.unified(node.args)
            bodies = [v.expr for v in vals]
            expr = self._pool.inst(Opcode(node.attrs[0]), bodies)
            if cost(expr).fits:
                break
            self._placed.stored(node.args[dearest(bodies)])
        val = self._views.normal(Val(vals[0].dims, expr))
        stored = self._uses.several(node) and not is_cheap(expr)
        self._placed.put(node, self._emission.map(val, node) if stored else val)

    # --- folds --------------------------------------------------------------------------------------------

    def _fold(self, node: Node) -> None:
        mode, n_k = node.attrs
        vals = self._placed.unified(node.args)
        rank = len(vals[0].dims) - n_k
        if mode == Fold.SUM and (found := factors(vals[0], rank)) is not None:
            mode, vals = int(Fold.DOT), found
        operands = tuple(self._operand(val, rank, node) for val in vals)
        chain = FoldChain(mode, operands, prod(vals[0].shape[rank:]))
        self._put_as_read(self._views.normal(Val(vals[0].dims[:rank], chain)), node)

    def _operand(self, val: Val, rank: int, node: Node) -> Leaf:
        """Returns the window of a fold on its operand; an operand that is not contiguous along k is transposed into
        memory first.
        """
        stride = k_stride(val, rank)
        if stride is None:
            val = self._views.constant(val) or self._row(val, rank, node)
            stride = k_stride(val, rank)
        assert stride is not None, "a row is contiguous along k"
        return self._views.along_k(val, rank, stride)

    def _row(self, val: Val, rank: int, node: Node) -> Val:
        along_k = val.varying[sum(len(d) for d in val.dims[:rank]) :]
        stored = self._emission.map(val, node, range(rank, len(val.dims)) if any(along_k) else ())
        return self._views.split(stored, val.dims)

    def _put_as_read(self, chain: Val, node: Node) -> None:
        """Stores the fold in the axis order of the last view through which its only reader sees it."""
        reader = node
        while (view := self._uses.only_view(reader)) is not None:
            seen = self._placed.seen(view, chain)
            if seen is None or is_batch_innermost(seen) or sum(seen.varying) > MAX_AXES:
                break
            reader, chain = view, seen
        self._placed.put(reader, self._emission.fold(chain, node))

    # --- integer products ---------------------------------------------------------------------------------

    def _quant(self, node: Node) -> None:
        """Emits the codes or scales of a tensor in rows; a tensor that is not contiguous along its last axis is
        transposed first.
        """
        arg = node.args[0]
        rows = self._placed.fitting(lambda val: is_row(self._views.normal(val)), arg, (len(arg.shape) - 1,))
        self._placed.put(node, self._emission.quant(self._views.normal(rows), node))

    def _qdot(self, node: Node) -> None:
        (words,) = node.attrs
        found = self._views.unify([self._placed.value(n) for n in node.args])
        if found is None:
            for arg in node.args:
                self._select_in_own_rows(arg.base)
            found = self._views.unify([self._placed.value(n) for n in node.args])
        assert found is not None, "codes with one axis for each dimension have nesting axes"
        rank = len(found[0].dims) - 1
        operands = []
        for j, val in enumerate(found):
            stride = words if j < 2 else int(bool(val.dims[rank]))
            operands.append(self._views.along_k(val, rank, stride))
            first = len(operands[-1].strides) - 1
            assert val.leaf.strides[first:] in ((), (stride,)), "groups lie one behind another along k"
        chain = FoldChain(Fold.QDOT, tuple(operands), node.args[0].shape[-1], words)
        self._put_as_read(self._views.normal(Val(found[0].dims[:rank], chain)), node)

    def _select_in_own_rows(self, node: Node) -> None:
        """Recomputes codes or scales from a copy whose rows have one axis per dimension."""
        if node.kind == "quant":
            self._placed.stored(node.args[0])
            self._quant(node)
        else:
            for part in node.args:
                self._select_in_own_rows(part.base)
            self._concat(node)

    # --- gathers, concatenations --------------------------------------------------------------------------

    def _gather(self, node: Node) -> None:
        table, index = node.args
        at = self._placed.fitting(lambda val: isinstance(val.body, Leaf), index)
        base = self._placed.fitting(_in_rows, table, (0,))
        both = self._over_rows(base, at) or self._over_rows(self._placed.stored(table), self._placed.stored(index))
        assert both is not None, "contiguous tensors have nesting axes"
        (lead, *dims), base_leaf = both[0].dims, both[0].leaf
        row_stride = base_leaf.strides[0] if lead else 0
        first, rows = (self._pool.moved(v.leaf, v.leaf.strides[len(lead) :]) for v in both)
        if rows.tag == Tag.IOTA and _within(Val(tuple(dims), rows), table.shape[0]):
            strides = [b + row_stride * a for b, a in zip(first.strides, rows.strides, strict=True)]
            seen = self._pool.moved(first, strides, first.offset + row_stride * rows.offset)
            self._placed.put(node, self._views.normal(Val(tuple(dims), seen)))
        else:
            self._placed.put(node, self._emission.gather(rows, first, dims, table.shape[0], row_stride, node))

    def _over_rows(self, table: Val, index: Val) -> list[Val] | None:
        """Broadcasts table and index over the table's rows and the axes of the result; None if their axes are
        incompatible.
        """
        above = self._views.expand(Val(((), *index.dims), index.body), (table.shape[0], *index.shape))
        return self._views.unify([table, above])

    def _concat(self, node: Node) -> None:
        axis, dims = node.attrs[0], range(len(node.shape))
        parts = []
        for arg in node.args:
            val = self._views.normal(self._placed.value(arg))
            constant = self._views.constant(val)
            if constant is None and not (isinstance(val.body, Leaf) and _single(val, (axis,))):
                val = self._placed.stored_as(lambda v: _single(v, (axis,)), arg, (axis,))
            parts.append(constant or val)
        if any(p.dims[i] != parts[0].dims[i] for p in parts for i in dims if i != axis):
            # If the parts are split differently, each is read through one axis per dimension.
            parts = [
                p if _single(p, dims) else self._placed.stored_as(lambda v: _single(v, dims), a, dims)
                for a, p in zip(node.args, parts, strict=True)
            ]
        self._placed.put(node, self._emission.concat(parts, axis, node))


def _single(val: Val, dims: Sequence[int]) -> bool:
    """Returns True if each of the given logical dimensions has at most one axis."""
    return all(len(val.dims[i]) < 2 for i in dims)


def _in_rows(table: Val) -> bool:
    """Returns True if a gather can read the table: its rows have a constant, non-negative stride."""
    return isinstance(table.body, Leaf) and _single(table, (0,)) and (not table.dims[0] or table.body.strides[0] >= 0)


def _within(index: Val, rows: int) -> bool:
    """Returns True if every value of an affine index is in 0..rows-1."""
    leaf = index.leaf
    ends = [s * (n - 1) for s, n in zip(leaf.strides, index.axes, strict=True)]
    return leaf.offset + sum(min(e, 0) for e in ends) >= 0 and leaf.offset + sum(max(e, 0) for e in ends) < rows
