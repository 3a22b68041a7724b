"""Containers: what a Program file and a spec refuse."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import dag_cbor
import numpy as np
import pytest

from lockstep.base.machine import Memory
from lockstep.protocol.errors import BlobMissing, LockstepError, Mismatch, ProgramInvalid, Unfit
from lockstep.protocol.merkle import TensorHeader, data_root
from lockstep.protocol.programs.program import F32, Alias, Const, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import Cid, Digest
from lockstep.storage import cid_of, containers
from lockstep.storage.containers import (
    INLINE_BYTES,
    MAX_TITLE,
    JobSpec,
    decode_parts,
    decode_program,
    encode_program,
    load_parts,
    load_program,
    program_length,
)
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.links import link_of
from lockstep.storage.store import MAPPED_BYTES

VIEWS = (View(Tag.STATE, 0, 0, (1,)), View(Tag.CONST, 0, 0, (0,)))
OP = Op(Kind.MAP, F32, (4,), VIEWS, instrs=(Instr(4, 0, 1),), cumulative=4)
CONST = Const(TensorHeader(F32, ()), b"\x00\x00\x00\x40")
PROGRAM = Program((OP,), (TensorHeader(F32, (4,)),), (Alias(1, 0),), (CONST,), ("double",), ("model.py:3",))

SPEC = JobSpec(
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
    assert JobSpec.decode(SPEC.encode(), SPEC.digest) == SPEC
    assert replace(SPEC, dataset=Cid("x")).digest != SPEC.digest


def test_a_spec_of_another_digest_or_version_is_refused() -> None:
    with pytest.raises(Mismatch, match="digest"):
        JobSpec.decode(SPEC.encode(), bytes(32))
    with pytest.raises(Mismatch, match="version"):
        JobSpec.decode(replace(SPEC, version=9).encode())


def test_a_spec_without_a_policy_of_products_has_one_encoding() -> None:
    fields = dag_cbor.decode(SPEC.encode())
    assert isinstance(fields, dict)
    with pytest.raises(Mismatch, match="arithmetic is empty"):
        JobSpec.decode(dag_cbor.encode({**fields, "arithmetic": {}}))


def test_a_spec_without_a_title_has_the_digest_that_it_had() -> None:
    assert SPEC.digest.hex() == "7177b8fe858870c97e541cb58aa6e1abcec16bf1d3eb5ad1cfb037fa8fb477d4"
    fields = dag_cbor.decode(SPEC.encode())
    assert isinstance(fields, dict)
    assert "title" not in fields


@pytest.mark.parametrize("title", ["a", "<b>Größe</b> ☃", "x" * MAX_TITLE, "نص \u200cو", "👩\u200d💻"])
def test_a_title_is_kept_as_it_is_written(title: str) -> None:
    named = replace(SPEC, title=title)
    assert JobSpec.decode(named.encode(), named.digest) == named
    assert named.digest != SPEC.digest


@pytest.mark.parametrize(
    ("title", "why"),
    [
        ("", "is empty"), ("  ", "is empty"), ("a ", "ends with a space"), ("\u3000a", "begins or ends"),
        ("x" * (MAX_TITLE + 1), "81 characters"), (7, "int where text is due"), (b"a", "bytes where text is due"),
        *((f"a{hidden}b", "not shown") for hidden in "\n\r\t\0\x7f\x9b\xad\u2028\u202e\u200b\u200f\u061c\u2066\ufeff"),
    ],
)  # fmt: skip
def test_a_spec_of_a_title_that_is_no_line_of_text_is_refused(title: object, why: str) -> None:
    fields: Any = dag_cbor.decode(SPEC.encode())
    with pytest.raises(Mismatch, match=why) as refused:
        JobSpec.decode(dag_cbor.encode({**fields, "title": title}))
    assert refused.value.hint


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_truncated_spec_is_refused(cut: int) -> None:
    with pytest.raises(LockstepError):
        JobSpec.decode(SPEC.encode()[:cut])


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


# --- constants beside the file -----------------------------------------------------------------------------


def with_table(elements: int) -> Program:
    """PROGRAM, with a table of that many words behind its constant."""
    words = np.random.default_rng(elements).standard_normal(elements).astype("<f4")
    return replace(PROGRAM, consts=(CONST, Const(TensorHeader(F32, (elements,)), words.tobytes())))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return DirectoryStore(tmp_path / "blocks")


def kept(store: DirectoryStore, program: Program) -> Cid:
    return store.put(encode_program(program, store.put))


@pytest.mark.parametrize("elements", [INLINE_BYTES // 4, INLINE_BYTES // 4 + 1, MAPPED_BYTES // 4])
def test_a_large_constant_lies_beside_the_file(store: DirectoryStore, elements: int) -> None:
    program = with_table(elements)
    cid = kept(store, program)
    assert cid == cid_of(encode_program(program)), "its name is known before it is stored"
    beside = 4 * elements > INLINE_BYTES
    assert (store.size(cid) < INLINE_BYTES) == beside
    for _ in range(2):
        found = load_program(store, cid, program.root)
        assert found == program
        assert found.consts[1].root == program.consts[1].root
    assert isinstance(found.consts[1].data, memoryview) == beside
    assert program_length(program) == store.size(cid) + (4 * elements if beside else 0)
    parts = load_parts(store, cid, program.root)
    assert parts.root == program.root
    if beside:
        with pytest.raises(BlobMissing, match="1 constants"):
            decode_program(encode_program(program))


def test_the_root_of_a_mapped_constant_is_computed_once(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    program = with_table(MAPPED_BYTES // 4)
    cid = kept(store, program)
    hashed: list[int] = []

    def counted(data: memoryview) -> Digest:
        hashed.append(len(data))
        return data_root(data)

    monkeypatch.setattr(containers, "data_root", counted)
    for _ in range(3):
        load_program(DirectoryStore(store.home), cid, program.root)
    assert hashed == [MAPPED_BYTES]


def test_a_damaged_constant_is_fetched_again(store: DirectoryStore) -> None:
    program = with_table(MAPPED_BYTES // 4)
    cid = kept(store, program)
    load_program(store, cid, program.root)
    (blob,) = [path for path in store.cache.folder.iterdir() if not path.suffix]
    words = bytearray(blob.read_bytes())
    words[5] ^= 1
    blob.write_bytes(words)
    assert load_program(store, cid, program.root) == program, "its root told"
    assert load_parts(store, cid, program.root).consts == program.consts
    with pytest.raises(Mismatch, match="root"):
        load_program(store, cid, bytes(32))
    with pytest.raises(Mismatch, match="root"):
        load_parts(store, cid, bytes(32))


@pytest.mark.parametrize("other", [INLINE_BYTES + 8, 2 * MAPPED_BYTES])
def test_a_constant_of_another_length_is_no_program(store: DirectoryStore, other: int) -> None:
    program = with_table(INLINE_BYTES)
    fields = dag_cbor.decode(encode_program(program))
    fields["consts"][1]["cid"] = link_of(store.put(bytes(other)))  # type: ignore[call-overload,index]
    with pytest.raises(ProgramInvalid, match=f"{other} bytes where {4 * INLINE_BYTES} are due"):
        load_program(store, store.put(dag_cbor.encode(fields)), program.root)


def test_a_constants_size_alone_says_where_it_lies(store: DirectoryStore) -> None:
    small, large = (dag_cbor.decode(encode_program(with_table(n)))["consts"][1] for n in (4, INLINE_BYTES))  # type: ignore[index,call-overload]
    fields = dag_cbor.decode(encode_program(PROGRAM))
    inline = {"dtype": 0, "shape": large["shape"], "data": bytes(4 * INLINE_BYTES)}
    beside = {"dtype": 0, "shape": small["shape"], "cid": link_of(store.put(small["data"]))}
    both = {**beside, "data": small["data"]}
    for const in (inline, beside, both, {"dtype": 0, "shape": [4]}, {**beside, "cid": "bafkrei"}):
        with pytest.raises(ProgramInvalid, match="does not parse"):
            decode_program(dag_cbor.encode({**fields, "consts": [const]}), None, store)  # type: ignore[dict-item]


def naming(cid: Cid, elements: int, times: int) -> bytes:
    """A Program file whose constants are one blob."""
    const = {"dtype": 0, "shape": [elements], "cid": link_of(cid)}
    fields: Any = {"header": b"", "ops": [], "consts": [const] * times, "names": [], "places": []}
    return dag_cbor.encode(fields)


def test_constants_of_one_name_are_fetched_and_held_once(tmp_path: Path) -> None:
    fetched: list[Cid] = []

    class Counting(DirectoryStore):
        def fetch_block(self, cid: Cid) -> bytes:
            fetched.append(cid)
            return super().fetch_block(cid)

    store, elements = Counting(tmp_path), INLINE_BYTES
    cid = store.put(bytes(4 * elements))
    consts = decode_parts(naming(cid, elements, 1000), store).consts
    assert len(consts) == 1000
    assert len({id(const.data) for const in consts}) == 1
    assert fetched == [cid] * 2, "its root, and its only leaf"


def test_constants_beyond_the_memory_are_not_fetched(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    elements = INLINE_BYTES
    file = naming(cid_of(bytes(4 * elements)), elements, 1)
    with pytest.raises(BlobMissing):
        decode_program(file, None, store)
    with pytest.raises(Unfit, match=f"{4 * elements} bytes of a Program's constants"):
        decode_program(file, None, store, most_beside=4 * elements - 1)
    monkeypatch.setattr("lockstep.storage.store.memory", lambda: Memory(4 * elements - 1, 4 * elements - 1))
    with pytest.raises(Unfit, match="of memory"):
        decode_program(file, None, store)


ROOT, FROZEN = "ab" * 32, {"name": "w", "shape": [2, 3]}


@pytest.mark.parametrize(
    "part",
    [
        {**FROZEN, "limbs": []},
        {**FROZEN, "limbs": [[]]},
        {**FROZEN, "limbs": [[ROOT]]},
        {**FROZEN, "limbs": [[ROOT, ROOT, ROOT]]},
        {**FROZEN, "limbs": [[ROOT, ROOT]] * 3},
        {**FROZEN, "limbs": [[ROOT, 7]]},
        {**FROZEN, "limbs": "abab"},
        {**FROZEN, "limbs": [[[ROOT], ROOT]]},
        {"name": "w", "limbs": [[ROOT, ROOT]], "shape": [-1, 3]},
        {"name": "w", "limbs": [[ROOT, ROOT]], "shape": [2.0, 3]},
        {"name": "w", "limbs": [[ROOT, ROOT]], "shape": [1e308]},
        {"name": "w", "limbs": [[ROOT, ROOT]], "shape": [[2], 3]},
        {"name": "w", "limbs": [[ROOT, ROOT]], "shape": [1 << 32, 3]},
        {"name": "w", "root": ROOT, "shape": [1] * 33},
        {"name": "w", "offset": True, "shape": [3]},
    ],
)
def test_a_spec_of_a_parameter_without_form_is_refused(part: dict[str, object]) -> None:
    with pytest.raises(Mismatch) as refused:
        JobSpec.decode(replace(SPEC, parameters=(part,)).encode())
    assert refused.value.hint


def test_a_spec_of_a_number_that_is_none_is_refused() -> None:
    text = replace(SPEC, parameters=({"name": "w", "offset": 0, "shape": [1.5]},)).encode()
    for number in (float("nan"), float("inf")):
        changed = text.replace(struct.pack(">d", 1.5), struct.pack(">d", number))
        assert changed != text
        with pytest.raises(Mismatch):
            JobSpec.decode(changed)


def test_a_spec_names_a_weight_by_its_codes() -> None:
    spec = replace(SPEC, parameters=({**FROZEN, "limbs": [[ROOT, ROOT], [ROOT, ROOT]]},))
    assert JobSpec.decode(spec.encode()) == spec
