"""Checks an executable by samples: recomputes some elements of every op of a step from the operands that the executable
computed.

The portable executor takes hours for a step of a large model, and milliseconds for an element of a product. Each op is
checked against its operands as the executable computed them, so that the first wrong op is found. A sweep costs the
time and memory of a step, plus at most TERMS words per operand, or a fold's own terms if they are more.
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
"""Most terms of an op's sampled elements together; at least one element is sampled."""
ELEMENTS = 16
"""Most sampled elements of a fold, the first and last included: tiles have their edges there."""
SINGLE = 4
"""Most sampled elements of any other op: they are computed in Python integers."""

_Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class WrongWord:
    """A computed word that differs from the word that its operands give."""

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
    """Returns the sampled words that an executable computed wrongly in one step, in order; [] if all are right."""
    sampler = _Sampler(executable.program, state, context, dataset, random)
    with np.errstate(all="ignore"):
        executable.sweep(state, context, dataset, sampler.visit)
        if sampler.tables:
            # A gather's table may be computed before the index that selects its words.
            executable.sweep(state, context, dataset, sampler.look_up)
    return sorted(sampler.found)


@dataclass
class _Lookup:
    """Sampled elements of a gather whose table is an op's output."""

    gather: int
    at: _Positions
    """Flat positions in the table."""
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
    """Lookups by the op that is their table."""
    _drawn: dict[int, _Positions] = field(default_factory=dict)
    _readers: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    """Maps an op to the (op, operand number) pairs that read it."""
    _words: dict[tuple[int, int], Words] = field(default_factory=dict)
    """Words that the sampled elements of (op, operand number) read."""
    _sources: dict[tuple[Tag, int], Words] = field(default_factory=dict)
    """State entries and constants that were read, copied from a device once."""

    def __post_init__(self) -> None:
        for i, op in enumerate(self.program.ops):
            self._drawn[i] = self._elements(op)
            for operand, view in enumerate(op.views):
                if view.tag == Tag.OP:
                    self._readers[view.index].append((i, operand))

    def visit(self, i: int, words: Words) -> None:
        """Checks the sampled elements of op i, and saves the words of op i that later samples read."""
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
        """Checks the sampled gathers whose table is op i."""
        for one in self.tables.get(i, ()):
            due = np.where(one.inside, words[np.where(one.inside, one.at, 0)], np.uint32(0))
            self._judge(one.gather, due, one.got)

    def _judge(self, i: int, due: Words, got: Words) -> None:
        for k in np.flatnonzero(due != got):
            self.found.append(WrongWord(i, int(self._drawn[i][k]), int(due[k]), int(got[k])))

    def _elements(self, op: Op) -> _Positions:
        """Selects the sampled elements: the first, the last and random ones between."""
        most = SINGLE if op.kind != Kind.FOLD else max(1, min(ELEMENTS, TERMS // op.k_terms))
        last = op.header.elements - 1
        ends = [self.random.randint(0, last)] if most == 1 else [0, last]
        between = [self.random.randint(0, last) for _ in range(most - len(ends))]
        return np.unique(np.array([*ends, *between], np.int64))

    def _positions(self, i: int, operand: int) -> _Positions | None:
        """Returns the positions in an operand that the sampled elements of op i read; None if they depend on an
        index.
        """
        op, view = self.program.ops[i], self.program.ops[i].views[operand]
        if op.kind == Kind.GATHER and operand == 1:
            return None
        if op.kind in (Kind.CONCAT, Kind.QUANT):
            read = self._read_alone(op, self._drawn[i], operand)
            return np.array(read or [0], np.int64)
        return self._seen(i, view, operand)

    def _seen(self, i: int, view: View, operand: int) -> _Positions:
        """Returns the positions that the sampled elements of a map, fold or gather read through a view.

        A fold's terms are along the last axis; a qdot's codes are grouped along two.
        """
        op = self.program.ops[i]
        at = self._start(i, view)
        if op.kind != Kind.FOLD:
            return at
        at = at[:, None] + view.strides[-1] * np.arange(op.k_extents[0], dtype=np.int64)
        return at[..., None] + np.arange(op.p0) if op.is_qdot and operand < 2 else at

    def _start(self, i: int, view: View) -> _Positions:
        """Returns the position of the first word that each sampled element of op i reads."""
        op = self.program.ops[i]
        coordinates = np.unravel_index(self._drawn[i], op.extents) if op.extents else ()
        at = np.full(self._drawn[i].shape, view.offset, np.int64)
        for stride, along in zip(view.strides, coordinates, strict=False):
            at += stride * along
        return at

    def _operand(self, i: int, operand: int) -> Words:
        """Returns the words of an operand in the layout of `_seen`."""
        view = self.program.ops[i].views[operand]
        if view.tag == Tag.OP:
            return self._words[i, operand]
        at = self._seen(i, view, operand)
        return at.astype(np.uint32) if view.tag == Tag.IOTA else self._source(view)[at]

    def _source(self, view: View) -> Words:
        """Returns the words of a state entry, a constant or the context."""
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
        """Returns (positions in a gather's table, True where the index is in range)."""
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
        """Returns the operands for the reference, of the sampled elements of a map, concat, quant, random or draw."""
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
        """Returns the positions that elements read in one operand, if no index is involved."""
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
