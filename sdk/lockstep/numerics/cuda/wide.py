"""Finds reductions of wide tensors that need not be stored: softmax attention, forward and backward.

Attention scores are products of few terms, followed by maps, maxima, sums and products along an axis. These recompute
the scores instead of reading them (Dao et al., "FlashAttention", 2022, section 3). The processor's planner
(kernels/plan/strips.cpp) finds the same ops. Ops that do not match are launched one at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from lockstep.numerics.builder import row_major
from lockstep.numerics.cuda.quants import QuantGroup
from lockstep.numerics.cuda.views import seen_through
from lockstep.numerics.scalar import ARITY, Opcode
from lockstep.protocol.programs.program import Alias, Fold, Instr, Kind, Op, Program, Tag, View, groups_of

LEAST_WORDS = 1 << 20
"""Least words of a tensor that is recomputed: smaller tensors stay in a device's cache."""
LEAST_BLOCKS = 60
"""Least blocks of a reduction: with fewer a large device would be idle."""
MOST_TERMS = 256
"""Most terms of the recomputed products (or words of their codes): one chunk."""
MOST_COLUMNS = 128
"""Most columns of the other matrix of a product."""
MOST_SWEEP = 1 << 16
"""Most terms of a reduction: 256 chunks."""
LEAST_GROUP = 8
"""Least words in a group of codes that a reduction computes: 32 codes, one product of the unit."""
OWN = 32
"""Rows that a block owns: kOwn of tiles.cuh."""


class WideOperand(NamedTuple):
    """An operand that is read from memory at element offset + sum(walk x loop coordinate) of `view`."""

    view: View
    walk: tuple[int, ...]


class Computed(NamedTuple):
    """An instruction of a map and the nodes of its arguments."""

    instr: Instr
    arguments: tuple[int, ...]


class ProductElement(NamedTuple):
    """An element of one of the recomputed products."""

    base: int


class InnerProduct(NamedTuple):
    """A recomputed product: a dot of two tensors, or a qdot of two pairs of codes and scales."""

    op: int
    places: tuple[WideOperand, ...]
    """The operands `Op.views` as walks over the loop axes, without k."""
    own: int
    """The operand, 0 or 1, that varies along the rows owned by a block; the other one varies along the sweep."""


@dataclass(frozen=True)
class MadeCodes:
    """The codes into which a product converts its values."""

    group: QuantGroup
    limbs: tuple[int, ...]
    """The limb of each part of the operand."""
    rows: tuple[int, ...]
    """The walk over the rows of the quantisation."""


@dataclass(frozen=True)
class Reduction:
    """A fold of wide tensors along an axis, or a product with another matrix.

    Loop axes are the op's axes and the folded axis, each split wherever a tensor's axes are split.
    """

    op: int
    axes: tuple[int, ...]
    """Extents of the loop axes."""
    batch: tuple[int, ...]
    """Loop axes along which separate reductions run."""
    own: int
    """Loop axis of which a block owns a tile."""
    sweep: tuple[int, ...]
    """Loop axes that are folded."""
    columns: int | None
    """Loop axis of the other matrix's columns; None for a fold."""
    nodes: tuple[WideOperand | Computed | ProductElement, ...]
    roots: tuple[int, ...]
    """Nodes of the reduced values; two for a dot of two wide tensors."""
    bases: tuple[InnerProduct, ...]
    right: tuple[WideOperand, ...]
    """The other matrix, or its codes and scales."""
    out: tuple[int, ...]
    """Walk of the output over the loop axes."""
    codes: MadeCodes | None

    def extents(self, axes: Sequence[int]) -> list[int]:
        """Returns the extents of some loop axes."""
        return [self.axes[a] for a in axes]

    @property
    def blocks(self) -> int:
        """Number of tiles of `OWN` rows in all batches."""
        return prod(self.extents(self.batch)) * -(-self.axes[self.own] // OWN)


@dataclass(frozen=True)
class WideReductions:
    """The reductions that are computed in tiles."""

    reductions: tuple[Reduction, ...]
    nowhere: frozenset[int]
    """Ops that need no launch: wide tensors, and ops that only serve the reductions."""


class _Unmatched(Exception):
    """Raised if an op is not a reduction that can be computed in tiles."""


class _Cut(Exception):
    """Raised if a loop axis spans two axes of a tensor and must be split."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(axis, inner)
        self.axis, self.inner = axis, inner


def wide_reductions(program: Program, groups: Sequence[QuantGroup]) -> WideReductions:
    """Returns the reductions of a Program that are computed in tiles; `groups` are its quants."""
    return _ReductionFinder(program, groups).find()


class _ReductionFinder:
    def __init__(self, program: Program, groups: Sequence[QuantGroup]) -> None:
        self.program = program
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        for i, op in enumerate(program.ops):
            for source in {view.index for view in op.views if view.tag == Tag.OP}:
                self.readers[source].append(i)
        self.kept = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
        self.groups = [group for group in groups if group.op.views[0].tag == Tag.OP]
        self.group_of = {t.op: group for group in self.groups for t in group.targets if t.op is not None}
        self.wide: set[int] = set()

    def find(self) -> WideReductions:
        """Starts with all candidates and removes those that another op reads, until none is left to remove."""
        self.wide = self._candidates()
        while True:
            reductions = self._reductions() if self.wide else {}
            absorbed = set[int]()
            for group in self.groups:
                own = group.members - {group.source}
                outside = {reader for member in own for reader in self.readers[member]} - group.members
                if group.op.views[0].index in self.wide and outside <= reductions.keys() and not own & self.kept:
                    absorbed |= own
            served = self.wide | reductions.keys() | absorbed
            lost = {w for w in self.wide if not served.issuperset(self.readers[w]) or not self._is_made_of_wide(w)}
            lost = lost or self.wide - self._with_maxima(reductions)
            if not lost:
                return WideReductions(tuple(reductions.values()), frozenset(self.wide | absorbed))
            self.wide -= lost

    # --- which tensors ----------------------------------------------------------------------------------------

    def _candidates(self) -> set[int]:
        """Returns the candidates: products of few terms whose maxima are taken, directly or through maps; these maps;
        and products that are read elementwise together with them.
        """
        taken = {member for group in self.groups for member in group.members - {group.source}}
        large = {
            i for i, op in enumerate(self.program.ops) if op.header.elements >= LEAST_WORDS
        } - self.kept - taken  # fmt: skip
        bases = {i for i in large if self._is_base(self.program.ops[i])}
        found = set[int]()
        for base in bases:
            maps = self._with_maps({base}, large)
            if any(self._is_maximum(reader) for i in maps for reader in self.readers[i]):
                found |= maps
        while True:
            read = {reader for i in found for reader in self.readers[i]}
            beside = {i for i in bases - found if any(r in read and self._is_in_place(r, i) for r in self.readers[i])}
            if not beside:
                return found
            found = self._with_maps(found | beside, large)

    def _with_maps(self, found: set[int], large: set[int]) -> set[int]:
        """Returns these ops and all large maps that depend on them through maps."""
        found = set(found)
        for i in sorted(large):
            op = self.program.ops[i]
            if op.kind == Kind.MAP and any(view.tag == Tag.OP and view.index in found for view in op.views):
                found.add(i)
        return found

    def _is_in_place(self, reader: int, source: int) -> bool:
        """Returns True if the reader does not broadcast its source."""
        op = self.program.ops[reader]
        extents = (*op.extents, *op.k_extents)
        own = [view.strides for view in op.views if (view.tag, view.index) == (Tag.OP, source)]
        return all(stride for strides in own for stride, extent in zip(strides, extents, strict=True) if extent > 1)

    @staticmethod
    def _is_base(op: Op) -> bool:
        if op.kind != Kind.FOLD or any(view.tag == Tag.IOTA for view in op.views):
            return False
        if op.mode == Fold.QDOT:
            return op.k_extents[0] * op.p0 <= MOST_TERMS
        return op.mode == Fold.DOT and op.k_extents[0] <= MOST_TERMS

    def _is_made_of_wide(self, i: int) -> bool:
        op = self.program.ops[i]
        return op.kind == Kind.FOLD or any(view.tag == Tag.OP and view.index in self.wide for view in op.views)

    def _with_maxima(self, reductions: dict[int, Reduction]) -> set[int]:
        """Returns the wide tensors connected with one whose maxima are taken: only a true softmax is computed in
        tiles.
        """
        connected = {view.index for i in reductions for view in self.program.ops[i].views if self._is_maximum(i)}
        while True:
            more = set[int]()
            for i in self.wide:
                beside = {i, *(v.index for v in self.program.ops[i].views if v.tag == Tag.OP and v.index in self.wide)}
                if beside & connected:
                    more |= beside
            if more <= connected:
                return connected
            connected |= more

    def _is_maximum(self, i: int) -> bool:
        op = self.program.ops[i]
        return op.kind == Kind.FOLD and op.mode == Fold.MAX

    # --- which reductions -------------------------------------------------------------------------------------

    def _reductions(self) -> dict[int, Reduction]:
        found = {}
        for i, op in enumerate(self.program.ops):
            if op.kind != Kind.FOLD or i in self.wide or not any(map(self.is_wide, op.views)):
                continue
            reduction = self._reduction(i, op)
            if reduction is not None and reduction.blocks >= LEAST_BLOCKS:
                found[i] = reduction
        return found

    def is_wide(self, view: View) -> bool:
        """Returns True for a wide tensor and for the codes of one."""
        if view.tag != Tag.OP:
            return False
        group = self.group_of.get(view.index)
        return view.index in self.wide or (group is not None and group.op.views[0].index in self.wide)

    def _reduction(self, i: int, op: Op) -> Reduction | None:
        if op.mode == Fold.QDOT:
            left, right = map(self.is_wide, op.views[:2])
            if left == right:
                return None
            own = 0 if left else 1
            terms = self.group_of[op.views[own].index].op.k_extents[0]
        else:
            own, terms = 0, op.k_extents[0]
        if terms > MOST_SWEEP:
            return None
        cuts = [[extent] for extent in (*op.extents, terms)]
        while True:
            found = _Match(self, i, cuts)
            try:
                return found.codes_by_right(own) if op.mode == Fold.QDOT else found.fold()
            except _Unmatched:
                return None
            except _Cut as cut:
                axis = cut.axis
                for own_cuts in cuts:
                    if axis < len(own_cuts):
                        own_cuts[axis : axis + 1] = [own_cuts[axis] // cut.inner, cut.inner]
                        break
                    axis -= len(own_cuts)


class _Match:
    """Matches one reduction, with its axes split in one of the possible ways."""

    def __init__(self, finder: _ReductionFinder, i: int, cuts: Sequence[Sequence[int]]) -> None:
        self.finder, self.i, self.cuts = finder, i, cuts
        self.op = finder.program.ops[i]
        self.axes = [extent for own in cuts for extent in own]
        self.folded = len(self.axes) - len(cuts[-1])
        """Index of the first folded loop axis."""
        self.nodes: list[WideOperand | Computed | ProductElement] = []
        self.known: dict[tuple[int, tuple[int, ...]], int] = {}
        self.bases: list[tuple[int, tuple[WideOperand, ...]]] = []

    def fold(self) -> Reduction:
        """Returns the reduction for a fold or a float product."""
        views = [(view, self._spread(view.strides)) for view in self.op.views]
        if any(view.tag == Tag.IOTA for view, _ in views):
            raise _Unmatched
        wide = [j for j, (view, _) in enumerate(views) if self.finder.is_wide(view)]
        first, walk = views[wide[0]]
        apart = self._apart(walk)
        if not apart:
            roots = [self._shown(view, own) for view, own in views]
            return self._finish(roots, None, ())
        if len(views) != 2 or len(wide) != 1 or len(apart) != 1:
            raise _Unmatched
        other = seen_through(self.finder.program, self.op, self.op.views[1 - wide[0]])
        right = WideOperand(other, self._spread(other.strides))
        return self._finish([self._shown(first, walk)], apart[0], (right,))

    def codes_by_right(self, own: int) -> Reduction:
        """Returns the reduction for a product of codes whose operand `own` is computed from wide values."""
        codes_view, scales_view = self.op.views[own], self.op.views[own + 2]
        group = self.finder.group_of[codes_view.index]
        quant, view = group.op, group.op.views[0]
        words, terms = quant.p0, quant.k_extents[0]
        groups = groups_of(terms, words)
        limbs = self._limbs(group, codes_view.index, scales=False, width=groups * words)
        of_scales = self._limbs(group, scales_view.index, scales=True, width=groups)
        parts = len(limbs)
        if limbs != of_scales or codes_view.offset or scales_view.offset or self.op.k_extents[0] != parts * groups:
            raise _Unmatched
        if words != self.op.p0 or words < LEAST_GROUP or parts * groups > MOST_TERMS:
            raise _Unmatched
        along = self._spread((*codes_view.strides[:-1], 0))
        along_scales = self._spread((*scales_view.strides[:-1], 0))
        pitch = parts * groups
        if scales_view.strides[-1] != 1 and pitch > 1:
            raise _Unmatched
        for extent, code, scale in zip(self.axes, along, along_scales, strict=True):
            if extent > 1 and (code != scale * words or scale % pitch):
                raise _Unmatched
        rows = tuple(scale // pitch if extent > 1 else 0 for extent, scale in zip(self.axes, along_scales, strict=True))
        coordinates = self._coordinates(rows, quant.extents[:-1])
        walk = self._through(coordinates, view.strides[:-2])
        sweep = self._spread((*(0 for _ in self.op.extents), view.strides[-1]))
        root = self._shown(view, tuple(map(sum, zip(walk, sweep, strict=True))))
        apart = self._apart(rows)
        if len(apart) != 1:
            raise _Unmatched
        right = tuple(
            WideOperand(self.op.views[j], self._spread((*self.op.views[j].strides[:-1], 0))) for j in (1 - own, 3 - own)
        )
        return self._finish([root], apart[0], right, MadeCodes(group, limbs, rows))

    def _limbs(self, group: QuantGroup, op: int, scales: bool, width: int) -> tuple[int, ...]:
        """Returns the limbs that are side by side in an op's rows."""
        targets = sorted((t for t in group.targets if t.op == op), key=lambda target: target.offset)
        whole = [(k * width, len(targets) * width) for k in range(len(targets))]
        fits = [(t.offset, t.pitch) for t in targets] == whole
        if not targets or not fits or any(t.array.scales != scales for t in targets):
            raise _Unmatched
        return tuple(t.array.limb for t in targets)

    # --- axes -------------------------------------------------------------------------------------------------

    def _spread(self, strides: Sequence[int]) -> tuple[int, ...]:
        """Converts strides along the op's axes and the folded axis to strides along the loop axes."""
        return tuple(
            stride * prod(own[k + 1 :]) for own, stride in zip(self.cuts, strides, strict=True) for k in range(len(own))
        )

    def _apart(self, walk: Sequence[int]) -> list[int]:
        """Returns the loop axes, except folded ones, along which a tensor is constant."""
        return [a for a in range(self.folded) if self.axes[a] > 1 and walk[a] == 0]

    def _coordinates(self, walk: Sequence[int], extents: Sequence[int]) -> list[list[int]]:
        """Returns, for each axis of a tensor read from its first word on, the step of its coordinate along each loop
        axis.

        Raises _Cut if a loop axis spans two axes of the tensor, _Unmatched if the walk is not a view of it.
        """
        rows = row_major(extents)
        found = [[0] * len(self.axes) for _ in extents]
        for a, (extent, stride) in enumerate(zip(self.axes, walk, strict=True)):
            if extent == 1 or stride == 0:
                continue
            own = [j for j in range(len(extents)) if extents[j] > 1 and 0 < stride < rows[j] * extents[j]]
            axis = next((j for j in own if stride % rows[j] == 0), None)
            if axis is None:
                raise _Unmatched
            steps = stride // rows[axis]
            if steps * (extent - 1) >= extents[axis]:
                inner = extents[axis] // steps
                if extents[axis] % steps or extent % inner:
                    raise _Unmatched
                raise _Cut(a, inner)
            found[axis][a] = steps
        for own_steps, limit in zip(found, extents, strict=True):
            if sum(s * (extent - 1) for s, extent in zip(own_steps, self.axes, strict=True)) >= limit:
                raise _Unmatched
        return found

    def _through(self, coordinates: Sequence[Sequence[int]], strides: Sequence[int]) -> tuple[int, ...]:
        """Returns the walk of a view with these strides, given the steps of its coordinates along the loop axes."""
        return tuple(
            sum(stride * own[a] for stride, own in zip(strides, coordinates, strict=True))
            for a in range(len(self.axes))
        )

    # --- expressions ------------------------------------------------------------------------------------------

    def _shown(self, view: View, walk: tuple[int, ...]) -> int:
        """Returns the node of a view's values."""
        if view.tag == Tag.OP and view.index in self.finder.wide:
            if view.offset:
                raise _Unmatched
            return self._value(view.index, walk)
        if self.finder.is_wide(view):
            raise _Unmatched
        return self._node(WideOperand(view, walk))

    def _node(self, node: WideOperand | Computed | ProductElement) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _value(self, i: int, walk: tuple[int, ...]) -> int:
        """Returns the node of an element of a wide tensor."""
        if (i, walk) in self.known:
            return self.known[i, walk]
        op = self.finder.program.ops[i]
        coordinates = self._coordinates(walk, op.extents)
        if op.kind == Kind.FOLD:
            views = op.views if op.mode == Fold.QDOT else [seen_through(self.finder.program, op, v) for v in op.views]
            if any(map(self.finder.is_wide, views)):
                raise _Unmatched
            places = (WideOperand(view, self._through(coordinates, view.strides[: len(op.extents)])) for view in views)
            self.bases.append((i, tuple(places)))
            made = self._node(ProductElement(len(self.bases) - 1))
        else:
            registers = [self._shown(view, self._through(coordinates, view.strides)) for view in op.views]
            for instr in op.instrs:
                arguments = (registers[r] for r in (instr.a, instr.b, instr.c)[: ARITY[Opcode(instr.op)]])
                registers.append(self._node(Computed(instr, tuple(arguments))))
            made = registers[-1]
        self.known[i, walk] = made
        return made

    # --- roles ------------------------------------------------------------------------------------------------

    def _finish(
        self, roots: Sequence[int], columns: int | None, right: tuple[WideOperand, ...], codes: MadeCodes | None = None
    ) -> Reduction:
        """Returns the reduction, with the largest loop axis that a block can own a tile of."""
        kinds = {self.finder.program.ops[i].is_qdot for i, _ in self.bases}
        if len(kinds) != 1 or len(self.bases) > 2 or any(map(self.finder.is_wide, (p.view for p in right))):
            raise _Unmatched
        if columns is not None and self.axes[columns] > MOST_COLUMNS:
            raise _Unmatched
        sweep = tuple(range(self.folded, len(self.axes)))
        outer = [a for a in range(self.folded) if a != columns]
        # Only the other matrix may vary along its columns.
        if columns is not None and any(own.walk[columns] for own in (*self._places(), *self._reads())):
            raise _Unmatched
        for own in sorted(outer, key=lambda a: -self.axes[a]):
            sides = [self._side(places, own, sweep) for _, places in self.bases]
            if any(place.walk[own] for place in right) or None in sides:
                continue
            bases = (
                InnerProduct(i, places, side)
                for (i, places), side in zip(self.bases, sides, strict=True)
                if side is not None
            )
            batch = tuple(a for a in outer if a != own and self.axes[a] > 1)
            out = self._spread((*row_major(self.op.extents), 0))
            return Reduction(
                self.i, tuple(self.axes), batch, own, sweep, columns, tuple(self.nodes), tuple(roots), tuple(bases),
                right, out, codes,
            )  # fmt: skip
        raise _Unmatched

    def _places(self) -> list[WideOperand]:
        return [place for _, places in self.bases for place in places]

    def _reads(self) -> list[WideOperand]:
        return [node for node in self.nodes if isinstance(node, WideOperand)]

    @staticmethod
    def _side(places: Sequence[WideOperand], own: int, sweep: Sequence[int]) -> int | None:
        """Returns the operand of a product that is constant along the sweep, if the other one is constant along
        `own`.
        """
        for side in (0, 1):
            mine, others = places[side::2], places[1 - side :: 2]
            if not any(place.walk[a] for place in mine for a in sweep) and not any(p.walk[own] for p in others):
                return side
        return None
