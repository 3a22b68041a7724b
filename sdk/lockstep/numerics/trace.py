"""A materialised step: every tensor of G_t, its roots, and on demand the levels, leaves and partials of a game.

>>> from lockstep.numerics.builder import F32, ProgramBuilder
>>> from lockstep.numerics.executor import compile
>>> b = ProgramBuilder([(F32, 2)])
>>> program = b.finish([b.map((2,), [b.input(0)], lambda e, x: e.fmul(x, e.f32(0.5)))])
>>> state = [np.array([1.0, 2.0], dtype=np.float32)]
>>> step = materialise(compile(program), state, Context(bytes(32), 0, 0, 1))
>>> step.root == layout_root(program.output_layout, step.next)
True
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lockstep.numerics import _native, reference
from lockstep.numerics.executor import DTYPES, Array, Context, Executable, to_array
from lockstep.protocol import _hash, merkle
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.merkle import LEAF_ELEMENTS, TensorHeader
from lockstep.protocol.program import CHUNK, Fold, Kind, Op, Program, Tag, View, state_root
from lockstep.protocol.types import Digest, StateRoot, TensorRoot

Levels = list[list[Digest]]


# --- roots of arrays ----------------------------------------------------------------------------------------


def tensor_root(array: Array, threads: int = 1) -> TensorRoot:
    """The root of a float32 or int32 array. Roots of read-only arrays are remembered while the array lives."""
    known = _ROOTS.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    root = merkle.tensor_root(_dtype(array), array.shape, _bytes(array), threads)
    if _frozen(array):
        key = id(array)
        _ROOTS[key] = (weakref.ref(array, lambda _: _ROOTS.pop(key, None)), root)
    return root


_ROOTS: dict[int, tuple[weakref.ref[Array], TensorRoot]] = {}
"""By id: an array that a step does not change is the same object in the next state."""


def _frozen(array: Array) -> bool:
    """Whether nothing can write to the array's memory through it or what it is a view of."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner.readonly if isinstance(owner, memoryview) else not isinstance(owner, bytearray)


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _dtype(array: Array) -> int:
    for dtype, name in DTYPES.items():
        if array.dtype == name:
            return dtype
    raise Mismatch(f"a tensor of dtype {array.dtype}", hint="state tensors are float32 or int32")


def layout_root(layout: Sequence[TensorHeader | None], state: Sequence[Array | None], threads: int = 1) -> StateRoot:
    """The Merkle root over a state's tensors, which must be those of the layout; raises Mismatch."""
    if len(layout) != len(state):
        raise Mismatch(f"a state of {len(state)} entries", hint=f"the layout has {len(layout)}")
    return state_root([_entry_root(k, h, a, threads) for k, (h, a) in enumerate(zip(layout, state, strict=True))])


def _entry_root(k: int, header: TensorHeader | None, array: Array | None, threads: int = 1) -> TensorRoot | None:
    own = None if array is None else TensorHeader(_dtype(array), array.shape)
    if own != header:
        raise Mismatch(f"state entry {k} is {own}", hint=f"the layout has {header} there")
    return None if array is None else tensor_root(array, threads)


# --- one step -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contents:
    """A tensor with its Merkle tree (`protocol.openings.Tensor`)."""

    array: Array = field(repr=False)

    @property
    def header(self) -> TensorHeader:
        """dtype and shape."""
        return TensorHeader(_dtype(self.array), self.array.shape)

    @cached_property
    def levels(self) -> Levels:
        """Merkle levels over the 1 KiB leaves, leaves first, without padding."""
        return [_split(level) for level in _hash.tree_levels(_bytes(self.array))]

    @property
    def words(self) -> Array:
        """The contents as flat uint32."""
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint32)

    def leaf(self, index: int) -> bytes:
        """The bytes of one leaf."""
        words = self.words[LEAF_ELEMENTS * index : LEAF_ELEMENTS * (index + 1)]
        if index < 0 or not len(words):
            raise NotFoundError(f"leaf {index} of a tensor of {self.header.leaves}", hint="leaves count from 0")
        return words.tobytes()


@dataclass(frozen=True)
class StepTrace:
    """A transition t computed with every op's output kept (`protocol.openings.MaterialisedStep`)."""

    program: Program
    before: tuple[Array | None, ...] = field(repr=False)
    """The tensors of S_{t-1}."""
    outputs: tuple[Array, ...] = field(repr=False)
    """The outputs of all ops, in order."""
    next: tuple[Array | None, ...] = field(repr=False)
    """The tensors of S_t."""
    context: Context
    rows: Array | None = field(default=None, repr=False)
    """The dataset, i32 (N, L)."""
    _tensors: dict[tuple[Tag, int], Contents] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def roots(self) -> tuple[TensorRoot, ...]:
        """The roots of all ops' outputs: the first leaves of G_t."""
        return tuple(tensor_root(array) for array in self.outputs)

    @cached_property
    def graph(self) -> Levels:
        """Levels over the 2^D leaves of G_t, leaves first."""
        program = self.program
        entries = [
            merkle.EMPTY[0] if h is None else _entry_root(k, h, a) or merkle.EMPTY[0]
            for k, (h, a) in enumerate(zip(program.output_layout, self.next, strict=True))
        ]
        padding = [merkle.EMPTY[0]] * (program.state_block - len(program.ops))
        return merkle.levels([*self.roots, *padding, *entries], program.depth)

    @property
    def root(self) -> StateRoot:
        """S_t: the node of G_t over its state block."""
        s = self.program.s_out
        return StateRoot(merkle.node_at(self.graph, s, self.program.state_block >> s))

    @cached_property
    def prev(self) -> Levels:
        """Levels over the entries of S_{t-1}."""
        roots = [_entry_root(k, h, a) for k, (h, a) in enumerate(zip(self.program.inputs, self.before, strict=True))]
        return merkle.levels([merkle.EMPTY[0] if r is None else r for r in roots], self.program.s_in)

    def output(self, op: int) -> Contents:
        """The output of an op."""
        return self._contents(Tag.OP, op)

    def state(self, entry: int) -> Contents:
        """A tensor of S_{t-1}; raises NotFoundError for an EMPTY entry."""
        return self._contents(Tag.STATE, entry)

    def dataset(self) -> Contents:
        """The job's dataset."""
        if self.rows is None:
            raise NotFoundError("this step has no dataset", hint="materialise it with the job's dataset")
        return Contents(self.rows)

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """One level of a fold's partials as words: those that combine to the element (`group` None), or over more than
        65,536 terms those that combine to its `group`-th top partial."""
        descriptor = self.program.ops[op]
        chunks = [int(word) for word in self.chunk_results(op, element)]
        groups = [chunks[i : i + CHUNK] for i in range(0, len(chunks), CHUNK)]
        if group is not None:
            return groups[group]
        return chunks if len(groups) == 1 else [reference.combine(descriptor.mode, words) for words in groups]

    def chunk_results(self, op: int, element: int) -> Array:
        """The results of all chunks of a fold's output `element`, uint32."""
        descriptor = self.program.ops[op]
        if descriptor.kind != Kind.FOLD:
            raise NotFoundError(f"op {op} is a {descriptor.kind.name.lower()}", hint="only folds have partials")
        o = reference.unflatten(descriptor.extents, element)
        terms = [self._terms(descriptor, view, o) for view in descriptor.views]
        return _native.chunk_results(descriptor.mode, terms[0], terms[1 if descriptor.mode == Fold.DOT else 0])

    def operands(self) -> reference.Operands:
        """What the ops of this step read, word by word."""
        rows = self.rows
        dataset = None
        if rows is not None:
            flat = rows.view(np.uint32)
            dataset = reference.Dataset(rows.shape[0], lambda row, column: int(flat[row, column]))

        def word(tag: Tag, index: int, at: int) -> int:
            return int(self._contents(tag, index).words[at])

        return reference.Operands(word, self.context.seed, self.context.words, dataset)

    def _contents(self, tag: Tag, index: int) -> Contents:
        key = tag, index
        if key not in self._tensors:
            self._tensors[key] = Contents(self._array(tag, index))
        return self._tensors[key]

    def _array(self, tag: Tag, index: int) -> Array:
        if tag == Tag.OP:
            return self.outputs[index]
        if tag == Tag.CONST:
            const = self.program.consts[index]
            return to_array(const.header, const.data)
        array = self.before[index]
        if array is None:
            raise NotFoundError(f"state entry {index} is EMPTY", hint="the Program names no tensor there")
        return array

    def _terms(self, op: Op, view: View, o: reference.Coordinates) -> Array:
        """The K words that a fold's view shows for output `o`."""
        at = reference.position(view, (*o, 0)) + view.strides[-1] * np.arange(op.k_terms, dtype=np.int64)
        if view.tag == Tag.IOTA:
            return (at & 0xFFFFFFFF).astype(np.uint32)
        if view.tag == Tag.CONTEXT:
            return np.array(self.context.words, dtype=np.uint32)[at]
        return self._contents(view.tag, view.index).words[at]


def materialise(
    executable: Executable, state: Sequence[Array | None], context: Context, dataset: Array | None = None
) -> StepTrace:
    """Runs one transition and keeps every op's output. Raises what `Executable.run` raises."""
    outputs = executable.run(state, context, dataset, keep=True)
    kept = tuple(a for a in outputs if a is not None)
    return StepTrace(executable.program, tuple(state), kept, executable.select(outputs, state), context, dataset)


def _split(hashes: bytes) -> list[Digest]:
    return [Digest(hashes[i : i + 32]) for i in range(0, len(hashes), 32)]
