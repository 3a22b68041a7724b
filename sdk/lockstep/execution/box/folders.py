"""The folder that a job's children may write: code that they compiled, found again by the next one.

`boxes/<job>` in the user's cache. Nothing in it is ever loaded by the process that holds the keys, nor by another job's
children.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path

from lockstep.base.settings import cache_directory
from lockstep.protocol.types import JobId

FOLDER = "boxes"
KEPT = 64
"""Jobs whose folders are kept, beside those in use; those unused for longest go first."""
KEPT_BYTES = 256 << 20
"""A folder that holds more is emptied before its job's next child, if it has no other."""


class Folder:
    """A job's folder in use: nobody removes it until it is closed, or its process ends."""

    def __init__(self, path: Path) -> None:
        """The folder is made if need be."""
        self.path = path
        self._handle = _held(path)

    def close(self) -> None:
        """Releases the folder, so that it may be removed."""
        os.close(self._handle)


def folder_of(job: JobId) -> Folder:
    """A job's folder; its user closes it. Raises DoctorError if there can be none."""
    boxes = cache_directory() / FOLDER
    own = boxes / job.hex()
    if own.is_dir() and _size(own) > KEPT_BYTES:
        _remove(own)
    folder = Folder(own)
    os.utime(own)
    others = sorted((path for path in boxes.iterdir() if path != own), key=_used)
    left = len(others) + 1
    for path in others:
        if left <= KEPT:
            break
        left -= _remove(path)
    return folder


def _held(path: Path) -> int:
    """Opens a folder and locks it for the processes that share it."""
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What ran in it may have closed it to its own user.
        path.chmod(0o700)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Where a file system knows no locks, nothing is removed.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        # It was removed before it was locked.
        os.close(handle)


def _remove(path: Path) -> bool:
    """Removes a folder unless somebody uses it; tells if it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # INVARIANT: no child's folder goes while it runs, however many jobs its user's processes look at.
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(folder: Path) -> int:
    """Bytes of a folder's files, links not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total
