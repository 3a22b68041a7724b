"""Files that are whole or not there, whenever the process or the machine stops.

write_atomically:  a file beside it -> fsync -> rename -> fsync of the folder
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from lockstep.protocol.errors import DoctorError, UsageError


def write_atomically(
    path: Path, chunks: Iterable[bytes | bytearray | memoryview], *, mode: int = 0o666, sync: bool = True
) -> int:
    """Writes `chunks` to `path` so that it holds all of them or what it held before; returns their size in bytes.

    `mode`: the file's from its first byte on, less the umask. The bytes are on disk when this returns, but not without
    `sync`, which guards against a killed process alone. UsageError if the folder cannot be written, DoctorError if the
    disk is full.
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


def remove_partials(path: Path) -> None:
    """Removes what killed writers of `path` left beside it; only where nobody else writes it now."""
    # Writers before this one's names added a suffix.
    for left in (*path.parent.glob(f".{path.name}.*-*"), path.with_name(f"{path.name}.partial")):
        left.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable: a rename is on disk only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
