"""Graph to ops: which values become ops, and in which layout.

Nodes are visited once, in the order in which they were made. Views rewrite strides. Elementwise nodes stay
expressions until something needs them in memory: a fold, a gather, a concat, the state, several consumers, or a
map's limits. A fold is emitted in the order in which its one reader, through its views, will read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from lockstep.numerics.scalar import MASK, Op
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.programs.program import F32, I32, Alias, Fold, Instr, Kind, Quant, Tag, View
from lockstep.protocol.programs.rules import MAX_AXES
from lockstep.tracing import graph as g
from lockstep.tracing.affine import (
    Expr,
    ExpressionPool,
    FoldChain,
    Inst,
    Leaf,
    MapCost,
    Val,
    Views,
    contiguous,
    cost,
    postorder,
)
from lockstep.tracing.graph import VIEWS, Node, Origin


@dataclass(frozen=True)
class OpDraft:
    """An op before numbering: `programs.program.Op` without the running total."""

    kind: Kind
    dtype: int
    extents: tuple[int, ...]
    views: tuple[View, ...] = ()
    k_extents: tuple[int, ...] = ()
    mode: int = 0
    instrs: tuple[Instr, ...] = ()
    p0: int = 0
    p1: int = 0
    sizes: tuple[int, ...] = ()


class Schedule:
    """The ops of a graph, built by `run`, a method for each kind of node: they call one another."""

    def __init__(self) -> None:
        self.drafts: list[OpDraft] = []
        self.origins: list[Origin] = []
        self.consts: list[Node] = []
        self._pool = ExpressionPool()
        self._views = Views(self._pool)
        self._known: dict[OpDraft, int] = {}
        self._vals: dict[int, Val] = {}
        self._users: dict[int, list[Node]] = {}
        self._fanout: dict[int, int] = {}
        self._wanted: set[int] = set()

    def run(self, outputs: Sequence[Node | None]) -> tuple[Alias, ...]:
        """Schedules everything that the outputs need; returns what each names."""
        live = _live([o for o in outputs if o is not None])
        self._users = {n.index: [] for n in live}
        for node in live:
            for arg in dict.fromkeys(node.args):
                self._users[arg.index].append(node)
        self._wanted = {o.index for o in outputs if o is not None}
        for node in reversed(live):
            users = self._users[node.index]
            self._fanout[node.index] = (node.index in self._wanted) + sum(
                self._fanout[u.index] if u.kind in VIEWS else not _reads_scales(u) for u in users
            )
        for node in live:
            if node.kind not in VIEWS:
                reader, val = self._compute(node)
                self._vals[reader.index] = val
        return tuple(self._alias(o) for o in outputs)

    # --- values -------------------------------------------------------------------------------------------

    def _val(self, node: Node) -> Val:
        """Returns a node's current value; views are followed to their base."""
        if node.index in self._vals:
            return self._vals[node.index]
        base = node.args[0]
        val = self._val(base)
        if isinstance(val.body, Inst) and _repeats(node, val.body):
            val = self._fix(base)
        result = self._view(node, val)
        if result is None or (_axes(result) > MAX_AXES and _axes(val) <= MAX_AXES):
            result = self._view(node, self._fix(base))
        if result is None:
            # What is broadcast was not stored: only a full copy can be cut in this way.
            self._vals[base.index] = self._materialise(self._val(base), base, range(len(base.shape)))
            result = self._view(node, self._vals[base.index])
        assert result is not None, f"a {node.kind} of a contiguous tensor is a view"
        return result

    def _view(self, node: Node, val: Val) -> Val | None:
        if node.kind == "permute":
            return self._views.permute(val, node.attrs[0])
        if node.kind == "reshape":
            return self._views.reshape(val, node.shape)
        if node.kind == "expand":
            return self._views.expand(val, node.shape)
        if node.kind == "flip":
            return self._views.flip(val, node.attrs[0])
        axis, first, second = node.attrs
        if node.kind == "window":
            return self._views.window(val, axis, node.shape[axis], first, node.shape[axis + 1], second)
        return self._views.slice(val, axis, first, second, node.shape[axis])

    def _fix(self, node: Node) -> Val:
        """The node in memory, contiguous in its own order (but for what is broadcast)."""
        self._vals[node.index] = self._materialise(self._val(node), node)
        return self._vals[node.index]

    def _stored(self, node: Node, dims: Sequence[int]) -> Val:
        """The node in memory, with one axis for each of some logical dimensions."""
        val = self._views.normal(self._fix(node))
        if any(len(val.dims[i]) > 1 for i in dims):
            # What is broadcast was not stored: one stride along a dimension needs a full copy.
            val = self._vals[node.index] = self._views.normal(self._materialise(val, node, dims))
        return val

    def _unified(self, nodes: Sequence[Node]) -> list[Val]:
        """Values of one logical shape over the same iteration axes."""
        vals = [self._val(n) for n in nodes]
        result = self._views.unify(vals)
        if result is None or any(_axes(val) > MAX_AXES for val in result):
            vals = [self._fix(n) if any(len(d) > 1 for d in v.dims) else v for n, v in zip(nodes, vals, strict=True)]
            result = self._views.unify(vals)
        assert result is not None, "contiguous tensors of one shape have nesting axes"
        return result

    def _compute(self, node: Node) -> tuple[Node, Val]:
        """The node, or for a fold the view that stands for it, and its value."""
        if node.kind in ("fold", "qdot"):
            return self._fold(node) if node.kind == "fold" else self._qdot(node)
        forms = {"apply": self._apply, "gather": self._gather, "concat": self._concat, "quant": self._quant}
        if node.kind in forms:
            return node, forms[node.kind](node)
        return node, self._source(node)

    def _source(self, node: Node) -> Val:
        dims = tuple((n,) for n in node.shape)
        leaf, big = self._pool.leaf, node.elements > LEAF_ELEMENTS
        match node.kind:
            case "state":
                return Val(dims, leaf(Tag.STATE, node.attrs[0], 0, contiguous(node.shape), big))
            case "const":
                self.consts.append(node)
                return Val(dims, leaf(Tag.CONST, len(self.consts) - 1, 0, contiguous(node.shape), big))
            case "context":
                return Val(dims, leaf(Tag.CONTEXT, 0, node.attrs[0], ()))
            case "iota":
                return Val(dims, leaf(Tag.IOTA, 0, *node.attrs))
            case "imm":
                return Val(dims, self._pool.inst(Op.IMM, (), node.attrs[0]))
        kind = {"random": Kind.RANDOM, "draw": Kind.DRAW}[node.kind]
        return self._emit(OpDraft(kind, I32, node.shape, p0=node.attrs[0]), dims, node.origin)

    # --- maps ---------------------------------------------------------------------------------------------

    def _apply(self, node: Node) -> Val:
        while True:
            vals = self._unified(node.args)
            bodies = [_expr(v) for v in vals]
            expr = self._pool.inst(Op(node.attrs[0]), bodies)
            if cost(expr).fits:
                break
            costs = [cost(b) if isinstance(b, Inst) else None for b in bodies]
            worst = max(range(len(costs)), key=lambda i: _weight(costs[i]))
            assert _weight(costs[worst]) > (0, 0), "three windows fit in a map"
            self._fix(node.args[worst])
        val = self._views.normal(Val(vals[0].dims if vals else (), expr))
        if self._fanout[node.index] > 1 and not _cheap(expr):
            return self._materialise(val, node)
        return val

    def _materialise(self, val: Val, node: Node, keep: Sequence[int] = ()) -> Val:
        """The value in memory: row-major over its iteration axes, but for those along which nothing varies.

        `keep` names logical dimensions whose axes stay even then.
        """
        val = self._views.normal(val)
        forced = [i in keep for i, d in enumerate(val.dims) for _ in d]
        leaves = list(val.leaves())
        varies = [f or any(x.strides[a] for x in leaves) for a, f in enumerate(forced)]
        kept = tuple(n for n, v in zip(val.axes, varies, strict=True) if v)

        def strip(x: Leaf) -> Leaf:
            strides = [s for s, v in zip(x.strides, varies, strict=True) if v]
            return self._pool.leaf(x.tag, x.index, x.offset, strides, x.big)

        flat = self._views.merged(Val((kept,), self._pool.rewrite(_expr(val), strip)))
        views, instrs = _program(_expr(flat))
        draft = OpDraft(Kind.MAP, _dtype(node), flat.axes, views, instrs=instrs)
        index = self._add(draft, _base(node).origin)
        return self._window(index, val.dims, varies)

    def _window(self, index: int, dims: tuple[tuple[int, ...], ...], varies: Sequence[bool]) -> Val:
        """The output of op `index`, row-major over the axes that vary."""
        axes = [n for d in dims for n in d]
        inner = iter(contiguous([n for n, v in zip(axes, varies, strict=True) if v]))
        strides = [next(inner) if v else 0 for v in varies]
        big = prod(self.drafts[index].extents) > LEAF_ELEMENTS
        return self._views.normal(Val(dims, self._pool.leaf(Tag.OP, index, 0, strides, big)))

    # --- folds --------------------------------------------------------------------------------------------

    def _fold(self, node: Node) -> tuple[Node, Val]:
        mode, n_k = node.attrs
        vals = self._unified(node.args)
        rank = len(vals[0].dims) - n_k
        if mode == Fold.SUM and (factors := self._product(vals[0], rank)) is not None:
            mode, vals = int(Fold.DOT), factors
        operands = []
        for val in vals:
            if not isinstance(val.body, Leaf) or _k_stride(val, rank) is None:
                val = self._row(val, rank, node)
            assert isinstance(val.body, Leaf)
            stride = _k_stride(val, rank)
            assert stride is not None, "a row is contiguous along k"
            out = len([n for d in val.dims[:rank] for n in d])
            operands.append(
                self._pool.leaf(
                    val.body.tag, val.body.index, val.body.offset, (*val.body.strides[:out], stride), val.body.big
                )
            )
        terms = prod(n for d in vals[0].dims[rank:] for n in d)
        chain = self._views.normal(Val(vals[0].dims[:rank], FoldChain(mode, tuple(operands), terms)))
        return self._emit_as_read(chain, node)

    def _emit_as_read(self, chain: Val, node: Node) -> tuple[Node, Val]:
        """The last view through which its one reader sees the fold, and the fold in memory in that order."""
        reader = node
        while reader.index not in self._wanted and len(users := self._users[reader.index]) == 1:
            seen = self._view(users[0], chain) if users[0].kind in VIEWS else None
            if seen is None or _batch_innermost(seen) or _axes(seen) > MAX_AXES:
                break
            reader, chain = users[0], seen
        return reader, self._emit_fold(chain, node)

    def _product(self, val: Val, rank: int) -> list[Val] | None:
        """The two windows of a product that a `dot` can read as they are."""
        if not isinstance(val.body, Inst) or val.body.op != Op.FMUL:
            return None
        factors = [Val(val.dims, a) for a in val.body.args]
        fit = all(isinstance(f.body, Leaf) and f.body.is_tensor and _k_stride(f, rank) is not None for f in factors)
        return factors if fit else None

    def _row(self, val: Val, rank: int, node: Node) -> Val:
        """The same values, contiguous along k: a transposing map, or an immediate."""
        if isinstance(val.body, Inst) and val.body.op == Op.IMM:
            word = val.body.imm - (1 << 32 if val.body.imm >> 31 else 0)
            return Val(val.dims, self._pool.leaf(Tag.IOTA, 0, word, (0,) * len(val.axes)))
        first_k = len([n for d in val.dims[:rank] for n in d])
        varies = any(x.strides[a] for x in val.leaves() for a in range(first_k, len(val.axes)))
        stored = self._materialise(val, node, range(rank, len(val.dims)) if varies else ())
        return self._views.split(stored, val.dims)

    def _emit_fold(self, val: Val, node: Node) -> Val:
        chain = val.body
        assert isinstance(chain, FoldChain)
        varies = [any(x.strides[a] for x in chain.operands) for a in range(len(val.axes))]
        kept = tuple(n for n, v in zip(val.axes, varies, strict=True) if v)

        def strip(x: Leaf) -> Leaf:
            strides = [s for s, v in zip(x.strides, [*varies, True], strict=True) if v]
            return self._pool.leaf(x.tag, x.index, x.offset, strides, x.big)

        flat = self._views.merged(Val((kept,), replace(chain, operands=tuple(map(strip, chain.operands)))))
        views = tuple(View(x.tag, x.index, x.offset, x.strides) for x in flat.leaves())
        dtype = I32 if chain.mode == Fold.ISUM else F32
        draft = OpDraft(Kind.FOLD, dtype, flat.axes, views, (chain.terms,), chain.mode, p0=chain.words)
        return self._window(self._add(draft, _base(node).origin), val.dims, varies)

    # --- integer products ---------------------------------------------------------------------------------

    def _quant(self, node: Node) -> Val:
        """The codes or scales of a tensor in rows: a transposing map comes before where k is not contiguous."""
        mode, words, stream = node.attrs
        arg, terms = node.args[0], node.args[0].shape[-1]
        rank = len(arg.shape) - 1
        val = self._views.normal(self._val(arg))
        if not _in_rows(val, rank):
            val = self._views.normal(self._fix(arg))
        if not _in_rows(val, rank):
            # What is broadcast along k was not stored.
            self._vals[arg.index] = self._materialise(self._val(arg), arg, (rank,))
            val = self._views.normal(self._vals[arg.index])
        leaf, dims = val.body, (*val.dims[:rank], (node.shape[-1],))
        assert isinstance(leaf, Leaf), "a tensor in memory"
        rows = [n for d in val.dims[:rank] for n in d]
        varies = [bool(s) for s in leaf.strides[: len(rows)]]
        kept = [a for a, v in enumerate(varies) if v]
        view = View(leaf.tag, leaf.index, leaf.offset, (*(leaf.strides[a] for a in kept), 0, 1))
        extents = (*(rows[a] for a in kept), node.shape[-1])
        draft = OpDraft(Kind.QUANT, _dtype(node), extents, (view,), (terms,), mode, p0=words, p1=stream)
        return self._window(self._add(draft, _base(node).origin), dims, [*varies, True])

    def _qdot(self, node: Node) -> tuple[Node, Val]:
        (words,) = node.attrs
        found = self._views.unify([self._val(n) for n in node.args])
        if found is None:
            for arg in node.args:
                self._in_own_rows(_base(arg))
            found = self._views.unify([self._val(n) for n in node.args])
        assert found is not None, "codes with one axis for each dimension have nesting axes"
        rank = len(found[0].dims) - 1
        operands = []
        for j, val in enumerate(found):
            leaf = val.body
            assert isinstance(leaf, Leaf), "codes and scales are in memory"
            out = sum(len(d) for d in val.dims[:rank])
            stride = words if j < 2 else int(bool(val.dims[rank]))
            assert leaf.strides[out:] in ((), (stride,)), "groups lie one behind another along k"
            operands.append(self._pool.leaf(leaf.tag, leaf.index, leaf.offset, (*leaf.strides[:out], stride), leaf.big))
        chain = FoldChain(Fold.QDOT, tuple(operands), node.args[0].shape[-1], words)
        return self._emit_as_read(self._views.normal(Val(found[0].dims[:rank], chain)), node)

    def _in_own_rows(self, node: Node) -> None:
        """Computes codes or scales again, of a copy whose rows have one axis for each dimension."""
        if node.kind == "quant":
            self._fix(node.args[0])
            self._vals[node.index] = self._quant(node)
        else:
            for part in node.args:
                self._in_own_rows(_base(part))
            self._vals[node.index] = self._concat(node)

    # --- gathers, concatenations --------------------------------------------------------------------------

    def _gather(self, node: Node) -> Val:
        rows = node.args[0].shape[0]
        index = self._val(node.args[1])
        if not isinstance(index.body, Leaf):
            index = self._fix(node.args[1])
        table = self._val(node.args[0])
        if not isinstance(table.body, Leaf) or len(table.dims[0]) > 1 or _first_stride(table) < 0:
            table = self._fix(node.args[0])
        if len(table.dims[0]) > 1:
            # Rows that repeat were not stored: one stride along them needs a full copy.
            table = self._vals[node.args[0].index] = self._materialise(table, node.args[0], (0,))
        above = self._views.expand(Val(((), *index.dims), index.body), (rows, *index.shape))
        both = self._views.unify([table, above])
        if both is None:
            table = self._fix(node.args[0])
            above = self._views.expand(Val(((), *index.dims), self._fix(node.args[1]).body), (rows, *index.shape))
            both = self._views.unify([table, above])
        assert both is not None
        base, at = both[0].body, both[1].body
        assert isinstance(base, Leaf)
        assert isinstance(at, Leaf)
        lead = len(both[0].dims[0])
        row_stride = base.strides[0] if lead else 0
        base_s, at_s, dims = base.strides[lead:], at.strides[lead:], both[0].dims[1:]
        axes = [n for d in dims for n in d]
        if at.tag == Tag.IOTA and _within(at.offset, at_s, axes, rows):
            strides = [b + row_stride * a for b, a in zip(base_s, at_s, strict=True)]
            window = self._pool.leaf(base.tag, base.index, base.offset + row_stride * at.offset, strides, base.big)
            return self._views.normal(Val(dims, window))
        varies = [bool(b or a) for b, a in zip(base_s, at_s, strict=True)]
        kept = [i for i, v in enumerate(varies) if v]
        views = (
            View(at.tag, at.index, at.offset, tuple(at_s[i] for i in kept)),
            View(base.tag, base.index, base.offset, tuple(base_s[i] for i in kept)),
        )
        draft = OpDraft(Kind.GATHER, _dtype(node), tuple(axes[i] for i in kept), views, p0=rows, p1=row_stride)
        return self._window(self._add(draft, node.origin), dims, varies)

    def _concat(self, node: Node) -> Val:
        axis = node.attrs[0]
        parts = []
        for arg in node.args:
            val = self._views.normal(self._val(arg))
            if isinstance(val.body, Inst) and val.body.op == Op.IMM:
                word = val.body.imm - (1 << 32 if val.body.imm >> 31 else 0)
                val = Val(val.dims, self._pool.leaf(Tag.IOTA, 0, word, (0,) * len(val.axes)))
            elif not isinstance(val.body, Leaf) or len(val.dims[axis]) > 1:
                val = self._stored(arg, (axis,))
            parts.append(val)
        rest = [i for i in range(len(node.shape)) if i != axis]
        if any(p.dims[i] != parts[0].dims[i] for p in parts for i in rest):
            # A part cut differently from the others is read through one axis per dimension.
            parts = [
                p if all(len(d) < 2 for d in p.dims) else self._stored(a, range(len(node.shape)))
                for a, p in zip(node.args, parts, strict=True)
            ]
        extents = [n for i, d in enumerate(node.shape) for n in ((d,) if i == axis else parts[0].dims[i])]
        at = sum(len(d) for d in parts[0].dims[:axis])
        views = []
        for part in parts:
            leaf = part.body
            assert isinstance(leaf, Leaf)
            strides = leaf.strides if part.dims[axis] else (*leaf.strides[:at], 0, *leaf.strides[at:])
            views.append(View(leaf.tag, leaf.index, leaf.offset, strides))
        sizes = tuple(arg.shape[axis] for arg in node.args)
        draft = OpDraft(Kind.CONCAT, _dtype(node), tuple(extents), tuple(views), p0=at, sizes=sizes)
        dims = (*parts[0].dims[:axis], (node.shape[axis],), *parts[0].dims[axis + 1 :])
        return self._emit(draft, dims, node.origin)

    # --- emission -----------------------------------------------------------------------------------------

    def _emit(self, draft: OpDraft, dims: tuple[tuple[int, ...], ...], origin: Origin) -> Val:
        index = self._add(draft, origin)
        return self._window(index, dims, [True] * len([n for d in dims for n in d]))

    def _add(self, draft: OpDraft, origin: Origin) -> int:
        if draft not in self._known:
            self._known[draft] = len(self.drafts)
            self.drafts.append(draft)
            self.origins.append(origin)
        return self._known[draft]

    def _alias(self, node: Node | None) -> Alias:
        """The output entry: an input entry as it is, or an op of exactly the node's shape."""
        if node is None:
            return Alias(Alias.EMPTY_KIND)
        if node.kind == "state":
            return Alias(Alias.STATE_KIND, node.attrs[0])
        val = self._views.normal(self._val(node))
        if len(val.axes) > len(node.shape):
            val = self._materialise(val, node, range(len(node.shape)))
        body = _expr(val)
        if isinstance(body, Leaf) and body.tag == Tag.OP and body.offset == 0:
            whole = node.shape if val.axes else ()
            if self.drafts[body.index].extents == node.shape and body.strides == contiguous(whole):
                return Alias(Alias.OP_KIND, body.index)
        if not val.axes and node.shape:
            body = self._pool.rewrite(body, lambda x: self._pool.leaf(x.tag, x.index, x.offset, (0,), x.big))
        views, instrs = _program(body)
        draft = OpDraft(Kind.MAP, _dtype(node), node.shape, views, instrs=instrs)
        return Alias(Alias.OP_KIND, self._add(draft, node.origin))


def _expr(val: Val) -> Expr:
    """Returns the body of a value, which is not a fold in the making."""
    assert not isinstance(val.body, FoldChain)
    return val.body


def _base(node: Node) -> Node:
    """Returns the node under a chain of views."""
    while node.kind in VIEWS:
        node = node.args[0]
    return node


def _live(outputs: Sequence[Node]) -> list[Node]:
    """Every node that the outputs need, in the order in which they were made."""
    seen: dict[int, Node] = {}
    stack = list(outputs)
    while stack:
        node = stack.pop()
        if node.index not in seen:
            seen[node.index] = node
            stack.extend(node.args)
    return [seen[i] for i in sorted(seen)]


def _program(body: Expr) -> tuple[tuple[View, ...], tuple[Instr, ...]]:
    """Operands in order of first use, then one instruction per distinct operation."""
    parts = postorder(body)
    leaves = [p for p in parts if isinstance(p, Leaf)]
    insts = [p for p in parts if isinstance(p, Inst)]
    register = {id(p): i for i, p in enumerate([*leaves, *insts])}
    instrs = []
    for inst in insts:
        a, b, c = [*(register[id(x)] for x in inst.args), 0, 0, 0][:3]
        instrs.append(Instr(int(inst.op), a, b, c, inst.imm & MASK))
    if not insts:
        instrs = [Instr(int(Op.MOV), 0)]
    return tuple(View(x.tag, x.index, x.offset, x.strides) for x in leaves), tuple(instrs)


def _cheap(expr: Expr) -> bool:
    """Returns True if computing the expression in every consumer costs less than storing it."""
    if isinstance(expr, Leaf):
        return True
    c, constants = cost(expr), sum(isinstance(e, Inst) and e.op == Op.IMM for e in postorder(expr))
    own = c.instrs - constants
    return not c.heavy and (own <= 8 if c.tensors == 0 else own <= 1 and c.tensors == 1)


def _repeats(view: Node, expr: Inst) -> bool:
    """Returns True if computing the expression under the view costs more than storing it first."""
    if view.kind == "window":
        return view.shape[view.attrs[0] + 1] > view.attrs[1] and not _cheap(expr)
    return view.kind == "expand" and cost(expr).heavy


def _weight(c: MapCost | None) -> tuple[int, int]:
    """Returns the (tensor operands, instructions) that a map saves if an argument is stored."""
    return (0, 0) if c is None or c.tensors + c.operands == 0 else (max(c.tensors - 1, 0), c.instrs)


def _reads_scales(node: Node) -> bool:
    """Returns True for a tensor's scales, which are read where its codes are."""
    return node.kind == "quant" and node.attrs[0] == Quant.SCALES


def _axes(val: Val) -> int:
    """Returns the iteration axes along which a value varies: those that an op would have to have."""
    strides = [x.strides for x in val.leaves()]
    return sum(any(s[a] for s in strides) for a in range(len(val.axes)))


def _in_rows(val: Val, rank: int) -> bool:
    """Returns True if the value is in memory, and contiguous along its last dimension, `rank`."""
    if not isinstance(val.body, Leaf) or not val.body.is_tensor:
        return False
    return not val.dims[rank] or (len(val.dims[rank]) == 1 and val.body.strides[-1] == 1)


def _k_stride(val: Val, rank: int) -> int | None:
    """The stride of a window along all k axes as one; None if a fold may not read it so."""
    leaf = val.body
    assert isinstance(leaf, Leaf)
    first = len([n for d in val.dims[:rank] for n in d])
    axes = [(n, s) for n, s in zip(val.axes[first:], leaf.strides[first:], strict=True) if n > 1]
    if not axes or not any(s for _, s in axes):
        return 0
    for (_, outer), (n, inner) in pairwise(axes):
        if outer != n * inner:
            return None
    last = axes[-1][1]
    return last if last == 1 or not leaf.is_tensor else None


def _batch_innermost(val: Val) -> bool:
    """Returns True if neighbours in memory would be elements of different products, so that none has a row to write."""
    chain = val.body
    if not isinstance(chain, FoldChain) or len(chain.operands) < 2:
        return False
    shared = [all(x.strides[a] for x in chain.operands) for a, n in enumerate(val.axes) if n > 1]
    return not all(shared) and shared[-1]


def _first_stride(val: Val) -> int:
    assert isinstance(val.body, Leaf)
    return val.body.strides[0] if val.dims[0] else 0


def _within(offset: int, strides: Sequence[int], axes: Sequence[int], rows: int) -> bool:
    """Returns True if an affine index stays in 0..rows-1."""
    ends = [s * (n - 1) for s, n in zip(strides, axes, strict=True)]
    return offset + sum(min(e, 0) for e in ends) >= 0 and offset + sum(max(e, 0) for e in ends) < rows


def _dtype(node: Node) -> int:
    return F32 if node.dtype == g.F32 else I32
