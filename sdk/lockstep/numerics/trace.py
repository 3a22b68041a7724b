"""Materialises a step: computes the roots of every tensor of G_t, and on demand the tensors, leaves and partials that a
dispute game asks for.

>>> from lockstep.numerics.builder import F32, ProgramBuilder
>>> from lockstep.numerics.paths import compile
>>> b = ProgramBuilder([(F32, 2)])
>>> program = b.finish([b.map((2,), [b.input(0)], lambda e, x: e.fmul(x, e.f32(0.5)))])
>>> state = [np.array([1.0, 2.0], dtype=np.float32)]
>>> step = materialise(compile(program), state, StepContext(bytes(32), 0, 0, 1))
>>> step.root == layout_root(program.output_layout, compile(program).run(state, step.context))
True
>>> step.output(0).array.tolist()
[0.5, 1.0]
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from lockstep.base.cache import MemoryCache
from lockstep.numerics import reference
from lockstep.numerics.arrays import DTYPES, Array, StepContext, is_frozen, to_array
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.executor import Executable
from lockstep.numerics.portable import group_products
from lockstep.numerics.resident import DeviceFailed
from lockstep.protocol import merkle
from lockstep.protocol.dispute.openings import Levels
from lockstep.protocol.errors import Mismatch, NotFoundError
from lockstep.protocol.merkle import HASH_BYTES, LEAF_ELEMENTS, Level, TensorHeader
from lockstep.protocol.programs.program import CHUNK, Alias, Fold, Kind, Op, Program, Tag, View, state_root
from lockstep.protocol.types import StateRoot, TensorRoot

_T = TypeVar("_T")

# --- roots of arrays ----------------------------------------------------------------------------------------


def tensor_root(array: Array, threads: int = 1) -> TensorRoot:
    """Returns the root of a float32 or int32 array; roots of read-only arrays are cached while the array lives."""
    known = _ROOTS.get(id(array))
    if known is not None and known[0]() is array:
        return known[1]
    root = merkle.tensor_root(_dtype(array), array.shape, _bytes(array), threads)
    if is_frozen(array):
        key = id(array)
        _ROOTS[key] = (weakref.ref(array, lambda _: _ROOTS.pop(key, None)), root)
    return root


_ROOTS: dict[int, tuple[weakref.ref[Array], TensorRoot]] = {}
"""Cached roots by the array's id: an entry that a step does not change is the same object in the next state."""


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _dtype(array: Array) -> int:
    for dtype, name in DTYPES.items():
        if array.dtype == name:
            return dtype
    raise Mismatch(f"a state tensor has dtype {array.dtype}", hint="state tensors are float32 or int32")


def layout_root(layout: Sequence[TensorHeader | None], state: Sequence[Array | None], threads: int = 1) -> StateRoot:
    """Returns the Merkle root over a state's tensors. Raises Mismatch if they differ from the layout."""
    if len(layout) != len(state):
        raise Mismatch(f"the state has {len(state)} entries", hint=f"the layout has {len(layout)}")
    return state_root(entry_roots(layout, state, threads))


def entry_roots(
    layout: Sequence[TensorHeader | None], state: Sequence[Array | None], threads: int = 1
) -> list[TensorRoot | None]:
    """Returns the roots of a state's tensors, None for EMPTY. Raises Mismatch if they differ from the layout."""
    return [_entry_root(k, h, a, threads) for k, (h, a) in enumerate(zip(layout, state, strict=True))]


def _entry_root(k: int, header: TensorHeader | None, array: Array | None, threads: int = 1) -> TensorRoot | None:
    own = None if array is None else TensorHeader(_dtype(array), array.shape)
    if own != header:
        raise Mismatch(f"state entry {k} is {own}", hint=f"the layout has {header} there")
    return None if array is None else tensor_root(array, threads)


# --- one step -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HashedContents:
    """A tensor with its Merkle tree (implements `openings.CommittedTensor`)."""

    array: Array = field(repr=False)

    @property
    def header(self) -> TensorHeader:
        """The tensor's dtype and shape."""
        return TensorHeader(_dtype(self.array), self.array.shape)

    @cached_property
    def levels(self) -> Sequence[Level]:
        """Merkle levels over the 1 KiB leaves, leaves first, without padding."""
        return merkle.data_levels(_bytes(self.array))

    @property
    def words(self) -> Array:
        """The contents as flat uint32."""
        return np.ascontiguousarray(self.array).reshape(-1).view(np.uint32)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, including the tree."""
        return self.array.nbytes + 2 * HASH_BYTES * self.header.leaves

    def leaf(self, index: int) -> bytes:
        """Returns the bytes of one leaf."""
        words = self.words[LEAF_ELEMENTS * index : LEAF_ELEMENTS * (index + 1)]
        if index < 0 or not len(words):
            raise NotFoundError(
                f"there is no leaf {index} in a tensor of {self.header.leaves} leaves", hint="leaves count from 0"
            )
        return words.tobytes()


class OpOutputs(Protocol):
    """Outputs of one transition's ops, computed on access."""

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        """The roots of all ops' outputs, in order."""

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        """Returns the outputs of some ops."""


@dataclass(frozen=True)
class Recomputed:
    """Recomputes outputs from the previous state: one run gives all roots, and one run each requested set of ops."""

    executable: Executable
    state: tuple[Array | None, ...] = field(repr=False)
    context: StepContext
    dataset: Array | None = field(repr=False)
    instead: Callable[[DeviceFailed], Executable] | None = field(default=None, repr=False)
    """Returns the executable that takes over when a device fails; None: the failure is raised."""

    @cached_property
    def roots(self) -> tuple[TensorRoot, ...]:
        """The roots of all ops' outputs, in order."""
        return self._computed(lambda executable: executable.roots(self.state, self.context, self.dataset))

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        """Returns the outputs of some ops."""
        return self._computed(lambda executable: executable.outputs(self.state, self.context, self.dataset, ops))

    def _computed(self, work: Callable[[Executable], _T]) -> _T:
        executable = self.executable
        try:
            return work(executable)
        except DeviceFailed as failure:
            if self.instead is None:
                raise
            executable = self.instead(failure)
            return work(executable)
        finally:
            # The next move of a game is minutes away, so memory is freed.
            executable.free_scratch()


@dataclass(frozen=True)
class TensorCache:
    """Cache of a step's tensors between two moves that need them."""

    cache: MemoryCache = field(default_factory=MemoryCache, repr=False)
    key: Hashable = field(default_factory=object)
    """Key of the step among all steps in the cache."""
    needed: Callable[[], bool] = lambda: False
    """Returns True if a move still waits for the tensors."""

    def get(self, op: int) -> HashedContents | None:
        """Returns the cached output of an op, or None."""
        found: HashedContents | None = self.cache.get((self.key, op))
        return found

    def put(self, op: int, contents: HashedContents) -> None:
        """Caches the output of an op."""
        self.cache.put((self.key, op), contents, contents.nbytes, self.needed)


@dataclass(frozen=True)
class StepTrace:
    """A transition t, opened for a dispute game (implements `protocol.dispute.openings.MaterialisedStep`).

    It holds the roots of all ops' outputs; outputs themselves are computed when a move needs them, an op together with
    its operands. They live as long as this object, which serves one move; between moves they are in `place` or
    recomputed.
    """

    program: Program
    before: tuple[Array | None, ...] = field(repr=False)
    """The tensors of S_{t-1}."""
    made: OpOutputs = field(repr=False)
    context: StepContext
    rows: Array | None = field(default=None, repr=False)
    """The dataset, i32 (N, L)."""
    place: TensorCache = field(default_factory=TensorCache, repr=False, compare=False)
    _held: dict[int, HashedContents] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Contents needed by the current move: the cache may drop its own references meanwhile."""

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        """The roots of all ops' outputs: the first leaves of G_t."""
        return self.made.roots

    @property
    def entries(self) -> tuple[TensorRoot | None, ...]:
        """Roots of S_t's tensors, None for EMPTY entries."""
        kept = entry_roots(self.program.inputs, self.before)
        sources: dict[int, Sequence[TensorRoot | None]] = {Alias.OP_KIND: self.roots, Alias.STATE_KIND: kept}
        return tuple(sources[a.kind][a.index] if a.kind in sources else None for a in self.program.outputs)

    @cached_property
    def graph(self) -> Levels:
        """Merkle levels over the 2^D leaves of G_t, leaves first."""
        program = self.program
        padding = [merkle.EMPTY[0]] * (program.state_block - len(program.ops))
        entries = [merkle.EMPTY[0] if root is None else root for root in self.entries]
        return merkle.levels([*self.roots, *padding, *entries], program.depth)

    @property
    def root(self) -> StateRoot:
        """S_t: the node of G_t above its state block."""
        s = self.program.s_out
        return StateRoot(merkle.node_at(self.graph, s, self.program.state_block >> s))

    @cached_property
    def prev(self) -> Levels:
        """Merkle levels over the entries of S_{t-1}."""
        roots = entry_roots(self.program.inputs, self.before)
        return merkle.levels([merkle.EMPTY[0] if r is None else r for r in roots], self.program.s_in)

    def output(self, op: int) -> HashedContents:
        """Returns the output of an op with its Merkle tree."""
        found = self._held.get(op) or self.place.get(op)
        if found is None:
            self.hold(frozenset({op}))
            return self._held[op]
        self._held[op] = found
        return found

    def state(self, entry: int) -> HashedContents:
        """Returns a tensor of S_{t-1}. Raises NotFoundError for an EMPTY entry."""
        array = self.before[entry]
        if array is None:
            raise NotFoundError(f"state entry {entry} is EMPTY", hint="the Program names no tensor there")
        return HashedContents(array)

    def dataset(self) -> HashedContents:
        """Returns the job's dataset; raises NotFoundError if the step has none."""
        if self.rows is None:
            raise NotFoundError("this step has no dataset", hint="materialise it with the job's dataset")
        return HashedContents(self.rows)

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """Returns one level of a fold's partials as words: the chunks of one group, or with `group` None all chunks
        (all groups if there are more than 512 chunks).
        """
        descriptor = self.program.ops[op]
        chunks = [int(word) for word in self.chunk_results(op, element)]
        if not descriptor.is_grouped:
            return chunks
        groups = [chunks[i : i + CHUNK] for i in range(0, len(chunks), CHUNK)]
        if group is not None:
            return groups[group]
        return [reference.combine(descriptor.mode, words) for words in groups]

    def chunk_results(self, op: int, element: int) -> Array:
        """Returns the results of all chunks of a fold's output `element`, uint32."""
        descriptor = self.program.ops[op]
        if descriptor.kind != Kind.FOLD:
            raise NotFoundError(f"op {op} is a {descriptor.kind.name.lower()}", hint="only folds have partials")
        self.hold(frozenset({op}))
        o = reference.unflatten(descriptor.extents, element)
        if descriptor.mode == Fold.QDOT:
            return self._groups(descriptor, o)
        terms = [self._terms(descriptor, view, o) for view in descriptor.views]
        return _native.chunk_results(descriptor.mode, terms[0], terms[1 if descriptor.mode == Fold.DOT else 0])

    def _groups(self, op: Op, o: reference.Coordinates) -> Array:
        """Returns the results of all groups of a qdot's output `o`."""
        groups, found = np.arange(op.k_extents[0], dtype=np.int64), []
        for j, view in enumerate(op.views):
            at = reference.position(view, (*o, 0)) + view.strides[-1] * groups
            at = at[:, None] + np.arange(op.p0) if j < 2 else at
            found.append(self._contents(view.tag, view.index).words[at])
        with np.errstate(all="ignore"):
            return group_products(*found)

    def operands(self) -> reference.Operands:
        """Returns the operands of this step's ops, word by word."""
        rows = self.rows
        dataset = None
        if rows is not None:
            flat = rows.view(np.uint32)
            dataset = reference.Rows(rows.shape[0], lambda row, column: int(flat[row, column]))

        def word(tag: Tag, index: int, at: int) -> int:
            return int(self._contents(tag, index).words[at])

        return reference.Operands(word, self.context.seed, self.context.words, dataset)

    def hold(self, ops: frozenset[int]) -> None:
        """Computes the outputs of these ops and of their operands, unless they are held already."""
        for op in self._missing(ops):
            kept = self.place.get(op)
            if kept is not None:
                self._held[op] = kept
        missing = self._missing(ops)
        if missing:
            for op, array in self.made.arrays(missing).items():
                self._held[op] = HashedContents(array)
                self.place.put(op, self._held[op])

    def _missing(self, ops: frozenset[int]) -> frozenset[int]:
        read = {v.index for op in ops for v in self.program.ops[op].views if v.tag == Tag.OP}
        return frozenset((ops | read) - self._held.keys())

    def _contents(self, tag: Tag, index: int) -> HashedContents:
        if tag == Tag.OP:
            return self.output(index)
        if tag == Tag.CONST:
            const = self.program.consts[index]
            return HashedContents(to_array(const.header, const.data))
        return self.state(index)

    def _terms(self, op: Op, view: View, o: reference.Coordinates) -> Array:
        """Returns the K words that a fold reads through a view for output `o`."""
        at = reference.position(view, (*o, 0)) + view.strides[-1] * np.arange(op.k_terms, dtype=np.int64)
        if view.tag == Tag.IOTA:
            return (at & 0xFFFFFFFF).astype(np.uint32)
        if view.tag == Tag.CONTEXT:
            return np.array(self.context.words, dtype=np.uint32)[at]
        return self._contents(view.tag, view.index).words[at]


def materialise(
    executable: Executable,
    state: Sequence[Array | None],
    context: StepContext,
    dataset: Array | None = None,
    instead: Callable[[DeviceFailed], Executable] | None = None,
) -> StepTrace:
    """Materialises one transition lazily; if a device fails, the executable that `instead` returns continues.

    Accessing a part raises the errors of `Executable.run`.
    """
    before = tuple(state)
    made = Recomputed(executable, before, context, dataset, instead)
    return StepTrace(executable.program, before, made, context, dataset)
