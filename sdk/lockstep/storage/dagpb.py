"""Encodes and strictly parses dag-pb blocks of UnixFS files (protobuf in canonical form).

    message PBNode  { repeated PBLink Links = 2; optional bytes Data = 1; }      (links are written first)
    message PBLink  { bytes Hash = 1; string Name = 2; uint64 Tsize = 3; }
    message UnixFS  { DataType Type = 1; bytes Data = 2; uint64 filesize = 3; repeated uint64 blocksizes = 4 }

Source: ipld.io/specs/codecs/dag-pb/spec and specs.ipfs.tech/unixfs. Only file nodes without data of their own are
written and read: all bytes are in their children.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.protocol.errors import BlobCorrupt, UsageError
from lockstep.protocol.types import Cid
from lockstep.storage.cid import cid_from_bytes, cid_to_bytes

_VARINT, _BYTES = 0, 2
_UNIXFS_FILE = 2
_MAX_VARINT = (1 << 63) - 1


@dataclass(frozen=True)
class Link:
    """A link to one child of a file node."""

    cid: Cid
    """CID of the child's block."""
    size_bytes: int
    """File bytes in the subtree of this child."""
    tree_bytes: int
    """Block bytes of the child and its subtree (dag-pb's Tsize)."""


@dataclass(frozen=True)
class FileNode:
    """An inner node of a UnixFS file: its content is the concatenation of its children."""

    links: tuple[Link, ...]

    @property
    def size_bytes(self) -> int:
        """File bytes in the subtree of this node."""
        return sum(link.size_bytes for link in self.links)

    def encode(self) -> bytes:
        """Returns the canonical dag-pb block."""
        links = b"".join(_field(2, _encode_link(link)) for link in self.links)
        unixfs = _varint_field(1, _UNIXFS_FILE) + _varint_field(3, self.size_bytes)
        unixfs += b"".join(_varint_field(4, link.size_bytes) for link in self.links)
        return links + _field(1, unixfs)

    @classmethod
    def decode(cls, block: bytes) -> FileNode:
        """Parses a dag-pb block. Raises BlobCorrupt unless it is the canonical encoding of a non-empty file node."""
        try:
            node = _decode_node(block)
        except (ValueError, UsageError) as error:
            raise BlobCorrupt(
                f"a dag-pb block is not a UnixFS file: {error}",
                "store the content as one file, not as a directory",
            ) from error
        # INVARIANT: a block has one meaning: what re-encodes to other bytes is refused, whatever it says.
        if node.encode() != block:
            raise BlobCorrupt("a dag-pb block is not canonical", "store the content again with `lockstep storage put`")
        return node


def _decode_node(block: bytes) -> FileNode:
    raw_links: list[bytes] = []
    data: bytes | None = None
    for number, value in _fields(block):
        if number == 2 and isinstance(value, bytes):
            raw_links.append(value)
        elif number == 1 and isinstance(value, bytes) and data is None:
            data = value
        else:
            raise ValueError(f"unexpected node field {number}")
    sizes = _decode_sizes(data or b"")
    # INVARIANT: every child brings at least one byte, so a file's size bounds the work of reading it.
    if len(sizes) != len(raw_links) or not sizes or min(sizes) < 1:
        raise ValueError("children and their sizes do not agree")
    return FileNode(tuple(_decode_link(raw, size) for raw, size in zip(raw_links, sizes, strict=True)))


def _decode_sizes(data: bytes) -> list[int]:
    sizes: list[int] = []
    for number, value in _fields(data):
        if number == 1 and value != _UNIXFS_FILE:
            raise ValueError(f"UnixFS type {value!r} is not a file")
        if number == 4 and isinstance(value, int):
            sizes.append(value)
        elif number not in (1, 3):
            raise ValueError(f"unexpected UnixFS field {number}")
    return sizes


def _encode_link(link: Link) -> bytes:
    # Kubo writes the empty name; without it the CID would differ
    return _field(1, cid_to_bytes(link.cid)) + _field(2, b"") + _varint_field(3, link.tree_bytes)


def _decode_link(raw: bytes, size_bytes: int) -> Link:
    fields = list(_fields(raw))
    match fields:
        case [(1, bytes(hash_)), (2, b""), (3, int(tree_bytes))]:
            return Link(cid_from_bytes(hash_), size_bytes, tree_bytes)
    raise ValueError("a link is not (hash, empty name, size)")


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        value, at = _read_varint(message, at)
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        elif tag & 7 == _BYTES and at + value <= len(message):
            yield tag >> 3, message[at : at + value]
            at += value
        else:
            raise ValueError("a protobuf field is cut off or of an unknown type")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 63:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
    raise ValueError("a varint is cut off or too long")


def _varint(value: int) -> bytes:
    if not 0 <= value <= _MAX_VARINT:
        raise ValueError(f"varint out of range: {value}")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(payload)) + payload


def _varint_field(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)
