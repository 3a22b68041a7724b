"""Writes files atomically, whenever the process or the machine stops.

write_atomically:  a temporary file next to it -> fsync -> rename -> fsync of the folder
remove_partials:   what killed processes left of that in a folder that its caller holds
written_alone:     a temporary file next to it that several processes may write, locked while one does
remove_unlocked:   what killed processes left of that
open_regular:      a regular file, and nothing that makes its reader wait
open_to_others:    whether somebody else of this machine reaches one
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lockstep.protocol.errors import DoctorError, UsageError

_PARTIAL = re.compile(r"\..+\.([0-9]+)-[0-9a-f]{8}", re.ASCII)
"""Names of `write_atomically`'s partial files, with the writer's process id. The pattern is strict, since a home may be
a folder that other programs write to."""


def write_atomically(
    path: Path, chunks: Iterable[bytes | bytearray | memoryview], *, mode: int = 0o666, sync: bool = True
) -> int:
    """Writes `chunks` to `path` so that the file has all of them or its old contents; returns their size in bytes.

    `mode` is the file's mode, less the umask, from its first byte on. With `sync` the bytes are durable when this
    returns; without it the file survives a killed process only. UsageError if the folder cannot be written, DoctorError
    if the disk is full.
    """
    size = 0
    try:
        partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "name a path in an existing, writable folder"
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                size += file.write(chunk)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(partial, path)
        if sync:
            sync_folder(path.parent)
    except BaseException as error:
        with suppress(FileNotFoundError):
            partial.unlink()
        if isinstance(error, OSError):
            raise DoctorError(f"cannot write {path}: {error.strerror}", "free some disk space") from error
        raise
    return size


def remove_partials(folder: Path, *, held_by: str) -> None:
    """Removes partial files of killed writers in `folder` and below. The caller holds `folder` by a lock on the file
    `held_by` in it; a subfolder with such a file has another owner and is skipped."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not os.path.exists(os.path.join(place, name, held_by))]
        for name in files:
            found = _PARTIAL.fullmatch(name)
            # INVARIANT: a child that outlives the holder by a moment keeps what it writes.
            if found is not None and not _lives(int(found[1])):
                Path(place, name).unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    """Returns True if another process has this id.

    In a container, a killed writer may have had this process's own id.
    """
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def written_alone(part: Path) -> Iterator[BinaryIO]:
    """Opens a new empty file for reading and writing, mode 0600, locked until the block ends; waits while another
    process holds the lock. The system releases the lock with its process. Raises OSError.
    """
    while True:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                # The file may have been removed while this process waited.
                if os.path.samestat(os.stat(part), os.fstat(file.fileno())):
                    file.truncate(0)
                    yield file
                    return


def remove_unlocked(parts: Iterable[Path]) -> None:
    """Removes the files of `written_alone` whose writers were killed, so that they are not locked."""
    for part in parts:
        with suppress(FileNotFoundError, BlockingIOError), open(part, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


_KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file, or a link to one; raises OSError for anything else, before it is opened."""
    # Opening a pipe would wait for a writer, and opening a device may have effects.
    _require_regular(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _require_regular(path: Path, mode: int) -> None:
    # INVARIANT: no input makes its reader wait for somebody else, or read without an end.
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a regular file", str(path))
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable: a rename is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SECRETS = Path("/run/secrets")
"""A container's folder of secrets, mounted with mode 0444; only the program runs in the container."""
OTHERS_FILES, OTHERS_FOLDERS = 0o066, 0o011


def open_to_others(path: Path) -> bool:
    """Returns True if another user of this machine could read or write a file, by its own mode and those of the folders
    above.

    Raises OSError if the file does not exist.
    """
    found = path.stat()
    # A pipe, as from a shell's <(..), is only readable by the process that opened it.
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & OTHERS_FILES:
        return False
    whole = path.resolve(strict=True)
    if whole.is_relative_to(SECRETS):
        return False
    return all(folder.stat().st_mode & OTHERS_FOLDERS for folder in whole.parents)
