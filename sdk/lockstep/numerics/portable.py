"""Implements `_native` in numpy alone, for machines without the compiled extension.

Slow, equal to the last bit, and tested against the kernels. It suffices to verify, replay, quote and dispute; training
needs the extension. Names, arguments and errors are those of `_native.pyi`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from lockstep.numerics import reference, tables
from lockstep.numerics.arrays import DTYPES
from lockstep.numerics.parsed import ParsedProgram
from lockstep.numerics.scalar import INFINITY, NEGATIVE_INFINITY
from lockstep.numerics.wordwise import APPLY, Words, fadd, ffma, fmax, fmin, fmul, iadd
from lockstep.protocol.programs.opcodes import ARITY, Opcode
from lockstep.protocol.programs.program import CHUNK, CODES, WORD_BYTES, Fold, Kind, Op, Tag, View, groups_of

NAME = "portable"
BLOCK = 1 << 15
"""Elements of an output computed at a time, so that registers fit in the caches."""


_IDENTITY = {Fold.MAX: NEGATIVE_INFINITY, Fold.MIN: INFINITY}
_JOIN: dict[int, Callable[[Words, Words], Words]] = {
    Fold.DOT: fadd, Fold.SUM: fadd, Fold.MAX: fmax, Fold.MIN: fmin, Fold.ISUM: iadd,
}  # fmt: skip


def best_isa() -> str:
    """Returns the name of the only code path of the portable executor."""
    return NAME


def paths() -> list[str]:
    """Returns the name of the only path."""
    return [NAME]


def _check_path(path: str) -> None:
    if path not in ("auto", NAME):
        raise ValueError(f"no path {path}: the kernels are not built on this machine")


def apply_op(
    op: int, a: npt.NDArray[Any], b: npt.NDArray[Any], c: npt.NDArray[Any], path: str = "auto"
) -> npt.NDArray[np.uint32]:
    """Returns op(a, b, c) element by element."""
    _check_path(path)
    if len(b) != len(a) or len(c) != len(a):
        raise ValueError("a, b and c have the same length")
    if op not in Opcode.__members__.values():
        raise ValueError("no such opcode")
    operands = [np.ascontiguousarray(x).view(np.uint32) for x in (a, b, c)][: ARITY[Opcode(op)]]
    with np.errstate(all="ignore"):
        return np.array(APPLY[Opcode(op)](*operands), np.uint32)


def chunk_results(mode: int, a: npt.NDArray[Any], b: npt.NDArray[Any], path: str = "auto") -> npt.NDArray[np.uint32]:
    """Returns the chunk results of a fold over flat operands."""
    _check_path(path)
    if mode not in _JOIN:
        raise ValueError("no such fold")
    if len(a) == 0 or len(a) != len(b):
        raise ValueError("a and b have the same length, 1 at least")
    x, y = (np.ascontiguousarray(each).view(np.uint32) for each in (a, b))
    with np.errstate(all="ignore"):
        return _chunks(mode, x, y if mode == Fold.DOT else None)


def _chunks(mode: int, a: Words, b: Words | None) -> Words:
    """Folds chains of at most 256 terms along the last axis: one result per chunk."""
    terms = a.shape[-1]
    results = np.full((*a.shape[:-1], -(-terms // CHUNK)), _IDENTITY.get(Fold(mode), 0), np.uint32)
    for i in range(min(CHUNK, terms)):
        x = a[..., i::CHUNK]
        so_far = results[..., : x.shape[-1]]
        so_far[...] = _JOIN[mode](so_far, x) if b is None else ffma(x, b[..., i::CHUNK], so_far)
    return results


def folded(op: Op, a: Words, b: Words | None) -> Words:
    """Returns the elements of a fold that is not a qdot; the last axis of a (and of b, for a dot) holds the terms of
    one element.
    """
    return joined(op, _chunks(op.mode, a, b))


def joined(op: Op, values: Words) -> Words:
    """Combines the chunks along the last axis into the elements of a fold."""
    mode = {Fold.DOT: Fold.SUM, Fold.QDOT: Fold.SUM}.get(Fold(op.mode), op.mode)
    for _ in range(reference.levels(op)):
        values = _chunks(mode, values, None)
    return values[..., 0]


def group_products(a: Words, b: Words, scale_a: Words, scale_b: Words) -> Words:
    """Applies `codes.group_product` to many groups; the last axis of a and b holds the words of one group."""
    first, second = (np.ascontiguousarray(words).astype("<u4").view(np.int8).astype(np.int32) for words in (a, b))
    # Every order of summation is exact: the sum of a group is below 2^23.
    sums = (first * second).sum(axis=-1).astype(np.float32).view(np.uint32)
    return fmul(sums, fmul(scale_a, scale_b))


# --- Programs -----------------------------------------------------------------------------------------------


def bytes_of_run(header: bytes, descriptors: Sequence[bytes], const_elements: Sequence[int]) -> tuple[int, int, int]:
    """Returns bytes of (arena, results, outputs kept for a game in place of the results)."""
    program = ParsedProgram(header, descriptors, const_elements)
    everything = set(range(len(program.ops)))
    temporary = 64 * BLOCK
    arena = program.peak(program.needed(program.named), program.named) + temporary
    results = sum(program.ops[i].header.elements for i in program.named)
    asked = [{i, *(v.index for v in op.views if v.tag == Tag.OP)} for i, op in enumerate(program.ops)]
    shown = [sum(program.ops[i].header.elements for i in ops) for ops in asked]
    dearest = asked[shown.index(max(shown))] if asked else set()
    one = program.peak(program.needed(dearest), dearest) + max(shown, default=0)
    most = max(program.peak(everything, set()), one) + temporary
    return WORD_BYTES * arena, WORD_BYTES * results, WORD_BYTES * most


def work_of_run(header: bytes, descriptors: Sequence[bytes], const_elements: Sequence[int]) -> tuple[float, float]:
    """Estimates the work of a run: (multiply-adds of products, terms of other ops)."""
    products = terms = 0.0
    for op in ParsedProgram(header, descriptors, const_elements).ops:
        if op.is_qdot:
            products += float(op.header.elements) * op.k_extents[0] * CODES * op.p0
        elif op.kind == Kind.QUANT:
            terms += float(op.header.elements) * CODES * op.p0
        elif op.kind == Kind.FOLD and op.mode == Fold.DOT:
            products += float(op.header.elements) * op.k_terms
        else:
            terms += float(op.header.elements) * (1 + op.k_terms + len(op.instrs))
    return products, terms


class Executor:
    """A Program prepared to run in numpy."""

    def __init__(self, header: bytes, descriptors: Sequence[bytes], consts: Sequence[npt.NDArray[Any]]) -> None:
        self._program = ParsedProgram(header, descriptors, [c.size for c in consts])
        self._consts = [np.ascontiguousarray(c).reshape(-1).view(np.uint32) for c in consts]

    def run(
        self,
        state: list[npt.NDArray[Any] | None],
        seed: bytes,
        round: int,  # noqa: A002
        slot: int,
        t: int,
        dataset: npt.NDArray[Any] | None,
        keep: bool,
        threads: int,
        path: str,
        nanoseconds: list[int] | None = None,
        into: dict[int, npt.NDArray[Any]] | None = None,
    ) -> list[npt.NDArray[Any] | None]:
        """Runs a step; returns one read-only array per op, None for an output that was not kept or was written to
        `into`.
        """
        everything = set(range(len(self._program.ops)))
        kept = everything if keep else self._program.named
        found = {}
        spent = dict.fromkeys(range(len(self._program.ops)), 0)
        began = time.perf_counter_ns()
        for i, words in self._computed(self._program.needed(kept), kept, state, seed, (round, slot, t), dataset, path):
            now = time.perf_counter_ns()
            spent[i], began = now - began, now
            if into and i in into:
                np.copyto(into[i].reshape(-1).view(np.uint32), words.reshape(-1).view(np.uint32))
            elif i in kept:
                found[i] = self._as_array(i, words)
        if nanoseconds is not None:
            nanoseconds.extend(spent.values())
        return [found.get(i) for i in range(len(self._program.ops))]

    def sweep(
        self,
        state: list[npt.NDArray[Any] | None],
        seed: bytes,
        round: int,  # noqa: A002
        slot: int,
        t: int,
        dataset: npt.NDArray[Any] | None,
        threads: int,
        path: str,
        visit: Callable[[int, memoryview], None],
    ) -> None:
        """Calls visit(op, bytes) with every op's output in order."""
        everything = set(range(len(self._program.ops)))
        for i, words in self._computed(everything, set(), state, seed, (round, slot, t), dataset, path):
            visit(i, words.view(np.uint8).data.toreadonly())

    def some(
        self,
        state: list[npt.NDArray[Any] | None],
        seed: bytes,
        round: int,  # noqa: A002
        slot: int,
        t: int,
        dataset: npt.NDArray[Any] | None,
        threads: int,
        path: str,
        ops: list[int],
    ) -> list[npt.NDArray[Any] | None]:
        """Runs the ops that `ops` depend on; returns one read-only array per op, None for ops that are not in `ops`."""
        kept = set(ops)
        if not kept <= set(range(len(self._program.ops))):
            raise ValueError("no such op")
        found = {
            i: self._as_array(i, words)
            for i, words in self._computed(
                self._program.needed(kept), kept, state, seed, (round, slot, t), dataset, path
            )
            if i in kept
        }
        return [found.get(i) for i in range(len(self._program.ops))]

    def rest(self) -> None:
        """Does nothing: this executor keeps no memory between runs."""

    def loops(
        self,
    ) -> list[
        tuple[int, tuple[tuple[str, int], ...], tuple[tuple[int, int, int, int, int], ...], tuple[int, ...], bool]
    ]:
        """Returns an empty list: the portable executor runs no compiled code."""
        return []

    def attach(self, loop: int, address: int, path: str) -> bool:
        """Raises ValueError: this executor has no loop to which a library can be attached."""
        raise ValueError("no such loop")

    def _as_array(self, i: int, words: Words) -> npt.NDArray[Any]:
        op = self._program.ops[i]
        words.flags.writeable = False
        return words.view(DTYPES[op.dtype]).reshape(op.extents)

    def _computed(
        self, asked: set[int], kept: set[int], state: list[npt.NDArray[Any] | None], seed: bytes,
        context: tuple[int, int, int], dataset: npt.NDArray[Any] | None, path: str,
    ) -> Iterator[tuple[int, Words]]:  # fmt: skip
        """Yields (op, words) in order; an output is freed after its last reader."""
        _check_path(path)
        if len(state) != len(self._program.inputs):
            raise ValueError("the state has another number of entries than the Program")
        if len(seed) != 32:
            raise ValueError("a seed is 32 bytes")
        entries = [None if x is None else np.ascontiguousarray(x).reshape(-1).view(np.uint32) for x in state]
        for k, (header, entry) in enumerate(zip(self._program.inputs, entries, strict=True)):
            if header is not None and (entry is None or entry.size != header.elements):
                raise ValueError(f"state entry {k} has another number of elements than the Program")
        rows = None if dataset is None else np.ascontiguousarray(dataset).view(np.uint32)
        step = NumpyStep(entries, self._consts, bytes(seed), context, rows)
        last = self._program.last_readers(asked)
        with np.errstate(all="ignore"):
            for i in sorted(asked):
                step.outputs[i] = step.output(self._program.ops[i])
                yield i, step.outputs[i]
                for done in last.get(i, set()) - kept:
                    step.outputs.pop(done, None)


class NumpyStep:
    """The operands of one step's ops, with the outputs computed so far."""

    def __init__(
        self, state: list[Words | None], consts: list[Words], seed: bytes, context: tuple[int, int, int],
        dataset: Words | None,
    ) -> None:  # fmt: skip
        self.outputs: dict[int, Words] = {}
        self._state, self._consts, self._seed, self._context, self._dataset = state, consts, seed, context, dataset

    def output(self, op: Op) -> Words:
        """Returns the flat words of an op's output."""
        if op.kind == Kind.RANDOM:
            return _philox(self._seed, op.p0, op.header.elements, self._context)
        if op.kind == Kind.DRAW:
            return self._draw(op)
        if op.kind == Kind.QUANT:
            return self._quant(op)
        result = np.empty(op.extents, np.uint32)
        if op.kind == Kind.CONCAT:
            self._concat(op, result)
        else:
            compute = {Kind.MAP: self._map, Kind.FOLD: self._fold, Kind.GATHER: self._gather}[op.kind]
            for begin, extents in _blocks(op.extents, (op.chunks or 1) * (CODES * op.p0 if op.is_qdot else 1)):
                place = tuple(slice(b, b + e) for b, e in zip(begin, extents, strict=True))
                result[place] = compute(op, begin, extents)
        return result.reshape(-1)

    def _source(self, view: View) -> Words:
        if view.tag == Tag.OP:
            return self.outputs[view.index]
        if view.tag == Tag.CONST:
            return self._consts[view.index]
        if view.tag == Tag.CONTEXT:
            return np.array(self._context, np.uint32)
        entry = self._state[view.index]
        assert entry is not None, "checked with the Program"
        return entry

    def _read(self, view: View, begin: Sequence[int], extents: Sequence[int]) -> Words:
        """Returns the words of a view in a box of its coordinates; only the axes of `begin` may start after 0."""
        at = view.offset + sum(s * b for s, b in zip(view.strides, begin, strict=False))
        if view.tag == Tag.IOTA:
            return _positions(at, view.strides, extents).astype(np.uint32)
        source = self._source(view)
        # The view was checked for the whole output, so no word outside of the source is read.
        strides = tuple(WORD_BYTES * s for s in view.strides)
        return as_strided(source[at : at + 1], tuple(extents), strides, writeable=False)

    def _map(self, op: Op, begin: Sequence[int], extents: Sequence[int]) -> Words:
        registers: list[Words | None] = [self._read(v, begin, extents).copy() for v in op.views]
        reads = [(i.a, i.b, i.c)[: ARITY[Opcode(i.op)] if i.op != Opcode.IMM else 0] for i in op.instrs]
        last = {register: at for at, read in enumerate(reads) for register in read}
        for at, (instr, read) in enumerate(zip(op.instrs, reads, strict=True)):
            if instr.op == Opcode.IMM:
                registers.append(np.full((), instr.imm, np.uint32))
                continue
            registers.append(APPLY[Opcode(instr.op)](*(registers[r] for r in read)))
            for register in read:
                if last[register] == at:
                    registers[register] = None
        result = registers[-1]
        assert result is not None, "nothing reads the last register"
        return result

    def _quant(self, op: Op) -> Words:
        (k_terms,), words, size = op.k_extents, op.p0, CODES * op.p0
        groups = (*op.extents[:-1], groups_of(k_terms, words))
        result = np.empty((*groups, words if op.gives_codes else 1), np.uint32)
        for begin, extents in _blocks(groups, size):
            first = size * begin[-1]
            terms = min(size * extents[-1], k_terms - first)
            x = self._read(op.views[0], (*begin[:-1], 0, first), (*extents[:-1], 1, terms)).reshape(-1, terms)
            padded = np.zeros((len(x), size * extents[-1]), np.uint32)
            padded[:, :terms] = x
            place = tuple(slice(b, b + e) for b, e in zip(begin, extents, strict=True))
            # The groups of a block are consecutive.
            number = int(np.ravel_multi_index(begin, groups))
            result[place] = self._groups(op, padded.view(np.float32).reshape(-1, size), number).reshape(*extents, -1)
        return result.reshape(-1)

    def _groups(self, op: Op, values: tables.Floats, number: int) -> Words:
        """Returns the scales or codes of whole groups, beginning with group `number` of the op."""
        scales, inverses = tables.scales_of(tables.magnitudes(values), op.takes_powers)
        if not op.gives_codes:
            return scales.view(np.uint32)
        halves = None
        if op.p1:
            first = number * values.shape[1] // 2
            drawn = _philox(self._seed, op.p1, values.size // 2, self._context, first)
            halves = np.stack((drawn & 0xFFFF, drawn >> 16), axis=-1).reshape(values.shape).astype(np.int32)
        return tables.packed(tables.codes_of(values, inverses, halves)).view(np.uint32)

    def _qdot(self, op: Op, begin: Sequence[int], extents: Sequence[int]) -> Words:
        box = (*extents, op.k_extents[0])
        codes_of = [View(v.tag, v.index, v.offset, (*v.strides, 1)) for v in op.views[:2]]
        a, b = (self._read(view, begin, (*box, op.p0)) for view in codes_of)
        return joined(op, group_products(a, b, *(self._read(view, begin, box) for view in op.views[2:])))

    def _fold(self, op: Op, begin: Sequence[int], extents: Sequence[int]) -> Words:
        if op.mode == Fold.QDOT:
            return self._qdot(op, begin, extents)
        box = (*extents, op.k_terms)
        a = self._read(op.views[0], begin, box)
        b = self._read(op.views[1], begin, box) if op.mode == Fold.DOT else None
        return folded(op, a, b)

    def _gather(self, op: Op, begin: Sequence[int], extents: Sequence[int]) -> Words:
        index, table = op.views
        rows = self._read(index, begin, extents).astype(np.int64)
        inside = rows < op.p0
        at = table.offset + sum(s * b for s, b in zip(table.strides, begin, strict=True))
        found = _positions(at, table.strides, extents) + np.where(inside, rows, 0) * op.p1
        words = found.astype(np.uint32) if table.tag == Tag.IOTA else self._source(table)[found]
        return np.where(inside, words, np.uint32(0))

    def _concat(self, op: Op, result: Words) -> None:
        along = 0
        for view, size in zip(op.views, op.sizes, strict=True):
            place = (slice(None),) * op.p0 + (slice(along, along + size),)
            extents = (*op.extents[: op.p0], size, *op.extents[op.p0 + 1 :])
            result[place] = self._read(view, (0,) * len(extents), extents)
            along += size

    def _draw(self, op: Op) -> Words:
        if self._dataset is None or self._dataset.ndim != 2:
            raise ValueError("a draw without a dataset")
        count, columns = op.extents
        rows = [reference.drawn_row(self._seed, self._context, op.p0 + j, self._dataset.shape[0]) for j in range(count)]
        return np.ascontiguousarray(self._dataset[rows, :columns]).reshape(-1)


def _positions(at: int, strides: Sequence[int], extents: Sequence[int]) -> npt.NDArray[np.int64]:
    """Returns at + sum(stride x coordinate) over a box."""
    found = np.full((), at, np.int64)
    for axis, (stride, extent) in enumerate(zip(strides, extents, strict=True)):
        steps = stride * np.arange(extent, dtype=np.int64)
        found = found + steps.reshape((extent,) + (1,) * (len(extents) - axis - 1))
    return np.broadcast_to(found, tuple(extents))


def _blocks(extents: tuple[int, ...], weight: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yields boxes that cover an output, of about BLOCK values each."""
    axis, inner = len(extents), weight
    while axis and inner * extents[axis - 1] <= BLOCK:
        axis -= 1
        inner *= extents[axis]
    if not axis:
        yield (0,) * len(extents), extents
        return
    at_once = max(1, BLOCK // inner)
    for outer in np.ndindex(*extents[: axis - 1]):
        for begin in range(0, extents[axis - 1], at_once):
            size = min(at_once, extents[axis - 1] - begin)
            zeros = (0,) * (len(extents) - axis)
            yield (*outer, begin, *zeros), ((1,) * len(outer) + (size, *extents[axis:]))


def _philox(seed: bytes, stream: int, count: int, context: tuple[int, int, int], first: int = 0) -> Words:
    """Returns `reference.philox` for `count` words from word `first` on."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    k0 = int.from_bytes(seed[:4], "little") ^ stream
    k1 = int.from_bytes(seed[4:8], "little")
    begin = first // 4
    c0 = np.arange(begin, -(-(first + count) // 4), dtype=np.uint64)
    c1, c2, c3 = (np.full(c0.shape, word, np.uint64) for word in context)
    for _ in range(10):
        left, right = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1 = (right >> shift) ^ c1 ^ np.uint64(k0), right & low
        c2, c3 = (left >> shift) ^ c3 ^ np.uint64(k1), left & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=-1).reshape(-1)[first - 4 * begin :][:count].astype(np.uint32)
