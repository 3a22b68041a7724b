"""Lists this process's open files by identity instead of number, because others may be closed meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress


def open_files(name: str) -> set[tuple[str, int]]:
    """Returns (name, inode) of open files whose name contains `name`."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        # The descriptor of the folder itself is closed by then.
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if name in target:
                found.add((target, os.stat(int(descriptor)).st_ino))
    return found
