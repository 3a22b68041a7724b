"""Emits ops for values, deduplicated, and assembles the Program that the outputs need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress

from lockstep.numerics import scalar
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import LEAF_ELEMENTS, TensorHeader
from lockstep.protocol.programs import rules
from lockstep.protocol.programs.program import F32, I32, Alias, Const, Fold, Instr, Kind, Op, Program, Tag, View
from lockstep.tracing import graph as g
from lockstep.tracing.affine import Axes, Expr, FoldChain, Inst, Leaf, Val, Views, contiguous
from lockstep.tracing.graph import Node, Origin
from lockstep.tracing.lowering import refusal


class Emission:
    """The ops of a Program under construction. Every method that emits an op returns the window on its output."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._ops: list[Op] = []
        self._origins: list[Origin] = []
        self._consts: list[Node] = []
        self._known: dict[Op, int] = {}

    def source(self, node: Node) -> Val:
        """Returns the window on a node without arguments; random words and dataset rows need an op, other sources
        none.
        """
        dims = tuple((n,) for n in node.shape)
        pool, big = self._views.pool, node.elements > LEAF_ELEMENTS
        match node.kind:
            case "state":
                return Val(dims, pool.leaf(Tag.STATE, node.attrs[0], 0, contiguous(node.shape), big))
            case "const":
                self._consts.append(node)
                return Val(dims, pool.leaf(Tag.CONST, len(self._consts) - 1, 0, contiguous(node.shape), big))
            case "context":
                return Val(dims, pool.leaf(Tag.CONTEXT, 0, node.attrs[0], ()))
            case "iota":
                return Val(dims, pool.leaf(Tag.IOTA, 0, *node.attrs))
            case "imm":
                return Val(dims, pool.inst(scalar.Opcode.IMM, (), node.attrs[0]))
        kind = {"random": Kind.RANDOM, "draw": Kind.DRAW}[node.kind]
        return self._write(Op(kind, I32, node.shape, (), p0=node.attrs[0]), node, dims)

    def map(self, val: Val, node: Node, keep: Sequence[int] = ()) -> Val:
        """Stores a value in memory: row-major over its iteration axes, without those along which it is constant.

        `keep` names logical dimensions whose axes are stored all the same.
        """
        val = self._views.normal(val)
        kept = [i in keep for i, d in enumerate(val.dims) for _ in d]
        varies = [k or v for k, v in zip(kept, val.varying, strict=True)]
        flat = self._views.packed(val, varies)
        return self._write(_map(flat.expr, flat.axes, node), node, val.dims, varies)

    def fold(self, val: Val, node: Node) -> Val:
        """Emits a fold and returns its results."""
        chain, flat = val.body, self._views.packed(val, val.varying)
        assert isinstance(chain, FoldChain)
        dtype = I32 if chain.mode == Fold.ISUM else F32
        op = Op(Kind.FOLD, dtype, flat.axes, _operands(flat.leaves), (chain.terms,), chain.mode, p0=chain.words)
        return self._write(op, node, val.dims, val.varying)

    def quant(self, rows: Val, node: Node) -> Val:
        """Emits the op for the codes or for the scales of a window on rows."""
        mode, words, stream = node.attrs
        leaf, lead = rows.leaf, Val(rows.dims[:-1], rows.leaf)
        operand = View(leaf.tag, leaf.index, leaf.offset, (*compress(leaf.strides, lead.varying), 0, 1))
        extents, terms = (*compress(lead.axes, lead.varying), node.shape[-1]), node.args[0].shape[-1]
        op = Op(Kind.QUANT, _dtype(node), extents, (operand,), (terms,), mode, p0=words, p1=stream)
        return self._write(op, node, (*lead.dims, (node.shape[-1],)), [*lead.varying, True])

    def gather(self, index: Leaf, table: Leaf, dims: Sequence[Axes], rows: int, row_stride: int, node: Node) -> Val:
        """Emits a gather: for each `index` i, row i of the table. Both windows run over the axes of `dims`."""
        varies = [bool(i or t) for i, t in zip(index.strides, table.strides, strict=True)]
        extents = tuple(compress((n for d in dims for n in d), varies))
        op = Op(Kind.GATHER, _dtype(node), extents, _operands([index, table], varies), p0=rows, p1=row_stride)
        return self._write(op, node, dims, varies)

    def concat(self, parts: Sequence[Val], axis: int, node: Node) -> Val:
        """Concatenates windows along a logical dimension, in which each part has at most one axis."""
        dims = (*parts[0].dims[:axis], (node.shape[axis],), *parts[0].dims[axis + 1 :])
        at = sum(len(d) for d in dims[:axis])
        leaves = []
        for part in parts:
            strides = part.leaf.strides
            still = strides if part.dims[axis] else (*strides[:at], 0, *strides[at:])
            leaves.append(self._views.pool.moved(part.leaf, still))
        extents, sizes = tuple(n for d in dims for n in d), tuple(arg.shape[axis] for arg in node.args)
        return self._write(Op(Kind.CONCAT, _dtype(node), extents, _operands(leaves), p0=at, sizes=sizes), node, dims)

    def output(self, val: Val, node: Node) -> Alias:
        """Returns the state entry for an output; stores the value if no op has exactly the node's shape."""
        val = self._views.normal(val)
        if len(val.axes) > len(node.shape):
            val = self.map(val, node, range(len(node.shape)))
        body = val.expr
        if isinstance(body, Leaf) and body.tag == Tag.OP and body.offset == 0:
            whole = contiguous(node.shape if val.axes else ())
            if self._ops[body.index].extents == node.shape and body.strides == whole:
                return Alias(Alias.OP_KIND, body.index)
        if not val.axes and node.shape:
            body = self._views.pool.rewrite(body, lambda x: self._views.pool.moved(x, (0,)))
        return Alias(Alias.OP_KIND, self._add(_map(body, node.shape, node), node.origin))

    def program(self, entries: tuple[TensorHeader | None, ...], aliases: Sequence[Alias]) -> Program:
        """Returns the Program, without the ops and constants that no output needs.

        Raises LoweringError beyond a size bound.
        """
        needed: set[int] = set()
        stack = [a.index for a in aliases if a.kind == Alias.OP_KIND]
        while stack:
            index = stack.pop()
            if index not in needed:
                needed.add(index)
                stack += [v.index for v in self._ops[index].views if v.tag == Tag.OP]
        order = sorted(needed)
        used = sorted({v.index for i in order for v in self._ops[i].views if v.tag == Tag.CONST})
        numbers = {tag: {old: new for new, old in enumerate(of)} for tag, of in ((Tag.OP, order), (Tag.CONST, used))}
        ops, elements = [], 0
        for old in order:
            op, origin = self._ops[old], self._origins[old]
            views = tuple(replace(v, index=numbers[v.tag][v.index]) if v.tag in numbers else v for v in op.views)
            elements += op.header.elements
            ops.append(replace(op, views=views, cumulative=elements))
            try:
                _check_bounds(len(ops), ops[-1])
            except ProgramInvalid as broken:
                raise refusal(origin, origin.aten or op.kind.name.lower(), broken.message, broken.hint) from broken
        tables = [self._consts[i] for i in used]
        return Program(
            tuple(ops),
            entries,
            tuple(replace(a, index=numbers[Tag.OP][a.index]) if a.kind == Alias.OP_KIND else a for a in aliases),
            tuple(Const(TensorHeader(_dtype(n), n.shape), n.attrs[0].data) for n in tables),
            tuple(self._origins[i].name or self._ops[i].kind.name.lower() for i in order),
            tuple(self._origins[i].place for i in order),
        )

    def _write(self, op: Op, node: Node, dims: Sequence[Axes], varies: Sequence[bool] | None = None) -> Val:
        """Appends an op and returns the window on its output: row-major over the axes that vary, by default all."""
        axes = [n for d in dims for n in d]
        varies = [True] * len(axes) if varies is None else varies
        inner = iter(contiguous(list(compress(axes, varies))))
        strides = [next(inner) if v else 0 for v in varies]
        index, big = self._add(op, node.base.origin), op.header.elements > LEAF_ELEMENTS
        return self._views.normal(Val(tuple(dims), self._views.pool.leaf(Tag.OP, index, 0, strides, big)))

    def _add(self, op: Op, origin: Origin) -> int:
        if op not in self._known:
            self._known[op] = len(self._ops)
            self._ops.append(op)
            self._origins.append(origin)
        return self._known[op]


def _check_bounds(count: int, op: Op) -> None:
    """Raises ProgramInvalid if a Program of `count` ops that ends in this op exceeds a bound."""
    rules.check_op_count(count)
    rules.check_shape(op)
    rules.check_kind(op)
    rules.check_total(op.cumulative)


def _operands(leaves: Iterable[Leaf], varies: Sequence[bool] | None = None) -> tuple[View, ...]:
    """Converts windows to operands of an op, restricted to the axes flagged in `varies` if given."""
    axes = [(x, x.strides if varies is None else tuple(compress(x.strides, varies))) for x in leaves]
    return tuple(View(x.tag, x.index, x.offset, strides) for x, strides in axes)


def _map(body: Expr, extents: tuple[int, ...], node: Node) -> Op:
    """Builds a map op: operands in order of first use, then one instruction per distinct operation."""
    parts = body.parts
    leaves = [p for p in parts if isinstance(p, Leaf)]
    insts = [p for p in parts if isinstance(p, Inst)]
    register = {id(p): i for i, p in enumerate([*leaves, *insts])}
    instrs = []
    for inst in insts:
        a, b, c = [*(register[id(x)] for x in inst.args), 0, 0, 0][:3]
        instrs.append(Instr(int(inst.op), a, b, c, inst.imm & scalar.MASK))
    instrs = instrs or [Instr(int(scalar.Opcode.MOV), 0)]
    return Op(Kind.MAP, _dtype(node), extents, _operands(leaves), instrs=tuple(instrs))


def _dtype(node: Node) -> int:
    return F32 if node.dtype == g.F32 else I32
