"""The Program's bytes: one encoding, one root."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol import merkle
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import (
    F32,
    I32,
    Alias,
    Const,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    ProgramHeader,
    Tag,
    View,
    graph_depth,
    state_root,
)

i32 = st.integers(-(1 << 31), (1 << 31) - 1)
u32 = st.integers(0, (1 << 32) - 1)


@st.composite
def ops(draw: st.DrawFn) -> Op:
    kind = draw(st.sampled_from(Kind))
    extents = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
    k = (draw(st.integers(1, 3000)),) if kind == Kind.FOLD else ()
    axes = len(extents) + len(k)
    view = st.builds(View, st.sampled_from(Tag), st.integers(0, 65535), i32, st.tuples(*[i32] * axes))
    views = tuple(draw(st.lists(view, min_size=1, max_size=8)))
    sizes = tuple(draw(u32) for _ in views) if kind == Kind.CONCAT else ()
    instr = st.builds(Instr, *[st.integers(0, 255)] * 4, u32)
    instrs = tuple(draw(st.lists(instr, max_size=5))) if kind == Kind.MAP else ()
    mode = draw(st.sampled_from(Fold)) if kind == Kind.FOLD else 0
    return Op(
        kind,
        draw(st.sampled_from((F32, I32))),
        extents,
        views,
        k,
        mode,
        instrs,
        draw(u32),
        draw(u32),
        sizes,
        draw(st.integers(0, 1 << 40)),
    )


@given(ops())
def test_a_descriptor_round_trips(op: Op) -> None:
    assert Op.decode(op.encode()) == op


@given(ops(), st.binary(min_size=1, max_size=3))
def test_bytes_after_a_descriptor_are_refused(op: Op, tail: bytes) -> None:
    with pytest.raises(ProgramInvalid):
        Op.decode(op.encode() + tail)


@given(ops(), st.data())
def test_a_truncated_descriptor_is_refused(op: Op, data: st.DataObject) -> None:
    encoded = op.encode()
    with pytest.raises(ProgramInvalid):
        Op.decode(encoded[: data.draw(st.integers(0, len(encoded) - 1))])


def program(scale: int = 0x40000000) -> Program:
    """x' = x * const; one op, one state tensor."""
    vector = TensorHeader(F32, (600,))
    op = Op(
        Kind.MAP,
        F32,
        (600,),
        (View(Tag.STATE, 0, 0, (1,)), View(Tag.CONST, 0, 0, (0,))),
        instrs=(Instr(4, 0, 1),),
        cumulative=600,
    )
    return Program(
        (op,),
        (vector, None),
        (Alias(1, 0), Alias(0)),
        (Const(TensorHeader(F32, ()), scale.to_bytes(4, "little")),),
    )


def test_a_program_round_trips_from_its_committed_parts() -> None:
    original = program()
    again = Program.decode(original.header, original.descriptors, original.consts)
    assert again == original
    assert again.root == original.root


def test_the_root_binds_constants_and_ops_but_not_names() -> None:
    original = program()
    assert replace(original, names=("scale",)).root == original.root
    assert program(scale=0x40400000).root != original.root, "a constant"
    op = replace(original.ops[0], instrs=(Instr(2, 0, 1),))
    assert replace(original, ops=(op,)).root != original.root, "an instruction"


def test_a_header_that_contradicts_its_parts_is_refused() -> None:
    original = program()
    with pytest.raises(ProgramInvalid, match="contradicts"):
        Program.decode(original.header, original.descriptors * 2, original.consts)


def test_another_op_set_is_refused_with_a_hint() -> None:
    header = bytearray(program().header)
    header[7] = 9
    with pytest.raises(ProgramInvalid) as caught:
        ProgramHeader.decode(bytes(header))
    assert "op-set 9" in caught.value.message
    assert caught.value.hint


@given(st.integers(1, 2000), st.integers(0, 5))
def test_the_state_block_is_the_last_aligned_one_and_ops_end_before_it(n: int, s: int) -> None:
    depth = graph_depth(n, s)
    block = (1 << depth) - (1 << s)
    assert block % (1 << s) == 0
    assert n <= block
    assert n > (1 << (depth - 1)) - (1 << s), "one level less would not hold them"


def test_state_tensors_are_flat() -> None:
    with pytest.raises(ProgramInvalid, match="state tensor"):
        _ = replace(program(), inputs=(TensorHeader(F32, (3, 4)), None)).header


def test_an_empty_entry_is_z0() -> None:
    assert state_root([None, None]) == merkle.EMPTY[1]
