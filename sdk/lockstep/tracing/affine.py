"""Symbolic expressions over affine windows: bodies of elementwise ops before they are emitted.

A `Val` is an expression whose leaves are windows (source, offset, one stride per iteration axis). Its iteration axes
are grouped into the logical dimensions of a tensor. A logical dimension may have several iteration axes, so that a
reshape that merges permuted axes needs no copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, compress, pairwise
from math import prod

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import Tag

Axes = tuple[int, ...]
"""Extents of iteration axes, outermost first."""
Strides = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Leaf:
    """A strided window on a source: element (i, j, ...) is at offset + i strides[0] + j strides[1] + ..."""

    tag: Tag
    index: int
    offset: int
    strides: Strides
    big: bool = False
    """True if the source has more than one Merkle leaf (1 KiB): a proof of an element then needs an opening."""

    @property
    def is_tensor(self) -> bool:
        """True if the leaf reads memory; iota and context leaves read none."""
        return self.tag not in (Tag.IOTA, Tag.CONTEXT)

    @property
    def parts(self) -> tuple[Expr, ...]:
        """The leaf alone: an expression of one part."""
        return (self,)


@dataclass(frozen=True, eq=False)
class Inst:
    """A scalar operation applied to argument expressions."""

    op: Opcode
    args: tuple[Expr, ...] = ()
    imm: int = 0

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Every distinct subexpression, arguments before their users, in order of first use; last the whole."""
        return (*self._below, self)

    @cached_property
    def _below(self) -> tuple[Expr, ...]:
        return tuple({id(part): part for arg in self.args for part in arg.parts}.values())


Expr = Leaf | Inst


@dataclass(frozen=True, eq=False)
class FoldChain:
    """A fold (sum, extremum or dot product) that is not emitted yet: its output axes can still be permuted at no
    cost.
    """

    mode: int
    operands: tuple[Leaf, ...]
    """The windows that the fold reads: their strides run over the output axes, then over the one k axis."""
    terms: int
    words: int = 0
    """Number of terms in a group of quantised codes; only a `qdot` has groups."""


class ExpressionPool:
    """Creates expressions and interns them: equal expressions are the same object."""

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
        """Returns another window on the leaf's source; the offset defaults to the leaf's own."""
        return self.leaf(leaf.tag, leaf.index, leaf.offset if offset is None else offset, strides, leaf.big)

    def rewrite(self, expr: Expr, change: Callable[[Leaf], Leaf], done: dict[int, Expr] | None = None) -> Expr:
        """Returns the expression with `change` applied to every leaf; `done` caches rewritten subexpressions."""
        done = {} if done is None else done
        if id(expr) not in done:
            if isinstance(expr, Leaf):
                done[id(expr)] = change(expr)
            else:
                done[id(expr)] = self.inst(expr.op, [self.rewrite(a, change, done) for a in expr.args], expr.imm)
        return done[id(expr)]


@dataclass(frozen=True)
class Val:
    """A symbolic tensor: an expression (or a fold that is not emitted yet) with its logical shape."""

    dims: tuple[Axes, ...]
    """For each logical dimension the extents of its iteration axes, outermost first; () is an extent of 1."""
    body: Expr | FoldChain

    @property
    def expr(self) -> Expr:
        """The expression of a value that is not a pending fold."""
        assert not isinstance(self.body, FoldChain)
        return self.body

    @property
    def leaf(self) -> Leaf:
        """The window of a value that consists of a single window."""
        assert isinstance(self.body, Leaf)
        return self.body

    @cached_property
    def axes(self) -> Axes:
        """Extents of all iteration axes, outermost first."""
        return tuple(n for dim in self.dims for n in dim)

    @property
    def varying(self) -> list[bool]:
        """One flag per iteration axis: True if the value varies along it, so that a stored copy must have the axis."""
        strides = [x.strides for x in self.leaves]
        return [any(s[a] for s in strides) for a in range(len(self.axes))]

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape: the product of the iteration extents of each dimension."""
        return tuple(prod(dim) for dim in self.dims)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Every window in the expression."""
        if isinstance(self.body, FoldChain):
            return self.body.operands
        return tuple(part for part in self.body.parts if isinstance(part, Leaf))


def contiguous(extents: Sequence[int]) -> Strides:
    """Returns row-major strides."""
    return tuple(accumulate(reversed(extents[1:]), lambda a, b: a * b, initial=1))[::-1] if extents else ()


class Views:
    """Re-indexes values by rewriting the strides of their windows, without a copy."""

    def __init__(self, pool: ExpressionPool) -> None:
        self.pool = pool

    def _restride(self, val: Val, dims: Sequence[Axes], change: Callable[[int, Strides], tuple[int, Strides]]) -> Val:
        """Rewrites every window: `change` maps (offset, strides over the old axes) to the new pair.

        A fold keeps its k stride.
        """
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
        """Transposes a value: logical dimension i of the result is dimension order[i] of `val`."""
        if list(order) == sorted(order):
            return val
        starts = list(accumulate((len(d) for d in val.dims), initial=0))
        axes = [a for i in order for a in range(starts[i], starts[i + 1])]
        return self._restride(val, [val.dims[i] for i in order], lambda o, s: (o, tuple(s[a] for a in axes)))

    def expand(self, val: Val, shape: Sequence[int]) -> Val:
        """Broadcasts a value: logical dimensions of extent 1 repeat."""
        dims = tuple(d if prod(d) == n else (n,) for d, n in zip(val.dims, shape, strict=True))
        if dims == val.dims:
            return val

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
        """Splits a logical dimension into several, with the given extents: coordinate (i, j, ...) of the result is
        start + i steps[0] + j steps[1] + ... of `val`. Returns None if the dimension has several iteration axes.
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
        """Splits iteration axes into finer ones.

        The new extents of each old axis must multiply to its extent; they may be grouped into any dimensions.
        """
        if tuple(map(tuple, dims)) == val.dims:
            return val
        parts = _grouped([n for d in dims for n in d], val.axes)
        return self._restride(
            val, dims, lambda o, s: (o, tuple(a * c for a, p in zip(s, parts, strict=True) for c in contiguous(p)))
        )

    def reshape(self, val: Val, shape: Sequence[int]) -> Val | None:
        """Reshapes a value in row-major order; returns None if an iteration axis would be split unevenly."""
        val = self.normal(val)
        for candidate in (val, self.merged(val)):
            cuts = _refine(candidate.axes, shape)
            if cuts is not None:
                return self.normal(self.split(candidate, _grouped(cuts, shape)))
        return None

    def unify(self, vals: Sequence[Val]) -> list[Val] | None:
        """Gives values of one logical shape the same iteration axes; returns None if their splits of a dimension are
        incompatible.
        """
        vals = [self.normal(v) for v in vals]
        if all(v.dims == vals[0].dims for v in vals):
            return vals
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
        """Drops axes of extent 1 and merges the axes of each dimension where every window allows it."""
        if all(len(dim) < 2 and dim != (1,) for dim in val.dims):
            return val
        dims, keep = _mergeable(val, val.dims)
        return val if dims == val.dims else self._restride(val, dims, lambda o, s: (o, tuple(s[a] for a in keep)))

    def packed(self, val: Val, kept: Sequence[bool]) -> Val:
        """Groups the axes flagged in `kept` into one dimension, merged where every window allows it."""
        axes = tuple(compress(val.axes, kept))
        return self.merged(self._restride(val, [axes], lambda o, s: (o, tuple(compress(s, kept)))))

    def along_k(self, val: Val, rank: int, stride: int) -> Leaf:
        """Returns the window that a fold reads: strides over the axes of the first `rank` dimensions, then one stride
        along k.
        """
        first = sum(len(d) for d in val.dims[:rank])
        return self.pool.moved(val.leaf, (*val.leaf.strides[:first], stride))

    def constant(self, val: Val) -> Val | None:
        """Returns an immediate as a window with zero strides; None for any other value."""
        if not isinstance(val.body, Inst) or val.body.op != Opcode.IMM:
            return None
        word = val.body.imm - (1 << 32 if val.body.imm >> 31 else 0)
        return Val(val.dims, self.pool.leaf(Tag.IOTA, 0, word, (0,) * len(val.axes)))

    def merged(self, val: Val) -> Val:
        """Returns the value with all axes in one dimension, merged where every window allows it."""
        dims, keep = _mergeable(val, (val.axes,))
        return self._restride(val, dims, lambda o, s: (o, tuple(s[a] for a in keep)))


def _mergeable(val: Val, dims: tuple[Axes, ...]) -> tuple[tuple[Axes, ...], list[int]]:
    """Returns the dimensions after merging, and for each new axis the index of the old axis that gives its stride (the
    innermost of those merged).
    """
    columns = [leaf.strides for leaf in val.leaves]
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
    """Groups consecutive axes so that the product of each group is one of the extents."""
    it, groups = iter(axes), []
    for extent in extents:
        group: Axes = ()
        while prod(group) < extent:
            group += (next(it),)
        groups.append(group)
    return groups


def _refine(a: Sequence[int], b: Sequence[int]) -> list[int] | None:
    """Returns the coarsest common refinement of two splits of a row-major sequence; None if they are incompatible."""
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
