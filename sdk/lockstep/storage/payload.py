"""Payloads and checkpoints on the wire: DAG-CBOR of fixed length, checked before it is decoded.

What a claim commits to are the decoded tensors (`out` is their subtree root); these bytes only carry them. A payload
travels as plain words, or as one signed byte per element and one scale per block of 256, wherever that loses nothing:
`encode` of a strategy that quantises leaves tensors for which it does not. A published carry travels with the payload,
always as plain words: its next round starts from every bit of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dag_cbor
import numpy as np
from numpy.typing import NDArray

from lockstep.decoding import U32, anything, from_cbor, octets, refusing, several, table, text
from lockstep.protocol.errors import Malformed, Mismatch, PayloadInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.program import F32, I32

F32_FORMAT = "f32"
INT8_FORMAT = "int8-block"
FORMATS = (F32_FORMAT, INT8_FORMAT)
BLOCK = 256
"""Elements under one scale: one 1 KiB leaf."""
INT8_MAX = 127
MAX_CHECKPOINT_BYTES = 1 << 30
"""Most that a party decodes of one checkpoint."""

_PARTS = several(octets(), U32)
_CHECKPOINT = table({"shared": _PARTS, "outer": _PARTS})
_CODES = several(octets(), 2)

Array = NDArray[np.float32] | NDArray[np.int32]
Headers = Sequence[TensorHeader | None]


@dataclass(frozen=True)
class Checkpoint:
    """What a merge leaves: the shared tensors (parameters) and the outer ones (an outer optimizer's momentum, an
    evaluation's metrics), flat float32."""

    shared: tuple[NDArray[np.float32], ...] = field(repr=False)
    outer: tuple[NDArray[np.float32], ...] = field(repr=False)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """`{shared: [bytes], outer: [bytes]}`."""
    return dag_cbor.encode(
        {
            "shared": [_words(t).tobytes() for t in checkpoint.shared],
            "outer": [_words(t).tobytes() for t in checkpoint.outer],
        }
    )


def decode_checkpoint(data: bytes) -> Checkpoint:
    """The inverse; Mismatch if the bytes are no checkpoint. Whose checkpoint it is, its roots say."""
    with refusing(Mismatch, "a checkpoint", "fetch it elsewhere, or recompute the merge"):
        fields = _CHECKPOINT(from_cbor(data, MAX_CHECKPOINT_BYTES), "the checkpoint")
        return Checkpoint(*(tuple(_floats(part) for part in fields[k]) for k in ("shared", "outer")))


def encode_payload(tensors: Sequence[Array], wire_format: str = F32_FORMAT, carry: Sequence[Array] = ()) -> bytes:
    """The tensors on the wire; `int8-block` falls back to `f32` where decoding would not give the same bits."""
    if wire_format not in FORMATS:
        raise PayloadInvalid(f"no wire format is called {wire_format!r}", f"one of {', '.join(FORMATS)}")
    if wire_format == INT8_FORMAT:
        coded = [_quantised(t) for t in tensors]
        if all(c is not None for c in coded):
            return _container(INT8_FORMAT, [list(c) for c in coded if c is not None], _bytes(carry))
    return _container(F32_FORMAT, _bytes(tensors), _bytes(carry))


def _container(wire_format: str, parts: list[Any], carry: list[bytes]) -> bytes:
    fields: dict[str, Any] = {"format": wire_format, "tensors": parts}
    return dag_cbor.encode(fields | {"carry": carry} if carry else fields)


def _bytes(tensors: Sequence[Array]) -> list[bytes]:
    return [_words(t).tobytes() for t in tensors]


def decode_payload(data: bytes, headers: Headers, carry: Headers = ()) -> tuple[Array, ...]:
    """The tensors of a payload laid out as `headers` (None = EMPTY), then those of its carry.

    PayloadInvalid unless it is exactly such.
    """
    due, carried = [h for h in headers if h is not None], [h for h in carry if h is not None]
    lengths = {f: wire_length(due, f, carried) for f in FORMATS if f == F32_FORMAT or all(map(_quantisable, due))}
    # INVARIANT: a payload has the length that its layout and format imply; nothing longer is parsed.
    if len(data) not in lengths.values():
        raise PayloadInvalid(
            f"a payload of {len(data)} bytes where {' or '.join(str(n) for n in lengths.values())} are due",
            "the slot's owner stored another job's payload, or part of one",
        )
    with refusing(PayloadInvalid, "a payload", "it counts as absent"):
        carries = {"carry": several(octets(), len(carried))} if carried else {}
        form = table({"format": text(), "tensors": several(anything, len(due)), **carries})
        # Its values are three a tensor at most, beside the containers'.
        fields = form(from_cbor(data, len(data), most_items=3 * len(due) + len(carried) + 16), "the payload")
        wire_format, parts, more = fields["format"], fields["tensors"], fields.get("carry", ())
        if wire_format not in lengths or len(parts) != len(due) or len(more) != len(carried):
            raise Malformed(f"{len(parts)} tensors of format {wire_format[:40]!r}, {len(more)} of a carry")
        read = _read_int8 if wire_format == INT8_FORMAT else _read_words
        return (
            *(read(part, header) for part, header in zip(parts, due, strict=True)),
            *(_read_words(part, header) for part, header in zip(more, carried, strict=True)),
        )


def wire_length(headers: Headers, wire_format: str, carry: Headers = ()) -> int:
    """Bytes of every payload of this layout in this format."""
    due = [h for h in headers if h is not None]
    if wire_format == INT8_FORMAT:
        parts: list[Any] = [[bytes(h.elements), bytes(4 * (h.elements // BLOCK))] for h in due]
    else:
        parts = [bytes(4 * h.elements) for h in due]
    return len(_container(wire_format, parts, [bytes(4 * h.elements) for h in carry if h is not None]))


def _quantisable(header: TensorHeader) -> bool:
    return header.dtype == F32 and header.elements % BLOCK == 0


def _quantised(tensor: Array) -> tuple[bytes, bytes] | None:
    """(codes, scales), or None if they would not decode to the same bits."""
    values = np.ascontiguousarray(tensor).reshape(-1)
    if values.dtype != np.float32 or values.size % BLOCK or not np.isfinite(values).all():
        return None
    blocks = values.reshape(-1, BLOCK)
    # The strategy gives each block's largest magnitude the code 127, and scales short enough for an exact product.
    scales = (np.abs(blocks).max(1) / np.float32(INT8_MAX)).astype(np.float32)
    safe = np.where(scales > 0, scales, np.float32(1))
    ratios = np.clip(np.rint(blocks / safe[:, None]), -INT8_MAX, INT8_MAX)
    codes = ratios.astype(np.int8)
    if _decoded(codes, scales).tobytes() != values.tobytes():
        return None
    return codes.tobytes(), scales.tobytes()


def _decoded(codes: NDArray[np.int8], scales: NDArray[np.float32]) -> NDArray[np.float32]:
    return codes.astype(np.float32).reshape(-1, BLOCK) * scales[:, None]


def _read_int8(part: object, header: TensorHeader) -> Array:
    pair = _CODES(part, "a tensor")
    if [len(x) for x in pair] != [header.elements, 4 * (header.elements // BLOCK)]:
        raise Malformed(f"{[len(x) for x in pair]} bytes of codes and scales for {header.elements} elements")
    codes, scales = pair
    return _decoded(np.frombuffer(codes, np.int8), np.frombuffer(scales, "<f4")).reshape(header.shape)


def _read_words(part: object, header: TensorHeader) -> Array:
    data = octets(4 * header.elements)(part, "a tensor")
    return np.frombuffer(data, "<i4" if header.dtype == I32 else "<f4").reshape(header.shape)


def _words(tensor: Array) -> Array:
    array = np.ascontiguousarray(tensor)
    if array.dtype not in (np.float32, np.int32):
        raise PayloadInvalid(f"a tensor of {array.dtype}", "payloads and checkpoints are float32 or int32")
    return array.astype("<i4" if array.dtype == np.int32 else "<f4")


def _floats(part: bytes) -> NDArray[np.float32]:
    if not part or len(part) % 4:
        raise Malformed("a tensor is a whole number of 4-byte words")
    return np.frombuffer(part, "<f4")
