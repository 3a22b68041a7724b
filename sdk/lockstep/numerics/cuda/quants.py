"""Groups quantisations of one tensor into one launch: codes, scales, those of its residual, their concatenations, and
the map that computes the tensor.

In the committed form each of them is an op that reads the tensor. The processor's planner (kernels/plan/quants.cpp)
finds the same groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import NamedTuple

from lockstep.numerics.builder import row_major
from lockstep.numerics.cuda.views import Strides, merged
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import CODES, Alias, Instr, Kind, Op, Program, Tag, View, groups_of

MOST_TARGETS = 16
"""Most arrays that one kernel writes."""


class Array(NamedTuple):
    """Codes or scales of a tensor's groups, or of the residual after earlier limbs."""

    limb: int
    """Limb: 0 for the tensor, 1 for the residual after the first codes and scales."""
    scales: bool


class Target(NamedTuple):
    """A destination of an array: row r is written at word `offset` + `pitch` r of an op's output."""

    array: Array
    op: int | None
    """Index of the op; None: nowhere."""
    offset: int
    pitch: int


@dataclass(frozen=True)
class QuantGroup:
    """Quantisations of one tensor, run at the position of the first member."""

    op: Op
    """A representative op: its view, its rows, its groups."""
    streams: tuple[int, ...]
    """Random stream for each limb's codes; 0 rounds to nearest."""
    targets: tuple[Target, ...]
    members: frozenset[int]
    """All ops that need no launch of their own."""
    source: int | None = None
    """The map whose elements the kernel computes itself; None: it reads the tensor."""
    stores: bool = False
    """True if another op reads the map's output, so that it must be stored."""

    @property
    def place(self) -> int:
        """The op at whose position the group runs."""
        return min(self.members)


class _Pair(NamedTuple):
    """Ops that give codes and scales of the same values; one of the two may be missing."""

    codes: int | None
    scales: int | None

    @property
    def ops(self) -> list[int]:
        return [op for op in self if op is not None]


def alone(i: int, op: Op) -> QuantGroup:
    """Returns a single quantisation as a group that gives codes and scales."""
    own = i if op.gives_codes else None, None if op.gives_codes else i
    return QuantGroup(op, (op.p1,), _own_targets(op, 0, *own), frozenset([i]))


def quant_groups(program: Program, reads: Sequence[Collection[int]] | None = None) -> list[QuantGroup]:
    """Groups the quantisations of a Program by the tensors that they read, with everything that one kernel computes
    together.

    `reads` lists the ops whose outputs each op reads, where these differ from its views.
    """
    return _Finder(program, reads).groups()


def _own_targets(op: Op, limb: int, codes: int | None, scales: int | None) -> tuple[Target, ...]:
    groups = groups_of(op.k_extents[0], op.p0)
    return Target(Array(limb, False), codes, 0, groups * op.p0), Target(Array(limb, True), scales, 0, groups)


class _Finder:
    def __init__(self, program: Program, reads: Sequence[Collection[int]] | None) -> None:
        self.program = program
        if reads is None:
            reads = [{view.index for view in op.views if view.tag == Tag.OP} for op in program.ops]
        self.readers: defaultdict[int, list[int]] = defaultdict(list)
        for i, own in enumerate(reads):
            for source in own:
                self.readers[source].append(i)
        self.kept = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
        self.pair_of = {op: pair for pair in self._pairs() for op in pair.ops}

    def _pairs(self) -> list[_Pair]:
        """Pairs codes and scales of the same values; a second op of stochastic codes would be rounded differently, so
        it gets a pair of its own.
        """
        found: defaultdict[tuple[object, ...], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for i, op in enumerate(self.program.ops):
            if op.kind == Kind.QUANT:
                key = op.views[0], op.extents[:-1], op.k_extents, op.p0, op.takes_powers
                found[key][0 if op.gives_codes else 1].append(i)
        return [_Pair(*own) for codes, scales in found.values() for own in zip_longest(codes, scales)]

    def groups(self) -> list[QuantGroup]:
        done: set[int] = set()
        groups = []
        for i in sorted(self.pair_of):
            if i not in done:
                group = self._group(self.pair_of[i], done)
                done |= group.members
                groups.append(group)
        return groups

    def _group(self, high: _Pair, done: set[int]) -> QuantGroup:
        ops = self.program.ops
        op = ops[high.ops[0]]
        limbs, between = [high], set[int]()
        low = self._low(high, done)
        if low is not None:
            between = low[1]
            limbs.append(low[0])
        arrays = {
            number: Array(limb, bool(is_scales))
            for limb, pair in enumerate(limbs)
            for is_scales, number in enumerate(pair)
            if number is not None
        }
        targets = list[Target]()
        copies = set[int]()
        for number in arrays:
            for reader in self.readers[number]:
                parts = [] if reader in copies else self._concat(reader, arrays)
                if parts and len(targets) + len(parts) <= MOST_TARGETS - 2 * len(limbs):
                    targets += parts
                    copies.add(reader)
        for limb, pair in enumerate(limbs):
            # Codes need not be stored if every reader has a copy of them or only computes their residual.
            read = (
                number
                if number is not None and (number in self.kept or set(self.readers[number]) - copies - between)
                else None
                for number in pair
            )
            targets += _own_targets(op, limb, *read)
        streams = tuple(0 if pair.codes is None else ops[pair.codes].p1 for pair in limbs)
        if len(limbs) > 1 or copies:
            targets = [target for target in targets if target.op is not None]
        members = {*arrays, *between, *copies}
        source = self._source(op, done)
        stores = source is not None and (source in self.kept or bool(set(self.readers[source]) - members))
        if source is not None and stores and min(members) != source + 1:
            # Otherwise the codes and the map's output would both be in memory for longer.
            source, stores = None, False
        members |= set() if source is None else {source}
        targets.sort(key=lambda target: target.array)
        return QuantGroup(op, streams, tuple(targets), frozenset(members), source, stores)

    def _source(self, op: Op, done: set[int]) -> int | None:
        """Returns the map whose output a quantisation reads in full and in order, if no other group computes it."""
        view = op.views[0]
        if view.tag != Tag.OP or self.program.ops[view.index].kind != Kind.MAP or view.index in done:
            return None
        rows = (*op.extents[:-1], op.k_extents[0])
        return view.index if self._reads_all(view, rows, (*view.strides[:-2], view.strides[-1])) else None

    def _concat(self, reader: int, arrays: dict[int, Array]) -> list[Target]:
        """Returns the parts that an op copies, if it is a concat of whole arrays side by side; else an empty list."""
        op = self.program.ops[reader]
        if op.kind != Kind.CONCAT or op.p0 + 1 != len(op.extents):
            return []
        parts, before = [], 0
        for view, size in zip(op.views, op.sizes, strict=True):
            known = view.tag == Tag.OP and view.index in arrays
            if (
                not known
                or self.program.ops[view.index].extents[-1] != size
                or not self._reads_all(view, (*op.extents[:-1], size))
            ):
                return []
            parts.append(Target(arrays[view.index], reader, before, op.extents[-1]))
            before += size
        return parts

    def _reads_all(self, view: View, extents: Sequence[int], strides: Strides | None = None) -> bool:
        """Returns True if a view with these strides reads the whole output of an op in order."""
        whole = self.program.ops[view.index].header.elements
        own = view.strides if strides is None else strides
        return (
            (view.tag, view.offset) == (Tag.OP, 0)
            and prod(extents) == whole
            and _walk(extents, own) == _walk((whole,), (1,))
        )

    # --- two limbs ------------------------------------------------------------------------------------------

    def _low(self, high: _Pair, done: set[int]) -> tuple[_Pair, set[int]] | None:
        """Returns the quantisation of a pair's residual, and the maps between them that no other op reads."""
        if high.codes is None or high.scales is None:
            return None
        for reader in self.readers[high.codes]:
            maps = self._rest(reader, high.codes, high.scales)
            if not maps or self.kept & set(maps):
                continue
            readers = self.readers[maps[-1]]
            pair = self.pair_of.get(readers[0]) if readers else None
            if pair is None or set(readers) - set(pair.ops) or done & set(pair.ops):
                continue
            if all(self._quantises_rest(self.program.ops[op], self.program.ops[high.codes]) for op in pair.ops):
                return pair, set(maps)
        return None

    def _quantises_rest(self, low: Op, high: Op) -> bool:
        view, (k,) = low.views[0], low.k_extents
        same = (low.p0, k, low.takes_powers) == (high.p0, high.k_extents[0], high.takes_powers)
        return same and self._reads_all(view, (*low.extents[:-1], k), (*view.strides[:-2], view.strides[-1]))

    def _rest(self, reader: int, codes: int, scales: int) -> list[int]:
        """Returns the maps that compute the residual x - code x scale of a pair: one, or two if the last group is
        padded; [] if `reader` computes something else.
        """
        ops = self.program.ops
        op, quant = ops[reader], ops[codes]
        if op.kind != Kind.MAP:
            return []
        rows, (k,), view = quant.extents[:-1], quant.k_extents, quant.views[0]
        groups = groups_of(k, quant.p0)
        lanes = *rows, groups * quant.p0, CODES
        due = {
            "codes": (Tag.OP, codes, 0, _walk(lanes, (*row_major(quant.extents), 0))),
            "shift": (Tag.IOTA, 0, 24, _walk(lanes, (*(0,) * len(quant.extents), -8))),
            "scales": (
                Tag.OP,
                scales,
                0,
                _walk((*rows, groups, CODES * quant.p0), (*row_major(ops[scales].extents), 0)),
            ),
        }
        values = view.tag, view.index, view.offset, _walk((*rows, k), (*view.strides[:-2], view.strides[-1]))
        whole = k == CODES * quant.p0 * groups
        parts = _parts(op, _REST) if whole else _parts(op, _VALUE)
        if parts is None or prod(op.extents) != prod(lanes):
            return []
        if any(_shows(op, parts[name]) != due[name] for name in due):
            return []
        if whole:
            return [reader] if _shows(op, parts["x"]) == values else []
        after = self.readers[reader]
        rest = ops[after[0]] if len(after) == 1 else None
        if rest is None or rest.kind != Kind.MAP or (parts := _parts(rest, _DIFFERENCE)) is None:
            return []
        padded = Tag.OP, reader, 0, _walk((*rows, k), row_major((*rows, CODES * quant.p0 * groups)))
        shown = _shows(rest, parts["x"]), _shows(rest, parts["value"])
        return [reader, after[0]] if prod(rest.extents) == prod(rows) * k and shown == (values, padded) else []


_Pattern = tuple[Opcode, "str | int | _Pattern", "str | int | _Pattern"] | tuple[Opcode, "str | int | _Pattern"]
"""A pattern: an opcode with its arguments, each a pattern, an immediate, or the name of an operand."""
_CODE: _Pattern = (Opcode.I2F, (Opcode.ISHR, (Opcode.ISHL, "codes", "shift"), 24))
_VALUE: _Pattern = (Opcode.FMUL, _CODE, "scales")
"""The value of a code: its byte, sign-extended to a word, times the scale of its group."""
_REST: _Pattern = (Opcode.FSUB, "x", _VALUE)
_DIFFERENCE: _Pattern = (Opcode.FSUB, "x", "value")


def _parts(op: Op, pattern: _Pattern) -> dict[str, int] | None:
    """Matches a map's expression with a pattern; returns the operand numbers by name, or None."""
    found: dict[str, int] = {}
    operands = len(op.views)

    def matches(register: int, due: str | int | _Pattern) -> bool:
        if isinstance(due, str):
            return register < operands and found.setdefault(due, register) == register
        if register < operands:
            return False
        instr: Instr = op.instrs[register - operands]
        if isinstance(due, int):
            return (instr.op, instr.imm) == (Opcode.IMM, due)
        opcode, *arguments = due
        return instr.op == opcode and all(map(matches, (instr.a, instr.b, instr.c), arguments))

    return found if op.instrs and matches(operands + len(op.instrs) - 1, pattern) else None


def _walk(extents: Sequence[int], strides: Strides) -> tuple[list[int], list[int]]:
    """Returns a normal form of extents and strides: equal for all pairs that visit the same words in the same order."""
    kept, (walk,) = merged(extents, strides)
    return kept, walk


def _shows(op: Op, operand: int) -> tuple[Tag, int, int, tuple[list[int], list[int]]]:
    """Returns a normal form of a map's operand that does not depend on how the map's axes are split."""
    view = op.views[operand]
    return view.tag, view.index, view.offset, _walk(op.extents, view.strides)
