"""Locks a home for one process by an OS lock, which the system releases however the process ends."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.base.files import remove_partials
from lockstep.protocol.errors import GuardRefused

FILE_NAME = "home.lock"
_HOLDER = re.compile(r"(.*) \(process (\d+)\)", re.ASCII)


@dataclass(frozen=True)
class Holder:
    """The process that runs in a home."""

    who: str
    pid: int


def holder(home: Path) -> Holder | None:
    """Returns the process that holds `home` now; None if none does."""
    try:
        lock = os.open(home / FILE_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        found = _HOLDER.fullmatch(os.pread(lock, 64, 0).decode(errors="replace"))
        return Holder(found[1], int(found[2])) if found else Holder("process", 0)
    finally:
        os.close(lock)
    return None


@contextmanager
def held(home: Path, who: str) -> Iterator[None]:
    """Locks `home` for the role `who` ("worker", "coordinator"); raises GuardRefused if another process holds the lock.

    Temporary files that a killed process left there are removed.
    """
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Not inheritable: a child that outlives its parent must not keep the home.
    lock = os.open(home / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # INVARIANT: one home, one process.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 64, 0).decode(errors="replace").strip() or "process"
            raise GuardRefused(
                f"another {holder} is running in {home}",
                hint="stop it first; two processes need two homes and two keys",
                code="guard_refused.locked",
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{who} (process {os.getpid()})".encode(), 0)
        remove_partials(home, held_by=FILE_NAME)
        yield
    finally:
        os.close(lock)
