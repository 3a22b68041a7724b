"""Folders that a job's children may write, so that the next child finds compiled code again.

`boxes/<job>` in the user's cache. Neither the process with the keys nor another job's children ever load files from it.
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
"""Most folders that are kept unused; the least recently used are removed first."""
KEPT_BYTES = 256 << 20
"""Size in bytes above which a folder is emptied before its job's next child starts, unless another child uses it."""


class Folder:
    """A job's folder in use: it is not removed before it is closed or its process ends."""

    def __init__(self, path: Path) -> None:
        """Creates the folder if necessary."""
        self.path = path
        self._handle = _held(path)

    def close(self) -> None:
        """Releases the folder, so that it may be removed."""
        os.close(self._handle)


def folder_of(job: JobId) -> Folder:
    """Returns a job's folder, which the caller must close. Raises DoctorError if it cannot be created."""
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
        # A Program may have made the folder inaccessible to its own user.
        path.chmod(0o700)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # On a file system without locks, nothing is removed.
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        try:
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        # Another process removed the folder before it was locked.
        os.close(handle)


def _remove(path: Path) -> bool:
    """Removes a folder unless it is in use; returns True if it is gone."""
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
    """Returns the bytes of a folder's files; links are not followed."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total
