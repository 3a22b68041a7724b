"""Containers: what a Program file and a spec refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.protocol.errors import LockstepError, Mismatch, ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.program import F32, Alias, Const, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import Cid
from lockstep.storage.containers import Spec, decode_program, encode_program

VIEWS = (View(Tag.STATE, 0, 0, (1,)), View(Tag.CONST, 0, 0, (0,)))
OP = Op(Kind.MAP, F32, (4,), VIEWS, instrs=(Instr(4, 0, 1),), cumulative=4)
CONST = Const(TensorHeader(F32, ()), b"\x00\x00\x00\x40")
PROGRAM = Program((OP,), (TensorHeader(F32, (4,)),), (Alias(1, 0),), (CONST,), ("double",), ("model.py:3",))

SPEC = Spec(
    programs={"step": Cid("a"), "encode": Cid("b"), "merge": Cid("c")},
    dataset=Cid("d"),
    genesis=Cid("e"),
    model={"width": 4},
    parameters=({"name": "w", "offset": 0, "shape": [4]},),
    strategy={"name": "diloco"},
)


def test_a_program_file_round_trips_with_its_names() -> None:
    again = decode_program(encode_program(PROGRAM), PROGRAM.root)
    assert again == PROGRAM
    assert (again.names, again.places) == (PROGRAM.names, PROGRAM.places)


def test_another_program_under_the_cid_is_a_mismatch() -> None:
    other = replace(PROGRAM, ops=(replace(OP, instrs=(Instr(2, 0, 1),)),))
    with pytest.raises(Mismatch, match="root"):
        decode_program(encode_program(other), PROGRAM.root)


@pytest.mark.parametrize("cut", [0, 1, 10, 40, 100])
def test_a_truncated_program_file_is_refused_with_a_hint(cut: int) -> None:
    with pytest.raises(ProgramInvalid) as caught:
        decode_program(encode_program(PROGRAM)[:cut])
    assert caught.value.hint


def test_a_constant_of_another_length_is_refused() -> None:
    short = Const(TensorHeader(F32, (2,)), b"\x00\x00\x00\x40")
    with pytest.raises((ProgramInvalid, ValueError)):
        decode_program(encode_program(replace(PROGRAM, consts=(short,))))


def test_a_spec_round_trips_and_its_digest_binds_every_field() -> None:
    assert Spec.decode(SPEC.encode(), SPEC.digest) == SPEC
    assert replace(SPEC, dataset=Cid("x")).digest != SPEC.digest


def test_a_spec_of_another_digest_or_version_is_refused() -> None:
    with pytest.raises(Mismatch, match="digest"):
        Spec.decode(SPEC.encode(), bytes(32))
    with pytest.raises(Mismatch, match="version"):
        Spec.decode(replace(SPEC, version=9).encode())


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_truncated_spec_is_refused(cut: int) -> None:
    with pytest.raises(LockstepError):
        Spec.decode(SPEC.encode()[:cut])
