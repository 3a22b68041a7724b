"""Content identifiers: CIDv1 over SHA-256, in their one canonical spelling."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from multiformats import CID

from lockstep.protocol.errors import BlobCorrupt, UsageError
from lockstep.protocol.types import Cid

Codec = Literal["raw", "dag-pb", "dag-cbor"]
Bytes = bytes | bytearray | memoryview

_MARKS: dict[Codec, int] = {"raw": 0x55, "dag-pb": 0x70, "dag-cbor": 0x71}
_NAMES = {mark: codec for codec, mark in _MARKS.items()}
_SHA256 = bytes([0x12, 32])
"""Hash function and digest length, as encoded in a CID."""
# One block's CID is requested many times.
_cached = lru_cache(maxsize=16384)

MAX_CHARACTERS = 128
"""Longest text that is parsed as a CID; canonical CIDs have 59 characters."""
CID_BYTES = 36
"""Length of a binary CID: version, codec, hash function and digest length, one byte each, then 32 bytes of SHA-256."""


_FORM = re.compile(r"b[a-z2-7]{58}", re.ASCII)


@dataclass(frozen=True)
class ParsedCid:
    """Codec and digest of a CID."""

    codec: Codec
    """The format of the block's bytes."""
    digest: bytes
    """SHA-256 of the block's bytes, 32 bytes."""


@_cached
def cid_of_digest(digest: bytes, codec: Codec = "raw") -> Cid:
    """Returns the CID of a block whose SHA-256 is `digest` (32 bytes)."""
    if len(digest) != CID_BYTES - 4:
        raise ValueError(f"a SHA-256 has {CID_BYTES - 4} bytes, this one has {len(digest)}")
    raw = bytes([1, _MARKS[codec]]) + _SHA256 + digest
    return Cid("b" + base64.b32encode(raw).decode().rstrip("=").lower())


def cid_of_block(block: Bytes, codec: Codec = "raw") -> Cid:
    """Returns the CID of one block of any size. For content of several blocks use `lockstep.storage.cid_of`."""
    return cid_of_digest(hashlib.sha256(block).digest(), codec)


@_cached
def parse_cid(text: str) -> ParsedCid:
    """Parses a CID. Raises UsageError unless it is a canonical CIDv1 over SHA-256 of a known codec."""
    return _canonical(text) or _parse(_decode(text), text)


@_cached
def cid_to_bytes(cid: str) -> bytes:
    """Returns the 36-byte binary form, as written on chain and into DAG-CBOR."""
    parsed = parse_cid(cid)
    return bytes([1, _MARKS[parsed.codec]]) + _SHA256 + parsed.digest


@_cached
def cid_from_bytes(raw: bytes) -> Cid:
    """Returns the canonical text of a 36-byte binary CIDv1. Raises UsageError for any other `raw`."""
    if len(raw) != CID_BYTES:
        raise UsageError(
            f"a binary CID has {CID_BYTES} bytes, this one has {len(raw)}", "only CIDv1 over SHA-256 is used"
        )
    if raw[0] != 1 or raw[1] not in _NAMES or raw[2:4] != _SHA256:
        raise UsageError(f"not a binary CID: {raw.hex()}", "only CIDv1 over SHA-256 is used")
    return cid_of_digest(raw[4:], _NAMES[raw[1]])


def verify_block(cid: str, block: Bytes, *, source: str) -> None:
    """Raises BlobCorrupt unless `block` hashes to `cid`; `source` names the origin of the bytes in the error."""
    # INVARIANT: no byte leaves a store that does not hash to the CID that was asked for.
    if hashlib.sha256(block).digest() != parse_cid(cid).digest:
        raise BlobCorrupt(
            f"block {cid} from {source} is damaged: its {len(block)} bytes do not hash to the CID",
            "put the content again from a good copy, or read it from another store",
        )


def _canonical(text: str) -> ParsedCid | None:
    """Parses a CID in its canonical form; returns None for any other text."""
    if _FORM.fullmatch(text) is None:
        return None
    raw = base64.b32decode(text[1:].upper() + "======")
    if raw[0] != 1 or raw[1] not in _NAMES or raw[2:4] != _SHA256:
        return None
    parsed = ParsedCid(_NAMES[raw[1]], raw[4:])
    # The last character encodes two bits more than the bytes have.
    return parsed if cid_of_digest(parsed.digest, parsed.codec) == text else None


def _decode(text: str) -> CID:
    """Decodes a CID that is not in canonical form, to find the reason.

    Each of its errors keeps a cycle of stack frames alive, so valid CIDs are parsed by `_canonical`.
    """
    # multiformats raises several unrelated exception types for malformed text, and is slow for long text.
    try:
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{len(text)} characters")
        decoded = CID.decode(text)
    except Exception as error:
        raise _no_cid(text) from error
    # INVARIANT: one content has one name: two spellings of a CID would be two keys in a database.
    if str(decoded) != text or decoded.base.name != "base32":
        raise UsageError(f"not a canonical CID: {text!r}", "use the lower-case base32 form of a CIDv1")
    return decoded


def _no_cid(text: str) -> UsageError:
    return UsageError(f"not a CID: {text[:MAX_CHARACTERS]!r}", "a CID looks like bafkrei... and has 59 characters")


def _parse(decoded: CID, text: str) -> ParsedCid:
    # multiformats checks a digest only on access, and then raises various exceptions.
    try:
        digest = bytes(decoded.raw_digest)
    except Exception as error:
        raise _no_cid(text) from error
    supported = decoded.version == 1 and decoded.hashfun.name == "sha2-256" and len(digest) == 32
    if not supported or decoded.codec.name not in _MARKS:
        raise UsageError(f"unsupported CID: {text!r}", f"use CIDv1, sha2-256 and one of {', '.join(_MARKS)}")
    return ParsedCid(codec=decoded.codec.name, digest=digest)


def _use_every_table() -> None:
    # multiformats registers an encoding or a hash on first use, and fails if threads do so at once. The import's lock
    # admits one thread.
    for codec in _MARKS:
        _parse(_decode(cid_of_digest(bytes(32), codec)), codec)


_use_every_table()
