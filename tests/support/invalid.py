"""Jobs that each break one rule, and vectors that both Python and Solidity read.

python -m tests.support.invalid        writes tests/vectors/validator.json anew
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol import merkle
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import ENCODE, MERGE, STEP, Evidence, Held, Piece, ProgramParts, Subject
from lockstep.protocol.programs.opcodes import Opcode
from lockstep.protocol.programs.program import (
    F32,
    I32,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Quant,
    Tag,
    View,
    graph_depth,
)
from lockstep.protocol.programs.rules import MAX_TOTAL, LayoutSide, Rule
from lockstep.protocol.types import Digest

VECTORS = Path(__file__).parents[1] / "vectors/validator.json"

P, N = (F32, 12), (I32, 12)
SLOT = [P, None, P, None, N, P, (I32, None), None]
FLOATS, HOLE, INTS, COUNTER = (Tag.STATE, 0), (Tag.STATE, 1), (Tag.STATE, 4), (Tag.STATE, 6)
TABLE = (Tag.CONST, 0)
LENGTH, ROWS = 5, 9


@dataclass(frozen=True)
class Job:
    """A job's parameters that the validator reads."""

    step_program: Digest
    encode_program: Digest
    merge_program: Digest
    dataset_root: Digest
    genesis_shared: Digest
    genesis_outer: Digest
    zero_carry: Digest
    zero_payload: Digest
    dataset_rows: int = ROWS
    row_length: int = LENGTH
    shared_depth: int = 1
    payload_depth: int = 0
    slots: int = 3
    carry: int = 0


# -- a sound job -------------------------------------------------------------------------------------------------------


def step_program(codes_too: bool = False) -> Program:
    """Returns a step with a used op of every kind of op-set 1; with `codes_too` also of op-set 2."""
    b = ProgramBuilder(SLOT)
    rows = b.draw(2, LENGTH)
    total = b.sum(rows.slice(0, 0, 1).reshape(LENGTH))
    clock = b.map((), [b.input(6), total], lambda e, c, s: e.iadd(c, e.imax(s, e.i32(1))))
    table = b.const(np.linspace(0, 1, 300, dtype=np.float32))
    noise = b.map((12,), [b.random((12,))], lambda e, x: e.fmul(e.i2f(x), e.f32(1e-9)), F32)
    rates = b.gather(b.input(6), table.reshape(300, 1))
    weights = b.concat([noise.slice(0, 0, 4), b.input(0).slice(0, 4, 12)])
    dot = b.dot(weights.reshape(1, 12), b.input(2).reshape(1, 12))
    codes = [b.quant(b.input(k), words=1, stream=stream) for k, stream in ((2, 1 << 31), (0, 0))] if codes_too else []
    factors = [b.input(0), dot, rates, *([b.qdot(codes[0], codes[1])] if codes else [])]
    moved = b.map((12,), factors, lambda e, x, d, r, *q: e.ffma(x, e.ftanh(d), e.fadd(r, q[0]) if q else r))
    counted = b.map((12,), [b.input(4)], lambda e, x: e.iadd(x, e.i32(1)), I32)
    return b.finish([moved, None, b.input(2), None, counted, b.input(5), clock, None])


def encode_program(carry: bool = False) -> Program:
    """Returns an encode: [anchor - live] [-], or with a carry [anchor - live, -] [integers, vector]."""
    b = ProgramBuilder(SLOT)
    moved = b.map((12,), [b.input(2), b.input(0)], lambda e, x, y: e.fsub(x, y))
    return b.finish([moved, None, b.input(4), b.input(5)] if carry else [moved, None])


def merge_program(carry: bool = False) -> Program:
    """Returns a merge: a masked sum."""
    width = 2 if carry else 1
    room = 4 * width
    payloads = [P, None] * 3 if carry else [P] * 3
    mask = (F32, 3)
    b = ProgramBuilder([P, None, P, *[None] * (2 * room - 3), *payloads, *[None] * width, mask, *[None] * (room - 1)])
    given = [b.input(2 * room + width * slot) for slot in range(3)]
    parts = [b.input(0), *given, b.input(3 * room).slice(0, 0, 1)]
    return b.finish([b.map((12,), parts, lambda e, x, y, _z, w, m: e.ffma(y, m, e.fadd(x, w))), None, b.input(2), None])


def tensor(header: TensorHeader, fill: int = 0) -> tuple[TensorHeader, Digest]:
    """Returns (header, tree) of a tensor whose words are all `fill`."""
    return header, merkle.data_root(fill.to_bytes(4, "little") * header.elements)


def root_of(entries: list[tuple[TensorHeader, Digest] | None]) -> Digest:
    """Returns the root over a subtree's tensors."""
    return merkle.tree([merkle.EMPTY[0] if t is None else merkle.tensor_root_of_tree(*t) for t in entries])


VECTOR, INTEGERS = TensorHeader(F32, (12,)), TensorHeader(I32, (12,))
DATA = TensorHeader(I32, (ROWS, LENGTH))
SHARED = [tensor(VECTOR, 0x3F800000), None]
OUTER = [tensor(VECTOR), None]
CARRY = [tensor(INTEGERS), tensor(VECTOR)]
PAYLOAD = [tensor(VECTOR)]


def held(programs: tuple[ProgramParts, ProgramParts, ProgramParts], **changes: Any) -> Held:
    """Returns the job of these Programs, with `changes` by field."""
    job = Job(
        programs[0].root, programs[1].root, programs[2].root, merkle.tensor_root_of_tree(*tensor(DATA, 7)),
        root_of(SHARED), root_of(OUTER), root_of(CARRY), root_of(PAYLOAD),
    )  # fmt: skip
    return Held(replace(job, **changes), programs)


def sound(codes_too: bool = False) -> Held:
    """Returns a valid job."""
    return held(
        (ProgramParts.of(step_program(codes_too)), ProgramParts.of(encode_program()), ProgramParts.of(merge_program()))
    )


def carrying() -> Held:
    """Returns a valid job with a carry."""
    parts = (
        ProgramParts.of(step_program()),
        ProgramParts.of(encode_program(True)),
        ProgramParts.of(merge_program(True)),
    )
    return held(parts, payload_depth=1, carry=1, zero_payload=root_of([*PAYLOAD, None]))


def everything(job: Held) -> Iterator[Evidence]:
    """Yields all evidence about a job with the valid job's tensors."""
    yield from defects.every(job)
    step, encode, merge = job.programs
    yield from defects.checkpoint_evidence(Subject.GENESIS, step, SHARED)
    yield from defects.checkpoint_evidence(Subject.OUTER, merge, OUTER)
    yield from defects.zero_evidence(Subject.CARRY, step, [merkle.tensor_root_of_tree(*t) for t in CARRY])
    yield from defects.zero_evidence(Subject.PAYLOAD, encode, [merkle.tensor_root_of_tree(*t) for t in PAYLOAD])
    yield Evidence(Subject.DATASET, pieces=(Piece(DATA.encode(), tensor(DATA, 7)[1]),))


# -- one rule broken ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A job, the evidence against it, and the rule that it breaks."""

    job: Held
    evidence: Evidence
    rule: Rule


def with_program(which: int, parts: ProgramParts) -> Held:
    """Returns the valid job with one other Program, the only invalid part."""
    programs = list(sound().programs)
    programs[which] = parts
    return held((programs[0], programs[1], programs[2]))


def header_of(parts: ProgramParts, *, n: int | None = None, depth: int | None = None) -> bytes:
    """Returns the header with another number of ops, and the matching depth unless one is given."""
    fields = defects.HeaderFields.decode(parts.header)
    n = fields.n if n is None else n
    depth = graph_depth(n, fields.s_out) if depth is None else depth
    return parts.header[:8] + struct.pack(">HB", n, depth) + parts.header[11:]


def spoiled(parts: ProgramParts, at: int, data: bytes) -> ProgramParts:
    """Returns the parts with `data` at byte `at` of the header."""
    return replace(parts, header=parts.header[:at] + data + parts.header[at + len(data) :])


def appended(descriptor: bytes, opset: int = 1) -> ProgramParts:
    """Returns the step Program with one more op, on which nothing depends."""
    parts = sound().programs[STEP]
    parts = replace(parts, header=parts.header[:6] + struct.pack(">H", opset) + parts.header[8:])
    ops = (*parts.descriptors, descriptor)
    return replace(parts, header=header_of(parts, n=len(ops)), descriptors=ops)


def op_case(rule: Rule, op: Op | bytes, at: int | None = None, opset: int | None = None) -> Case:
    """Returns a case of an op that breaks a rule by itself, or with `at` by that operand."""
    last = Op.decode(sound().programs[STEP].descriptors[-1])
    if isinstance(op, Op):
        opset = opset or op.opset
        op = replace(op, cumulative=(last.cumulative + op.header.elements) % 2**64).encode()
    parts = appended(op, opset or 1)
    i = len(parts.descriptors) - 1
    about = Evidence(Subject.OP, STEP, i, code=parts.code, pieces=(parts.op(i),))
    if at is not None:
        (source,) = [s for j, s in enumerate(defects._sources(parts, i)) if j == at]
        about = replace(about, subject=Subject.OPERAND, at=at, pieces=(*about.pieces, *source))
    return Case(with_program(STEP, parts), about, rule)


def header_case(rule: Rule, parts: ProgramParts, subject: Subject = Subject.HEADER, index: int = 0) -> Case:
    """Returns a case of a step Program whose header breaks a rule."""
    return Case(with_program(STEP, parts), Evidence(subject, STEP, index, code=parts.code), rule)


def view(source: tuple[Tag, int], offset: int, *strides: int) -> View:
    return View(*source, offset, strides)


def a_map(**changes: Any) -> Op:
    return replace(Op(Kind.MAP, F32, (12,), (view(FLOATS, 0, 1),), instrs=(Instr(Opcode.FNEG, 0),)), **changes)


def a_dot(**changes: Any) -> Op:
    views = (view(FLOATS, 0, 3, 1), view(FLOATS, 0, 0, 1))
    return replace(Op(Kind.FOLD, F32, (4,), views, (3,), Fold.DOT), **changes)


def a_gather(**changes: Any) -> Op:
    views = (view(INTS, 0, 1), view(TABLE, 0, 0))
    return replace(Op(Kind.GATHER, F32, (12,), views, p0=300, p1=1), **changes)


def a_concat(**changes: Any) -> Op:
    views = (view(FLOATS, 0, 1), view(FLOATS, 4, 1))
    return replace(Op(Kind.CONCAT, F32, (12,), views, p0=0, sizes=(4, 8)), **changes)


def a_random(**changes: Any) -> Op:
    return replace(Op(Kind.RANDOM, I32, (12,), ()), **changes)


def a_draw(**changes: Any) -> Op:
    return replace(Op(Kind.DRAW, I32, (2, LENGTH), ()), **changes)


def a_qdot(**changes: Any) -> Op:
    """Returns a qdot: two rows of three groups, two words each."""
    views = (view(INTS, 0, 6, 2), view(INTS, 0, 0, 2), view(FLOATS, 0, 3, 1), view(FLOATS, 0, 0, 1))
    return replace(Op(Kind.FOLD, F32, (2,), views, (3,), Fold.QDOT, p0=2), **changes)


def a_quant(**changes: Any) -> Op:
    """Returns a quant: two rows of six values, in groups of four and two."""
    return replace(Op(Kind.QUANT, I32, (2, 2), (view(FLOATS, 0, 6, 0, 1),), (6,), p0=1), **changes)


def scales(**changes: Any) -> Op:
    """Returns the scales of `a_quant`."""
    return replace(a_quant(dtype=F32, mode=Quant.SCALES), **changes)


def with_views(op: Op, j: int, other: View) -> Op:
    """Returns the op with another operand j."""
    return replace(op, views=(*op.views[:j], other, *op.views[j + 1 :]))


IOTA, CONTEXT = (Tag.IOTA, 0), (Tag.CONTEXT, 0)
SOUND_OPS = (
    a_map(), a_dot(), a_gather(), a_concat(), a_random(), a_draw(), a_qdot(), a_quant(), scales(),
    a_quant(mode=Quant.CODES_POWER, p1=1 << 31), scales(p0=64, extents=(2, 1)),
)  # fmt: skip

OPS: dict[str, tuple[Rule, Op]] = {
    "dtype outside the table": (Rule.DTYPE, a_map(dtype=2)),
    "nine axes": (Rule.AXES, a_map(extents=(1,) * 8 + (12,), views=(view(FLOATS, 0, *(0,) * 8, 1),))),
    "nine axes with k": (Rule.AXES, a_dot(extents=(1,) * 8, views=(view(FLOATS, 0, *(0,) * 8, 1),) * 2)),
    "60 axes of 2^32 - 1": (Rule.AXES, a_random(extents=(2**32 - 1,) * 60)),
    "an empty extent": (Rule.SHAPE, a_map(extents=(0,))),
    "2^32 elements": (Rule.SHAPE, a_map(extents=(1 << 16, 1 << 16), views=(view(FLOATS, 0, 0, 0),))),
    "2^256 elements, nearly": (Rule.SHAPE, a_random(extents=(2**32 - 1,) * 8)),
    "a map with a k axis": (Rule.FOLD_AXIS, a_map(k_extents=(1,), views=(view(FLOATS, 0, 1, 0),))),
    "a fold without a k axis": (Rule.FOLD_AXIS, a_dot(k_extents=(), views=(view(FLOATS, 0, 1),) * 2)),
    "a fold with two": (Rule.FOLD_AXIS, a_dot(k_extents=(1, 3), views=(view(FLOATS, 0, 3, 0, 1),) * 2)),
    "instructions in a fold": (Rule.FOREIGN_FIELD, a_dot(instrs=(Instr(Opcode.FNEG, 0),))),
    "a mode in a map": (Rule.FOREIGN_FIELD, a_map(mode=1)),
    "first parameter of a map": (Rule.FOREIGN_FIELD, a_map(p0=1)),
    "second parameter of a fold": (Rule.FOREIGN_FIELD, a_dot(p1=1)),
    "second parameter of a concat": (Rule.FOREIGN_FIELD, a_concat(p1=1)),
    "second parameter of a draw": (Rule.FOREIGN_FIELD, a_draw(p1=1)),
    "iota with an index": (Rule.FOREIGN_FIELD, a_map(views=(view((Tag.IOTA, 1), 0, 1),))),
    "context with an index": (Rule.FOREIGN_FIELD, a_map(views=(view((Tag.CONTEXT, 9), 0, 0),))),
    "a word that no instruction reads": (Rule.FOREIGN_FIELD, a_map(instrs=(Instr(Opcode.FNEG, 0, 0, 0, 7),))),
    "a register that one does not read": (
        Rule.FOREIGN_FIELD, a_map(instrs=(Instr(Opcode.FNEG, 0), Instr(Opcode.FADD, 0, 0, 1))),
    ),
    "a register of an immediate": (Rule.FOREIGN_FIELD, a_map(instrs=(Instr(Opcode.IMM, 1, 0, 0, 7),))),
    "operand is the op itself": (Rule.OPERAND_ORDER, a_map(views=(view((Tag.OP, 12), 0, 1),))),
    "operand is a later op": (Rule.OPERAND_ORDER, a_map(views=(view(FLOATS, 0, 1), view((Tag.OP, 65535), 0, 1)))),
    "operand is EMPTY": (Rule.OPERAND_STATE, a_map(views=(view(HOLE, 0, 0),))),
    "operand is beyond the state": (Rule.OPERAND_STATE, a_map(views=(view((Tag.STATE, 8), 0, 0),))),
    "operand is no constant": (Rule.OPERAND_CONST, a_map(views=(view((Tag.CONST, 1), 0, 0),))),
    "a map of nothing": (Rule.MAP_EMPTY, a_map(views=(), instrs=())),
    "nine operands": (Rule.OPERAND_COUNT, a_map(views=(view(IOTA, 0, 1),) * 9)),
    "seven tensor operands": (Rule.OPERAND_COUNT, a_map(views=(view(FLOATS, 0, 1),) * 7)),
    "a dot of one": (Rule.OPERAND_COUNT, a_dot(views=(view(FLOATS, 0, 3, 1),))),
    "a sum of two": (Rule.OPERAND_COUNT, a_dot(mode=Fold.SUM)),
    "a gather of three": (Rule.OPERAND_COUNT, a_gather(views=(view(INTS, 0, 1), view(TABLE, 0, 0), view(INTS, 0, 1)))),
    "33 instructions": (Rule.INSTRUCTION_COUNT, a_map(instrs=(Instr(Opcode.FNEG, 0),) * 33)),
    "nine functions": (Rule.FUNCTION_COUNT, a_map(instrs=(Instr(Opcode.FEXP, 0),) * 9)),
    f"opcode {len(Opcode)}": (Rule.OPCODE, a_map(instrs=(Instr(len(Opcode), 0),))),
    "opcode 255": (Rule.OPCODE, a_map(instrs=(Instr(255, 0),))),
    "a register that is not written": (Rule.REGISTER, a_map(instrs=(Instr(Opcode.FADD, 0, 1),))),
    "a third one": (Rule.REGISTER, a_map(instrs=(Instr(Opcode.SELECT, 0, 0, 200),))),
    "fold mode 6": (Rule.FOLD_MODE, a_dot(mode=6)),
    "a qdot of two": (Rule.OPERAND_COUNT, a_dot(mode=Fold.QDOT, p0=1)),
    "a qdot of integers": (Rule.FOLD_DTYPE, a_qdot(dtype=I32)),
    "a qdot beyond 2^16 groups": (Rule.FOLD_TERMS, a_qdot(k_extents=((1 << 16) + 1,))),
    "a qdot of no groups": (Rule.FOLD_TERMS, a_qdot(k_extents=(0,))),
    "second parameter of a qdot": (Rule.FOREIGN_FIELD, a_qdot(p1=1)),
    "first parameter of a dot": (Rule.FOREIGN_FIELD, a_dot(p0=1)),
    "groups of three words": (Rule.GROUP_WORDS, a_qdot(p0=3)),
    "groups of 128 words": (Rule.GROUP_WORDS, a_qdot(p0=128)),
    "values in groups of no words": (Rule.GROUP_WORDS, a_quant(p0=0)),
    "values in groups of 2^31 words": (Rule.GROUP_WORDS, a_quant(p0=1 << 31)),
    "computed codes": (Rule.GROUP_PLACE, with_views(a_qdot(), 0, view(IOTA, 0, 0, 2))),
    "computed scales": (Rule.GROUP_PLACE, with_views(a_qdot(), 3, view(CONTEXT, 0, 0, 0))),
    "codes that do not begin at a group": (Rule.GROUP_PLACE, with_views(a_qdot(), 1, view(INTS, 1, 0, 2))),
    "rows that do not begin at a group": (Rule.GROUP_PLACE, with_views(a_qdot(), 0, view(INTS, 0, 3, 2))),
    "rows backwards from no group": (Rule.GROUP_PLACE, with_views(a_qdot(), 0, view(INTS, 6, -5, 2))),
    "codes apart along k": (Rule.GROUP_PLACE, with_views(a_qdot(), 0, view(INTS, 0, 0, 4))),
    "scales apart along k": (Rule.FOLD_STRIDE, with_views(a_qdot(), 2, view(FLOATS, 0, 0, 2))),
    "scales backwards along k": (Rule.FOLD_STRIDE, with_views(a_qdot(), 3, view(FLOATS, 2, 0, -1))),
    "quant mode 4": (Rule.QUANT_FORM, a_quant(mode=4)),
    "quant mode 255": (Rule.QUANT_FORM, scales(mode=255)),
    "float codes of a quant": (Rule.QUANT_FORM, a_quant(dtype=F32)),
    "integer scales of a quant": (Rule.QUANT_FORM, scales(dtype=I32)),
    "a quant of two": (Rule.QUANT_FORM, a_quant(views=a_quant().views * 2)),
    "a quant of nothing": (Rule.QUANT_FORM, a_quant(views=())),
    "a quant of a sequence": (Rule.QUANT_FORM, a_quant(views=(view(IOTA, 0, 6, 0, 1),))),
    "a low stream": (Rule.QUANT_FORM, a_quant(p1=5)),
    "scales with a stream": (Rule.QUANT_FORM, scales(p1=1 << 31)),
    "a quant of no values": (Rule.QUANT_SHAPE, a_quant(k_extents=(0,))),
    "a quant without a group axis": (Rule.QUANT_SHAPE, a_quant(extents=(), views=(view(FLOATS, 0, 1),))),
    "a group too many": (Rule.QUANT_SHAPE, a_quant(extents=(2, 3))),
    "words in the place of scales": (Rule.QUANT_SHAPE, scales(p0=2, extents=(2, 2))),
    "2^32 - 1 values": (Rule.QUANT_SHAPE, a_quant(k_extents=(2**32 - 1,))),
    "values apart along k": (Rule.QUANT_SHAPE, a_quant(views=(view(FLOATS, 0, 1, 0, 2),))),
    "values that differ by group": (Rule.QUANT_SHAPE, a_quant(views=(view(FLOATS, 0, 1, 4, 1),))),
    "a quant without a k axis": (Rule.FOLD_AXIS, a_quant(k_extents=(), views=(view(FLOATS, 0, 6, 1),))),
    "instructions in a quant": (Rule.FOREIGN_FIELD, a_quant(instrs=(Instr(Opcode.FNEG, 0),))),
    "a sum of integers": (Rule.FOLD_DTYPE, a_dot(mode=Fold.SUM, dtype=I32, views=(view(INTS, 0, 3, 1),))),
    "an integer sum of floats": (Rule.FOLD_DTYPE, a_dot(mode=Fold.ISUM, views=(view(FLOATS, 0, 3, 1),))),
    "K beyond 2^24": (Rule.FOLD_TERMS, a_dot(k_extents=((1 << 24) + 1,), views=(view(FLOATS, 0, 0, 0),) * 2)),
    "K = 0": (Rule.FOLD_TERMS, a_dot(k_extents=(0,))),
    "stride 2 along k": (Rule.FOLD_STRIDE, a_dot(views=(view(FLOATS, 0, 1, 2), view(FLOATS, 0, 0, 1)))),
    "stride -1 along k": (Rule.FOLD_STRIDE, a_dot(views=(view(FLOATS, 0, 3, 1), view(FLOATS, 2, 3, -1)))),
    "a table without rows": (Rule.TABLE_ROWS, a_gather(p0=0)),
    "a table of 2^31 rows": (Rule.TABLE_ROWS, a_gather(p0=1 << 31, p1=0)),
    "rows 2^31 apart": (Rule.TABLE_ROWS, a_gather(p0=1, p1=1 << 31)),
    "a computed table": (Rule.TABLE_COMPUTED, a_gather(views=(view(INTS, 0, 1), view(IOTA, 0, 0)))),
    "concat along no axis": (Rule.CONCAT_AXIS, a_concat(p0=1)),
    "an empty part": (Rule.CONCAT_PARTS, a_concat(sizes=(0, 12))),
    "parts that do not add up": (Rule.CONCAT_PARTS, a_concat(sizes=(4, 7))),
    "a concat of nothing": (Rule.CONCAT_PARTS, a_concat(views=(), sizes=())),
    "a float random": (Rule.RANDOM_FORM, a_random(dtype=F32)),
    "a random with operands": (Rule.RANDOM_FORM, a_random(views=(view(FLOATS, 0, 1),))),
    "a draw of one axis": (Rule.DRAW_FORM, a_draw(extents=(12,))),
    "a float draw": (Rule.DRAW_FORM, a_draw(dtype=F32)),
    "a draw with operands": (Rule.DRAW_FORM, a_draw(views=(view(FLOATS, 0, 1, 1),))),
    "rows of another length": (Rule.DRAW_LENGTH, a_draw(extents=(2, LENGTH + 1))),
}  # fmt: skip

OPERANDS: dict[str, tuple[Rule, Op, int]] = {
    "a dot with integers": (Rule.OPERAND_DTYPE, a_dot(views=(view(FLOATS, 0, 0, 1), view(INTS, 0, 3, 1))), 1),
    "a dot with a sequence": (Rule.OPERAND_DTYPE, a_dot(views=(view(IOTA, 0, 0, 1), view(FLOATS, 0, 0, 1))), 0),
    "a sum of context": (Rule.OPERAND_DTYPE, a_dot(mode=Fold.SUM, views=(view(CONTEXT, 0, 0, 1),)), 0),
    "a float index": (Rule.OPERAND_DTYPE, a_gather(views=(view(FLOATS, 0, 1), view(TABLE, 0, 0))), 0),
    "a table of another dtype": (Rule.OPERAND_DTYPE, a_gather(dtype=I32), 1),
    "a part of another dtype": (Rule.OPERAND_DTYPE, a_concat(views=(view(FLOATS, 0, 1), view(INTS, 0, 1))), 1),
    "a part of an op of another dtype": (
        Rule.OPERAND_DTYPE, a_concat(extents=(2,), views=(view((Tag.OP, 0), 0, 0),), sizes=(2,)), 0,
    ),
    "float codes": (Rule.OPERAND_DTYPE, with_views(a_qdot(), 0, view(FLOATS, 0, 6, 2)), 0),
    "integer scales": (Rule.OPERAND_DTYPE, with_views(a_qdot(), 3, view(INTS, 0, 0, 1)), 3),
    "a quant of integers": (Rule.OPERAND_DTYPE, a_quant(views=(view(INTS, 0, 6, 0, 1),)), 0),
    "a last group beyond its codes": (Rule.OPERAND_RANGE, with_views(a_qdot(), 0, view(INTS, 0, 8, 2)), 0),
    "scales beyond their tensor": (Rule.OPERAND_RANGE, with_views(a_qdot(), 2, view(FLOATS, 7, 3, 1)), 2),
    "values beyond their tensor": (Rule.OPERAND_RANGE, a_quant(views=(view(FLOATS, 1, 6, 0, 1),)), 0),
    "a view beyond the end": (Rule.OPERAND_RANGE, a_map(views=(view(FLOATS, 1, 1),)), 0),
    "a view before the start": (Rule.OPERAND_RANGE, a_map(views=(view(FLOATS, 10, -1),)), 0),
    "a view of an op beyond its end": (Rule.OPERAND_RANGE, a_map(views=(view((Tag.OP, 0), 0, 1),)), 0),
    "a view of a constant beyond its end": (Rule.OPERAND_RANGE, a_map(views=(view(TABLE, 289, 1),)), 0),
    "a scalar read as a vector": (Rule.OPERAND_RANGE, a_map(dtype=I32, views=(view(COUNTER, 0, 1),)), 0),
    "a fourth context word": (Rule.OPERAND_RANGE, a_map(views=(view(CONTEXT, 3, 0),)), 0),
    "a fold beyond its operand": (Rule.OPERAND_RANGE, a_dot(k_extents=(4,)), 0),
    "a table too short": (Rule.OPERAND_RANGE, a_gather(p0=301), 1),
    "an index too short": (Rule.OPERAND_RANGE, a_gather(views=(view(INTS, 1, 1), view(TABLE, 0, 0))), 0),
    "a part beyond its operand": (Rule.OPERAND_RANGE, a_concat(sizes=(3, 9)), 1),
}  # fmt: skip


def _bytes() -> Iterator[tuple[str, Case]]:
    """Yields descriptors that do not parse."""
    good = replace(a_map(), cumulative=Op.decode(sound().programs[STEP].descriptors[-1]).cumulative + 12).encode()
    yield "a descriptor too short", op_case(Rule.DESCRIPTOR_LENGTH, good[:23])
    yield "a byte after the end", op_case(Rule.DESCRIPTOR_LENGTH, good + b"\0")
    yield "a byte before the end", op_case(Rule.DESCRIPTOR_LENGTH, good[:-1])
    yield "a reserved byte", op_case(Rule.DESCRIPTOR_LENGTH, good[:7] + b"\1" + good[8:])
    yield "kind 0", op_case(Rule.KIND, b"\0" + good[1:])
    yield "kind 8", op_case(Rule.KIND, b"\x08" + good[1:], opset=2)
    yield "a quant in op-set 1", op_case(Rule.KIND, a_quant(), opset=1)
    yield "a qdot in op-set 1", op_case(Rule.FOLD_MODE, a_qdot(), opset=1)
    yield "tag 5", op_case(Rule.TAG, good[:28] + b"\5" + good[29:])
    huge = replace(a_random(), cumulative=MAX_TOTAL + 1).encode()
    yield "2^40 elements", op_case(Rule.ELEMENT_LIMIT, huge)


def _missing() -> Iterator[tuple[str, Case]]:
    parts = sound().programs[STEP]
    count = len(parts.descriptors)
    for what, n, i in (("one op too few", count + 1, count), ("half of the ops missing", 2 * count + 8, 0)):
        wrong = replace(parts, header=header_of(parts, n=n))
        evidence = Evidence(Subject.OP, STEP, i, code=wrong.code, pieces=(wrong.op(i),))
        yield what, Case(with_program(STEP, wrong), evidence, Rule.OP_MISSING)
    for what, consts, k in (("one constant too few", 2, 0), ("a tree without constants", 1, 0)):
        wrong = spoiled(parts, 13, struct.pack(">H", consts))
        wrong = replace(wrong, consts=()) if consts == 1 else wrong
        evidence = Evidence(Subject.CONSTANT, STEP, k, code=wrong.code, pieces=(wrong.const(k),))
        yield what, Case(with_program(STEP, wrong), evidence, Rule.CONSTANT_MISSING)


def _cumulative() -> Iterator[tuple[str, Case]]:
    parts = sound().programs[STEP]
    for i, what in ((0, "the first op"), (5, "an op in the middle")):
        op = Op.decode(parts.descriptors[i])
        ops = (*parts.descriptors[:i], replace(op, cumulative=op.cumulative + 1).encode(), *parts.descriptors[i + 1 :])
        wrong = replace(parts, descriptors=ops)
        pieces = (wrong.op(i), *([wrong.op(i - 1)] if i else []))
        evidence = Evidence(Subject.CUMULATIVE, STEP, i, code=wrong.code, pieces=pieces)
        yield f"{what} counts one element too many", Case(with_program(STEP, wrong), evidence, Rule.CUMULATIVE)


def _headers() -> Iterator[tuple[str, Case]]:
    parts = sound().programs[STEP]
    outputs = 15 + 6 * 8
    yield "a header of nothing", header_case(Rule.HEADER_LENGTH, replace(parts, header=b""))
    yield "a header too short", header_case(Rule.HEADER_LENGTH, replace(parts, header=parts.header[:-1]))
    yield "a header too long", header_case(Rule.HEADER_LENGTH, replace(parts, header=parts.header + b"\0"))
    yield "another magic", header_case(Rule.HEADER_FOREIGN, spoiled(parts, 0, b"LSP2"))
    yield "another profile", header_case(Rule.HEADER_FOREIGN, spoiled(parts, 5, b"\2"))
    for opset in (0, 3, 258):
        yield f"op-set {opset}", header_case(Rule.HEADER_FOREIGN, spoiled(parts, 6, struct.pack(">H", opset)))
    yield "2^11 input entries", header_case(Rule.STATE_WIDTH, spoiled(parts, 11, b"\x0b"))
    yield "2^255 output entries", header_case(Rule.STATE_WIDTH, spoiled(parts, 12, b"\xff"))
    yield "no ops", header_case(Rule.OP_COUNT, replace(parts, header=header_of(parts, n=0, depth=4)))
    yield "2^14 + 1 ops", header_case(Rule.OP_COUNT, replace(parts, header=header_of(parts, n=(1 << 14) + 1)))
    yield "a graph too deep", header_case(Rule.GRAPH_DEPTH, replace(parts, header=header_of(parts, depth=6)))
    yield "a graph too shallow", header_case(Rule.GRAPH_DEPTH, replace(parts, header=header_of(parts, depth=3)))
    for what, k, entry in (
        ("an entry of kind 3", 5, "030000000001"), ("an entry of dtype 2", 5, "020200000001"),
        ("an EMPTY entry with a dtype", 1, "000100000000"), ("a scalar of two", 6, "010100000002"),
        ("an entry of nothing", 5, "020000000000"), ("an entry of 2^31", 5, "020080000000"),
    ):  # fmt: skip
        yield what, header_case(Rule.INPUT_ENTRY, spoiled(parts, 15 + 6 * k, bytes.fromhex(entry)), Subject.INPUT, k)
    for what, k, entry in (
        ("an alias of kind 3", 1, "030000"), ("an EMPTY alias with an index", 1, "000001"),
        ("an alias of no op", 0, "01ffff"), ("an alias of no entry", 0, "020008"), ("an alias of EMPTY", 0, "020001"),
    ):  # fmt: skip
        yield what, header_case(Rule.OUTPUT_ENTRY, spoiled(parts, outputs + 3 * k, bytes.fromhex(entry)),
                                Subject.OUTPUT, k)  # fmt: skip
    ranked = spoiled(parts, outputs, bytes.fromhex("010000"))
    evidence = Evidence(Subject.OUTPUT, STEP, 0, code=ranked.code, pieces=(ranked.op(0),))
    yield "a state tensor of two axes", Case(with_program(STEP, ranked), evidence, Rule.OUTPUT_RANK)


def _constants() -> Iterator[tuple[str, Case]]:
    parts = sound().programs[STEP]
    tree = merkle.data_root(parts.consts[0].data)
    for what, header in (
        ("a constant of dtype 2", "02010000012c"), ("a constant of nine axes", "0009" + "00000001" * 8 + "0000012c"),
        ("an empty constant", "000100000000"), ("a constant of 2^31", "000180000000"),
        ("a header of one byte", "00"), ("a rank without its dims", "00020000012c"), ("no header", ""),
    ):  # fmt: skip
        piece = Piece(bytes.fromhex(header), tree)
        root = Digest(defects.sha256(b"\x02" + piece.data + tree).digest())
        yield what, _constant_case(parts, root, (piece,), 0, Rule.CONSTANT_HEADER)
    leaves = [merkle.leaf(parts.consts[0].data[:1024]), merkle.leaf(parts.consts[0].data[1024:] + b"\0\0\0\0")]
    levels = merkle.levels(leaves)
    header = TensorHeader(F32, (300,))
    root = Digest(merkle.tensor_root_of_tree(header, levels[-1][0]))
    pieces = (
        Piece(header.encode(), levels[-1][0]),
        Piece(parts.consts[0].data[1024:] + b"\0\0\0\0", proof=tuple(merkle.proof(levels, 1))),
    )
    yield "a constant with a word too many", _constant_case(parts, root, pieces, 1, Rule.TENSOR_LEAF)


def _constant_case(parts: ProgramParts, root: Digest, pieces: tuple[Piece, ...], at: int, rule: Rule) -> Case:
    code = replace(parts.code, consts_root=root)
    job = sound()
    job = replace(job, job=replace(job.job, step_program=merkle.program_root(code.header, code.ops_root, root)))
    return Case(job, Evidence(Subject.CONSTANT, STEP, 0, at, code=code, pieces=pieces), rule)


def _layouts() -> Iterator[tuple[str, Case]]:
    entry = bytes.fromhex("02000000000b")
    for side, k, change in (
        (LayoutSide.STEP_IN, 2, entry), (LayoutSide.STEP_IN, 6, bytes.fromhex("020100000001")),
        (LayoutSide.STEP_IN, 7, entry), (LayoutSide.ENCODE_IN, 5, bytes(6)), (LayoutSide.MERGE_IN, 0, entry),
        (LayoutSide.MERGE_IN, 9, bytes(6)), (LayoutSide.MERGE_IN, 11, entry),
        (LayoutSide.MERGE_IN, 12, bytes.fromhex("020000000004")),
        (LayoutSide.MERGE_IN, 5, entry),
    ):  # fmt: skip
        which = side // 2
        yield _layout_case(side, k, spoiled(sound().programs[which], 15 + 6 * k, change))
    for side, k, alias in (
        (LayoutSide.STEP_OUT, 4, "000000"), (LayoutSide.STEP_OUT, 0, "010000"), (LayoutSide.ENCODE_OUT, 1, "020002"),
        (LayoutSide.MERGE_OUT, 2, "000000"), (LayoutSide.MERGE_OUT, 1, "020002"), (LayoutSide.MERGE_OUT, 0, "02000c"),
    ):  # fmt: skip
        parts = sound().programs[side // 2]
        fields = defects.HeaderFields.decode(parts.header)
        if (side, k) == (LayoutSide.STEP_OUT, 0):
            scalar = next(i for i, d in enumerate(parts.descriptors) if Op.decode(d).extents == ())
            alias = f"01{scalar:04x}"
        yield _layout_case(side, k, spoiled(parts, 15 + (6 << fields.s_in) + 3 * k, bytes.fromhex(alias)))
    carried = carrying()
    encode = carried.programs[ENCODE]
    at = 15 + (6 << defects.HeaderFields.decode(encode.header).s_in)
    for what, k, alias in (
        ("a carry without its first tensor", 2, "000000"), ("a carry in another order", 3, "020004"),
        ("a payload in the place of the carry", 2, "010000"),
    ):  # fmt: skip
        code = spoiled(encode, at + 3 * k, bytes.fromhex(alias))
        job = held((carried.programs[STEP], code, carried.programs[MERGE]), payload_depth=1, carry=1)
        yield what, _layout_case(LayoutSide.ENCODE_OUT, k, code, job)[1]
    for side, depths in ((LayoutSide.STEP_IN, {"shared_depth": 0}), (LayoutSide.ENCODE_OUT, {"payload_depth": 1}),
                         (LayoutSide.MERGE_IN, {"slots": 5}), (LayoutSide.MERGE_OUT, {"shared_depth": 2})):  # fmt: skip
        job = sound()
        code = job.programs[side // 2].code
        case = Case(replace(job, job=replace(job.job, **depths)), Evidence(Subject.LAYOUT, int(side), code=code),
                    Rule.LAYOUT_WIDTH)  # fmt: skip
        yield f"{side.name} of another width", case


def _layout_case(side: LayoutSide, k: int, parts: ProgramParts, job: Held | None = None) -> tuple[str, Case]:
    job = job or with_program(side // 2, parts)
    evidence = next(e for e in defects._of_layout(job, side) if e.index == k)
    return f"{side.name} entry {k}", Case(job, evidence, Rule.LAYOUT_ENTRY)


def _tensors() -> Iterator[tuple[str, Case]]:
    job = sound()
    step, encode, merge = job.programs
    other = tensor(TensorHeader(F32, (11,)))
    for what, subject, parts, name, entries, k in (
        ("a genesis tensor of another length", Subject.GENESIS, step, "genesis_shared", [other, None], 0),
        ("a genesis tensor of another dtype", Subject.GENESIS, step, "genesis_shared",
         [tensor(INTEGERS), None], 0),
        ("a genesis tensor too many", Subject.GENESIS, step, "genesis_shared", [SHARED[0], other], 1),
        ("a genesis tensor missing", Subject.GENESIS, step, "genesis_shared", [None, None], 0),
        ("an outer tensor of another length", Subject.OUTER, merge, "genesis_outer", [other, None], 0),
    ):  # fmt: skip
        wrong = replace(job, job=replace(job.job, **{name: root_of(entries)}))
        evidence = list(defects.checkpoint_evidence(subject, parts, entries))[k]
        yield what, Case(wrong, evidence, Rule.GENESIS_ENTRY)
    short = Piece(bytes(44), proof=())
    tree = merkle.leaf(short.data)
    wrong = replace(job, job=replace(job.job, genesis_shared=root_of([(VECTOR, tree), None])))
    (evidence, _) = defects.checkpoint_evidence(Subject.GENESIS, step, [(VECTOR, tree), None])
    yield (
        "a genesis tensor with a word too few",
        Case(wrong, replace(evidence, pieces=(*evidence.pieces, short)), Rule.TENSOR_LEAF),
    )
    for what, subject, parts, name, entries, k in (
        ("a carry that is not zero", Subject.CARRY, step, "zero_carry", [tensor(INTEGERS, 1), CARRY[1]], 0),
        ("a carry of another dtype", Subject.CARRY, step, "zero_carry", [CARRY[0], CARRY[0]], 1),
        ("a carry that is EMPTY", Subject.CARRY, step, "zero_carry", [None, CARRY[1]], 0),
        ("a payload that is not zero", Subject.PAYLOAD, encode, "zero_payload", [SHARED[0]], 0),
    ):
        wrong = replace(job, job=replace(job.job, **{name: root_of(list(entries))}))
        roots = [merkle.EMPTY[0] if t is None else Digest(merkle.tensor_root_of_tree(*t)) for t in entries]
        yield what, Case(wrong, list(defects.zero_evidence(subject, parts, roots))[k], Rule.ZERO_ENTRY)
    yield from _datasets(job)


def _datasets(job: Held) -> Iterator[tuple[str, Case]]:
    flat = TensorHeader(I32, (ROWS * LENGTH,))
    tree = tensor(DATA, 7)[1]
    for what, header in (("a flat dataset", flat), ("a float dataset", TensorHeader(F32, (ROWS, LENGTH)))):
        wrong = replace(job, job=replace(job.job, dataset_root=merkle.tensor_root_of_tree(header, tree)))
        yield what, Case(wrong, Evidence(Subject.DATASET, pieces=(Piece(header.encode(), tree),)), Rule.DATASET_HEADER)
    large = replace(job, job=replace(job.job, dataset_rows=1 << 31))
    yield "a dataset of 2^31 rows", Case(large, Evidence(Subject.DATASET), Rule.DATASET_SIZE)
    short = Piece(bytes(4 * ROWS * LENGTH - 4))
    root = merkle.tensor_root_of_tree(DATA, merkle.leaf(short.data))
    wrong = replace(job, job=replace(job.job, dataset_root=root))
    evidence = Evidence(Subject.DATASET, pieces=(Piece(DATA.encode(), merkle.leaf(short.data)), short))
    yield "a dataset with a word too few", Case(wrong, evidence, Rule.TENSOR_LEAF)


def _met_on_the_way() -> Iterator[tuple[str, Case]]:
    """Yields cases in parts that are read before the rule of a subject: defects there are found too."""
    job = sound()
    step, encode, merge = job.programs
    named = step.header[15 + 6 * 8 : 15 + 6 * 8 + 3]
    live = int.from_bytes(named[1:], "big")
    dtype = (*step.descriptors[:live], _with(step.descriptors[live], 2, b"\2"), *step.descriptors[live + 1 :])
    wrong = replace(step, descriptors=dtype)
    output = Evidence(Subject.OUTPUT, STEP, 0, code=wrong.code, pieces=(wrong.op(live),))
    yield "an output of an op without a dtype", Case(with_program(STEP, wrong), output, Rule.DTYPE)
    entry = bytes.fromhex("030000000001")
    for subject, parts, which, at in (
        (Subject.GENESIS, step, STEP, 15), (Subject.OUTER, merge, 2, 15 + 6 * 2),
        (Subject.CARRY, step, STEP, 15 + 6 * 4),
    ):  # fmt: skip
        code = spoiled(parts, at, entry)
        about = Evidence(subject, code=code.code, pieces=(Piece(b""),))
        yield f"{subject.name} against an entry of kind 3", Case(with_program(which, code), about, Rule.INPUT_ENTRY)
    code = spoiled(encode, 15 + 6 * 8, bytes.fromhex("030000"))
    about = Evidence(Subject.PAYLOAD, code=code.code, pieces=(Piece(b""),))
    yield "PAYLOAD against an alias of kind 3", Case(with_program(1, code), about, Rule.OUTPUT_ENTRY)
    for subject, parts, depths in (
        (Subject.GENESIS, step, {"shared_depth": 0}), (Subject.OUTER, merge, {"slots": 5}),
        (Subject.CARRY, step, {"shared_depth": 0}), (Subject.PAYLOAD, encode, {"payload_depth": 1}),
    ):  # fmt: skip
        other = replace(job, job=replace(job.job, **depths))
        about = Evidence(subject, code=parts.code, pieces=(Piece(b""),))
        yield f"{subject.name} of another width", Case(other, about, Rule.LAYOUT_WIDTH)


def _with(data: bytes, at: int, other: bytes) -> bytes:
    return data[:at] + other + data[at + len(other) :]


def cases() -> dict[str, Case]:
    """Returns every case by name."""
    found = {what: op_case(rule, op) for what, (rule, op) in OPS.items()}
    found |= {what: op_case(rule, op, at) for what, (rule, op, at) in OPERANDS.items()}
    for more in (_bytes, _missing, _cumulative, _headers, _constants, _layouts, _tensors, _met_on_the_way):
        for what, case in more():
            assert what not in found, what
            found[what] = case
    return found


# -- nothing broken ----------------------------------------------------------------------------------------------------

COMPUTED = {
    "positions, gathered by": a_gather(views=(view((Tag.IOTA, 0), 0, 1), view(TABLE, 0, 0))),
    "positions, joined": a_concat(dtype=I32, views=(view((Tag.IOTA, 0), 0, 1), view(INTS, 0, 1))),
    "one position, joined to floats": a_concat(views=(view((Tag.IOTA, 0), 0, 0), view(FLOATS, 0, 1))),
}  # fmt: skip
"""Computed operands, in ops that keep a dtype."""


def holding() -> Iterator[tuple[str, Case]]:
    """Yields evidence that comes close to breaking a rule but does not."""
    for i, op in enumerate((*SOUND_OPS, *COMPUTED.values())):
        what = (*(f"a sound {op.kind.name.lower()}" for op in SOUND_OPS), *COMPUTED)[i]
        for at in (None, *range(len(op.views))):
            yield f"{what}, {'itself' if at is None else f'operand {at}'}", op_case(Rule.HOLDS, op, at)
    for known in (list(Opcode)[:19], list(Opcode)[19:]):
        instrs = tuple(Instr(code, 0) for code in known)
        yield f"opcodes {known[0]:d} to {known[-1]:d}", op_case(Rule.HOLDS, a_map(instrs=instrs))
    step = sound().programs[STEP]
    # EMPTY, within a leaf, a whole leaf, and several: the last one on the left and on the right of its pair.
    for elements in (0, 1, 255, 256, 257, 700, 1_025, 1_300):
        entry = struct.pack(">BBI", 2, I32, elements) if elements else bytes(6)
        parts = spoiled(step, 15 + 6 * 4, entry)
        zero = tensor(TensorHeader(I32, (elements,))) if elements else None
        carry = [zero, CARRY[1]]
        job = with_program(STEP, parts)
        job = replace(job, job=replace(job.job, zero_carry=root_of(carry)))
        roots = [merkle.EMPTY[0] if t is None else Digest(merkle.tensor_root_of_tree(*t)) for t in carry]
        (about, _) = defects.zero_evidence(Subject.CARRY, parts, roots)
        yield f"a zero carry of {elements}", Case(job, about, Rule.HOLDS)


# -- evidence that is none ---------------------------------------------------------------------------------------------


def an_op() -> tuple[Held, Evidence]:
    """Returns a valid job, and evidence about an operand that is another op."""
    job = sound()
    return job, next(e for e in defects.every(job) if e.subject == Subject.OPERAND and len(e.pieces) == 2)


OF_NOTHING: tuple[tuple[dict[str, Any], str], ...] = (
    ({"program": 3}, "EvidenceWrong"),
    ({"program": 1}, "ProofInvalid"),
    ({"index": 1 << 20}, "EvidenceWrong"),
    ({"index": 0}, "ProofInvalid"),
    ({"at": 99}, "EvidenceWrong"),
    ({"pieces": ()}, "EvidenceWrong"),
    ({"subject": Subject.CONSTANT, "index": 7}, "EvidenceWrong"),
    ({"subject": Subject.CONSTANT, "index": 0}, "ProofInvalid"),
    ({"subject": Subject.INPUT, "index": 8}, "EvidenceWrong"),
    ({"subject": Subject.OUTPUT, "index": 8}, "EvidenceWrong"),
    ({"subject": Subject.LAYOUT, "program": 6}, "EvidenceWrong"),
    ({"subject": Subject.LAYOUT, "program": 1, "index": 8}, "EvidenceWrong"),
    ({"subject": Subject.GENESIS, "index": 2}, "EvidenceWrong"),
    ({"subject": Subject.GENESIS, "index": 0, "pieces": ()}, "EvidenceWrong"),
    ({"subject": Subject.CARRY, "index": 2}, "EvidenceWrong"),
    ({"subject": Subject.CARRY, "index": 0, "pieces": ()}, "EvidenceWrong"),
    ({"subject": Subject.DATASET, "pieces": ()}, "EvidenceWrong"),
)
"""Changes to `an_op`'s evidence, with the resulting error."""


def refused() -> Iterator[tuple[str, Held, Evidence, str]]:
    """Yields evidence about parts that the job does not have, or about another job."""
    job, evidence = an_op()
    for change, error in OF_NOTHING:
        yield str(change), job, replace(evidence, **change), error
    consts = next(e for e in everything(job) if e.subject == Subject.CONSTANT)
    data = next(e for e in everything(job) if e.subject == Subject.DATASET)
    for about, leaves in ((consts, 2), (data, 1)):
        more = replace(about, at=leaves, pieces=(*about.pieces, Piece(b"")))
        yield f"leaf {leaves} of a {about.subject.name} of {leaves}", job, more, "EvidenceWrong"
        yield f"a leaf of another {about.subject.name}", job, replace(more, at=0), "ProofInvalid"


# -- vectors -----------------------------------------------------------------------------------------------------------


def vectors() -> list[dict[str, Any]]:
    """Returns the contents of tests/vectors/validator.json: every case, and evidence of every subject that breaks
    nothing.
    """
    found = [(what, c.job, c.evidence, c.rule) for what, c in cases().items()]
    job = sound()
    held_by_subject = {(e.subject, e.program): e for e in everything(job)}
    found += [(f"sound {e.subject.name} {e.program}", job, e, Rule.HOLDS) for e in held_by_subject.values()]
    found += [(what, c.job, c.evidence, c.rule) for what, c in holding()]
    carried = carrying()
    layouts = [e for e in defects.every(carried) if e.subject == Subject.LAYOUT and e.program == LayoutSide.ENCODE_OUT]
    found += [(f"sound carry, entry {e.index}", carried, e, Rule.HOLDS) for e in layouts]
    return [
        {"name": what, "rule": int(rule), "job": plain(defects.abi_job(j.job)), "evidence": plain(e.abi())}
        for what, j, e, rule in found
    ]


def plain(value: Any) -> Any:
    """Converts ABI values to JSON."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return [plain(x) for x in value] if isinstance(value, list | tuple) else int(value)


# -- random ------------------------------------------------------------------------------------------------------------


def mutant(dice: random.Random) -> tuple[Held, list[Evidence]]:
    """Returns the valid job with a few changed bytes in one Program, and evidence about the changes."""
    which = dice.randrange(3)
    parts = sound(codes_too=True).programs[which]
    if dice.random() < 0.3:
        parts = replace(parts, header=_changed(dice, parts.header))
        job = with_program(which, parts)
        return job, dice.sample(found := list(defects.every(job)), min(12, len(found)))
    i = dice.randrange(len(parts.descriptors))
    ops = (*parts.descriptors[:i], _changed(dice, parts.descriptors[i]), *parts.descriptors[i + 1 :])
    job = with_program(which, replace(parts, descriptors=ops))
    near = [e for e in defects._of_program(which, job.programs[which]) if e.subject in _OF_OP and e.index in (i, i + 1)]
    return job, near


_OF_OP = (Subject.OP, Subject.OPERAND, Subject.CUMULATIVE)
_BYTES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 32, 38, 255, 128)


def _changed(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2))):
        changed[dice.randrange(len(changed))] = dice.choice((*_BYTES, dice.randrange(256)))
    tail = dice.random()
    return bytes(changed) + b"\0" if tail < 0.03 else bytes(changed[:-1]) if tail < 0.06 else bytes(changed)


if __name__ == "__main__":
    VECTORS.write_text("[\n" + ",\n".join(json.dumps(v) for v in vectors()) + "\n]\n")
