"""Expressions over affine windows: the bodies of maps before they become ops.

A `Val` is an expression whose leaves are windows (source, offset, one stride per iteration axis), with its
iteration axes grouped into the logical dimensions of the tensor it stands for. A logical dimension may have several
iteration axes: that is how a reshape that merges permuted axes stays free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise
from math import prod

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import Tag

Axes = tuple[int, ...]
"""Extents."""
Strides = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Leaf:
    """A window on a source."""

    tag: Tag
    index: int
    offset: int
    strides: Strides
    big: bool = False
    """The source has more than one leaf."""

    @property
    def is_tensor(self) -> bool:
        """True if it reads memory: it is neither iota nor context."""
        return self.tag not in (Tag.IOTA, Tag.CONTEXT)


@dataclass(frozen=True, eq=False)
class Inst:
    """A scalar operation on expressions."""

    op: Opcode
    args: tuple[Expr, ...] = ()
    imm: int = 0


Expr = Leaf | Inst


@dataclass(frozen=True, eq=False)
class FoldChain:
    """A fold in the making: its output axes can still be permuted for free."""

    mode: int
    operands: tuple[Leaf, ...]
    """Strides over the output axes, then the one k axis."""
    terms: int
    words: int = 0
    """The terms of a group of codes, in a qdot."""


class ExpressionPool:
    """Makes expressions; equal ones are the same object."""

    def __init__(self) -> None:
        self._known: dict[tuple, Expr] = {}

    def leaf(self, tag: Tag, index: int, offset: int, strides: Sequence[int], big: bool = False) -> Leaf:
        """Returns the one shared leaf for this window on a tensor."""
        key = (int(tag), index, offset, tuple(strides))
        found = self._known.setdefault(key, Leaf(tag, index, offset, tuple(strides), big))
        assert isinstance(found, Leaf)
        return found

    def inst(self, op: Opcode, args: Sequence[Expr] = (), imm: int = 0) -> Inst:
        """Returns the one shared node for this operation on these arguments."""
        key = ("inst", int(op), tuple(id(a) for a in args), imm)
        found = self._known.setdefault(key, Inst(op, tuple(args), imm))
        assert isinstance(found, Inst)
        return found

    def moved(self, leaf: Leaf, strides: Sequence[int], offset: int | None = None) -> Leaf:
        """Returns another window on the leaf's source, by default from the same element on."""
        return self.leaf(leaf.tag, leaf.index, leaf.offset if offset is None else offset, strides, leaf.big)

    def rewrite(self, expr: Expr, change: Callable[[Leaf], Leaf], done: dict[int, Expr] | None = None) -> Expr:
        """The expression with every leaf changed."""
        done = {} if done is None else done
        if id(expr) not in done:
            if isinstance(expr, Leaf):
                done[id(expr)] = change(expr)
            else:
                done[id(expr)] = self.inst(expr.op, [self.rewrite(a, change, done) for a in expr.args], expr.imm)
        return done[id(expr)]


def postorder(expr: Expr) -> list[Expr]:
    """Every distinct sub-expression, arguments before their use, in order of first use."""
    order: dict[int, Expr] = {}

    def visit(e: Expr) -> None:
        if id(e) in order:
            return
        if isinstance(e, Inst):
            for a in e.args:
                visit(a)
        order[id(e)] = e

    visit(expr)
    return list(order.values())


@dataclass(frozen=True)
class Val:
    """An expression (or a fold in the making) and the shape that it stands for."""

    dims: tuple[Axes, ...]
    """Per logical dimension its iteration axes' extents, outermost first; () is an extent of 1."""
    body: Expr | FoldChain

    @property
    def expr(self) -> Expr:
        """The body of a value that is no fold in the making."""
        assert not isinstance(self.body, FoldChain)
        return self.body

    @property
    def leaf(self) -> Leaf:
        """The body of a value that is a window."""
        assert isinstance(self.body, Leaf)
        return self.body

    @property
    def axes(self) -> Axes:
        """All iteration extents."""
        return tuple(n for dim in self.dims for n in dim)

    @property
    def varying(self) -> list[bool]:
        """True for each iteration axis along which the value varies: those that an op would have to have."""
        strides = [x.strides for x in self.leaves()]
        return [any(s[a] for s in strides) for a in range(len(self.axes))]

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return tuple(prod(dim) for dim in self.dims)

    def leaves(self) -> Iterator[Leaf]:
        """Every window in the body."""
        if isinstance(self.body, FoldChain):
            yield from self.body.operands
        else:
            yield from (e for e in postorder(self.body) if isinstance(e, Leaf))


def contiguous(extents: Sequence[int]) -> Strides:
    """Returns row-major strides."""
    return tuple(accumulate(reversed(extents[1:]), lambda a, b: a * b, initial=1))[::-1] if extents else ()


class Views:
    """Re-indexing of values, by rewriting strides."""

    def __init__(self, pool: ExpressionPool) -> None:
        self.pool = pool

    def _restride(self, val: Val, dims: Sequence[Axes], change: Callable[[int, Strides], tuple[int, Strides]]) -> Val:
        """`change` maps (offset, strides over the old axes) to the new; a chain's k stride is carried along."""
        rank = len(val.axes)

        def leaf(x: Leaf) -> Leaf:
            offset, strides = change(x.offset, x.strides[:rank])
            return self.pool.moved(x, strides + x.strides[rank:], offset)

        body = val.body
        if isinstance(body, FoldChain):
            new: Expr | FoldChain = replace(body, operands=tuple(leaf(x) for x in body.operands))
        else:
            new = self.pool.rewrite(body, leaf)
        return Val(tuple(tuple(d) for d in dims), new)

    def permute(self, val: Val, order: Sequence[int]) -> Val:
        """Logical dimension i of the result is order[i] of val."""
        starts = list(accumulate((len(d) for d in val.dims), initial=0))
        axes = [a for i in order for a in range(starts[i], starts[i + 1])]
        return self._restride(val, [val.dims[i] for i in order], lambda o, s: (o, tuple(s[a] for a in axes)))

    def expand(self, val: Val, shape: Sequence[int]) -> Val:
        """Logical dimensions of 1 repeat."""
        dims = [d if prod(d) == n else (n,) for d, n in zip(val.dims, shape, strict=True)]

        def change(offset: int, strides: Strides) -> tuple[int, Strides]:
            it = iter(strides)
            own = [[next(it) for _ in d] for d in val.dims]
            kept = [part if old == new else [0] for part, old, new in zip(own, val.dims, dims, strict=True)]
            return offset, tuple(s for part in kept for s in part)

        return self._restride(val, dims, change)

    def flip(self, val: Val, dims: Sequence[int]) -> Val:
        """Reverses a value along logical dimensions."""
        reversed_axes = [i in dims for i, d in enumerate(val.dims) for _ in d]

        def change(offset: int, strides: Strides) -> tuple[int, Strides]:
            for n, s, r in zip(val.axes, strides, reversed_axes, strict=True):
                offset += s * (n - 1) if r else 0
            return offset, tuple(-s if r else s for s, r in zip(strides, reversed_axes, strict=True))

        return self._restride(val, val.dims, change)

    def cut(self, val: Val, dim: int, extents: Sequence[int], steps: Sequence[int], start: int = 0) -> Val | None:
        """A logical dimension as one for each of some extents: its coordinate is `start` and of each so many steps.

        None if that dimension has several iteration axes.
        """
        val = self.normal(val)
        if len(val.dims[dim]) > 1:
            return None
        at = sum(len(d) for d in val.dims[:dim])
        dims = [*val.dims[:dim], *((n,) for n in extents), *val.dims[dim + 1 :]]

        def change(offset: int, strides: Strides) -> tuple[int, Strides]:
            stride, after = (strides[at], at + 1) if val.dims[dim] else (0, at)
            return offset + start * stride, (*strides[:at], *(step * stride for step in steps), *strides[after:])

        return self._restride(val, dims, change)

    def split(self, val: Val, dims: Sequence[Axes]) -> Val:
        """Iteration axes cut into finer ones; the products per old axis must agree, the grouping is free."""
        parts = _grouped([n for d in dims for n in d], val.axes)
        return self._restride(
            val, dims, lambda o, s: (o, tuple(a * c for a, p in zip(s, parts, strict=True) for c in contiguous(p)))
        )

    def reshape(self, val: Val, shape: Sequence[int]) -> Val | None:
        """Reshapes a value in row-major order; None if an axis would be cut unevenly."""
        val = self.normal(val)
        for candidate in (val, self.merged(val)):
            cuts = _refine(candidate.axes, shape)
            if cuts is not None:
                return self.normal(self.split(candidate, _grouped(cuts, shape)))
        return None

    def unify(self, vals: Sequence[Val]) -> list[Val] | None:
        """Gives values of the same logical shape the same iteration axes; None if two cuts of a dimension do not
        nest."""
        vals = [self.normal(v) for v in vals]
        dims: list[Axes] = []
        for columns in zip(*(v.dims for v in vals), strict=True):
            fine: Axes = ()
            for column in columns:
                cuts = _refine(fine or (prod(column),), column)
                if cuts is None:
                    return None
                fine = tuple(cuts)
            dims.append(fine)
        return [self.split(v, dims) for v in vals]

    def normal(self, val: Val) -> Val:
        """Axes of 1 dropped, and axes of one dimension merged where every window allows it."""
        dims, keep = _mergeable(val, val.dims)
        return val if dims == val.dims else self._restride(val, dims, lambda o, s: (o, tuple(s[a] for a in keep)))

    def packed(self, val: Val, kept: Sequence[bool]) -> Val:
        """The axes that are kept as one dimension, merged where every window allows it."""
        axes = tuple(compress(val.axes, kept))
        return self.merged(self._restride(val, [axes], lambda o, s: (o, tuple(compress(s, kept)))))

    def along_k(self, val: Val, rank: int, stride: int) -> Leaf:
        """The window of a fold: strides over the axes of the first `rank` dimensions, then one along k."""
        first = sum(len(d) for d in val.dims[:rank])
        return self.pool.moved(val.leaf, (*val.leaf.strides[:first], stride))

    def constant(self, val: Val) -> Val | None:
        """Returns an immediate as a window with zero strides; None for anything else."""
        if not isinstance(val.body, Inst) or val.body.op != Opcode.IMM:
            return None
        word = val.body.imm - (1 << 32 if val.body.imm >> 31 else 0)
        return Val(val.dims, self.pool.leaf(Tag.IOTA, 0, word, (0,) * len(val.axes)))

    def merged(self, val: Val) -> Val:
        """All axes as one dimension, merged where every window allows it."""
        dims, keep = _mergeable(val, (val.axes,))
        return self._restride(val, dims, lambda o, s: (o, tuple(s[a] for a in keep)))


def _mergeable(val: Val, dims: tuple[Axes, ...]) -> tuple[tuple[Axes, ...], list[int]]:
    """Dimensions after merging, and which old axis gives each new axis its stride (the innermost of a merge)."""
    columns = [leaf.strides for leaf in val.leaves()]
    result: list[Axes] = []
    keep: list[int] = []
    at = 0
    for dim in dims:
        part: list[int] = []
        first = len(keep)
        for n in dim:
            if n > 1:
                if len(keep) > first and all(s[keep[-1]] == n * s[at] for s in columns):
                    part[-1] *= n
                    keep[-1] = at
                else:
                    part.append(n)
                    keep.append(at)
            at += 1
        result.append(tuple(part))
    return tuple(result), keep


def _grouped(axes: Sequence[int], extents: Sequence[int]) -> list[Axes]:
    """Axes in groups, one after another, whose products are the extents."""
    it, groups = iter(axes), []
    for extent in extents:
        group: Axes = ()
        while prod(group) < extent:
            group += (next(it),)
        groups.append(group)
    return groups


def _refine(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """The coarsest cut of a row-major sequence that both cuts coarsen; None if they do not nest."""
    suffixes = sorted(
        {*accumulate(reversed(a), lambda x, y: x * y, initial=1)}
        | {*accumulate(reversed(b), lambda x, y: x * y, initial=1)}
    )
    ratios = []
    for inner, outer in pairwise(suffixes):
        if outer % inner:
            return None
        ratios.append(outer // inner)
    return ratios[::-1]
