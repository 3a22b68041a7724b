"""A directory of blocks: the default store, safe against `kill -9`, power loss and concurrent writers.

    HOME/blocks/<xy>/<cid>    one file per block; xy are the CID's next to last characters, as in Kubo's flatfs
    HOME/partial/             files being written; a rename moves a finished file into place

A block becomes visible by one rename of a file that is already on disk, and a root is renamed after its children
are durable. There is no index, no lock and no state in memory: any number of processes may share a directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import BinaryIO, NoReturn

from lockstep.base.files import sync_folder
from lockstep.protocol.errors import BlobCorrupt, BlobMissing, DoctorError, PayloadInvalid, Unreachable
from lockstep.protocol.types import Cid
from lockstep.storage.cid import cid_of_block, parse_cid, verify_block
from lockstep.storage.store import BlockCodec, ContentStore
from lockstep.storage.unixfs import MAX_BLOCK_BYTES, FileBlock, chunks_of_file, layout

STALE_SECONDS = 3600
"""Age in seconds at which a partial file is taken for that of a killed writer: no block takes an hour to write."""


class DirectoryStore(ContentStore):
    """Blocks as files below `home`, which is created if it does not exist."""

    def __init__(self, home: str | os.PathLike[str]) -> None:
        self.home = Path(home).absolute()
        self._blocks = self.home / "blocks"
        self._partial = self.home / "partial"
        self._numbers = count()
        try:
            self._blocks.mkdir(parents=True, exist_ok=True)
            self._partial.mkdir(exist_ok=True)
        except OSError as error:
            raise DoctorError(
                f"cannot use {self.home} as a store: {error.strerror}",
                "name a folder that this user may write",
            ) from error
        self._drop_stale()

    @property
    def url(self) -> str:
        return self.home.as_uri().replace("file://", "dir://", 1)

    def check(self) -> None:
        if not self._blocks.is_dir():
            self._gone()
        if not os.access(self._blocks, os.W_OK) or not os.access(self._partial, os.W_OK):
            raise DoctorError(f"the store at {self.home} cannot be written", "give this user write permission")

    def fetch_block(self, cid: Cid) -> bytes:
        path = self._path(cid)
        try:
            with open(path, "rb") as file:
                # one byte more than allowed detects a block that is too large
                block = file.read(MAX_BLOCK_BYTES + 1)
        except FileNotFoundError as error:
            if not self._blocks.is_dir():
                self._gone()
            raise BlobMissing(
                f"block {cid} is not in {self.home}",
                "its publisher may still be writing it, or used another store",
            ) from error
        except OSError as error:
            raise Unreachable(f"cannot read {path}: {error.strerror}", "check the disk and its permissions") from error
        verify_block(cid, block, source=str(self.home))
        return block

    def put_block(self, block: bytes, codec: BlockCodec) -> Cid:
        if len(block) > MAX_BLOCK_BYTES:
            raise PayloadInvalid(
                f"a block has {len(block)} bytes, at most {MAX_BLOCK_BYTES} are kept",
                "put it as content, not as one block",
            )
        cid = cid_of_block(block, codec)
        self._write([FileBlock(cid, block)])
        return cid

    def put_stream(self, file: BinaryIO) -> Cid:
        return self._write(layout(chunks_of_file(file)))

    def has(self, cid: str) -> bool:
        try:
            self.fetch_block(Cid(cid))
        except (BlobMissing, BlobCorrupt):
            return False
        return True

    def blocks(self) -> Iterator[Cid]:
        """Yields the CIDs of all stored blocks, in no particular order; blocks of concurrent writers may be missing."""
        for folder in self._blocks.iterdir():
            yield from (Cid(path.name) for path in folder.iterdir())

    def _write(self, blocks: Iterable[FileBlock]) -> Cid:
        """Writes blocks, the root last; returns the root's CID."""
        folders: set[Path] = set()
        root: FileBlock | None = None
        try:
            for block in blocks:
                if root is not None:
                    folders.add(self._write_block(root))
                root = block
            # INVARIANT: a root is visible only when everything below it is durable.
            for folder in sorted(folders):
                sync_folder(folder)
            if root is None:
                raise ValueError("content has at least one block")
            sync_folder(self._write_block(root))
        except OSError as error:
            if not self._blocks.is_dir():
                self._gone()
            raise DoctorError(
                f"cannot write to the store at {self.home}: {error.strerror}",
                "free some disk space or fix the permissions",
            ) from error
        return root.cid

    def _write_block(self, block: FileBlock) -> Path:
        """Moves one block into place unless it exists; returns its folder, which must still be synced."""
        path = self._path(block.cid)
        # compares bytes, not just names: the next put repairs a damaged file
        with suppress(FileNotFoundError):
            if path.read_bytes() == block.data:
                return path.parent
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            sync_folder(self._blocks)
        partial = self._partial / f"{os.getpid()}-{id(self):x}-{next(self._numbers)}"
        try:
            with open(partial, "xb") as file:
                file.write(block.data)
                file.flush()
                os.fsync(file.fileno())
            # INVARIANT: a name in blocks/ never points to a part of a block.
            os.replace(partial, path)
        except BaseException:
            with suppress(FileNotFoundError):
                partial.unlink()
            raise
        return path.parent

    def _drop_stale(self) -> None:
        oldest = time.time() - STALE_SECONDS
        for partial in self._partial.iterdir():
            # another process may remove the same file
            with suppress(FileNotFoundError):
                if partial.stat().st_mtime < oldest:
                    partial.unlink()

    def _path(self, cid: str) -> Path:
        # parsing first ensures that no text from a peer becomes a path
        parse_cid(cid)
        return self._blocks / cid[-3:-1] / cid

    def _gone(self) -> NoReturn:
        raise Unreachable(f"the store at {self.home} is gone", "mount the disk again, or create the folder anew")
