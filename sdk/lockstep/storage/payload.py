"""Encodes payloads and checkpoints: a manifest of fixed length that names one blob per tensor.

A claim commits to the decoded tensors (`out` is their subtree root), not to these bytes. A payload is stored in its
strategy's wire format (one of `formats`, or one signed byte per element and one scale per block of 256) if that is
lossless, else as plain words. The strategy's `encode` produces tensors for which its format is lossless.

A carry (persisted worker state) is a separate container of plain words: its owner's next round starts from exactly
these bits. The payload's manifest links to the carry, so a commitment to the payload's CID covers the carry. Readers of
the payload fetch only that link, whatever the carry's size.

Tensors are never all in memory: each is hashed, stored and quantised in pieces, and a large one is decoded to a
memory-mapped file of the cache.
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
"""Formats that this module implements in pieces; `formats.registry.named` has all others."""
BLOCK = 256
"""Elements that share a scale: one 1 KiB leaf."""
INT8_MAX = 127
MAX_TENSORS = 1 << 14
"""Most tensors of one payload or checkpoint: its manifest is one block."""
PIECE = 1 << 18
"""Elements that are quantised or decoded at a time: a multiple of BLOCK."""
WORDS = ".words"
"""Suffix of a blob's name in the cache for the same tensor as plain words."""

Array = NDArray[np.float32] | NDArray[np.int32]
Headers = Sequence[TensorHeader | None]
Name = Callable[[memoryview], Cid]
"""Maps the bytes of a blob to its CID: `cid_of`, or a store's `put`, which also stores the blob."""

_LINK = bytes(39)
"""Placeholder of the same length in DAG-CBOR as a link."""


@dataclass(frozen=True)
class Checkpoint:
    """The result of a merge, as flat float32 tensors: shared ones (parameters) and outer ones (an outer optimizer's
    momentum, an evaluation's metrics).
    """

    shared: tuple[NDArray[np.float32], ...] = field(repr=False)
    outer: tuple[NDArray[np.float32], ...] = field(repr=False)


# -- checkpoints -------------------------------------------------------------------------------------------------------


def encode_checkpoint(checkpoint: Checkpoint, name: Name = cid_of) -> bytes:
    """Encodes a checkpoint's manifest `{shared: [link], outer: [link]}`; passes each tensor's words to `name`."""
    parts = {"shared": checkpoint.shared, "outer": checkpoint.outer}
    _require_count(sum(map(len, parts.values())))
    return dag_cbor.encode({k: [link_of(name(_words(t))) for t in tensors] for k, tensors in parts.items()})


def store_checkpoint(store: ContentStore, checkpoint: Checkpoint) -> Cid:
    """Stores a checkpoint; returns its manifest's CID."""
    return store.put(encode_checkpoint(checkpoint, store.put), codec="dag-cbor")


def load_checkpoint(
    store: ContentStore, cid: str, shared: Headers, outer: Headers, *, fresh: bool = False
) -> Checkpoint:
    """Loads the checkpoint named `cid` with the layouts `shared` and `outer` (None = EMPTY).

    Raises Mismatch if the content is not such a checkpoint, and the store's BlobMissing, BlobCorrupt and Unreachable.
    The caller checks the roots. With `fresh`, cached files are hashed again before use, because an earlier check found
    them wrong.
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
    """Encodes a payload's manifest `{format, tensors: [link]}`, with `carry: link` if the job has a carry; passes each
    tensor's bytes to `name`.

    If the format's length varies, `lengths` has the bytes of each tensor as little-endian u32.
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
    """Stores a payload that links to an already stored carry; returns its manifest's CID."""
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
    """Loads the tensors of the payload named `cid` with the layout `headers` (None = EMPTY), without its carry.

    Raises PayloadInvalid unless the payload has this layout, in `wire_format` or as plain words, and a link to a carry
    if the job `carries`; also the store's BlobMissing, BlobCorrupt and Unreachable. `fresh` is as in `load_checkpoint`.
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
    """Loads the tensors of the carry that the payload named `cid` links to, with the layout `carry`; `headers` is the
    payload's layout.

    Raises as `load_payload` does, for either container.
    """
    beside = _read_manifest(store, cid, _present(headers), wire_format, True).carry
    assert beside is not None, "a manifest of a job with a carry names it"
    return load_payload(store, beside, carry, wire_format=F32_FORMAT, fresh=fresh)


def stored_length(
    store: ContentStore, cid: str, headers: Headers, *, wire_format: str = INT8_FORMAT, carries: bool = False
) -> int:
    """Returns the stored bytes of the payload named `cid`, manifest and blobs; fetches only the manifest.

    Raises as `load_payload` does for a manifest.
    """
    due = _present(headers)
    found = _read_manifest(store, cid, due, wire_format, carries)
    return _container_length(found.format, due, carries) + sum(found.lengths)


def wire_length(headers: Headers, wire_format: str, carries: bool = False) -> int:
    """Returns the bytes of a payload with this layout and format, manifest and blobs; the most if they vary.

    A carry is not included, because a merge does not fetch it; its bytes are those of a payload of its layout in `f32`.
    """
    due = _present(headers)
    return _container_length(wire_format, due, carries) + sum(blob_length(h, wire_format) for h in due)


# -- tensors -----------------------------------------------------------------------------------------------------------


def format_of(tensors: Sequence[Array], wire_format: str) -> str:
    """Returns the format in which tensors are stored: `wire_format` if it is lossless for them, else `f32`.

    Raises PayloadInvalid for an unknown format.
    """
    try:
        carries = _is_exact if wire_format in FORMATS else partial(_packs, named(wire_format))
    except UsageError as error:
        raise PayloadInvalid(error.message, error.hint) from error
    return wire_format if wire_format == F32_FORMAT or all(map(carries, tensors)) else F32_FORMAT


def encoded(tensors: Sequence[Array], wire_format: str) -> Iterator[memoryview]:
    """Yields each tensor's bytes in a format that `format_of` returned: words, or codes followed by scales."""
    if wire_format in FORMATS:
        return map(_words if wire_format == F32_FORMAT else _coded, tensors)
    form = named(wire_format)
    return (memoryview(form.pack(_flat(t))) for t in tensors)


def decoded(data: memoryview, header: TensorHeader, wire_format: str) -> Array:
    """Decodes the `blob_length` bytes that `encoded` made of a tensor.

    Raises PayloadInvalid if they encode no tensor.
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
    """Returns the bytes of a tensor with this header in this format; if they vary, of an encoding that begins with
    `head`, else the most.
    """
    if wire_format == F32_FORMAT:
        return 4 * header.elements
    if wire_format == INT8_FORMAT:
        return header.elements + 4 * (header.elements // BLOCK)
    form = named(wire_format)
    return form.longest(header.elements) if head is None else form.length(header.elements, head)


def varies(wire_format: str) -> bool:
    """True if the length of a tensor's encoding does not follow from its number of elements."""
    return wire_format not in FORMATS and named(wire_format).head > 0


def fitting(headers: Headers, wire_format: str) -> str:
    """Returns the format for payloads of this layout: `wire_format`, or `f32` if it does not support the layout."""
    return wire_format if all(_fits(h, wire_format) for h in _present(headers)) else F32_FORMAT


# -- inside ------------------------------------------------------------------------------------------------------------


def _manifest(store: ContentStore, cid: str, lengths: set[int]) -> bytes:
    parse_cid(cid)
    block = store.fetch_block(Cid(cid))
    if len(block) not in lengths:
        raise PayloadInvalid(
            f"manifest {cid} has {len(block)} bytes, not {' or '.join(map(str, sorted(lengths)))}",
            "its publisher stored another job's manifest, or a part of one",
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
    """Returns a blob's tensor; a large tensor that needs decoding is decoded once per machine."""
    size = 4 * header.elements
    if wire_format == F32_FORMAT or size < MAPPED_BYTES:
        return decoded(data, header, wire_format)
    if wire_format == INT8_FORMAT:
        pieces = partial(_read_int8, data, header)
        return _array(store.cache.made(cid + WORDS, size, lambda: (p.data for p in pieces())), header)
    # Different formats have different cache files for the same bytes.
    name = f"{cid}.{wire_format}{WORDS}"
    return _array(store.cache.made(name, size, lambda: iter([_words(decoded(data, header, wire_format))])), header)


@dataclass(frozen=True)
class _Manifest:
    """A payload's manifest, parsed and checked against its layout."""

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
    """Returns the lengths of the blobs. Raises Malformed if one exceeds what its tensor can have."""
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
    """True if a format supports tensors with this header."""
    if wire_format == F32_FORMAT:
        return True
    return header.dtype == F32 and (header.elements % BLOCK == 0 if wire_format == INT8_FORMAT else header.elements > 0)


def _packs(form: WireFormat, tensor: Array) -> bool:
    """Returns True if a format can encode a tensor's bits exactly."""
    try:
        form.pack(_flat(tensor))
    except PayloadInvalid:
        return False
    return True


def _is_exact(tensor: Array) -> bool:
    """Returns True if codes and scales decode to a tensor's exact bits."""
    values = np.ascontiguousarray(tensor).reshape(-1)
    if values.dtype != np.float32 or values.size % BLOCK:
        return False
    for piece in _pieces(values):
        # NaN, infinity and values lost in a scale compare unequal below or are found here.
        if not np.isfinite(piece).all():
            return False
        codes, scales = _quantised(piece)
        if not np.array_equal(_unquantised(codes, scales).view(np.uint32), piece.view(np.uint32)):
            return False
    return True


def _coded(tensor: Array) -> memoryview:
    """Encodes a tensor as codes followed by scales."""
    values = np.ascontiguousarray(tensor, np.float32).reshape(-1)
    out = np.empty(values.size + 4 * (values.size // BLOCK), np.uint8)
    codes, scales = out[: values.size].view(np.int8), out[values.size :].view("<f4")
    for at, piece in zip(range(0, values.size, PIECE), _pieces(values), strict=True):
        codes[at : at + piece.size], scales[at // BLOCK : (at + piece.size) // BLOCK] = _quantised(piece)
    return out.data


def _read_int8(data: memoryview, header: TensorHeader) -> Iterator[NDArray[np.float32]]:
    """Decodes codes and scales, piece by piece."""
    codes, scales = np.frombuffer(data[: header.elements], np.int8), np.frombuffer(data[header.elements :], "<f4")
    for at in range(0, header.elements, PIECE):
        yield _unquantised(codes[at : at + PIECE], scales[at // BLOCK : (at + PIECE) // BLOCK])


def _quantised(values: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    blocks = values.reshape(-1, BLOCK)
    # The strategy gives the code 127 to each block's largest magnitude, and scales short enough for exact products.
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
