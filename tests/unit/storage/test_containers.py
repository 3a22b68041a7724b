"""Containers: what a Program file and a spec refuse."""

from __future__ import annotations

from dataclasses import replace

import dag_cbor
import pytest

from lockstep.protocol.errors import LockstepError, Mismatch, ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.program import F32, Alias, Const, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import Cid
from lockstep.storage.containers import Spec, decode_parts, decode_program, encode_program

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


@pytest.mark.parametrize(
    "changed",
    [
        {"ops": None},
        {"ops": [1]},
        {"header": "x"},
        {"consts": {}},
        {"consts": [{}]},
        {"consts": [{"dtype": 256, "shape": [], "data": b"1234"}]},
        {"consts": [{"dtype": 0, "shape": [-1], "data": b""}]},
        {"consts": [{"dtype": 0, "shape": [0, 1 << 40], "data": b""}]},
        {"names": 5},
        {"places": [b"x"]},
        {"more": 1},
    ],
    ids=lambda changed: str(changed)[:40],
)
def test_a_program_file_with_a_field_of_another_type_is_refused(changed: dict[str, object]) -> None:
    fields = {**dag_cbor.decode(encode_program(PROGRAM)), **changed}  # type: ignore[dict-item]
    for decode in (decode_program, decode_parts):
        with pytest.raises(ProgramInvalid, match="a Program file does not parse"):
            decode(dag_cbor.encode(fields))  # type: ignore[arg-type]


def test_a_program_without_ops_and_a_constant_without_elements_have_roots() -> None:
    """What cannot be run can be shown to the contract."""
    none = Program((), (None,), (Alias(0),), (Const(TensorHeader(F32, (0,)), b""),))
    data = encode_program(none)
    assert decode_program(data).root == decode_parts(data).root
