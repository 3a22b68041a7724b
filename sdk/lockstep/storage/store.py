"""Content stores: one interface for every backend that stores blocks.

from lockstep.storage import open_store
with open_store("dir:///tmp/blocks") as store:
    cid = store.put(b"four legs good")
    assert store.get(cid, max_bytes=100) == b"four legs good"
"""

from __future__ import annotations

import abc
import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from lockstep.base.closing import Closing
from lockstep.base.decoding import from_cbor, refusing
from lockstep.base.files import open_regular, write_atomically
from lockstep.base.machine import memory
from lockstep.base.redaction import redacted
from lockstep.base.settings import cache_directory, resolve
from lockstep.protocol.errors import DoctorError, PayloadInvalid, Unreachable, UsageError
from lockstep.protocol.types import Cid
from lockstep.storage.cache import BlobCache
from lockstep.storage.cid import Bytes, parse_cid
from lockstep.storage.dagpb import Link
from lockstep.storage.unixfs import MAX_BLOCK_BYTES, content_size, leaf_nodes, leaf_of, read_chunks

BlockCodec = Literal["raw", "dag-cbor"]
MAPPED_BYTES = 1 << 20
"""Size in bytes below which blobs are held in memory: a file and a mapping would cost more."""
FETCHED_AT_ONCE = 4
"""Most blobs fetched in parallel for one request."""


class ContentStore(Closing, abc.ABC):
    """Stores content by CID. Reads are verified block by block; writes are durable when they return.

    Errors: BlobMissing - the store answered that it does not have the block. BlobCorrupt - it has other bytes under
    that name. PayloadInvalid - more bytes than the reader or the store accepts. Unreachable - the store did not answer,
    so nothing is known. DoctorError - the store exists but is not usable (permissions, full disk, not a Kubo RPC).
    UsageError - not a CID. All methods may be called from several threads.
    """

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """The URL for `open_store`; it may contain a password."""

    @property
    def name(self) -> str:
        """The URL without passwords, safe to log."""
        return redacted(self.url)

    @abc.abstractmethod
    def check(self) -> None:
        """Raises Unreachable or DoctorError unless the store answers and is usable."""

    @abc.abstractmethod
    def fetch_block(self, cid: Cid) -> bytes:
        """Returns one verified block of at most 1 MiB."""

    def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
        """Yields the raw blocks of `links[first:]` in order, each verified; `links` are all children of node `cid`."""
        for link in links[first:]:
            yield self.fetch_block(link.cid)

    @abc.abstractmethod
    def put_block(self, block: bytes, codec: BlockCodec) -> Cid:
        """Stores one block of at most 1 MiB unchanged."""

    @abc.abstractmethod
    def put_stream(self, file: BinaryIO) -> Cid:
        """Stores the rest of `file` in the layout of `unixfs`, in constant memory; `file` must be seekable."""

    @abc.abstractmethod
    def has(self, cid: str) -> bool:
        """Returns True if the store itself, without asking a network, holds the root block of `cid` undamaged.

        Stores write children before parents, so a stored root implies stored content.
        """

    def put(self, data: Bytes, *, codec: BlockCodec = "raw") -> Cid:
        """Stores `data`. "raw" accepts any size and gives `cid_of(data)`; "dag-cbor" is one block of at most 1 MiB."""
        if codec == "raw":
            return self.put_stream(cast(BinaryIO, BufferFile(data)))
        if len(data) > MAX_BLOCK_BYTES:
            raise PayloadInvalid(
                f"a dag-cbor block has {len(data)} bytes, at most {MAX_BLOCK_BYTES} fit",
                "put it with codec raw instead",
            )
        return self.put_block(bytes(data), codec)

    def put_file(self, path: str | os.PathLike[str]) -> Cid:
        """Stores the contents of a regular file. Raises UsageError if it cannot be read."""
        try:
            file = open_regular(Path(path))
        except OSError as error:
            raise UsageError(f"cannot read {os.fspath(path)}: {error.strerror}", "name a readable file") from error
        with file:
            return self.put_stream(file)

    def get(self, cid: str, *, max_bytes: int) -> bytes:
        """Returns the verified content named `cid`. Raises PayloadInvalid if it is larger than `max_bytes`."""
        return b"".join(self.get_stream(cid, max_bytes=max_bytes))

    def get_stream(self, cid: str, *, max_bytes: int) -> Iterator[bytes]:
        """Yields the content named `cid` in verified pieces of at most 1 MiB."""
        parse_cid(cid)
        return read_chunks(self, Cid(cid), max_bytes=max_bytes)

    def get_file(self, cid: str, path: str | os.PathLike[str], *, max_bytes: int) -> int:
        """Writes the content named `cid` to `path`, completely or not at all; returns its size in bytes."""
        return write_atomically(Path(path), self.get_stream(cid, max_bytes=max_bytes))

    @cached_property
    def cache(self) -> BlobCache:
        """Returns the user's cache, shared by all stores of a machine. Raises Unreachable if it cannot be created."""
        try:
            return BlobCache(cache_directory() / "blobs", resolve().cache_bytes)
        except (DoctorError, UsageError) as error:
            # Failing to cache content on this machine tells nothing about the content.
            raise Unreachable(f"the local store cannot save a blob: {error.message}", error.hint) from error

    def blob(self, cid: str, size: int) -> memoryview:
        """Returns the content named `cid` of `size` bytes, read-only: mapped from the cache, or in memory if it is
        small.

        Raises PayloadInvalid, before fetching content, if it has another size or another layout than `put` gives.
        """
        parse_cid(cid)
        if size >= MAPPED_BYTES:
            return self.cache.blob(self, Cid(cid), size)
        parts = bytearray()
        for node, links in leaf_nodes(self, Cid(cid), size):
            for link, leaf in zip(links, self.fetch_leaves(node, links), strict=True):
                parts += leaf_of(link, leaf)
        return memoryview(bytes(parts))

    def blobs(self, wanted: Sequence[tuple[Cid, int]]) -> list[memoryview]:
        """Returns `blob` for each (CID, size); fetches several in parallel, and equal ones once. Raises the first
        error.

        Raises, before fetching, Unreachable if the large blobs do not fit the cache together, Unfit if the small ones
        do not fit this machine's memory.
        """
        distinct = list(dict.fromkeys(wanted))
        large = sum(size for _, size in distinct if size >= MAPPED_BYTES)
        if large:
            self.cache.require(large)
        # INVARIANT: no list of names makes a reader hold more than its memory.
        memory().require(sum(size for _, size in distinct) - large)
        pool = ThreadPoolExecutor(FETCHED_AT_ONCE, "blobs")
        try:
            found = dict(zip(distinct, pool.map(lambda pair: self.blob(*pair), distinct), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)
        return [found[each] for each in wanted]

    def size(self, cid: str) -> int:
        """Returns the bytes of the content named `cid`; reads only its root block."""
        parse_cid(cid)
        return content_size(self, Cid(cid))

    def put_node(self, value: Any) -> Cid:
        """Stores a DAG-CBOR value (maps with string keys, lists, ints, bytes, strings, CIDs) as one block."""
        import dag_cbor

        return self.put(dag_cbor.encode(value), codec="dag-cbor")

    def get_node(self, cid: str) -> Any:
        """Returns the value of a block that `put_node` wrote. Raises PayloadInvalid if the block is not DAG-CBOR."""
        if parse_cid(cid).codec != "dag-cbor":
            raise PayloadInvalid(f"{cid} does not name a DAG-CBOR block", "such a CID begins with bafyrei")
        block = self.fetch_block(Cid(cid))
        with refusing(PayloadInvalid, f"block {cid}", "the publisher stored other content"):
            return from_cbor(block, MAX_BLOCK_BYTES)

    def close(self) -> None:
        """Releases the store's open files and connections; may be called twice."""
        return


class BufferFile(io.RawIOBase):
    """A file object over a buffer, without a copy: `io.BytesIO` copies everything but `bytes`."""

    def __init__(self, data: Bytes) -> None:
        self._data = memoryview(data).cast("B")
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._data)}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        piece = bytes(self._data[self._at : end])
        self._at += len(piece)
        return piece
