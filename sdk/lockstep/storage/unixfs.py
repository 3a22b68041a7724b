"""Splits content into a tree of blocks: the balanced UnixFS layout of `ipfs add --cid-version=1 --raw-leaves`.

Content is cut into chunks of 256 KiB, each a raw leaf. A single chunk is its own root; otherwise file nodes of up
to 174 children are built level by level until one is left. Any reader can therefore name content before it is
stored, and a Kubo node gives the same name to the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from lockstep.protocol.errors import BlobCorrupt, PayloadInvalid
from lockstep.protocol.types import Cid
from lockstep.storage.cid import Bytes, cid_of_block, parse_cid
from lockstep.storage.dagpb import FileNode, Link

CHUNK_BYTES = 256 * 1024
MAX_LINKS = 174
"""Most children of a node; Kubo derives 174 from nodes of 8 KiB."""
MAX_BLOCK_BYTES = 1 << 20
"""Largest block, in bytes, read or written: Kubo refuses larger ones on `block put`."""
MAX_DEPTH = 6
"""Deepest tree that is read: 174^6 chunks are 7 exabytes, so no honest tree is deeper."""


class BlockSource(Protocol):
    """A source of blocks. Both methods raise BlobMissing, BlobCorrupt or Unreachable."""

    def fetch_block(self, cid: Cid) -> bytes:
        """Returns the block named `cid`, verified."""
        ...

    def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
        """Yields the blocks of `links[first:]` in order, each verified; `links` are all children of `cid`, and raw."""
        ...


@dataclass(frozen=True)
class FileBlock:
    """A block and its CID."""

    cid: Cid
    data: bytes


def chunks_of(data: Bytes, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Cuts bytes into chunks; empty content is one empty chunk."""
    view = memoryview(data).cast("B")
    for at in range(0, max(len(view), 1), chunk_bytes):
        yield bytes(view[at : at + chunk_bytes])


def chunks_of_file(file: BinaryIO) -> Iterator[bytes]:
    """Cuts a binary file, from its current position, into chunks; an empty file is one empty chunk."""
    chunk = file.read(CHUNK_BYTES)
    yield chunk
    while len(chunk) == CHUNK_BYTES:
        chunk = file.read(CHUNK_BYTES)
        if chunk:
            yield chunk


def layout(chunks: Iterable[bytes], max_links: int = MAX_LINKS) -> Iterator[FileBlock]:
    """Yields a file's blocks, children before parents, the root last; holds one chunk and one node per level in
    memory.
    """
    levels: list[list[Link]] = [[]]

    def close(level: int) -> Iterator[FileBlock]:
        """Combines the pending links of `level` into one node, a child of the level above."""
        if level + 1 == len(levels):
            levels.append([])
        # a full node is closed only when a further child arrives, so that exactly 174 chunks need no second level
        if len(levels[level + 1]) == max_links:
            yield from close(level + 1)
        node = FileNode(tuple(levels[level]))
        block = node.encode()
        tree_bytes = len(block) + sum(link.tree_bytes for link in node.links)
        cid = cid_of_block(block, "dag-pb")
        levels[level] = []
        levels[level + 1].append(Link(cid, node.size_bytes, tree_bytes))
        yield FileBlock(cid, block)

    for chunk in chunks:
        if len(levels[0]) == max_links:
            yield from close(0)
        cid = cid_of_block(chunk)
        levels[0].append(Link(cid, len(chunk), len(chunk)))
        yield FileBlock(cid, chunk)

    level = 0
    while level < len(levels) - 1 or len(levels[level]) > 1:
        yield from close(level)
        level += 1


def cid_of(content: Bytes) -> Cid:
    """Returns the CID under which every store keeps `content`: that of `ipfs add --cid-version=1 --raw-leaves`."""
    return _last_cid(layout(chunks_of(content)))


def cid_of_file(file: BinaryIO) -> Cid:
    """Returns `cid_of` for a binary file from its current position, in constant memory."""
    return _last_cid(layout(chunks_of_file(file)))


def content_size(source: BlockSource, cid: Cid) -> int:
    """Returns the bytes of the content named `cid`; reads only its root block."""
    block = source.fetch_block(cid)
    return FileNode.decode(block).size_bytes if parse_cid(cid).codec == "dag-pb" else len(block)


def read_chunks(source: BlockSource, cid: Cid, *, max_bytes: int, least_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields the content named `cid`, chunk by chunk.

    Raises PayloadInvalid if it is larger than `max_bytes`, which the root block shows, or if a leaf other than the last
    has fewer than `least_bytes`; BlobCorrupt if the tree is inconsistent.
    """
    root = source.fetch_block(cid)
    is_tree = parse_cid(cid).codec == "dag-pb"
    size = FileNode.decode(root).size_bytes if is_tree else len(root)
    # INVARIANT: no peer makes a reader hold more bytes than the reader agreed to.
    if size > max_bytes:
        raise PayloadInvalid(
            f"content {cid} has {size} bytes, at most {max_bytes} are accepted here",
            "the publisher stored other content",
        )
    yield from _read(source, cid, root, size, least_bytes)


def leaf_nodes(source: BlockSource, cid: Cid, size: int) -> Iterator[tuple[Cid, tuple[Link, ...]]]:
    """Yields (node, its leaves) of the content named `cid`, in order, as `layout` builds them for `size` bytes.

    Raises PayloadInvalid if it has another size, which the root block shows, or if its leaves are not cut as by
    `chunks_of`: this bounds a reader's work. Raises BlobCorrupt if the tree is inconsistent.
    """
    root = source.fetch_block(cid)
    is_tree = parse_cid(cid).codec == "dag-pb"
    links = FileNode.decode(root).links if is_tree else (Link(cid, len(root), len(root)),)
    found = sum(link.size_bytes for link in links)
    # INVARIANT: of content that is not as long as it must be, nothing but the root is fetched.
    if found != size:
        raise PayloadInvalid(
            f"content {cid} has {found} bytes where {size} are due", "the publisher stored other content"
        )
    at = 0
    for node, leaves in _leaf_nodes(source, cid, links, depth=0):
        for leaf in leaves:
            if leaf.size_bytes != min(CHUNK_BYTES, size - at):
                raise PayloadInvalid(
                    f"content {cid} has a leaf of {leaf.size_bytes} bytes at {at}",
                    "its publisher did not use the canonical chunk size",
                )
            at += leaf.size_bytes
        yield node, leaves


def _leaf_nodes(
    source: BlockSource, cid: Cid, links: tuple[Link, ...], depth: int
) -> Iterator[tuple[Cid, tuple[Link, ...]]]:
    _require_depth(cid, depth)
    if all(parse_cid(link.cid).codec == "raw" for link in links):
        yield cid, links
        return
    for link in links:
        if parse_cid(link.cid).codec != "dag-pb":
            yield link.cid, (link,)
            continue
        node = FileNode.decode(source.fetch_block(link.cid))
        if node.size_bytes != link.size_bytes:
            raise _contradiction(link.cid, node.size_bytes, link.size_bytes)
        yield from _leaf_nodes(source, link.cid, node.links, depth + 1)


def _read(
    source: BlockSource, cid: Cid, block: bytes, size: int, least: int, depth: int = 0, is_last: bool = True
) -> Iterator[bytes]:
    """Yields the content below a block; `is_last` says whether the content ends with this block."""
    _require_depth(cid, depth)
    if parse_cid(cid).codec != "dag-pb":
        yield _of_size(cid, block, size)
        return
    node = FileNode.decode(block)
    if node.size_bytes != size:
        raise _contradiction(cid, node.size_bytes, size)
    # INVARIANT: the blocks that a reader fetches are bounded by the bytes that it agreed to.
    if any(link.size_bytes < least for link in node.links[: -1 if is_last else None]):
        raise PayloadInvalid(
            f"content {cid} is cut into less than {least} bytes", "store it again: every chunk but the last has as many"
        )
    if all(parse_cid(link.cid).codec == "raw" for link in node.links):
        leaves = source.fetch_leaves(cid, node.links)
        yield from (_of_size(link.cid, leaf, link.size_bytes) for link, leaf in zip(node.links, leaves, strict=True))
        return
    for i, link in enumerate(node.links):
        ends = is_last and i == len(node.links) - 1
        yield from _read(source, link.cid, source.fetch_block(link.cid), link.size_bytes, least, depth + 1, ends)


def _require_depth(cid: Cid, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise BlobCorrupt(
            f"content tree is deeper than {MAX_DEPTH} at {cid}",
            "do not use this content: its publisher made a malformed tree",
        )


def leaf_of(link: Link, block: bytes) -> bytes:
    """Returns the block if its size is that of the link. Raises BlobCorrupt otherwise."""
    return _of_size(link.cid, block, link.size_bytes)


def _of_size(cid: Cid, block: bytes, size: int) -> bytes:
    # INVARIANT: a child holds exactly the bytes that its parent promised.
    if len(block) != size:
        raise _contradiction(cid, len(block), size)
    return block


def _contradiction(cid: Cid, size: int, promised: int) -> BlobCorrupt:
    return BlobCorrupt(f"{cid} holds {size} bytes, its parent says {promised}", "store the content again")


def _last_cid(blocks: Iterator[FileBlock]) -> Cid:
    cid: Cid | None = None
    for block in blocks:
        cid = block.cid
    if cid is None:
        raise ValueError("a layout has at least one block")
    return cid
