"""Steps that no machine here holds: a tensor is a function of its place, a Merkle node is made when it is read.

The Programs are those of real models, traced without weights. Every tensor of a step holds one word throughout, a word
of its own, so that equal subtrees are hashed once; the op that is argued about holds what the reference arithmetic
makes of its operands at the disputed element. Whoever lies holds another word there, from a wrong chunk where there are
several. Headers, descriptors, depths, proofs and leaves are those of the model's size; so are transactions and gas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, overload

import numpy as np

from lockstep.numerics import _native, reference
from lockstep.numerics.arrays import to_array
from lockstep.numerics.portable import group_products
from lockstep.numerics.scalar import Opcode as Code
from lockstep.numerics.trace import HashedContents, tensor_root
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.openings import CommittedTensor, Levels
from lockstep.protocol.merkle import LEAF_ELEMENTS, TensorHeader
from lockstep.protocol.programs.program import (
    CHUNK,
    CODES,
    F32,
    I32,
    Alias,
    Const,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Quant,
    Tag,
    View,
    state_root,
)
from lockstep.protocol.types import Digest, Seed, StateRoot, TensorRoot

SHARD_ELEMENTS = 1 << 30
"""The same as in `training.parameters`, which would import torch."""

CODED = 0x3D5B6A00
"""Four codes of one byte, none of them 0 once an op's number is in the last."""
HALF = 0x3F000000
"""0.5 as a binary32 word: sums of products of its neighbours stay finite."""
STEP_OF_WORDS = 1 << 3
"""Between the words of two tensors."""


@dataclass(frozen=True)
class LazyTensor:
    """A tensor of one word, but for a few (`protocol.dispute.openings.CommittedTensor`)."""

    header: TensorHeader
    word: int
    others: Mapping[int, int] = field(default_factory=dict)
    """By element."""

    @cached_property
    def levels(self) -> Levels:
        """Merkle levels over the leaves; no node is hashed before it is read."""
        return [LazyLevel(self, height) for height in range(self.header.depth + 1)]

    def leaf(self, index: int) -> bytes:
        """The bytes of one leaf."""
        first = LEAF_ELEMENTS * index
        words = [self.word] * min(LEAF_ELEMENTS, self.header.elements - first)
        for element, word in self.others.items():
            if first <= element < first + LEAF_ELEMENTS:
                words[element - first] = word
        return np.array(words, dtype="<u4").tobytes()

    def at(self, element: int) -> int:
        """The word of an element."""
        return self.others.get(element, self.word)

    @cached_property
    def root(self) -> TensorRoot:
        """The root over the header and all leaves."""
        return merkle.tensor_root_of_tree(self.header, self.node(self.header.depth, 0))

    def node(self, height: int, index: int) -> Digest:
        """A node of the tree: of one word throughout, or from its two children."""
        first, end = index << height, (index + 1) << height
        if first >= self.header.leaves:
            return merkle.EMPTY[height]
        if LEAF_ELEMENTS * end <= self.header.elements and not any(
            first <= element // LEAF_ELEMENTS < end for element in self.others
        ):
            return uniform(self.word, height)
        if height == 0:
            return merkle.leaf(self.leaf(index))
        return merkle.node(self.node(height - 1, 2 * index), self.node(height - 1, 2 * index + 1))


@cache
def uniform(word: int, height: int) -> Digest:
    """The node `height` above leaves that hold one word alone."""
    if height == 0:
        return merkle.leaf(np.full(LEAF_ELEMENTS, word, dtype="<u4").tobytes())
    below = uniform(word, height - 1)
    return merkle.node(below, below)


@dataclass(frozen=True)
class LazyLevel(Sequence[Digest]):
    """One level of a tensor's tree."""

    tensor: LazyTensor
    height: int

    def __len__(self) -> int:
        return -(-self.tensor.header.leaves // (1 << self.height))

    @overload
    def __getitem__(self, index: int) -> Digest: ...

    @overload
    def __getitem__(self, index: slice) -> list[Digest]: ...

    def __getitem__(self, index: int | slice) -> Digest | list[Digest]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.tensor.node(self.height, index % len(self))


@dataclass(frozen=True)
class Place:
    """The place of the disputed word, in round 0, slot 0, transition 1."""

    op: int
    element: int
    chunk: int
    """The chunk in which a liar's terms are wrong, in a fold of several chunks."""


@dataclass
class LazyStep:
    """Transition 1 of a claim (`protocol.dispute.openings.MaterialisedStep`)."""

    program: Program
    rows: np.ndarray
    """The dataset, i32 (N, L)."""
    seed: Seed
    place: Place
    bits: int = 0
    """The bits in which a liar's word differs; 0: honest."""

    def state(self, entry: int) -> CommittedTensor:
        """A tensor of S_0."""
        return start_of(self.program)[entry]  # type: ignore[return-value]

    def dataset(self) -> CommittedTensor:
        """The job's dataset, which is held whole."""
        return HashedContents(self.rows)

    def output(self, op: int) -> LazyTensor:
        """The output of an op."""
        others = {self.place.element: self.word} if op == self.place.op else {}
        return LazyTensor(self.program.ops[op].header, word_of(self.program, op), others)

    @cached_property
    def word(self) -> int:
        """The word that this party claims for the disputed element."""
        op, element = self.program.ops[self.place.op], self.place.element
        if op.kind == Kind.FOLD and op.chunks > 1:
            return reference.joined(op.mode, self._chunks)
        return reference.element(op, element, self._operands) ^ self.bits

    @cached_property
    def graph(self) -> Levels:
        """Levels over the 2^D leaves of G_1."""
        program = self.program
        roots = [self.output(op).root for op in range(len(program.ops))]
        kept = [None if tensor is None else tensor.root for tensor in start_of(program)]
        # A liar's S_1 is the claim's, too: what is wrong is an op's output beside it.
        true = list(roots)
        true[self.place.op] = replace(self, bits=0).output(self.place.op).root
        sources: dict[int, Sequence[TensorRoot | None]] = {Alias.OP_KIND: true, Alias.STATE_KIND: kept}
        entries = [sources[a.kind][a.index] if a.kind in sources else None for a in program.outputs]
        padding = [merkle.EMPTY[0]] * (program.state_block - len(program.ops))
        return merkle.levels([*roots, *padding, *(merkle.EMPTY[0] if e is None else e for e in entries)], program.depth)

    @property
    def root(self) -> StateRoot:
        """S_1."""
        s = self.program.s_out
        return StateRoot(merkle.node_at(self.graph, s, self.program.state_block >> s))

    @cached_property
    def prev(self) -> Levels:
        """Levels over the entries of S_0."""
        roots = [merkle.EMPTY[0] if t is None else t.root for t in start_of(self.program)]
        return merkle.levels(roots, self.program.s_in)

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        """One level of a fold's partials."""
        assert (op, element) == (self.place.op, self.place.element), "nobody asks of another"
        described = self.program.ops[op]
        if not described.is_grouped:
            return self._chunks
        groups = [self._chunks[i : i + CHUNK] for i in range(0, len(self._chunks), CHUNK)]
        return groups[group] if group is not None else [reference.combine(described.mode, words) for words in groups]

    @cached_property
    def _chunks(self) -> list[int]:
        op = self.program.ops[self.place.op]
        o = reference.unflatten(op.extents, self.place.element)
        if op.mode == Fold.QDOT:
            held = [self._groups(view, reference.position(view, (*o, 0)), op, j < 2) for j, view in enumerate(op.views)]
            with np.errstate(all="ignore"):
                products: list[int] = group_products(*held).tolist()
            products[self.place.chunk] ^= self.bits
            return products
        terms = [self._terms(view, reference.position(view, (*o, 0)), op.k_terms) for view in op.views]
        words = _native.chunk_results(op.mode, terms[0], terms[1 if op.mode == Fold.DOT else 0]).tolist()
        words[self.place.chunk] ^= self.bits
        return words

    def _groups(self, view: View, first: int, op: Op, codes: bool) -> np.ndarray:
        """The words that a qdot's view shows: a row of `p0` words of codes a group, or a scale a group."""
        at = first + view.strides[-1] * np.arange(op.k_extents[0], dtype=np.int64)
        at = at[:, None] + np.arange(op.p0) if codes else at
        if view.tag == Tag.CONST:
            return _const(self.program.consts[view.index])[at]
        return np.full(at.shape, self._word(view.tag, view.index, first), np.uint32)

    def _terms(self, view: View, first: int, count: int) -> np.ndarray:
        """Returns `count` words that a fold's view shows."""
        at = first + view.strides[-1] * np.arange(count, dtype=np.int64)
        if view.tag == Tag.IOTA:
            return (at & 0xFFFFFFFF).astype(np.uint32)
        if view.tag == Tag.CONST:
            return _const(self.program.consts[view.index])[at]
        return np.full(count, self._word(view.tag, view.index, first), np.uint32)

    @property
    def _operands(self) -> reference.Operands:
        flat = self.rows.view(np.uint32)
        dataset = reference.Rows(self.rows.shape[0], lambda row, column: int(flat[row, column]))
        return reference.Operands(self._word, bytes(self.seed), (0, 0, 1), dataset)

    def _word(self, tag: Tag, index: int, at: int) -> int:
        if tag == Tag.CONST:
            return int(_const(self.program.consts[index])[at])
        # An operand is never the disputed op itself.
        if tag == Tag.OP:
            return word_of(self.program, index)
        tensor = start_of(self.program)[index]
        assert tensor is not None, "no op reads an EMPTY entry"
        return tensor.at(at)


def word_of(program: Program, op: int) -> int:
    """Returns the word of an op's output: a float near 0.5, four codes, or 1, which every table has a row for."""
    described = program.ops[op]
    if described.kind == Kind.QUANT and described.dtype == I32:
        return CODED + 1 + op % 0xFF
    return HALF + STEP_OF_WORDS * op if described.dtype == F32 else 1


@cache
def start_of(program: Program) -> tuple[LazyTensor | None, ...]:
    """S_0: parameters and their anchor alike, zeros where something is carried, and the clock at 0."""
    quarter = len(program.inputs) // 4
    return tuple(
        None if header is None else LazyTensor(header, HALF + 1 + k % quarter if k < 2 * quarter else 0)
        for k, header in enumerate(program.inputs)
    )


def roots_of(tensors: Sequence[LazyTensor | None]) -> StateRoot:
    """The root over some entries of a state."""
    return state_root([None if tensor is None else tensor.root for tensor in tensors])


def _const(const: Const) -> np.ndarray:
    return to_array(const.header, const.data).reshape(-1).view(np.uint32)


@dataclass
class LazyClaim:
    """A claim of two transitions of which the first is argued about (`protocol.dispute.honest.MaterialisedClaim`)."""

    first: LazyStep
    trace: Sequence[StateRoot]
    carried: moves.Proof = ()

    @property
    def state_zero(self) -> StateRoot:
        """S_0."""
        return StateRoot(self.first.prev[-1][0])

    def step(self, t: int) -> Any:
        """Transition 1."""
        assert t == 1, "no game is about another"
        return self.first


def lie_of(honest: LazyStep) -> LazyStep:
    """The same step with the lowest bit wrong that does not round away."""
    for bits in (1 << i for i in range(31)):
        lying = replace(honest, bits=bits)
        if lying.word != honest.word:
            return lying
    raise AssertionError("no lie shows")


def place_of(program: Program, op: int) -> Place:
    """A word in the middle of an op's output, wrong in its last chunk but one."""
    described = program.ops[op]
    return Place(op, described.header.elements // 2, max(described.chunks - 2, 0))


def largest_program() -> Program:
    """The dearest games that a validator admits: 2^14 ops, tensors of 2^31 - 1 elements, a map of six operands, 32
    instructions and eight functions, a fold of 2^24 terms whose chunks lie across two leaves of each operand, and as
    many products of codes in 2^16 groups."""
    n, terms = (1 << 31) - 1, 1 << 24
    vector = TensorHeader(F32, (n,))
    filler = Op(Kind.MAP, F32, (), (), instrs=(Instr(Code.IMM, imm=1),))
    reads = tuple(View(Tag.STATE, k, 0, (1,)) for k in range(6))
    functions = [Instr(Code.FTANH, k) for k in (0, 1, 2, 3, 4, 5, 6, 7)]
    chained = [Instr(Code.FFMA, 6 + i, i % 6, 13) for i in range(24)]
    dot = (View(Tag.STATE, 0, 100, (0, 1)), View(Tag.STATE, 1, 57, (0, 1)))
    rows, group = n // CHUNK, CHUNK // CODES
    codes = Op(Kind.QUANT, I32, (rows, group), (View(Tag.STATE, 0, 0, (1, 0, 1)),), (CHUNK,), Quant.CODES, p0=group)
    filled = (1 << 14) - 4
    groups = (View(Tag.OP, filled, group, (0, group)),) * 2 + (View(Tag.STATE, 1, 57, (0, 1)),) * 2
    ops = (
        *([filler] * filled), codes,
        Op(Kind.FOLD, F32, (n,), groups, (terms // CHUNK,), Fold.QDOT, p0=group),
        Op(Kind.MAP, F32, (n,), reads, instrs=(*functions, *chained)),
        Op(Kind.FOLD, F32, (n,), dot, (terms,), Fold.DOT),
    )  # fmt: skip
    # Quarters of two: parameters, anchor, carry, and the clock beside an EMPTY entry.
    inputs = (*[vector] * 6, TensorHeader(I32, ()), None)
    outputs = (Alias(Alias.OP_KIND, len(ops) - 2), *(Alias(Alias.STATE_KIND, k) for k in range(1, 7)), Alias(0))
    return Program(ops, inputs, outputs)


# -- the models --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Size:
    """A model; its batch is one row."""

    model: Callable[[], Any]
    row_length: int
    shard_elements: int = SHARD_ELEMENTS


def _gpt2() -> Any:
    from lockstep.training.models import GPT, GPTConfig

    return GPT(GPTConfig(vocabulary=50257, context=1024, layers=12, heads=12, width=768, bias=True))


def _llama() -> Any:
    from lockstep.training.models import Llama, LlamaConfig

    return Llama(LlamaConfig(vocabulary=32000, context=2048, layers=24, heads=32, kv_heads=4, width=2048, hidden=5632))


SIZES = {"gpt-124m": Size(_gpt2, 1025), "llama-1.2b": Size(_llama, 2049, 1 << 26)}
"""GPT-2 (Radford 2019, table 2), and TinyLlama (Zhang 2024) of two layers more, in shards of 2^26 elements: their trees
of depth 18 take three reveals."""


@dataclass(frozen=True)
class Traced:
    """The Programs of a model and the depths of its states."""

    step: Program
    encode: Program
    merge: Program
    shared_depth: int
    payload_depth: int
    parameters: int


def traced(size: Size, rounds: int, slots: int, inner_steps: int, products: str = "float32") -> Traced:
    """A model's Programs; its weights are not made."""
    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.job import Batch, build_programs
    from lockstep.training.models import next_token_loss
    from lockstep.training.parameters import without_weights
    from lockstep.training.strategies import diloco

    spec = diloco.DiLoCo(inner_steps=inner_steps)
    with without_weights():
        model = size.model()
    batch = Batch(1, size.row_length)
    built = build_programs(
        model, next_token_loss, spec, batch=batch, rounds=rounds, slots=slots, shard_elements=size.shard_elements,
        arithmetic=Arithmetic(products),
    )  # fmt: skip
    depths = built.sections.shared_depth, built.sections.payload_depth
    return Traced(built.step, built.encode, built.merge, *depths, sum(p.numel() for p in model.parameters()))


def dataset_of(row_length: int, rows: int) -> tuple[np.ndarray, TensorRoot]:
    """Random bytes as tokens, and their root."""
    made = np.random.default_rng(0).integers(0, 256, (rows, row_length), dtype=np.int32)
    return made, tensor_root(made)
