"""The folder that a job's children may write: code that they compiled, found again by the next one.

`boxes/<job>` in the user's cache. Nothing in it is ever loaded by the process that holds the keys, nor by another job's
children.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lockstep.base.settings import cache_directory
from lockstep.protocol.types import JobId

FOLDER = "boxes"
KEPT = 64
"""Jobs whose folders are kept; those unused for longest go first."""
KEPT_BYTES = 256 << 20
"""A folder that holds more is emptied before its job's next child."""


def folder_of(job: JobId) -> Path:
    """Returns a job's folder, made if need be; raises DoctorError if there can be none."""
    boxes = cache_directory() / FOLDER
    own = boxes / job.hex()
    if own.is_dir() and _size(own) > KEPT_BYTES:
        shutil.rmtree(own, ignore_errors=True)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.utime(own)
    others = sorted((path for path in boxes.iterdir() if path != own), key=_used)
    for path in others[: max(0, len(others) + 1 - KEPT)]:
        shutil.rmtree(path, ignore_errors=True)
    return own


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
