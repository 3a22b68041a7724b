"""Fuzz targets: a job's spec, its Programs, and what a game argues about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.fuzz.target import Run, refusals


def spec() -> tuple[Iterable[bytes], Run]:
    from dataclasses import replace
    from hashlib import sha256

    from lockstep.protocol.types import Cid
    from lockstep.storage.containers import JobSpec

    root = "ab" * 32
    spec = JobSpec(
        {name: Cid("bafkrei" + "a" * 52) for name in ("step", "encode", "merge")},
        Cid("bafyrei" + "a" * 52),
        Cid("bafkrei" + "b" * 52),
        {"model": "gpt", "width": 4},
        (
            {"name": "w", "offset": 0, "shape": [4]},
            {"name": "v", "root": root, "shape": [2, 2]},
            {"name": "u", "limbs": [[root, root], [root, root]], "shape": [2, 3]},
        ),
        {"name": "diloco", "inner": {"beta1": 0.9}},
    )

    def run(data: bytes) -> None:
        with refusals():
            # Of every fifth input another digest is named than its own.
            found = JobSpec.decode(data, bytes(32) if data[-1:] == b"\0" else sha256(data).digest())
            assert found.encode() == data, "a spec has one encoding"

    integers = replace(spec, arithmetic={"products": "int8", "head": "int8x2"})
    named = replace(spec, title="Größe ☃")
    return [spec.encode(), integers.encode(), named.encode()], run


def program() -> tuple[Iterable[bytes], Run]:
    from dataclasses import replace
    from pathlib import Path

    from lockstep.protocol.errors import PayloadInvalid
    from lockstep.protocol.merkle import TensorHeader
    from lockstep.protocol.programs.program import F32, Const
    from lockstep.protocol.types import Cid
    from lockstep.storage.cache import BlobCache
    from lockstep.storage.containers import decode_parts, decode_program, encode_program
    from lockstep.storage.directory import DirectoryStore
    from tests.support import toyjob

    small = toyjob.encode_program_of(carry=True)
    scalar = Const(TensorHeader(F32, ()), b"\0\0\x80\x3f")
    none = Const(TensorHeader(F32, (0,)), b"")
    large = Const(TensorHeader(F32, (1 << 15,)), bytes(1 << 17))
    programs = [small, replace(small, consts=(scalar, none), names=("a",), places=("b",)), toyjob.merge_program()]
    programs.append(replace(small, consts=(scalar, large)))

    class Held(DirectoryStore):
        def __init__(self) -> None:
            pass

        def blobs(self, wanted: Sequence[tuple[Cid, int]]) -> list[memoryview]:
            for cid, size in wanted:
                if size > 1 << 18:
                    raise PayloadInvalid(f"{cid} is shorter")
            return [memoryview(bytes(size)) for _, size in wanted]

        cache = BlobCache(Path("/nonexistent"), 0)

    def run(data: bytes) -> None:
        with refusals():
            parts = decode_parts(data, None if len(data) % 3 else Held())
            assert len(parts.root) == 32, "what is committed has a root"
        with refusals():
            fresh = len(data) % 5 == 0
            program = decode_program(data, bytes(32) if len(data) % 2 else None, Held(), fresh=fresh)
            assert decode_program(encode_program(program), program.root, Held()) == program, "a Program comes back"

    return [encode_program(p) for p in programs], run


def header() -> tuple[Iterable[bytes], Run]:
    import struct

    from lockstep.protocol.programs.program import HeaderFields, ProgramHeader, decode_entry, encode_entry
    from tests.support import toyjob

    def run(data: bytes) -> None:
        with refusals():
            header = ProgramHeader.decode(data)
            fields = HeaderFields.decode(data)
            again = data[:15] + b"".join(
                (
                    *(encode_entry(entry) for entry in header.inputs),
                    *(struct.pack(">BH", a.kind, a.index) for a in header.outputs),
                )
            )
            assert (again, fields.foreign) == (data, False), "a header has one encoding"
            assert all(decode_entry(fields.entry(data, k)) == e for k, e in enumerate(header.inputs)), "entry by entry"

    return [p.header for p in (toyjob.encode_program_of(), toyjob.encode_program_of(True), toyjob.step_program())], run


def op() -> tuple[Iterable[bytes], Run]:
    from lockstep.protocol.programs.program import Kind, Op
    from tests.support import toyjob

    concat = Op(Kind.CONCAT, 0, (4,), (), p0=0, cumulative=4)

    def run(data: bytes) -> None:
        with refusals():
            op = Op.decode(data)
            assert op.encode() == data, "a descriptor has one encoding"

    seeds = {op.kind: op.encode() for op in (*toyjob.step_program().ops, *toyjob.merge_program().ops)}
    view = toyjob.encode_program_of().ops[0].views[0]
    part = Op(Kind.CONCAT, 0, (4,), (view,), sizes=(4,), cumulative=4)
    return [*seeds.values(), concat.encode(), part.encode()], run


def statement() -> tuple[Iterable[bytes], Run]:
    from lockstep.protocol.dispute.statement import Statement
    from lockstep.protocol.programs.program import HEAD_BYTES
    from lockstep.protocol.types import Digest, ProgramRoot, Seed, StateRoot, Step, TensorRoot
    from tests.support import toyjob

    word = bytes(range(32))
    good = Statement(
        StateRoot(word), Digest(word), Digest(word), Digest(word), TensorRoot(word), Seed(word), 40, 600, 1, 2, Step(3),
        ProgramRoot(word), toyjob.encode_program_of().header[:HEAD_BYTES],
    )  # fmt: skip

    def run(data: bytes) -> None:
        with refusals():
            statement = Statement.decode(data)
            assert statement.encode() == data, "a statement has one encoding"
            assert len(statement.head) == HEAD_BYTES, "and nothing behind it"

    return [good.encode()], run
