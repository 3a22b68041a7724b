"""Some elements of every op of a transition, computed once more from the words that a sweep of an executable shows.

A step of a large model takes the portable executor hours; an element of a product takes it milliseconds. Each op is
judged by its own operands as the executable computed them, so that the first op which is wrong is the one that is
found. A sweep takes what a step takes, in time and in memory; what is kept of it is at most TERMS words an operand, and
a fold's own terms where those are more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import numpy.typing as npt

from lockstep.numerics import portable, reference
from lockstep.numerics.arrays import Array, StepContext, to_array
from lockstep.numerics.executor import Executable
from lockstep.numerics.wordwise import Words
from lockstep.protocol.programs.program import Fold, Kind, Op, Program, Tag, View

TERMS = 1 << 14
"""Terms of an op's sampled elements; one element at least is sampled."""
ELEMENTS = 16
"""Elements of a fold, first and last among them: edges of tiles lie there."""
SINGLE = 4
"""Elements of any other op: they are computed in Python integers."""

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class WrongWord:
    """A word that differs from the one that its operands give."""

    op: int
    element: int
    due: int
    got: int


def differences(
    executable: Executable,
    state: Sequence[Array | None],
    context: StepContext,
    dataset: Array | None,
    random: Random,
) -> list[WrongWord]:
    """Returns the sampled words that an executable got wrong in one transition, in order; [] if all are right."""
    sampler = _Sampler(executable.program, state, context, dataset, random)
    with np.errstate(all="ignore"):
        executable.sweep(state, context, dataset, sampler.visit)
        if sampler.tables:
            # A table may come before the index that says which of its words are read.
            executable.sweep(state, context, dataset, sampler.look_up)
    return sorted(sampler.found)


@dataclass
class _Lookup:
    """Sampled elements of a gather from an op's output."""

    gather: int
    at: _Positions
    """Positions in the table."""
    inside: npt.NDArray[np.bool_]
    got: Words


@dataclass
class _Sampler:
    program: Program
    state: Sequence[Array | None]
    context: StepContext
    dataset: Array | None
    random: Random
    found: list[WrongWord] = field(default_factory=list)
    tables: dict[int, list[_Lookup]] = field(default_factory=lambda: defaultdict(list))
    """Lookups by the op that they read."""
    _drawn: dict[int, _Positions] = field(default_factory=dict)
    _readers: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """(op, operand) by the op that the operand is."""
    _words: dict[tuple[int, int], Words] = field(default_factory=dict)
    """The words that an op's sampled elements read of an operand."""
    _sources: dict[tuple[Tag, int], Words] = field(default_factory=dict)
    """State entries and constants that were read; those of a device come to memory once."""

    def __post_init__(self) -> None:
        for i, op in enumerate(self.program.ops):
            self._drawn[i] = self._elements(op)
            for operand, view in enumerate(op.views):
                if view.tag == Tag.OP:
                    self._readers[view.index].append((i, operand))

    def visit(self, i: int, words: Words) -> None:
        """Keeps the words of op i that later ops read, and checks its own sampled elements."""
        for reader, operand in self._readers[i]:
            at = self._positions(reader, operand)
            if at is not None:
                self._words[reader, operand] = words[at]
        op, drawn = self.program.ops[i], self._drawn[i]
        got = words[drawn]
        if op.kind == Kind.GATHER and op.views[1].tag == Tag.OP:
            at, inside = self._rows(i, op)
            self.tables[op.views[1].index].append(_Lookup(i, at, inside, got))
        else:
            self._judge(i, self._due(i, op), got)
        for operand in range(len(op.views)):
            self._words.pop((i, operand), None)

    def look_up(self, i: int, words: Words) -> None:
        """Checks the gathers that read op i."""
        for one in self.tables.get(i, ()):
            due = np.where(one.inside, words[np.where(one.inside, one.at, 0)], np.uint32(0))
            self._judge(one.gather, due, one.got)

    def _judge(self, i: int, due: Words, got: Words) -> None:
        for k in np.flatnonzero(due != got):
            self.found.append(WrongWord(i, int(self._drawn[i][k]), int(due[k]), int(got[k])))

    def _elements(self, op: Op) -> _Positions:
        """The elements that are sampled: the first, the last and some between."""
        most = SINGLE if op.kind != Kind.FOLD else max(1, min(ELEMENTS, TERMS // op.k_terms))
        last = op.header.elements - 1
        ends = [self.random.randint(0, last)] if most == 1 else [0, last]
        between = [self.random.randint(0, last) for _ in range(most - len(ends))]
        return np.unique(np.array([*ends, *between], np.int64))

    def _positions(self, i: int, operand: int) -> _Positions | None:
        """The positions that the sampled elements of op i read of an operand; None: words decide them."""
        op, view = self.program.ops[i], self.program.ops[i].views[operand]
        if op.kind == Kind.GATHER and operand == 1:
            return None
        if op.kind in (Kind.CONCAT, Kind.QUANT):
            read = self._read_alone(op, self._drawn[i], operand)
            return np.array(read or [0], np.int64)
        return self._seen(i, view, operand)

    def _seen(self, i: int, view: View, operand: int) -> _Positions:
        """Positions that a view shows to the sampled elements of a map, fold or gather; a fold's terms lie along the
        last axis, and those of a qdot's codes group by group."""
        op = self.program.ops[i]
        at = self._start(i, view)
        if op.kind != Kind.FOLD:
            return at
        at = at[:, None] + view.strides[-1] * np.arange(op.k_extents[0], dtype=np.int64)
        return at[..., None] + np.arange(op.p0) if op.is_qdot and operand < 2 else at

    def _start(self, i: int, view: View) -> _Positions:
        """The position at which each sampled element of op i begins to read."""
        op = self.program.ops[i]
        coordinates = np.unravel_index(self._drawn[i], op.extents) if op.extents else ()
        at = np.full(self._drawn[i].shape, view.offset, np.int64)
        for stride, along in zip(view.strides, coordinates, strict=False):
            at += stride * along
        return at

    def _operand(self, i: int, operand: int) -> Words:
        """The words of an operand, as `_seen` places them."""
        view = self.program.ops[i].views[operand]
        if view.tag == Tag.OP:
            return self._words[i, operand]
        at = self._seen(i, view, operand)
        return at.astype(np.uint32) if view.tag == Tag.IOTA else self._source(view)[at]

    def _source(self, view: View) -> Words:
        """The words of a state entry, a constant or the context."""
        if (view.tag, view.index) not in self._sources:
            self._sources[view.tag, view.index] = self._fetched(view)
        return self._sources[view.tag, view.index]

    def _fetched(self, view: View) -> Words:
        if view.tag == Tag.CONTEXT:
            return np.array(self.context.words, np.uint32)
        if view.tag == Tag.CONST:
            const = self.program.consts[view.index]
            array: Array | None = to_array(const.header, const.data)
        else:
            array = self.state[view.index]
        assert array is not None, "checked with the Program"
        return np.ascontiguousarray(array).reshape(-1).view(np.uint32)

    def _rows(self, i: int, op: Op) -> tuple[_Positions, npt.NDArray[np.bool_]]:
        """(positions in a gather's table, True where the index is inside of it)."""
        rows = self._operand(i, 0).astype(np.int64)
        inside = rows < op.p0
        return self._start(i, op.views[1]) + np.where(inside, rows, 0) * op.p1, inside

    def _due(self, i: int, op: Op) -> Words:
        """Returns the expected words of op i's sampled elements, computed from its operands."""
        if op.kind == Kind.FOLD and op.mode != Fold.QDOT:
            terms = [self._operand(i, operand) for operand in range(len(op.views))]
            return portable.folded(op, terms[0], terms[1] if op.mode == Fold.DOT else None)
        if op.kind == Kind.FOLD:
            return portable.joined(op, portable.group_products(*(self._operand(i, k) for k in range(4))))
        if op.kind == Kind.GATHER:
            at, inside = self._rows(i, op)
            view = op.views[1]
            words = at.astype(np.uint32) if view.tag == Tag.IOTA else self._source(view)[np.where(inside, at, 0)]
            return np.where(inside, words, np.uint32(0))
        operands = self._operands(i, op)
        return np.array([reference.element(op, int(e), operands) for e in self._drawn[i]], np.uint32)

    def _operands(self, i: int, op: Op) -> reference.Operands:
        """The operands of the sampled elements of a map, concat, quant, random or draw, for the reference."""
        known: dict[tuple[int, int], int] = {}
        for operand, view in enumerate(op.views):
            if view.tag == Tag.OP:
                at = self._positions(i, operand)
                assert at is not None, "no gather"
                known.update(zip(((view.index, int(p)) for p in at), map(int, self._words[i, operand]), strict=True))

        def word(tag: Tag, index: int, at: int) -> int:
            return known[index, at] if tag == Tag.OP else int(self._source(View(tag, index, 0, ()))[at])

        rows = None
        if self.dataset is not None:
            data = self.dataset.view(np.uint32)
            rows = reference.Rows(len(data), lambda row, column: int(data[row, column]))
        return reference.Operands(word, self.context.seed, self.context.words, rows)

    def _read_alone(self, op: Op, drawn: _Positions, operand: int) -> list[int]:
        """The positions that elements read of one operand, where no word decides them."""
        read: list[int] = []
        view = op.views[operand]

        def word(tag: Tag, index: int, at: int) -> int:
            if (tag, index) == (view.tag, view.index):
                read.append(at)
            return 0

        operands = reference.Operands(word, self.context.seed, self.context.words)
        for element in drawn:
            reference.element(op, int(element), operands)
        return read
