"""Containers: the files in which Programs and job specs travel (docs/protocol.md section 5).

Nothing here is hashed on chain as a file except the spec, whose digest is in JobParams; a Program is checked
against its root after decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import dag_cbor

from lockstep.decoding import (
    U32,
    U64,
    Reader,
    anything,
    either,
    from_cbor,
    mapping,
    octets,
    refusing,
    several,
    table,
    text,
    whole,
)
from lockstep.protocol.errors import Mismatch, ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.program import Const, Program
from lockstep.protocol.types import Cid, Digest, ProgramRoot
from lockstep.protocol.validator import Parts

SPEC_VERSION = 1
MAX_PROGRAM_BYTES = 1 << 30
"""Most that a party reads of one Program or checkpoint, as of a dataset: what a job may ask of its memory."""
MAX_SPEC_BYTES = 1 << 20
"""One block."""

_MAX_COUNT = (1 << 16) - 1
"""Ops and constants are counted in a u16."""
_CONST = table({"dtype": whole(0, 255), "shape": several(whole(0, U32), 255), "data": octets()})
_NAMES: Reader[Any] = several(text(), _MAX_COUNT)
_PROGRAM = table(
    {"header": octets(), "ops": several(octets(), _MAX_COUNT), "consts": several(_CONST, _MAX_COUNT)},
    {"names": _NAMES, "places": _NAMES},
)
_SHAPE = several(whole(0, U32), 255)
_PARAMETER = either(
    table({"name": text(), "offset": whole(0, U64), "shape": _SHAPE}, {"shard": whole(0, U32)}),
    table({"name": text(), "root": text(64), "shape": _SHAPE}),
)
_CID = text(128)
_SPEC = table(
    {
        "programs": mapping(_CID),
        "dataset": _CID,
        "genesis": _CID,
        "model": mapping(anything),
        "parameters": several(_PARAMETER, 1 << 16),
        "strategy": mapping(anything),
        "version": whole(0, U32),
    }
)


def encode_program(program: Program) -> bytes:
    """The Program file: header, descriptors, constants, names for people."""
    return dag_cbor.encode(
        {
            "header": program.header,
            "ops": list(program.descriptors),
            "consts": [
                {"dtype": c.header.dtype, "shape": list(c.header.shape), "data": c.data} for c in program.consts
            ],
            "names": list(program.names),
            "places": list(program.places),
        }
    )


def decode_program(data: bytes, root: ProgramRoot | bytes | None = None) -> Program:
    """The Program in a file; raises ProgramInvalid if it does not parse, Mismatch if its root is not `root`."""
    fields, consts = _program_file(data)
    program = Program.decode(fields["header"], fields["ops"], consts, fields.get("names", ()), fields.get("places", ()))
    if root is not None and program.root != root:
        raise Mismatch(
            f"the Program's root is {program.root.hex()}, the job names {bytes(root).hex()}",
            hint="the store holds another Program under the spec's CID: do not run it",
        )
    return program


def decode_parts(data: bytes) -> Parts:
    """The committed bytes in a Program file, whether or not they are a Program; raises ProgramInvalid if it is none."""
    fields, consts = _program_file(data)
    return Parts(fields["header"], tuple(fields["ops"]), consts)


def _program_file(data: bytes) -> tuple[dict[str, Any], tuple[Const, ...]]:
    with refusing(ProgramInvalid, "a Program file", hint="fetch it again by its CID"):
        fields = _PROGRAM(from_cbor(data, MAX_PROGRAM_BYTES), "the file")
    consts = tuple(Const(TensorHeader(c["dtype"], tuple(c["shape"])), c["data"]) for c in fields["consts"])
    for const in consts:
        # INVARIANT: a constant's tensor root can be computed.
        if len(const.data) != 4 * const.header.elements:
            raise ProgramInvalid(
                f"a Program file does not parse: a constant of shape {const.header.shape} with {len(const.data)} bytes",
                hint="fetch it again by its CID",
            )
    return fields, consts


@dataclass(frozen=True)
class Spec:
    """What a job's `specDigest` names: where its parts are, and what its numbers mean to people."""

    programs: Mapping[str, Cid]
    """CIDs of the Program files "step", "encode", "merge"."""
    dataset: Cid
    """CID of the dataset's manifest."""
    genesis: Cid
    """CID of the first checkpoint."""
    model: Mapping[str, Any]
    """config.json of the model."""
    parameters: tuple[Mapping[str, Any], ...]
    """{name, offset, shape} of each parameter in the flat tensor, in order; and its shard where there are several."""
    strategy: Mapping[str, Any]
    """The strategy's Spec."""
    version: int = SPEC_VERSION

    def encode(self) -> bytes:
        """DAG-CBOR; one block."""
        fields = asdict(self)
        fields["parameters"] = [dict(p) for p in self.parameters]
        return dag_cbor.encode(fields)

    @property
    def digest(self) -> Digest:
        """SHA-256 of `encode()`: the `specDigest` of JobParams."""
        return Digest(sha256(self.encode()).digest())

    @staticmethod
    def decode(data: bytes, digest: bytes | None = None) -> Spec:
        """The spec in a file; raises Mismatch if its digest is not `digest` or it does not parse."""
        if digest is not None and sha256(data).digest() != digest:
            raise Mismatch("the spec's digest is not the job's", hint="fetch it again; do not run the job")
        with refusing(Mismatch, "a spec", hint="its author wrote another version"):
            fields = _SPEC(from_cbor(data, MAX_SPEC_BYTES), "the spec")
        spec = Spec(**{**fields, "parameters": tuple(fields["parameters"])})
        if spec.version != SPEC_VERSION:
            raise Mismatch(
                f"spec version {spec.version}, this build reads {SPEC_VERSION}",
                hint="install the job's release",
            )
        return spec
