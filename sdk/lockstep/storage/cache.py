"""The user's cache of blobs: memory-mapped files, whose pages all processes share.

    FOLDER/<cid>         a blob; every block was verified before the file got this name
    FOLDER/<cid>.part    the part of a blob that is here; the process that fetches the rest holds the file's lock
    FOLDER/<cid>.tree    the root of the blob's 1 KiB leaves, and the file that it was computed from
    FOLDER/<cid>.words   a tensor decoded from the blob

A killed process leaves a `.part`; the next process verifies its blocks and fetches the rest. If several processes want
a blob, one fetches it and the others wait. The least recently used files are removed first; a process that has mapped a
file keeps its contents.

The user's own disk is trusted: a file's blocks are not hashed again when it is mapped. Users check mapped bytes against
roots on chain, and `refresh` removes a damaged file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from lockstep.protocol.errors import Unreachable
from lockstep.protocol.types import Cid, Digest
from lockstep.storage.cid import parse_cid
from lockstep.storage.unixfs import BlockSource, cid_of, leaf_nodes, leaf_of

PART, TREE = ".part", ".tree"
POLL_SECONDS = 0.05
STILL_SECONDS = 150.0
"""Longest time, in seconds, in which another process that fetches a blob may write nothing; a store's own timeouts are
shorter.
"""
_TREE = struct.Struct(">QQQ32s")
"""Layout of a `.tree` file: inode, size and modification time of the blob's file, then the root of its leaves."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True)
class _File:
    """A file of the cache."""

    used: int
    """Time of the last read (of a part: of the last write), in nanoseconds."""
    path: Path
    size: int


class BlobCache:
    """Blobs in a folder of bounded size. Safe for threads and processes; opens no file before the first request."""

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` is in bytes; the newest file is kept however large it is."""
        self.folder = folder
        self._limit = limit

    def require(self, size: int) -> None:
        """Raises Unreachable unless the cache can hold files of `size` bytes together."""
        if size > self._limit:
            raise Unreachable(
                f"{size >> 20} MiB are needed at once, and the cache at {self.folder} holds {self._limit >> 20}",
                "raise LOCKSTEP_CACHE_MIB",
            )

    def blob(self, source: BlockSource, cid: Cid, size: int) -> memoryview:
        """Returns the content named `cid`, of `size` bytes, read-only and mapped, fetched from `source` if missing.

        Raises the errors of `leaf_nodes` and of the source, and Unreachable if this machine cannot store the file.
        """

        def fill(file: int) -> None:
            held = os.fstat(file).st_size
            at = 0
            for node, links in nodes:
                first = 0
                # INVARIANT: a byte that a killed process left is believed only if its block hashes to its CID.
                while first < len(links) and _holds(file, at, held, links[first].cid, links[first].size_bytes):
                    at += links[first].size_bytes
                    first += 1
                if first == len(links):
                    continue
                for link, leaf in zip(links[first:], source.fetch_leaves(node, links, first), strict=True):
                    _write(file, at, leaf_of(link, leaf))
                    at += link.size_bytes

        found = self._mapped(cid, size)
        if found is not None:
            return found
        # The first node is requested before a file is created: a blob of another size leaves no file.
        nodes = leaf_nodes(source, cid, size)
        nodes = chain([next(nodes)], nodes)
        return self._made(cid, size, fill)

    def made(self, name: str, size: int, parts: Callable[[], Iterable[Buffer]]) -> memoryview:
        """Returns the bytes of `parts`, `size` in total, read-only and mapped; written once and found again under
        `name`.
        """

        def fill(file: int) -> None:
            at = 0
            for part in parts():
                _write(file, at, part)
                at += memoryview(part).nbytes

        found = self._mapped(name, size)
        return self._made(name, size, fill) if found is None else found

    def tree(self, cid: Cid, compute: Callable[[], Digest]) -> Digest:
        """Returns the root of a blob's leaves; `compute` runs once for as long as the file is unchanged."""
        try:
            seen = os.stat(self.folder / cid)
        except OSError:
            return compute()
        now, path = (seen.st_ino, seen.st_size, seen.st_mtime_ns), self.folder / (cid + TREE)
        with suppress(OSError, struct.error):
            *then, root = _TREE.unpack(path.read_bytes())
            if tuple(then) == now:
                return Digest(root)
        found = compute()
        with suppress(OSError):
            partial = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}")
            partial.write_bytes(_TREE.pack(*now, found))
            os.replace(partial, path)
        return found

    def refresh(self, cid: Cid) -> None:
        """Removes the files derived from a blob that proved wrong, and the blob itself if its file is damaged."""
        with suppress(OSError):
            for path in self.folder.glob(f"{cid}.*"):
                if path.suffix != PART:
                    path.unlink(missing_ok=True)
            with open(self.folder / cid, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                sound = size > 0 and cid_of(_map(file.fileno(), size)) == cid
            if not sound:
                (self.folder / cid).unlink(missing_ok=True)

    # -- inside

    def _mapped(self, name: str, size: int) -> memoryview | None:
        path = self.folder / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from error
        try:
            seen = os.fstat(file)
            if seen.st_size != size:
                # A file that was truncated, or whose length differs from its reader's expectation, is detected by its
                # root.
                return None
            # The access time records the last use; the modification time shows whether the file is unchanged.
            os.utime(file, ns=(time.time_ns(), seen.st_mtime_ns))
            return _map(file, size)
        except OSError as error:
            raise self._unusable(error) from error
        finally:
            os.close(file)

    def _made(self, name: str, size: int, fill: Callable[[int], None]) -> memoryview:
        part = self.folder / (name + PART)
        while True:
            with self._locked(part) as file:
                if file is None:
                    continue
                found = self._mapped(name, size)
                if found is not None:
                    part.unlink(missing_ok=True)
                    return found
                try:
                    self._make_room(part, size)
                    fill(file)
                    os.ftruncate(file, size)
                    os.fsync(file)
                    # INVARIANT: a name without an ending is given to whole and verified files alone.
                    os.rename(part, self.folder / name)
                    return _map(file, size)
                except OSError as error:
                    raise self._unusable(error) from error
                finally:
                    with suppress(OSError):
                        if os.fstat(file).st_size == 0:
                            part.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, part: Path) -> Iterator[int | None]:
        """Locks the file `part` exclusively; gives None if another process has replaced it meanwhile. Raises
        Unreachable if the lock's holder makes no progress.

        The system releases the lock when its holder ends, even if killed.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from error
        try:
            seen, since = -1, time.monotonic()
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    pass
                now = os.fstat(file).st_mtime_ns
                if now != seen:
                    seen, since = now, time.monotonic()
                # INVARIANT: nobody waits for ever for a process that was stopped.
                elif time.monotonic() - since > STILL_SECONDS:
                    raise Unreachable(
                        f"another process fetches {part.stem} and has made no progress for {STILL_SECONDS:.0f} s",
                        "end that process: the part that it has fetched is kept",
                    )
                time.sleep(POLL_SECONDS)
            try:
                same = os.stat(part).st_ino == os.fstat(file).st_ino
            except FileNotFoundError:
                same = False
            yield file if same else None
        finally:
            # A mapping keeps the file open, and with it the file's lock.
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
            os.close(file)

    def _make_room(self, part: Path, size: int) -> None:
        """Removes the least recently used files until `size` bytes fit the limit and the disk. Raises OSError."""
        files = sorted(self._files(part), key=lambda f: f.used)
        here = part.stat().st_blocks * 512
        over = sum(f.size for f in files) + size - self._limit
        lacking = size - here - shutil.disk_usage(self.folder).free
        for file in files:
            if over <= 0 and lacking <= 0:
                break
            if self._removed(file):
                over -= file.size
                lacking = size - here - shutil.disk_usage(self.folder).free
        if lacking > 0:
            free = shutil.disk_usage(self.folder).free
            raise OSError(errno.ENOSPC, f"{size >> 20} MiB are needed, {free >> 20} MiB are free")

    def _files(self, part: Path) -> Iterator[_File]:
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                if path != part and path.suffix != TREE:
                    seen = path.stat()
                    yield _File(seen.st_mtime_ns if path.suffix == PART else seen.st_atime_ns, path, seen.st_size)

    def _removed(self, file: _File) -> bool:
        """Removes a file and returns True; returns False for a part that another process is fetching."""
        with suppress(FileNotFoundError):
            if file.path.suffix == PART:
                descriptor = os.open(file.path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    file.path.unlink()
                except BlockingIOError:
                    return False
                finally:
                    os.close(descriptor)
            else:
                file.path.unlink()
                (self.folder / (file.path.name + TREE)).unlink(missing_ok=True)
        return True

    def _unusable(self, error: OSError) -> Unreachable:
        return Unreachable(
            f"the cache at {self.folder} cannot be used: {error.strerror}",
            "free some disk space, mend its permissions, or set LOCKSTEP_CACHE",
        )


def mapped_file(path: Path) -> memoryview:
    """Maps a file's bytes read-only; they stay unchanged when the file is replaced. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return _map(file.fileno(), size) if size else memoryview(b"")


def _map(file: int, size: int) -> memoryview:
    from lockstep.base.mapping import mapped  # numpy takes longer to import than a command to answer

    return mapped(file, size).data


def _holds(file: int, at: int, held: int, cid: Cid, size: int) -> bool:
    """Returns True if the block named `cid` is at offset `at`, within the file's first `held` bytes."""
    if at + size > held:
        return False
    return hashlib.sha256(os.pread(file, size, at)).digest() == parse_cid(cid).digest


def _write(file: int, at: int, data: Buffer) -> None:
    view = memoryview(data).cast("B")
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done
