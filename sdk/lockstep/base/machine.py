"""This machine's resources: memory (physical, or as limited by a cgroup) and disk space.

held = memory()
held.require(41_200_000_000)    # Unfit: needs 41.2 GB of memory, this machine has 23.4 GB (19.8 GB available)
"""

from __future__ import annotations

import errno
import os
import platform
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.protocol.errors import LockstepError, Unfit, Unreachable

FULL = {errno.ENOSPC, errno.EDQUOT}
UNWRITTEN = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CANTOPEN}
"""SQLite's errors on a full disk: a file cannot grow, or a temporary one cannot be created."""


@dataclass(frozen=True)
class Memory:
    """An amount of memory, in bytes."""

    total: int
    available: int
    """The bytes that can still be allocated without swapping, at most `total`."""
    where: str = "this machine"
    """Owner of the memory, for messages: this machine, or a device."""

    def require(self, needed: int, present: int = 0) -> None:
        """Raises Unfit unless `needed` bytes are available; `present` bytes of them are already allocated to this
        process.
        """
        # INVARIANT: no job is begun that this memory cannot hold.
        if needed > self.total or needed - present > self.available:
            raise Unfit(
                f"needs {readable(needed)} of memory, {self.where} has {readable(self.total)} "
                f"({readable(self.available)} available)",
                hint="leave this job to larger machines"
                if needed > self.total
                else "end what else takes memory, or leave this job to other machines",
            )


def memory(root: Path = Path("/")) -> Memory:
    """Returns the memory that this process may use. `root` is the parent of /proc and /sys."""
    physical = _meminfo(root / "proc/meminfo")
    total, available = physical["MemTotal"], physical["MemAvailable"]
    for limit, used in _limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, min(total, available))


def processor_name(root: Path = Path("/")) -> str:
    """Returns the processor's name as the kernel reports it, or its architecture. `root` is the parent of /proc."""
    found = re.search(r"^model name\s*:\s*(\S.*)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return " ".join(found[1].split()) if found else platform.machine()


@contextmanager
def room_on_disk() -> Iterator[None]:
    """Converts a full disk to `Unreachable`, so that a process waits for space as it waits for a chain that does not
    answer.
    """
    try:
        yield
    except (OSError, sqlite3.Error, LockstepError) as error:
        if not is_full(error):
            raise
        raise Unreachable(
            "the disk is full: nothing can be written", "free some disk space: the process continues by itself"
        ) from error


def is_full(error: BaseException | None) -> bool:
    """Returns True if a full disk, a temporary condition, is the error or its cause."""
    if isinstance(error, LockstepError):
        return isinstance(error.__cause__, OSError) and is_full(error.__cause__)
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in UNWRITTEN
    return isinstance(error, OSError) and error.errno in FULL


def readable(count: int) -> str:
    """Formats bytes in powers of ten: 41.2 GB."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1000:.1f} kB"


def _meminfo(path: Path) -> dict[str, int]:
    pages = {"MemTotal": "SC_PHYS_PAGES", "MemAvailable": "SC_AVPHYS_PAGES"}
    found = {name: os.sysconf(key) * os.sysconf("SC_PAGE_SIZE") for name, key in pages.items()}
    for line in _text(path).splitlines():
        told = re.fullmatch(r"(\w+):\s+(\d+) kB", line)
        if told and told[1] in found:
            found[told[1]] = 1024 * int(told[2])
    return found


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yields (limit, unreclaimable use) in bytes of every cgroup of this process, of either version.

    A container sees its own group as the root of the hierarchy: a path that does not exist is looked up in its parents.
    """
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            places, names = [mount, mount / "unified"], ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            places = [mount / "memory", mount / controllers]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for place in places:
            for group in _upwards(place, path):
                limit = _text(group / names[0]).strip()
                if limit.isdigit():
                    yield int(limit), _unreclaimable(group, names[1], names[2])


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for length in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:length])


def _unreclaimable(group: Path, current: str, reclaimable: str) -> int:
    used = _text(group / current).strip()
    told = re.search(rf"^{reclaimable} (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, (int(used) if used.isdigit() else 0) - (int(told[1]) if told else 0))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
