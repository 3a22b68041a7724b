"""Decodes a Program's committed bytes and checks, as the kernels do, that no view reads outside of its source."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.numerics.arrays import DTYPES
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.programs.opcodes import ARITY, Opcode
from lockstep.protocol.programs.program import (
    F32,
    I32,
    MAX_GROUP_WORDS,
    STOCHASTIC,
    Alias,
    Fold,
    Kind,
    Op,
    ProgramHeader,
    Quant,
    Tag,
    View,
    groups_of,
)

MOST_ELEMENTS = 0x7FFFFFFF
MOST_TERMS = 1 << 24
MOST_OPERANDS, MOST_INSTRS = 8, 32
"""Limits of a map: operands and instructions."""


class ParsedProgram:
    """A Program whose every view has been checked to stay inside its source."""

    def __init__(self, header: bytes, descriptors: Sequence[bytes], const_elements: Sequence[int]) -> None:
        try:
            found = ProgramHeader.decode(bytes(header))
            self.ops = [Op.decode(bytes(d)) for d in descriptors]
        except ProgramInvalid as error:
            raise ValueError(error.message) from error
        if (found.n, found.n_consts) != (len(self.ops), len(const_elements)):
            raise ValueError("the header names another number of ops or constants")
        self.inputs, self.outputs, self.const_elements = found.inputs, found.outputs, list(const_elements)
        for i, op in enumerate(self.ops):
            try:
                self._check(i, op)
            except (ValueError, LookupError) as error:
                raise ValueError(f"op {i}: {error}") from error
        for alias in self.outputs:
            known = {Alias.EMPTY_KIND: 1 << 16, Alias.OP_KIND: len(self.ops), Alias.STATE_KIND: len(self.inputs)}
            if alias.index >= known.get(alias.kind, 0):
                raise ValueError("an output names nothing that exists")
            if alias.kind == Alias.STATE_KIND and self.inputs[alias.index] is None:
                raise ValueError("an output names an empty state entry")
        self.named = {a.index for a in self.outputs if a.kind == Alias.OP_KIND}

    def _check(self, own: int, op: Op) -> None:
        elements = int(np.prod([int(e) for e in op.extents], dtype=object))
        if not 0 < elements <= MOST_ELEMENTS:
            raise ValueError("extents out of range")
        if op.dtype not in DTYPES:
            raise ValueError("unknown dtype")
        if len(op.extents) + len(op.k_extents) > 8 or len(op.k_extents) != (op.kind in (Kind.FOLD, Kind.QUANT)):
            raise ValueError("a fold or quant has one k axis, nothing else has any")
        if op.kind == Kind.FOLD and not (0 < op.k_terms <= MOST_TERMS and op.mode in Fold.__members__.values()):
            raise ValueError("K or the mode out of range")
        self._check_instrs(op)
        folded = {Fold.DOT: 2, Fold.QDOT: 4}.get(Fold(op.mode), 1) if op.kind == Kind.FOLD else 0
        due = {Kind.FOLD: folded, Kind.GATHER: 2, Kind.RANDOM: 0, Kind.DRAW: 0, Kind.QUANT: 1}
        if len(op.views) != due.get(op.kind, len(op.views)):
            raise ValueError("the wrong number of operands")
        if op.is_qdot or op.kind == Kind.QUANT:
            self._check_groups(op)
        if op.kind == Kind.DRAW and len(op.extents) != 2:
            raise ValueError("a draw has two axes")
        if op.kind == Kind.CONCAT and (
            op.p0 >= len(op.extents) or not op.views or 0 in op.sizes or sum(op.sizes) != op.extents[op.p0]
        ):
            raise ValueError("the parts of a concat do not add up")
        tabled = op.kind == Kind.GATHER and op.views[1].tag != Tag.IOTA
        if tabled and not (0 < op.p0 <= MOST_ELEMENTS and op.p1 <= MOST_ELEMENTS):
            raise ValueError("a gather from a table of impossible rows")
        for i, view in enumerate(op.views):
            if view.tag != Tag.IOTA:
                extents, strides = self._box(op, i)
                reaches = [s * (e - 1) for s, e in zip(strides, extents, strict=True)]
                low = view.offset + sum(r for r in reaches if r < 0)
                high = view.offset + sum(r for r in reaches if r > 0)
                if low < 0 or high >= self._elements(view, own):
                    raise ValueError("a view reaches outside of its source")

    def _check_groups(self, op: Op) -> None:
        if not 1 <= op.p0 <= MAX_GROUP_WORDS or op.p0 & (op.p0 - 1):
            raise ValueError("groups of an impossible number of words")
        if any(view.tag >= Tag.IOTA for view in op.views):
            raise ValueError("codes and scales, and what is quantised, are tensors")
        if op.kind == Kind.FOLD:
            for j, view in enumerate(op.views):
                along = view.strides[-1]
                if (
                    any(at % op.p0 for at in (view.offset, *view.strides)) or along != op.p0
                    if j < 2
                    else along not in (0, 1)
                ):
                    raise ValueError("an operand of a qdot that is not in groups")
            return
        codes, groups = op.gives_codes, groups_of(op.k_extents[0], op.p0)
        if (
            op.mode not in Quant.__members__.values()
            or op.dtype != (I32 if codes else F32)
            or (op.p1 and (op.p1 < STOCHASTIC or not codes))
            or not groups
            or not op.extents
            or op.extents[-1] != groups * (op.p0 if codes else 1)
            or op.views[0].strides[-2:] != (0, 1)
        ):
            raise ValueError("a quant of another form")

    def _check_instrs(self, op: Op) -> None:
        if op.kind != Kind.MAP:
            if op.instrs:
                raise ValueError("only a map has instructions")
            return
        if len(op.views) > MOST_OPERANDS or len(op.instrs) > MOST_INSTRS:
            raise ValueError("too many operands or instructions")
        if not op.views and not op.instrs:
            raise ValueError("a map without operands and instructions has no result")
        for i, instr in enumerate(op.instrs):
            if instr.op not in Opcode.__members__.values():
                raise ValueError("unknown opcode")
            reads = 0 if instr.op == Opcode.IMM else ARITY[Opcode(instr.op)]
            if any(r >= len(op.views) + i for r in (instr.a, instr.b, instr.c)[:reads]):
                raise ValueError("an instruction reads a register that is not written yet")

    def _box(self, op: Op, i: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns (extents over which operand i is read, its strides)."""
        extents, strides = (*op.extents, *op.k_extents), op.views[i].strides
        if op.kind == Kind.CONCAT:
            extents = (*extents[: op.p0], op.sizes[i], *extents[op.p0 + 1 :])
        if op.kind == Kind.GATHER and i == 1:
            return (*extents, op.p0), (*strides, op.p1)
        if op.is_qdot and i < 2:
            return (*extents, op.p0), (*strides, 1)
        return extents, strides

    def _elements(self, view: View, own: int) -> int:
        if view.tag == Tag.OP:
            if view.index >= own:
                raise ValueError("an operand is not computed yet")
            return self.ops[view.index].header.elements
        if view.tag == Tag.STATE:
            entry = self.inputs[view.index]
            if entry is None:
                raise ValueError("an operand names an empty state entry")
            return entry.elements
        return self.const_elements[view.index] if view.tag == Tag.CONST else 3

    def needed(self, asked: set[int]) -> set[int]:
        """Returns the ops on which the asked ones depend, including these."""
        found = set(asked)
        for i in range(len(self.ops) - 1, -1, -1):
            if i in found:
                found |= {v.index for v in self.ops[i].views if v.tag == Tag.OP}
        return found

    def peak(self, asked: set[int], kept: set[int]) -> int:
        """Returns the most words of outputs that are alive at the same time, except kept ones."""
        last = self.last_readers(asked)
        now = most = 0
        for i in sorted(asked):
            now += self.ops[i].header.elements if i not in kept else 0
            most = max(most, now)
            now -= sum(self.ops[j].header.elements for j in last.get(i, ()) if j not in kept)
        return most

    def last_readers(self, asked: set[int]) -> dict[int, set[int]]:
        """Returns, for each op, the outputs that no later op reads."""
        last = {i: i for i in asked}
        for i in sorted(asked):
            last.update({v.index: i for v in self.ops[i].views if v.tag == Tag.OP})
        found: dict[int, set[int]] = {}
        for op, reader in last.items():
            found.setdefault(reader, set()).add(op)
        return found
