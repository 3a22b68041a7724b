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
from dag_cbor.decoding import CBORDecodingError

from lockstep.protocol.errors import Mismatch, ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.program import Const, Program
from lockstep.protocol.types import Cid, Digest, ProgramRoot
from lockstep.protocol.validator import Parts

SPEC_VERSION = 1
MAX_PROGRAM_BYTES = 1 << 30
"""Most that a party reads of one Program or checkpoint, as of a dataset: what a job may ask of its memory."""


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
    try:
        fields = _mapping(data)
        consts = [Const(TensorHeader(c["dtype"], tuple(c["shape"])), c["data"]) for c in fields["consts"]]
        for const in consts:
            if len(const.data) != 4 * const.header.elements:
                raise ValueError(f"a constant of shape {const.header.shape} with {len(const.data)} bytes")
        program = Program.decode(
            fields["header"], fields["ops"], consts, fields.get("names", ()), fields.get("places", ())
        )
    except (CBORDecodingError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProgramInvalid(f"a Program file does not parse: {error}", hint="fetch it again by its CID") from error
    if root is not None and program.root != root:
        raise Mismatch(
            f"the Program's root is {program.root.hex()}, the job names {bytes(root).hex()}",
            hint="the store holds another Program under the spec's CID: do not run it",
        )
    return program


def decode_parts(data: bytes) -> Parts:
    """The committed bytes in a Program file, whether or not they are a Program; raises ProgramInvalid if it is none."""
    try:
        fields = _mapping(data)
        consts = tuple(Const(TensorHeader(c["dtype"], tuple(c["shape"])), c["data"]) for c in fields["consts"])
        return Parts(fields["header"], tuple(fields["ops"]), consts)
    except (CBORDecodingError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProgramInvalid(f"a Program file does not parse: {error}", hint="fetch it again by its CID") from error


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
    """{name, offset, shape} of each parameter in the flat tensor, in order."""
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
        try:
            fields = _mapping(data)
            fields["parameters"] = tuple(fields["parameters"])
            spec = Spec(**fields)
        except (CBORDecodingError, KeyError, TypeError, ValueError) as error:
            raise Mismatch(f"a spec does not parse: {error}", hint="its author wrote another version") from error
        if spec.version != SPEC_VERSION:
            raise Mismatch(
                f"spec version {spec.version}, this build reads {SPEC_VERSION}",
                hint="install the job's release",
            )
        return spec


def _mapping(data: bytes) -> dict[str, Any]:
    fields = dag_cbor.decode(data)
    if not isinstance(fields, dict):
        raise TypeError("not a map")
    return dict(fields)
