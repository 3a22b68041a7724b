"""File formats of Programs and job specs (docs/protocol.md section 5).

Large constants of a Program (a frozen model) are blobs of their own, fetched in parallel, resumed after a kill, and
memory-mapped. Only the spec is hashed on chain as a file: JobParams has its digest. A Program is checked against its
root after decoding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import dag_cbor

from lockstep.base.decoding import (
    U32,
    U64,
    Reader,
    anything,
    either,
    flag,
    from_cbor,
    mapping,
    octets,
    refusing,
    several,
    table,
    text,
    whole,
)
from lockstep.protocol.errors import BlobMissing, Malformed, Mismatch, PayloadInvalid, ProgramInvalid, Unfit
from lockstep.protocol.merkle import TensorHeader, data_root
from lockstep.protocol.programs.defects import ProgramParts
from lockstep.protocol.programs.program import Const, Program
from lockstep.protocol.types import Cid, Digest, ProgramRoot
from lockstep.storage.cid import cid_of_digest
from lockstep.storage.links import link_of, read_link
from lockstep.storage.unixfs import cid_of

if TYPE_CHECKING:
    from lockstep.protocol.jobs import JobParams
    from lockstep.storage.payload import Name
    from lockstep.storage.store import ContentStore

SPEC_VERSION = 1
MAX_PROGRAM_BYTES = 1 << 28
"""Most bytes of a Program's file that a party reads: ops, names and small constants."""
INLINE_BYTES = 1 << 16
"""Largest constant, in bytes, inside a Program's file; a larger one is a separate blob."""
MAX_SPEC_BYTES = 1 << 20
"""Largest spec in bytes: one block."""
MAX_TITLE = 80
"""Most characters of a job's title."""

_MAX_COUNT = (1 << 16) - 1
"""Most ops, and most constants: a u16 counts them."""
_FORM = {"dtype": whole(0, 255), "shape": several(whole(0, U32), 255)}
_CONST = either(table({**_FORM, "data": octets()}), table({**_FORM, "cid": read_link}))
_NAMES: Reader[Any] = several(text(), _MAX_COUNT)
_PROGRAM = table(
    {"header": octets(), "ops": several(octets(), _MAX_COUNT), "consts": several(_CONST, _MAX_COUNT)},
    {"names": _NAMES, "places": _NAMES},
)
MAX_RANK = 32
"""Most axes of a parameter: as many as every version of numpy supports."""
_SHAPE = several(whole(0, U32), MAX_RANK)
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that control a line or are not shown. The list is fixed: every party must read the same specs."""


def _pair(value: Any, where: str) -> list[str]:
    """Parses the roots of codes and scales."""
    found = several(text(64), 2)(value, where)
    if len(found) != 2:
        raise Malformed(f"{where} has {len(found)} entries where codes and scales are due")
    return found


def _limbs(value: Any, where: str) -> list[list[str]]:
    """Parses the limbs of a frozen weight: one or two pairs of roots."""
    found = several(_pair, 2)(value, where)
    if not found:
        raise Malformed(f"{where} is empty where codes and scales are due")
    return found


def _policy(value: Any, where: str) -> Mapping[str, Any]:
    """Parses a policy of products. A spec without a policy has no such key: an empty one would be a second encoding."""
    found = mapping(anything)(value, where)
    if not found:
        raise Malformed(f"{where} is empty")
    return found


def read_title(value: Any, where: str) -> str:
    """Parses a title: one line of shown characters. A spec without a title has no such key: an empty one would be a
    second encoding.
    """
    found = text(MAX_TITLE)(value, where)
    if _HIDDEN.search(found):
        raise Malformed(f"{where} has a line break or a character that is not shown")
    if not found or found != found.strip():
        raise Malformed(f"{where} {'begins or ends with a space' if found.strip() else 'is empty'}")
    return found


def _complex(value: Any, where: str) -> bool:
    """Parses the mark of a complex parameter. A real parameter has no such key: False would be a second encoding."""
    if not flag(value, where):
        raise Malformed(f"{where} is false")
    return True


_PARAMETER = either(
    table({"name": text(), "offset": whole(0, U64), "shape": _SHAPE}, {"shard": whole(0, U32), "complex": _complex}),
    either(
        table({"name": text(), "root": text(64), "shape": _SHAPE}, {"complex": _complex}),
        table({"name": text(), "limbs": _limbs, "shape": _SHAPE}, {"complex": _complex}),
    ),
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
    },
    {"arithmetic": _policy, "title": read_title},
)


def encode_program(program: Program, name: Name = cid_of) -> bytes:
    """Encodes a Program's file: header, descriptors, constants, names.

    The words of each large constant are passed to `name`, which returns their CID.
    """
    return dag_cbor.encode(
        {
            "header": program.header,
            "ops": list(program.descriptors),
            "consts": [_const_fields(c, name) for c in program.consts],
            "names": list(program.names),
            "places": list(program.places),
        }
    )


def _const_fields(const: Const, name: Name) -> dict[str, Any]:
    data = memoryview(const.data)
    place = {"data": bytes(data)} if data.nbytes <= INLINE_BYTES else {"cid": link_of(name(data))}
    return {"dtype": const.header.dtype, "shape": list(const.header.shape), **place}


def program_length(program: Program) -> int:
    """Returns the bytes of a Program's file and of its separate constants, without reading any."""
    some = cid_of_digest(bytes(32))
    beside = sum(len(c.data) for c in program.consts if len(c.data) > INLINE_BYTES)
    return len(encode_program(program, lambda data: some)) + beside


def load_spec(params: JobParams, store: ContentStore) -> JobSpec:
    """Loads the spec that a job's parameters name. Raises Mismatch, or the store's errors."""
    return JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)


def load_program(store: ContentStore, cid: str, root: ProgramRoot | bytes | None = None) -> Program:
    """Loads the Program whose file is named `cid`; large constants are memory-mapped.

    Raises ProgramInvalid if the file does not parse, Mismatch if the Program's root is not `root` (None: only the CID
    is checked), and the store's errors.
    """
    data = store.get(cid, max_bytes=MAX_PROGRAM_BYTES)
    try:
        return decode_program(data, root, store)
    except Mismatch:
        return decode_program(data, root, store, fresh=True)


def load_parts(store: ContentStore, cid: str, root: bytes) -> ProgramParts:
    """Returns the committed bytes in the Program file named `cid`, even if they are not a valid Program; raises as
    `load_program`.
    """
    data = store.get(cid, max_bytes=MAX_PROGRAM_BYTES)
    for fresh in (False, True):
        parts = decode_parts(data, store, fresh=fresh)
        if parts.root == root:
            return parts
    # INVARIANT: what is shown to the contract is what the job commits to.
    raise _other_program(parts.root, root)


def decode_program(
    data: bytes, root: ProgramRoot | bytes | None = None, store: ContentStore | None = None, *, fresh: bool = False,
    most_beside: int | None = None,
) -> Program:  # fmt: skip
    """Decodes a Program's file. Raises ProgramInvalid if it does not parse, Mismatch if its root is not `root`.

    `store` has the large constants; if they exceed `most_beside` bytes, none is fetched and Unfit is raised. With
    `fresh`, cached files are hashed again before use, because an earlier check found them wrong.
    """
    fields, consts = _program_file(data, store, fresh, most_beside)
    program = Program.decode(fields["header"], fields["ops"], consts, fields.get("names", ()), fields.get("places", ()))
    if root is not None and program.root != root:
        raise _other_program(program.root, root)
    return program


def decode_parts(data: bytes, store: ContentStore | None = None, *, fresh: bool = False) -> ProgramParts:
    """Returns the committed bytes in a Program file, even if they are not a valid Program.

    Raises ProgramInvalid if the file does not parse.
    """
    fields, consts = _program_file(data, store, fresh)
    return ProgramParts(fields["header"], tuple(fields["ops"]), consts)


def _other_program(found: bytes, root: bytes) -> Mismatch:
    return Mismatch(
        f"the Program's root is {found.hex()}, the job names {bytes(root).hex()}",
        hint="the store holds another Program under the spec's CID: do not run it",
    )


def _program_file(
    data: bytes, store: ContentStore | None, fresh: bool, most_beside: int | None = None
) -> tuple[dict[str, Any], tuple[Const, ...]]:
    with refusing(ProgramInvalid, "a Program file", hint="fetch it again by its CID"):
        fields = _PROGRAM(from_cbor(data, MAX_PROGRAM_BYTES), "the file")
    headers = [TensorHeader(c["dtype"], tuple(c["shape"])) for c in fields["consts"]]
    for c, header in zip(fields["consts"], headers, strict=True):
        size = 4 * header.elements
        # INVARIANT: a constant has the length of its form, and its size alone says where it lies.
        if "data" in c and not len(c["data"]) == size <= INLINE_BYTES:
            raise _misplaced(header, f"with {len(c['data'])} bytes in the file")
        if "cid" in c and size <= INLINE_BYTES:
            raise _misplaced(header, "beside the file")
    wanted = [(c["cid"], 4 * h.elements) for c, h in zip(fields["consts"], headers, strict=True) if "cid" in c]
    if wanted and store is None:
        raise BlobMissing(f"{len(wanted)} constants of a Program lie in a store", "name the store that holds them")
    beside = sum(size for _, size in wanted)
    if most_beside is not None and beside > most_beside:
        raise Unfit(f"{beside} bytes of a Program's constants, at most {most_beside} are read here", "read its file")
    large = iter(() if store is None else _beside(store, wanted, fresh))
    consts = (
        Const(h, c["data"]) if "data" in c else Const(h, *next(large))
        for c, h in zip(fields["consts"], headers, strict=True)
    )
    return fields, tuple(consts)


def _beside(store: ContentStore, wanted: list[tuple[Cid, int]], fresh: bool) -> list[tuple[memoryview, Digest]]:
    """Returns (words, root of their leaves) of each large constant; the root is computed once for as long as its cached
    file is unchanged.
    """
    if fresh:
        for cid, _ in wanted:
            store.cache.refresh(cid)
    try:
        found = store.blobs(wanted)
    except PayloadInvalid as error:
        raise ProgramInvalid(f"a Program's constant is not as long as its form: {error.message}", error.hint) from error
    named = zip((cid for cid, _ in wanted), found, strict=True)
    return [(data, store.cache.tree(cid, partial(data_root, data))) for cid, data in named]


def _misplaced(header: TensorHeader, what: str) -> ProgramInvalid:
    return ProgramInvalid(
        f"a Program file does not parse: a constant of shape {header.shape} {what}", hint="fetch it again by its CID"
    )


@dataclass(frozen=True)
class JobSpec:
    """The job spec that `specDigest` names: CIDs of the job's parts, and descriptions of its numbers for people."""

    programs: Mapping[str, Cid]
    """CIDs of the Program files "step", "encode", "merge"."""
    dataset: Cid
    """CID of the dataset's manifest."""
    genesis: Cid
    """CID of the first checkpoint."""
    model: Mapping[str, Any]
    """The model's config.json."""
    parameters: tuple[Mapping[str, Any], ...]
    """{name, offset, shape} of each parameter in the flat tensor, in order; with its shard if there are several."""
    strategy: Mapping[str, Any]
    """The strategy's configuration."""
    version: int = SPEC_VERSION
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    """The arithmetic policy of products; empty, and then absent from the file, if all are float32."""
    title: str = ""
    """The job's name for people, by its requester; empty, and then absent from the file, without one."""

    def encode(self) -> bytes:
        """Encodes the spec as DAG-CBOR, in one block."""
        fields = asdict(self)
        fields["parameters"] = [dict(p) for p in self.parameters]
        if not self.arithmetic:
            del fields["arithmetic"]
        if not self.title:
            del fields["title"]
        return dag_cbor.encode(fields)

    @property
    def digest(self) -> Digest:
        """SHA-256 of `encode()`: the `specDigest` of JobParams."""
        return Digest(sha256(self.encode()).digest())

    @staticmethod
    def decode(data: bytes, digest: bytes | None = None) -> JobSpec:
        """Decodes a spec's file. Raises Mismatch if its digest is not `digest` or it does not parse."""
        if digest is not None and sha256(data).digest() != digest:
            raise Mismatch("the spec's digest is not the job's", hint="fetch it again; do not run the job")
        with refusing(Mismatch, "a spec", hint="its author wrote another version"):
            fields = _SPEC(from_cbor(data, MAX_SPEC_BYTES), "the spec")
        spec = JobSpec(**{**fields, "parameters": tuple(fields["parameters"])})
        if spec.version != SPEC_VERSION:
            raise Mismatch(
                f"spec version {spec.version}, this build reads {SPEC_VERSION}",
                hint="install the job's release",
            )
        return spec
