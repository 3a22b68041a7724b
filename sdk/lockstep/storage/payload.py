"""Payloads and checkpoints on the wire: a manifest of fixed length that names one blob per tensor.

What a claim commits to are the decoded tensors (`out` is their subtree root); these bytes only carry them. A payload
travels as plain words, or in its strategy's wire format (one of `formats`, or one signed byte per element and one scale
per block of 256), wherever that loses nothing: `encode` of the strategy leaves tensors for which it does not.

A carry is a container of its own, always of plain words: its owner's next round starts from every bit of it. The
manifest of the payload beside it links to it, so whoever commits to a payload's CID commits to the carry's, and whoever
reads the payload fetches one link more, whatever the carry's size.

Nothing here holds all tensors at once: each is hashed, stored and quantised in pieces, and decoded to a mapping of the
cache where it is large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import dag_cbor
import numpy as np
from numpy.typing import NDArray

from lockstep.base.decoding import from_cbor, octets, refusing, several, table, text
from lockstep.protocol.errors import Malformed, Mismatch, PayloadInvalid, UsageError
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32
from lockstep.protocol.types import Cid
from lockstep.storage.cid import parse_cid
from lockstep.storage.formats.registry import named
from lockstep.storage.links import link_of, read_link
from lockstep.storage.store import MAPPED_BYTES
from lockstep.storage.unixfs import cid_of

if TYPE_CHECKING:
    from lockstep.storage.formats.base import WireFormat
    from lockstep.storage.store import ContentStore

F32_FORMAT = "f32"
INT8_FORMAT = "int8-block"
FORMATS = (F32_FORMAT, INT8_FORMAT)
"""The formats of this module, tensor by tensor in pieces; all others are `formats.registry.named`."""
BLOCK = 256
"""Elements under one scale: one 1 KiB leaf."""
INT8_MAX = 127
MAX_TENSORS = 1 << 14
"""The most tensors of one payload or checkpoint: its manifest is one block."""
PIECE = 1 << 18
"""Elements that are quantised, or read back, at once: a multiple of BLOCK."""
WORDS = ".words"
"""Ending of a blob's name in the cache: the same tensor as plain words."""

Array = NDArray[np.float32] | NDArray[np.int32]
Headers = Sequence[TensorHeader | None]
Name = Callable[[memoryview], Cid]
"""Bytes of a blob -> its CID: `cid_of`, or a store's `put`, which also keeps the blob."""

_LINK = bytes(39)
"""A value as long in DAG-CBOR as a link."""


@dataclass(frozen=True)
class Checkpoint:
    """The result of a merge: the shared tensors (parameters) and the outer ones (an outer optimizer's momentum, an
    evaluation's metrics), flat float32."""

    shared: tuple[NDArray[np.float32], ...] = field(repr=False)
    outer: tuple[NDArray[np.float32], ...] = field(repr=False)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def encode_checkpoint(checkpoint: Checkpoint, name: Name = cid_of) -> bytes:
    """Encodes a checkpoint as the manifest `{shared: [link], outer: [link]}`; gives each tensor's words to `name`."""
    parts = {"shared": checkpoint.shared, "outer": checkpoint.outer}
    _require_count(sum(map(len, parts.values())))
    return dag_cbor.encode({k: [link_of(name(_words(t))) for t in tensors] for k, tensors in parts.items()})


def store_checkpoint(store: ContentStore, checkpoint: Checkpoint) -> Cid:
    """Stores a checkpoint; returns its manifest's CID."""
    return store.put(encode_checkpoint(checkpoint, store.put), codec="dag-cbor")


def load_checkpoint(
    store: ContentStore, cid: str, shared: Headers, outer: Headers, *, fresh: bool = False
) -> Checkpoint:
    """The checkpoint named `cid`, laid out as `shared` and `outer` (None = EMPTY).

    Mismatch if it is none, BlobMissing, BlobCorrupt and Unreachable from the store. Whose checkpoint it is, its roots
    say. `fresh`: what is in the cache was found wrong, and is believed only if its blocks hash to their CIDs.
    """
    due = {"shared": _present(shared), "outer": _present(outer)}
    length = len(dag_cbor.encode({k: [_LINK] * len(headers) for k, headers in due.items()}))
    hint = "fetch it elsewhere, or recompute the merge"
    try:
        block = _manifest(store, cid, {length})
        with refusing(Mismatch, "a checkpoint", hint):
            form = table({k: several(read_link, len(headers)) for k, headers in due.items()})
            fields = form(from_cbor(block, length), "the checkpoint")
            _require_links(fields, due)
        links = list(chain(*(fields[k] for k in due)))
        headers = list(chain(*due.values()))
        tensors = _fetched(store, links, headers, [F32_FORMAT] * len(headers), fresh)
    except PayloadInvalid as error:
        raise Mismatch(f"a checkpoint is not as long as its layout implies: {error.message}", hint) from error
    count = len(due["shared"])
    return Checkpoint(tuple(tensors[:count]), tuple(tensors[count:]))  # type: ignore[arg-type]


# -- payloads ----------------------------------------------------------------------------------------------------------


def encode_payload(
    tensors: Sequence[Array], wire_format: str = F32_FORMAT, carry: Cid | None = None, name: Name = cid_of
) -> bytes:
    """Encodes a payload as the manifest `{format, tensors: [link]}`, with `carry: link` if the job has a carry; gives
    each tensor's bytes to `name`.

    Where the length of a tensor's bytes does not follow from its elements, `lengths` has them as u32, little-endian.
    """
    _require_count(len(tensors))
    form = format_of(tensors, wire_format)
    links, lengths = [], []
    for part in encoded(tensors, form):
        links.append(link_of(name(part)))
        lengths.append(len(part))
    stated = np.array(lengths, "<u4").tobytes() if varies(form) else None
    return _container(form, links, None if carry is None else link_of(carry), stated)


def store_payload(
    store: ContentStore, tensors: Sequence[Array], wire_format: str = F32_FORMAT, carry: Cid | None = None
) -> Cid:
    """Stores a payload, linked to the carry stored before; returns its manifest's CID."""
    return store.put(encode_payload(tensors, wire_format, carry, store.put), codec="dag-cbor")


def store_carry(store: ContentStore, tensors: Sequence[Array]) -> Cid:
    """Stores a carry as plain words; returns its manifest's CID."""
    return store_payload(store, tensors, F32_FORMAT)


def load_payload(
    store: ContentStore,
    cid: str,
    headers: Headers,
    *,
    wire_format: str = INT8_FORMAT,
    carries: bool = False,
    fresh: bool = False,
) -> tuple[Array, ...]:
    """The tensors of the payload named `cid`, laid out as `headers` (None = EMPTY); nothing of its carry is fetched.

    PayloadInvalid unless it is exactly such, in `wire_format` or as plain words, with a link to a carry if the job
    `carries`; BlobMissing, BlobCorrupt and Unreachable from the store. `fresh`: as of `load_checkpoint`.
    """
    due = _present(headers)
    found = _read_manifest(store, cid, due, wire_format, carries)
    return tuple(_fetched(store, found.links, due, [found.format] * len(due), fresh, found.lengths))


def load_carry(
    store: ContentStore,
    cid: str,
    headers: Headers,
    carry: Headers,
    *,
    wire_format: str = INT8_FORMAT,
    fresh: bool = False,
) -> tuple[Array, ...]:
    """The tensors of the carry beside the payload named `cid`, laid out as `carry`; `headers` are the payload's.

    Raises as `load_payload` does, of either container.
    """
    beside = _read_manifest(store, cid, _present(headers), wire_format, True).carry
    assert beside is not None, "a manifest of a job with a carry names it"
    return load_payload(store, beside, carry, wire_format=F32_FORMAT, fresh=fresh)


def stored_length(
    store: ContentStore, cid: str, headers: Headers, *, wire_format: str = INT8_FORMAT, carries: bool = False
) -> int:
    """Bytes of the payload named `cid` as it is stored, its manifest and its blobs; the manifest alone is fetched.

    Raises as `load_payload` does, of the manifest.
    """
    due = _present(headers)
    found = _read_manifest(store, cid, due, wire_format, carries)
    return _container_length(found.format, due, carries) + sum(found.lengths)


def wire_length(headers: Headers, wire_format: str, carries: bool = False) -> int:
    """Bytes of every payload of this layout in this format, its manifest and its blobs; the most where they vary.

    A carry's own bytes, which nobody fetches who merges, are those of a payload of its layout in `f32`.
    """
    due = _present(headers)
    return _container_length(wire_format, due, carries) + sum(blob_length(h, wire_format) for h in due)


# -- tensors -----------------------------------------------------------------------------------------------------------


def format_of(tensors: Sequence[Array], wire_format: str) -> str:
    """Returns the format in which tensors are stored: `wire_format`, or `f32` where decoding would give other bits.

    PayloadInvalid if no format has this name.
    """
    try:
        carries = _is_exact if wire_format in FORMATS else partial(_packs, named(wire_format))
    except UsageError as error:
        raise PayloadInvalid(error.message, error.hint) from error
    return wire_format if wire_format == F32_FORMAT or all(map(carries, tensors)) else F32_FORMAT


def encoded(tensors: Sequence[Array], wire_format: str) -> Iterator[memoryview]:
    """Each tensor's bytes in a format that `format_of` gave: its words, or its codes followed by its scales."""
    if wire_format in FORMATS:
        return map(_words if wire_format == F32_FORMAT else _coded, tensors)
    form = named(wire_format)
    return (memoryview(form.pack(_flat(t))) for t in tensors)


def decoded(data: memoryview, header: TensorHeader, wire_format: str) -> Array:
    """Decodes the `blob_length` bytes that `encoded` made of a tensor.

    PayloadInvalid if they are the form of no tensor.
    """
    if wire_format == F32_FORMAT:
        return _array(data, header)
    if wire_format not in FORMATS:
        return named(wire_format).unpack(data, header.elements).reshape(header.shape)
    words = np.empty(header.elements, np.float32)
    for at, piece in zip(range(0, header.elements, PIECE), _read_int8(data, header), strict=True):
        words[at : at + piece.size] = piece
    words.flags.writeable = False
    return words.reshape(header.shape)


def blob_length(header: TensorHeader, wire_format: str, head: bytes | None = None) -> int:
    """Bytes of a tensor of this form in this format; where they vary, of one that begins with `head`, else the most."""
    if wire_format == F32_FORMAT:
        return 4 * header.elements
    if wire_format == INT8_FORMAT:
        return header.elements + 4 * (header.elements // BLOCK)
    form = named(wire_format)
    return form.longest(header.elements) if head is None else form.length(header.elements, head)


def varies(wire_format: str) -> bool:
    """True if the length of a tensor's bytes does not follow from its elements."""
    return wire_format not in FORMATS and named(wire_format).head > 0


def fitting(headers: Headers, wire_format: str) -> str:
    """The format in which payloads of this layout can travel: `wire_format`, or `f32` if it has no form for them."""
    return wire_format if all(_fits(h, wire_format) for h in _present(headers)) else F32_FORMAT


# -- inside ------------------------------------------------------------------------------------------------------------


def _manifest(store: ContentStore, cid: str, lengths: set[int]) -> bytes:
    parse_cid(cid)
    block = store.fetch_block(Cid(cid))
    if len(block) not in lengths:
        raise PayloadInvalid(
            f"a manifest of {len(block)} bytes where {' or '.join(map(str, sorted(lengths)))} are due",
            "its publisher stored another job's, or part of one",
        )
    return block


def _fetched(
    store: ContentStore,
    links: Sequence[Cid],
    headers: Sequence[TensorHeader],
    formats: Sequence[str],
    fresh: bool,
    lengths: Sequence[int] | None = None,
) -> list[Array]:
    lengths = [blob_length(h, f) for h, f in zip(headers, formats, strict=True)] if lengths is None else lengths
    wanted = list(zip(links, lengths, strict=True))
    if fresh:
        for cid, _ in wanted:
            store.cache.refresh(cid)
    data = store.blobs(wanted)
    return [_tensor(store, *parts) for parts in zip(links, data, headers, formats, strict=True)]


def _tensor(store: ContentStore, cid: Cid, data: memoryview, header: TensorHeader, wire_format: str) -> Array:
    """A blob's tensor; what has to be computed of a large one is computed once for the machine."""
    size = 4 * header.elements
    if wire_format == F32_FORMAT or size < MAPPED_BYTES:
        return decoded(data, header, wire_format)
    if wire_format == INT8_FORMAT:
        pieces = partial(_read_int8, data, header)
        return _array(store.cache.made(cid + WORDS, size, lambda: (p.data for p in pieces())), header)
    # The words of one format's bytes are not those of another's.
    name = f"{cid}.{wire_format}{WORDS}"
    return _array(store.cache.made(name, size, lambda: iter([_words(decoded(data, header, wire_format))])), header)


@dataclass(frozen=True)
class _Manifest:
    """A payload's manifest, read and checked against its layout."""

    format: str
    links: list[Cid]
    lengths: list[int]
    carry: Cid | None


def _read_manifest(
    store: ContentStore, cid: str, due: Sequence[TensorHeader], wire_format: str, carries: bool
) -> _Manifest:
    forms = [f for f in dict.fromkeys((F32_FORMAT, wire_format)) if all(_fits(h, f) for h in due)]
    # INVARIANT: a payload has the length that its layout and format imply; nothing longer is fetched or parsed.
    block = _manifest(store, cid, {_container_length(f, due, carries) for f in forms})
    with refusing(PayloadInvalid, "a payload", "it counts as absent"):
        beside = {"carry": read_link} if carries else {}
        form = table({"format": text(), "tensors": several(read_link, len(due)), **beside}, {"lengths": octets()})
        fields: dict[str, Any] = form(from_cbor(block, len(block)), "the payload")
        found = fields["format"]
        if found not in forms or ("lengths" in fields) != varies(found):
            raise Malformed(f"format {found[:40]!r}")
        _require_links(fields, {"tensors": due})
        lengths = _lengths(fields.get("lengths"), due, found)
    return _Manifest(found, fields["tensors"], lengths, fields.get("carry"))


def _container(wire_format: str, parts: list[Any], carry: Any = None, lengths: bytes | None = None) -> bytes:
    fields: dict[str, Any] = {"format": wire_format, "tensors": parts}
    fields |= {} if carry is None else {"carry": carry}
    return dag_cbor.encode(fields if lengths is None else fields | {"lengths": lengths})


def _container_length(wire_format: str, due: Sequence[TensorHeader], carries: bool) -> int:
    stated = bytes(4 * len(due)) if varies(wire_format) else None
    return len(_container(wire_format, [_LINK] * len(due), _LINK if carries else None, stated))


def _lengths(stated: bytes | None, due: Sequence[TensorHeader], wire_format: str) -> list[int]:
    """Returns the lengths of the blobs; raises Malformed if one exceeds what its tensor can have."""
    most = [blob_length(h, wire_format) for h in due]
    if stated is None:
        return most
    found = [int(n) for n in np.frombuffer(stated, "<u4")] if len(stated) == 4 * len(due) else []
    least = named(wire_format).head
    # INVARIANT: no blob is fetched that is shorter or longer than its form can be.
    if len(found) != len(due) or any(not least <= n <= limit for n, limit in zip(found, most, strict=True)):
        raise Malformed("lengths that no tensors of this layout have")
    return found


def _require_count(tensors: int) -> None:
    # INVARIANT: a manifest is one block.
    if tensors > MAX_TENSORS:
        raise UsageError(f"a manifest has {tensors} tensors", f"use at most {MAX_TENSORS}, fewer and larger ones")


def _require_links(fields: dict[str, Any], due: Mapping[str, Sequence[TensorHeader]]) -> None:
    for k, headers in due.items():
        if len(fields[k]) != len(headers):
            raise Malformed(f"{k} names {len(fields[k])} tensors, {len(headers)} are due")


def _present(headers: Headers) -> list[TensorHeader]:
    return [h for h in headers if h is not None]


def _fits(header: TensorHeader, wire_format: str) -> bool:
    """True if a format has a form for tensors of this header."""
    if wire_format == F32_FORMAT:
        return True
    return header.dtype == F32 and (header.elements % BLOCK == 0 if wire_format == INT8_FORMAT else header.elements > 0)


def _packs(form: WireFormat, tensor: Array) -> bool:
    """Returns True if a form can carry exactly a tensor's bits."""
    try:
        form.pack(_flat(tensor))
    except PayloadInvalid:
        return False
    return True


def _is_exact(tensor: Array) -> bool:
    """Returns True if codes and scales decode to exactly a tensor's bits."""
    values = np.ascontiguousarray(tensor).reshape(-1)
    if values.dtype != np.float32 or values.size % BLOCK:
        return False
    for piece in _pieces(values):
        # What is no number, or lost in a scale, compares unequal below or is found here.
        if not np.isfinite(piece).all():
            return False
        codes, scales = _quantised(piece)
        if not np.array_equal(_unquantised(codes, scales).view(np.uint32), piece.view(np.uint32)):
            return False
    return True


def _coded(tensor: Array) -> memoryview:
    """A tensor's codes, followed by its scales."""
    values = np.ascontiguousarray(tensor, np.float32).reshape(-1)
    out = np.empty(values.size + 4 * (values.size // BLOCK), np.uint8)
    codes, scales = out[: values.size].view(np.int8), out[values.size :].view("<f4")
    for at, piece in zip(range(0, values.size, PIECE), _pieces(values), strict=True):
        codes[at : at + piece.size], scales[at // BLOCK : (at + piece.size) // BLOCK] = _quantised(piece)
    return out.data


def _read_int8(data: memoryview, header: TensorHeader) -> Iterator[NDArray[np.float32]]:
    """The words of a tensor's codes and scales, piece by piece."""
    codes, scales = np.frombuffer(data[: header.elements], np.int8), np.frombuffer(data[header.elements :], "<f4")
    for at in range(0, header.elements, PIECE):
        yield _unquantised(codes[at : at + PIECE], scales[at // BLOCK : (at + PIECE) // BLOCK])


def _quantised(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    blocks = values.reshape(-1, BLOCK)
    # The strategy gives each block's largest magnitude the code 127, and scales short enough for an exact product.
    scales = (np.abs(blocks).max(1) / np.float32(INT8_MAX)).astype(np.float32)
    safe = np.where(scales > 0, scales, np.float32(1))
    ratios = np.clip(np.rint(blocks / safe[:, None]), -INT8_MAX, INT8_MAX)
    return ratios.astype(np.int8).reshape(-1), scales


def _unquantised(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    words: NDArray[np.float32] = (codes.astype(np.float32).reshape(-1, BLOCK) * scales[:, None]).reshape(-1)
    return words


def _pieces(values: NDArray[Any]) -> Iterator[NDArray[np.float32]]:
    return (values[at : at + PIECE] for at in range(0, values.size, PIECE))


def _flat(tensor: Array) -> NDArray[np.float32]:
    flat: NDArray[Any] = np.ascontiguousarray(tensor).reshape(-1)
    return flat


def _array(data: memoryview, header: TensorHeader) -> Array:
    return np.frombuffer(data, "<i4" if header.dtype == I32 else "<f4").reshape(header.shape)


def _words(tensor: Array) -> memoryview:
    array = np.ascontiguousarray(tensor).reshape(-1)
    if array.dtype not in (np.float32, np.int32):
        raise PayloadInvalid(f"a tensor has dtype {array.dtype}", "give float32 or int32 in payloads and checkpoints")
    return array.astype("<i4" if array.dtype == np.int32 else "<f4", copy=False).view(np.uint8).data
