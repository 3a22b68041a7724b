"""The openings of an op's element: the leaves of its operands, proven against the committed roots.

The challenger builds the openings from a materialised step, with `Known` in place of its own G, because the
*defender's* G is in dispute. The Arbiter (here `OpenedOperands`, twin of contracts/libraries/Openings.sol) verifies
them. Both follow the order of `touched`: operand by operand, one opening for each 1 KiB leaf, lowest leaf first; a leaf
shared by several reads is opened once, for the first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from lockstep.protocol import merkle
from lockstep.protocol.dispute.moves import Opening
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.hashing import keccak
from lockstep.protocol.merkle import LEAF_BYTES, TensorHeader, ceil_log2
from lockstep.protocol.programs.program import CHUNK, CODES, I32, Kind, Op, Program, Tag, View
from lockstep.protocol.reverts import Reverted, described
from lockstep.protocol.types import Digest

Levels = Sequence[Sequence[Digest]]

DATASET = -1
"""Operand number of a draw's only read, which is not an operand of the op."""

STAGED_BYTES = 4 * LEAF_BYTES
"""Bytes of leaves above which a map opens half of its operands before its proof."""
_COUNT_AT = 248
_WORDS = (1 << _COUNT_AT) - 1


# -- what a party holds ------------------------------------------------------------------------------------------------


class CommittedTensor(Protocol):
    """A tensor with the Merkle tree over its leaves, to be opened in a game."""

    @property
    def header(self) -> TensorHeader:
        """The tensor's dtype and shape."""

    @property
    def levels(self) -> Levels:
        """Merkle levels over the leaves, leaves first (`merkle.data_levels`)."""

    def leaf(self, index: int) -> bytes:
        """The bytes of one leaf."""


class MaterialisedStep(Protocol):
    """One transition with everything that a game may request; tensors may be computed on demand."""

    @property
    def program(self) -> Program:
        """The Program that the transition runs."""

    @property
    def prev(self) -> Levels:
        """Merkle levels over the entries of S_{t-1}: 2^s_in tensor roots, Z_0 where EMPTY."""

    @property
    def graph(self) -> Levels:
        """Merkle levels over the 2^D leaves of G_t."""

    def output(self, op: int) -> CommittedTensor:
        """Returns the output of an op."""

    def state(self, entry: int) -> CommittedTensor:
        """Returns a tensor of S_{t-1}."""

    def dataset(self) -> CommittedTensor:
        """Returns the job's dataset, which only a draw reads."""

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        """Returns one level of partials, as words, of a fold with more than 256 terms.

        With `group` None these are its chunks, or, if there are more than 512, its groups of 256 chunks; otherwise the
        chunks of its `group`-th group.
        """


@dataclass(frozen=True)
class Contents:
    """A tensor whose contents are in memory as bytes."""

    header: TensorHeader
    data: bytes | memoryview = field(repr=False)
    """Little-endian words, row-major."""

    @cached_property
    def levels(self) -> Levels:
        """Merkle levels over the leaves."""
        return merkle.data_levels(self.data)

    def leaf(self, index: int) -> bytes:
        """The bytes of one leaf."""
        return bytes(self.data[LEAF_BYTES * index : LEAF_BYTES * (index + 1)])


@dataclass
class Known:
    """The defender's tree as the challenger knows it: its own tree, except for nodes that the defender has shown.

    Left of the picked path both trees are equal; on the path and right of it every sibling was revealed. Every position
    left of the path therefore has a proof in the defender's tree.
    """

    own: Levels
    depth: int
    shown: dict[tuple[int, int], Digest] = field(default_factory=dict)

    def learn(self, height: int, index: int, children: Sequence[Digest]) -> None:
        """Records the children of node `index` at `height` above the leaves: all of its descendants some levels
        down.
        """
        level = list(children)
        down = ceil_log2(len(level))
        for k in range(height - down, height + 1):
            first = index << (height - k)
            self.shown.update({(k, first + i): x for i, x in enumerate(level)})
            level = [merkle.node(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]

    def at(self, height: int, index: int) -> Digest:
        """Returns the defender's node if it was shown, otherwise the challenger's own."""
        shown = self.shown.get((height, index))
        return shown if shown is not None else merkle.node_at(self.own, height, index)

    def proof(self, index: int) -> tuple[Digest, ...]:
        """Returns the siblings of leaf `index`, upward."""
        return tuple(self.at(k, (index >> k) ^ 1) for k in range(self.depth))


# -- what an element reads ---------------------------------------------------------------------------------------------


def coordinates(op: Op, element: int) -> list[int]:
    """Returns the output's coordinates of a flat element, row-major, then a 0 for each k axis."""
    coords = []
    for extent in reversed(op.extents):
        element, at = divmod(element, extent)
        coords.append(at)
    return [*reversed(coords), *(0 for _ in op.k_extents)]


def flat(view: View, coords: Sequence[int]) -> int:
    """Returns offset + sum of stride x coordinate."""
    return view.offset + sum(s * c for s, c in zip(view.strides, coords, strict=True))


def chunk_terms(op: Op, chunk: int) -> range:
    """Returns the indices of the terms in a fold's chunk."""
    return range(CHUNK * chunk, min(CHUNK * (chunk + 1), op.k_terms))


def group_terms(op: Op, last: int) -> range:
    """Returns the indices of the values in the group of coordinate `last` on a quant's last axis."""
    group = last // op.p0 if op.dtype == I32 else last
    return range(CODES * op.p0 * group, min(CODES * op.p0 * (group + 1), op.k_extents[0]))


def drawn_row(statement: Statement, j: int) -> int:
    """Returns the dataset row of the draw's j-th sequence, with p0 added to j."""
    packed = struct.pack(">4I", statement.round, statement.slot, statement.t, j & 0xFFFFFFFF)
    return int.from_bytes(keccak(statement.seed + packed), "big") % statement.dataset_rows


def touched(
    op: Op, element: int, chunk: int, statement: Statement, word: Callable[[int, int], int]
) -> Iterator[tuple[int, int]]:
    """Yields (operand, leaf) of every opening, in order.

    `word(operand, flat)` returns an operand's word at index `flat`; the leaf that holds it was yielded before.
    """
    coords = coordinates(op, element)
    if op.kind == Kind.DRAW:
        row, column = drawn_row(statement, op.p0 + coords[0]), coords[1]
        yield DATASET, (row * statement.row_length + column) // CHUNK
    elif op.is_qdot:
        # A group of codes is within one leaf.
        for j, view in enumerate(op.views):
            yield j, flat(view, [*coords[:-1], chunk]) // CHUNK
    elif op.kind in (Kind.FOLD, Kind.QUANT):
        terms = chunk_terms(op, chunk) if op.kind == Kind.FOLD else group_terms(op, coords[-2])
        for j, view in enumerate(op.views):
            if view.tag < Tag.IOTA:
                first = flat(view, [*coords[:-1], terms[0]])
                last = first + (len(terms) - 1) * view.strides[-1]
                yield from ((j, i) for i in range(first // CHUNK, last // CHUNK + 1))
    elif op.kind == Kind.GATHER:
        index, table = op.views
        at = flat(index, coords)
        if index.tag < Tag.IOTA:
            yield 0, at // CHUNK
        row = word(0, at) if index.tag < Tag.IOTA else immediate(index, at, statement)
        if row < op.p0 and table.tag < Tag.IOTA:
            yield 1, (flat(table, coords) + row * op.p1) // CHUNK
    elif op.kind == Kind.CONCAT:
        j, coords = part_of(op, coords)
        if op.views[j].tag < Tag.IOTA:
            yield j, flat(op.views[j], coords) // CHUNK
    elif op.kind == Kind.MAP:
        for j, view in enumerate(op.views):
            if view.tag < Tag.IOTA:
                yield j, flat(view, coords) // CHUNK


def part_of(op: Op, coords: Sequence[int]) -> tuple[int, list[int]]:
    """Returns, for a concat, the part that holds the element and the coordinates inside that part."""
    inside = list(coords)
    for j, size in enumerate(op.sizes):
        if inside[op.p0] < size:
            return j, inside
        inside[op.p0] -= size
    raise ValueError(f"coordinate {coords[op.p0]} lies beyond the parts {op.sizes}")


def immediate(view: View, position: int, statement: Statement) -> int:
    """Returns the word of an immediate source: for iota the position itself, for context the round, slot or t."""
    if view.tag == Tag.IOTA:
        return position & 0xFFFFFFFF
    return (statement.round, statement.slot, statement.t)[position]


def word_of(leaf: bytes, position: int) -> int:
    """Returns the little-endian word at flat element `position`, from the leaf that holds it."""
    return int(struct.unpack_from("<I", leaf, 4 * (position % CHUNK))[0])


# -- the challenger's side ---------------------------------------------------------------------------------------------


def build(
    step: MaterialisedStep,
    graph: Known,
    statement: Statement,
    op_index: int,
    element: int,
    chunk: int,
    staged: int = 0,
) -> tuple[Opening, ...]:
    """Builds the openings of one element or chunk, proven in the defender's G and in the data on which both sides
    agree.

    `staged` has the words of a map's first operands that the game already knows.
    """
    op = step.program.ops[op_index]

    def word(operand: int, position: int) -> int:
        return word_of(_source(step, op, operand).leaf(position // CHUNK), position)

    reads = [*touched(op, element, chunk, statement, word)]
    first: dict[tuple[int, int, int], int] = {}
    for operand, leaf in reads[staged_count(staged) if op.kind == Kind.MAP else 0 :]:
        first.setdefault((*_key(op, operand), leaf), operand)
    return tuple(
        _opening(_source(step, op, operand), leaf, _root_proof(step, graph, op, operand))
        for (_, _, leaf), operand in first.items()
    )


def _key(op: Op, operand: int) -> tuple[int, int]:
    """Returns the source of an operand: (tag, index)."""
    if operand == DATASET:
        return DATASET, 0
    view = op.views[operand]
    return int(view.tag), view.index


def _source(step: MaterialisedStep, op: Op, operand: int) -> CommittedTensor:
    if operand == DATASET:
        return step.dataset()
    view = op.views[operand]
    if view.tag == Tag.OP:
        return step.output(view.index)
    if view.tag == Tag.STATE:
        return step.state(view.index)
    const = step.program.consts[view.index]
    return Contents(const.header, const.data)


def _root_proof(step: MaterialisedStep, graph: Known, op: Op, operand: int) -> tuple[Digest, ...]:
    if operand == DATASET:
        return ()
    view = op.views[operand]
    if view.tag == Tag.OP:
        return graph.proof(view.index)
    return tuple(merkle.proof(step.prev if view.tag == Tag.STATE else step.program.consts_levels, view.index))


def _opening(tensor: CommittedTensor, leaf: int, root_proof: tuple[Digest, ...]) -> Opening:
    return Opening(
        tensor.header.encode(), tensor.leaf(leaf), tuple(merkle.proof(tensor.levels, leaf)), root_proof, leaf
    )


def staged_count(staged: int) -> int:
    """Returns the number of staged tensor operands."""
    return staged >> _COUNT_AT


def staged_chunk(chunk: int, word: int) -> int:
    """Returns `Game.staged` for a fold with one executed chunk."""
    return 1 << _COUNT_AT | chunk << 32 | word


# -- the Arbiter's side ------------------------------------------------------------------------------------------------


class OpeningWrong(Reverted, Mismatch):
    """The Arbiter refuses an opening; `rule` is the Solidity error's name, `values` its arguments."""

    def __init__(self, rule: str, *values: int) -> None:
        hint = "open the operands of this element, in order, against the defender's roots"
        super().__init__(rule, values, described(rule, values), hint, f"chain.{rule}")


class OpenedOperands:
    """The verified operands of one element or chunk.

    Raises OpeningWrong where contracts/Arbiter.sol reverts.
    """

    def __init__(
        self,
        statement: Statement,
        op_index: int,
        op: Op,
        element: int,
        chunk: int,
        openings: Sequence[Opening],
        staged: int = 0,
    ) -> None:
        self.statement = statement
        self.op_index = op_index
        self.op = op
        self._leaves: dict[tuple[int, int, int], tuple[bytes, int]] = {}
        self._staged: dict[tuple[int, int, int], int] = {}
        rest = iter(openings)
        for operand, leaf in self._unstaged(
            touched(op, element, chunk, statement, self._operand_word), element, staged
        ):
            if (key := (*_key(op, operand), leaf)) in self._leaves:
                continue
            opening = next(rest, None)
            # INVARIANT: an element reads exactly the openings that its descriptor implies.
            if opening is None:
                raise OpeningWrong("OpeningsWrong", len(openings))
            self._leaves[key] = opening.data, self._verify(opening, operand, leaf).elements
        if next(rest, None) is not None:
            raise OpeningWrong("OpeningsWrong", len(openings))

    def word(self, tag: Tag, index: int, position: int) -> int:
        """Returns the word at flat element `position` of an opened source."""
        return self._word(int(tag), index, position)

    def drawn(self, position: int) -> int:
        """Returns the word at flat element `position` of the dataset."""
        return self._word(DATASET, 0, position)

    def _unstaged(self, reads: Iterator[tuple[int, int]], element: int, staged: int) -> Iterator[tuple[int, int]]:
        """Yields the reads that need openings; a map's first reads may be staged already, one word each."""
        for k in range(staged_count(staged)) if self.op.kind == Kind.MAP else ():
            read = next(reads, None)
            if read is None:
                return
            view = self.op.views[read[0]]
            at = flat(view, coordinates(self.op, element))
            self._staged[int(view.tag), view.index, at] = staged >> 32 * k & 0xFFFFFFFF
        yield from reads

    def _word(self, tag: int, index: int, position: int) -> int:
        if (tag, index, position) in self._staged:
            return self._staged[tag, index, position]
        data, elements = self._leaves.get((tag, index, position // CHUNK), (b"", 0))
        # INVARIANT: a view reads inside its source, and a leaf is read inside its bytes.
        if position >= elements or 4 * (position % CHUNK) + 4 > len(data):
            raise OpeningWrong("OutOfRange")
        return word_of(data, position)

    def _operand_word(self, operand: int, position: int) -> int:
        return self._word(*_key(self.op, operand), position)

    def _verify(self, opening: Opening, operand: int, leaf: int) -> TensorHeader:
        root, index, depth = self._place(opening, operand)
        # INVARIANT: the leaf that is opened is the leaf that is read.
        if opening.leaf_index != leaf:
            raise OpeningWrong("OutOfRange")
        header = _decode_header(opening.header)
        # INVARIANT: a view reads inside its source.
        if leaf >= header.leaves:
            raise OpeningWrong("OutOfRange")
        # INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
        if len(opening.leaf_proof) != header.depth or len(opening.root_proof) != depth:
            raise OpeningWrong("ProofInvalid")
        tree = merkle.climb(merkle.leaf(opening.data), leaf, opening.leaf_proof)
        if not merkle.verify(root, merkle.tensor_root_of_tree(header, tree), index, opening.root_proof):
            raise OpeningWrong("ProofInvalid")
        return header

    def _place(self, opening: Opening, operand: int) -> tuple[bytes, int, int]:
        """Returns (root, position, depth) of the tree against which the operand is opened."""
        s, h = self.statement, self.statement.fields
        if operand == DATASET:
            # INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
            if opening.header != TensorHeader(I32, (s.dataset_rows, s.row_length)).encode():
                raise OpeningWrong("DatasetInvalid")
            return s.dataset_root, 0, 0
        view = self.op.views[operand]
        if view.tag == Tag.OP:
            # INVARIANT: an operand's index is always smaller than the op's own.
            if view.index >= self.op_index:
                raise OpeningWrong("OperandNotEarlier", view.index, self.op_index)
            return s.graph, view.index, h.depth
        if view.tag == Tag.STATE:
            return s.prev, view.index, h.s_in
        return s.consts_root, view.index, ceil_log2(max(h.n_consts, 1))


def stage(statement: Statement, op_index: int, op: Op, element: int, openings: Sequence[Opening], staged: int) -> int:
    """Adds the words of a map's next tensor operands at `element` to those staged before, as far as the openings
    suffice.
    """
    # INVARIANT: only a map's operands are staged.
    if op.kind != Kind.MAP:
        raise OpeningWrong("OpUnknown", int(op.kind))
    known, words = staged_count(staged), staged & _WORDS
    coords, tensors = coordinates(op, element), tuple(view for view in op.views if view.tag < Tag.IOTA)
    count, leaves = known, set[tuple[int, int, int]]()
    while count < len(tensors) and len(leaves) < len(openings):
        view, count = tensors[count], count + 1
        leaves.add((view.tag, view.index, flat(view, coords) // CHUNK))
    opened = OpenedOperands(statement, op_index, replace(op, views=tensors[:count]), element, 0, openings, staged)
    for k, view in enumerate(tensors[known:count], known):
        words |= opened.word(view.tag, view.index, flat(view, coords)) << 32 * k
    return words | count << _COUNT_AT


def _decode_header(data: bytes) -> TensorHeader:
    # INVARIANT: a header is dtype, rank and exactly rank dimensions.
    if len(data) < 2 or len(data) != 2 + 4 * data[1]:
        raise OpeningWrong("ProofInvalid")
    return TensorHeader(data[0], struct.unpack_from(f">{data[1]}I", data, 2))
