"""Each rule of docs/protocol.md, section 8, refuses a Program that breaks it alone, by op, name and rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.scalar import Opcode
from lockstep.numerics.validate import check_programs, validate
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32, Alias, Const, Fold, Instr, Kind, Op, Program, Quant, Tag, View
from lockstep.protocol.programs.rules import MAX_OPS, MAX_STATE_DEPTH

INPUTS = [(F32, 12), (I32, None), (I32, 12), None]
FLOATS, COUNTER, INTS = (Tag.STATE, 0), (Tag.STATE, 1), (Tag.STATE, 2)


def view(source: tuple[Tag, int], offset: int, *strides: int) -> View:
    return View(*source, offset, strides)


def alone(op: Op, outputs: Sequence[Alias] | None = None) -> Program:
    """A Program of one op, whose cumulative count is right."""
    op = replace(op, cumulative=op.header.elements)
    inputs = ProgramBuilder(INPUTS).finish([]).inputs
    return Program((op,), inputs, tuple(outputs or (Alias(1, 0),)), (table(),), ("block.0.norm",), ("model.py:7",))


def table() -> Const:
    return Const(TensorHeader(I32, (2,)), bytes(8))


def a_map(**changes: object) -> Op:
    return replace(Op(Kind.MAP, F32, (12,), (view(FLOATS, 0, 1),), instrs=(Instr(Opcode.FNEG, 0),)), **changes)


def a_dot(**changes: object) -> Op:
    views = (view(FLOATS, 0, 3, 1), view(FLOATS, 0, 0, 1))
    return replace(Op(Kind.FOLD, F32, (4,), views, (3,), Fold.DOT), **changes)


def a_gather(**changes: object) -> Op:
    views = (view(INTS, 0, 1), view(FLOATS, 0, 0))
    return replace(Op(Kind.GATHER, F32, (12,), views, p0=12, p1=1), **changes)


def a_concat(**changes: object) -> Op:
    views = (view(FLOATS, 0, 1), view(FLOATS, 4, 1))
    return replace(Op(Kind.CONCAT, F32, (12,), views, p0=0, sizes=(4, 8)), **changes)


def a_random(**changes: object) -> Op:
    return replace(Op(Kind.RANDOM, I32, (12,), ()), **changes)


def a_draw(**changes: object) -> Op:
    return replace(Op(Kind.DRAW, I32, (2, 6), ()), **changes)


def a_qdot(**changes: object) -> Op:
    """Two rows of three groups, two words each."""
    views = (view(INTS, 0, 6, 2), view(INTS, 0, 0, 2), view(FLOATS, 0, 3, 1), view(FLOATS, 0, 0, 1))
    return replace(Op(Kind.FOLD, F32, (2,), views, (3,), Fold.QDOT, p0=2), **changes)


def a_quant(**changes: object) -> Op:
    """Two rows of six values, in groups of four and two."""
    return replace(Op(Kind.QUANT, I32, (2, 2), (view(FLOATS, 0, 6, 0, 1),), (6,), p0=1), **changes)


def scales(**changes: object) -> Op:
    """The scales of `a_quant`."""
    return replace(a_quant(dtype=F32, mode=Quant.SCALES), **changes)


def flattened(op: Op) -> Program:
    """A Program of the op and a map that makes it a state tensor."""
    n = op.header.elements
    copy = Op(Kind.MAP, op.dtype, (n,), (view((Tag.OP, 0), 0, 1),))
    ops = (replace(op, cumulative=n), replace(copy, cumulative=2 * n))
    return Program(ops, ProgramBuilder(INPUTS).finish([]).inputs, (Alias(1, 1),))


@pytest.mark.parametrize("make", [a_map, a_dot, a_gather, a_concat, a_random, a_qdot])
def test_a_sound_op_passes(make: Callable[[], Op]) -> None:
    validate(alone(make()))


def test_a_sound_draw_passes() -> None:
    validate(flattened(a_draw()))


@pytest.mark.parametrize("op", [a_quant(), scales(), a_quant(mode=2, p1=1 << 31), scales(p0=64, extents=(2, 1))])
def test_a_sound_quant_passes(op: Op) -> None:
    validate(flattened(op))


def test_a_program_names_the_least_op_set_that_has_its_ops() -> None:
    assert (alone(a_dot()).opset, alone(a_qdot()).opset, flattened(a_quant()).opset) == (1, 2, 2)
    later = replace(alone(a_dot()), opset=2)
    again = Program.decode(later.header, later.descriptors, later.consts)
    assert again.root == later.root != alone(a_dot()).root, "a later one that was named stays"
    earlier = alone(a_qdot())
    header = earlier.header[:7] + b"\1" + earlier.header[8:]
    with pytest.raises(ProgramInvalid, match="contradicts"):
        Program.decode(header, earlier.descriptors, earlier.consts)


SHIFTED = (view(FLOATS, 0, 1),)
RULES: dict[str, tuple[Op, str]] = {
    "dtype outside the table": (a_map(dtype=2), "dtype 2"),
    "nine axes": (a_map(extents=(1,) * 8 + (12,), views=(view(FLOATS, 0, *(0,) * 8, 1),)), "9 axes"),
    "nine axes with k": (a_dot(extents=(1,) * 8, views=(view(FLOATS, 0, *(0,) * 8, 1),) * 2), "9 axes"),
    "empty extent": (a_map(extents=(0,)), "shape"),
    "too many elements": (a_map(extents=(1 << 16, 1 << 16), views=(view(FLOATS, 0, 0, 0),)), "shape"),
    "a map with a k axis": (a_map(k_extents=(1,), views=(view(FLOATS, 0, 1, 0),)), "k axes"),
    "a fold without a k axis": (a_dot(k_extents=(), views=(view(FLOATS, 0, 1), view(FLOATS, 0, 1))), "k axes"),
    "instructions in a fold": (a_dot(instrs=(Instr(Opcode.FNEG, 0),)), "instructions"),
    "a mode in a map": (a_map(mode=1), "mode"),
    "parameters of a map": (a_map(p0=1), "parameters"),
    "second parameter of a concat": (a_concat(p1=1), "second parameter"),
    "sizes of a map": (a_map(sizes=(1,)), "sizes"),
    "strides for other axes": (a_map(views=(view(FLOATS, 0, 1, 1),)), "strides"),
    "operand is the op itself": (a_map(views=(view((Tag.OP, 0), 0, 1),)), "not computed yet"),
    "operand is a later op": (a_map(views=(view((Tag.OP, 5), 0, 1),)), "not computed yet"),
    "operand is an EMPTY entry": (a_map(views=(view((Tag.STATE, 3), 0, 0),)), "EMPTY"),
    "operand is beyond the state": (a_map(views=(view((Tag.STATE, 4), 0, 0),)), "EMPTY"),
    "operand is no constant": (a_map(views=(view((Tag.CONST, 1), 0, 0),)), "constant 1 of 1"),
    "iota with an index": (a_map(views=(view((Tag.IOTA, 1), 0, 1),)), "index"),
    "a view beyond the end": (a_map(views=(view(FLOATS, 1, 1),)), "elements 1 to 12 of 12"),
    "a view before the start": (a_map(views=(view(FLOATS, 10, -1),)), "elements -1 to 10 of 12"),
    "a fourth context word": (a_map(views=(view((Tag.CONTEXT, 0), 3, 0),)), "elements 3 to 3 of 3"),
    "a map of nothing": (a_map(views=(), instrs=()), "nothing"),
    "nine operands": (a_map(views=(view((Tag.IOTA, 0), 0, 1),) * 9), "9 operands"),
    "seven tensor operands": (a_map(views=(view(FLOATS, 0, 1),) * 7), "7 of them tensors"),
    "33 instructions": (a_map(instrs=(Instr(Opcode.FNEG, 0),) * 33), "33 instructions"),
    "nine functions": (a_map(instrs=(Instr(Opcode.FEXP, 0),) * 9), "9 functions"),
    "unknown opcode": (a_map(instrs=(Instr(38, 0),)), "opcode 38"),
    "a register read before it is written": (a_map(instrs=(Instr(Opcode.FADD, 0, 1),)), "register 1 of 1"),
    "a field that is not read": (a_map(instrs=(Instr(Opcode.FNEG, 0, 0, 0, 7),)), "does not read"),
    "a register that is not read": (a_map(instrs=(Instr(Opcode.FNEG, 0), Instr(Opcode.FNEG, 0, 1))), "does not read"),
    "unknown fold": (a_dot(mode=6), "fold mode 6"),
    "a qdot of two": (a_dot(mode=Fold.QDOT), "2 operands"),
    "a qdot of integers": (a_qdot(dtype=I32), "of dtype 1"),
    "a qdot beyond 2^16 groups": (a_qdot(k_extents=((1 << 16) + 1,)), "K ="),
    "groups of three words": (a_qdot(p0=3), "groups of 3 words"),
    "groups of 128 words": (a_qdot(p0=128), "groups of 128 words"),
    "groups of no words": (a_quant(p0=0), "groups of 0 words"),
    "computed codes": (a_qdot(views=(view((Tag.IOTA, 0), 0, 0, 2), *a_qdot().views[1:])), "computed"),
    "codes that do not begin at a group": (a_qdot(views=(view(INTS, 1, 0, 2), *a_qdot().views[1:])), "elsewhere"),
    "rows that do not begin at a group": (a_qdot(views=(view(INTS, 0, 3, 2), *a_qdot().views[1:])), "elsewhere"),
    "codes apart along k": (a_qdot(views=(view(INTS, 0, 0, 4), *a_qdot().views[1:])), "elsewhere"),
    "scales apart along k": (a_qdot(views=(*a_qdot().views[:3], view(FLOATS, 0, 0, 2))), "stride 2 along k"),
    "float codes": (a_qdot(views=(view(FLOATS, 0, 6, 2), *a_qdot().views[1:])), "operand 0 has dtype 0"),
    "integer scales": (a_qdot(views=(*a_qdot().views[:3], view(INTS, 0, 0, 1))), "operand 3 has dtype 1"),
    "a last group beyond its codes": (a_qdot(views=(view(INTS, 0, 8, 2), *a_qdot().views[1:])), "0 to 13 of 12"),
    "a second parameter of a qdot": (a_qdot(p1=1), "parameters"),
    "unknown quant": (a_quant(mode=4), "quant mode 4"),
    "float codes of a quant": (a_quant(dtype=F32), "quant mode 0 of dtype 0"),
    "integer scales of a quant": (a_quant(mode=Quant.SCALES), "quant mode 1 of dtype 1"),
    "a quant of two": (a_quant(views=a_quant().views * 2), "2 operands"),
    "a quant of a computed operand": (a_quant(views=(view((Tag.IOTA, 0), 0, 0, 0, 0),)), "1 operands"),
    "a quant of integers": (a_quant(views=(view(INTS, 0, 6, 0, 1),)), "operand 0 has dtype 1"),
    "a quant with a low stream": (a_quant(p1=5), "stream 5"),
    "scales with a stream": (scales(p1=1 << 31), "stream 2147483648"),
    "a quant of nothing": (a_quant(k_extents=(0,)), "for 0 values"),
    "a quant without a group axis": (a_quant(extents=(), views=(view(FLOATS, 0, 1),)), "for 6 values"),
    "a group too many": (a_quant(extents=(2, 3)), "(2, 3) for 6 values"),
    "words in the place of scales": (scales(p0=2, extents=(2, 2)), "(2, 2) for 6 values"),
    "values apart along k": (a_quant(views=(view(FLOATS, 0, 1, 0, 2),)), "not contiguous"),
    "values that differ by group": (a_quant(views=(view(FLOATS, 0, 1, 4, 1),)), "not contiguous"),
    "a quant without a k axis": (a_quant(k_extents=(), views=(view(FLOATS, 0, 6, 1),)), "k axes"),
    "values beyond the end": (a_quant(views=(view(FLOATS, 1, 6, 0, 1),)), "elements 1 to 12 of 12"),
    "a dot of one": (a_dot(views=(view(FLOATS, 0, 3, 1),)), "1 operands"),
    "a sum of two": (a_dot(mode=Fold.SUM), "2 operands"),
    "a sum of integers": (a_dot(mode=Fold.SUM, dtype=I32, views=(view(INTS, 0, 3, 1),)), "of dtype 1"),
    "an integer sum of floats": (a_dot(mode=Fold.ISUM, views=(view(FLOATS, 0, 3, 1),)), "of dtype 0"),
    "K beyond 2^24": (a_dot(k_extents=((1 << 24) + 1,), views=(view(FLOATS, 0, 0, 0),) * 2), "K ="),
    "K = 0": (a_dot(k_extents=(0,)), "K = 0"),
    "a k stride of 2": (a_dot(views=(view(FLOATS, 0, 1, 2), view(FLOATS, 0, 0, 1))), "stride 2 along k"),
    "a negative k stride": (a_dot(views=(view(FLOATS, 2, 3, -1), view(FLOATS, 0, 0, 1))), "stride -1 along k"),
    "a fold beyond its operand": (a_dot(k_extents=(4,)), "elements 0 to 12 of 12"),
    "a dot with integers": (a_dot(views=(view(INTS, 0, 3, 1), view(FLOATS, 0, 0, 1))), "dtype 1, the op 0"),
    "a dot with a sequence": (a_dot(views=(view((Tag.IOTA, 0), 0, 0, 1), view(FLOATS, 0, 0, 1))), "sequence"),
    "a gather of one operand": (a_gather(views=(view(INTS, 0, 1),)), "1 operands"),
    "a table without rows": (a_gather(p0=0), "without rows"),
    "a float index": (a_gather(views=(view(FLOATS, 0, 1), view(FLOATS, 0, 0))), "f32 index"),
    "a computed table": (a_gather(views=(view(INTS, 0, 1), view((Tag.IOTA, 0), 0, 0))), "computed"),
    "a table of another dtype": (a_gather(dtype=I32), "dtype 0, the op 1"),
    "a table too short": (a_gather(p0=13), "elements 0 to 12 of 12"),
    "an index too short": (a_gather(views=(view(INTS, 1, 1), view(FLOATS, 0, 0))), "elements 1 to 12 of 12"),
    "concat along no axis": (a_concat(p0=1), "axis 1 of 1"),
    "an empty part": (a_concat(sizes=(0, 12)), "parts"),
    "sizes and parts apart": (a_concat(sizes=(12,)), "parts"),
    "parts that do not add up": (a_concat(sizes=(4, 7)), "parts of 11"),
    "a part beyond its operand": (a_concat(sizes=(3, 9)), "elements 4 to 12 of 12"),
    "a part of another dtype": (a_concat(views=(view(FLOATS, 0, 1), view(INTS, 0, 1))), "dtype 1, the op 0"),
    "a float random": (a_random(dtype=F32), "random"),
    "a random with operands": (a_random(views=SHIFTED), "random"),
    "a draw of one axis": (a_draw(extents=(12,)), "draw"),
    "a float draw": (a_draw(dtype=F32), "draw"),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_refused(rule: str) -> None:
    op, message = RULES[rule]
    with pytest.raises(ProgramInvalid) as refused:
        validate(alone(op))
    assert message in refused.value.message, rule
    assert f"op 0 ({op.kind.name.lower()} block.0.norm, model.py:7)" in refused.value.message, "op, name and place"
    assert refused.value.hint, "what to do"


# --- rules of a whole Program ------------------------------------------------------------------------------


def chain() -> Program:
    b = ProgramBuilder(INPUTS)
    first = b.map((12,), [b.input(0)], lambda e, x: e.fneg(x))
    return b.finish([b.map((12,), [first], lambda e, x: e.fabs(x)), None])


def test_wrong_cumulative_count_is_refused() -> None:
    program = chain()
    wrong = replace(program.ops[1], cumulative=25)
    with pytest.raises(ProgramInvalid, match=r"op 1 .* cumulative elements are 25, not 24"):
        validate(replace(program, ops=(program.ops[0], wrong)))


def test_more_elements_than_the_job_allows_are_refused() -> None:
    validate(chain(), max_elements=24)
    with pytest.raises(ProgramInvalid, match="more than 23 elements"):
        validate(chain(), max_elements=23)


def test_a_dead_op_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match=r"op 1 .* dead"):
        validate(replace(chain(), outputs=(Alias(1, 0),)))


@pytest.mark.parametrize("outputs", [(Alias(1, 2),), (Alias(2, 3),), (Alias(2, 4),), (Alias(0, 1),), (Alias(3, 0),)])
def test_an_output_of_nothing_is_refused(outputs: tuple[Alias, ...]) -> None:
    with pytest.raises(ProgramInvalid, match="output entry 0"):
        validate(replace(chain(), outputs=outputs))


def test_an_output_of_two_axes_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match="output entry 0 has shape"):
        validate(alone(a_draw()))


def test_no_ops_and_too_many_are_refused() -> None:
    with pytest.raises(ProgramInvalid, match="0 ops"):
        validate(replace(chain(), ops=()))
    with pytest.raises(ProgramInvalid, match="ops"):
        validate(replace(chain(), ops=chain().ops[:1] * (MAX_OPS + 1)))


def test_states_that_are_not_flat_are_refused() -> None:
    inputs = (TensorHeader(F32, (3, 4)), *chain().inputs[1:])
    with pytest.raises(ProgramInvalid, match="input entry 0"):
        validate(replace(chain(), inputs=inputs))
    with pytest.raises(ProgramInvalid, match="3 entries"):
        validate(replace(chain(), outputs=(*chain().outputs, Alias(0))))


def test_a_state_table_that_no_transaction_carries_is_refused() -> None:
    """Every party sends the Program's header along: 2^16 entries were 590 KB in each of four moves."""
    wide = (*chain().inputs, *[None] * ((1 << MAX_STATE_DEPTH) - len(chain().inputs)))
    validate(replace(chain(), inputs=wide))
    with pytest.raises(ProgramInvalid, match="2048 entries"):
        validate(replace(chain(), inputs=wide + wide))
    with pytest.raises(ProgramInvalid, match="2048 entries"):
        validate(replace(chain(), outputs=(*chain().outputs, *[Alias(0)] * 2048)[:2048]))


def test_a_constant_of_another_length_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match="constant 0"):
        validate(replace(chain(), consts=(Const(TensorHeader(F32, (3,)), bytes(8)),)))


# --- three Programs ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Params:
    shared_depth: int = 1
    payload_depth: int = 0
    slots: int = 3
    carry: int = 0
    row_length: int = 5


P = (F32, 12)
SLOT = [P, None, P, None, P, P, (I32, None), None]
MERGE = [P, None, P, None, None, None, None, None, P, P, P, None, (F32, 3), None, None, None]


def a_step(length: int = 5) -> Program:
    b = ProgramBuilder(SLOT)
    total = b.sum(b.draw(2, length).slice(0, 0, 1).reshape(length))
    clock = b.map((), [b.input(6), total], lambda e, c, s: e.iadd(c, e.imax(s, e.i32(1))))
    moved = b.map((12,), [b.input(0)], lambda e, x: e.fneg(x))
    return b.finish([moved, None, b.input(2), None, b.input(4), b.input(5), clock, None])


def an_encode() -> Program:
    b = ProgramBuilder(SLOT)
    return b.finish([b.map((12,), [b.input(2), b.input(0)], lambda e, x, y: e.fsub(x, y)), None])


def a_merge() -> Program:
    b = ProgramBuilder(MERGE)
    parts = [b.input(0), b.input(8), b.input(9), b.input(10)]
    masked = b.map((12,), [*parts, b.input(12).slice(0, 0, 1)], lambda e, w, *x: e.ffma(x[0], x[3], w))
    return b.finish([masked, None, b.input(2), None])


def test_a_sound_schedule_passes() -> None:
    check_programs(a_step(), an_encode(), a_merge(), Params())


def changed(entries: list, at: int, entry: object) -> list:
    return [*entries[:at], entry, *entries[at + 1 :]]


@pytest.mark.parametrize(
    ("which", "message"),
    [("anchor", "step input entry 2"), ("clock", "step input entry 6"), ("quarters", "step input has 4")],
)
def test_a_slot_state_of_another_layout_is_refused(which: str, message: str) -> None:
    entries = {
        "anchor": changed(SLOT, 2, (F32, 11)), "clock": changed(SLOT, 6, (I32, 1)), "quarters": SLOT[:4]
    }[which]  # fmt: skip
    b = ProgramBuilder(entries)
    moved = b.map((12,), [b.input(0)], lambda e, x: e.fneg(x))
    step = b.finish([moved, *(None if e is None else b.input(k + 1) for k, e in enumerate(entries[1:]))])
    with pytest.raises(ProgramInvalid, match=message):
        check_programs(step, an_encode(), a_merge(), Params())


def test_a_step_that_leaves_another_layout_is_refused() -> None:
    step = a_step()
    with pytest.raises(ProgramInvalid, match="step output entry 4"):
        check_programs(
            replace(step, outputs=changed(list(step.outputs), 4, Alias(0))), an_encode(), a_merge(), Params()
        )


def test_an_encode_of_another_state_is_refused() -> None:
    encode = an_encode()
    inputs = tuple(changed(list(encode.inputs), 5, None))
    with pytest.raises(ProgramInvalid, match="encode input entry 5"):
        check_programs(a_step(), replace(encode, inputs=inputs), a_merge(), Params())


def test_an_encode_that_leaves_more_than_the_payload_is_refused() -> None:
    encode = an_encode()
    with pytest.raises(ProgramInvalid, match="encode output entry 1"):
        check_programs(a_step(), replace(encode, outputs=(encode.outputs[0], Alias(2, 2))), a_merge(), Params())


@pytest.mark.parametrize(("at", "entry"), [(0, (F32, 11)), (9, None), (11, P), (12, (F32, 4)), (5, P)])
def test_a_merge_of_another_state_is_refused(at: int, entry: object) -> None:
    merge = a_merge()
    header = None if entry is None else TensorHeader(entry[0], (entry[1],))
    ops = (replace(merge.ops[0], views=merge.ops[0].views[:1], instrs=(Instr(Opcode.FNEG, 0),)),)
    if at == 0:
        ops = (replace(ops[0], extents=(11,), cumulative=11),)
    inputs = tuple(changed(list(merge.inputs), at, header))
    with pytest.raises(ProgramInvalid, match=f"merge input entry {at}"):
        check_programs(a_step(), an_encode(), replace(merge, ops=ops, inputs=inputs), Params())


def test_a_merge_that_leaves_another_layout_is_refused() -> None:
    merge = a_merge()
    outputs = (merge.outputs[0], Alias(0), Alias(0), Alias(0))
    with pytest.raises(ProgramInvalid, match="merge output entry 2"):
        check_programs(a_step(), an_encode(), replace(merge, outputs=outputs), Params())


def test_rows_of_another_length_are_refused() -> None:
    with pytest.raises(ProgramInvalid, match=r"step: op 0 .* rows of 6"):
        check_programs(a_step(6), an_encode(), a_merge(), Params())


def test_a_payload_shallower_than_the_state_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match="depths"):
        check_programs(a_step(), an_encode(), a_merge(), Params(shared_depth=3))


def test_the_broken_program_is_named() -> None:
    encode = an_encode()
    broken = replace(encode, ops=(replace(encode.ops[0], cumulative=1),))
    with pytest.raises(ProgramInvalid, match="encode: op 0"):
        check_programs(a_step(), broken, a_merge(), Params())
