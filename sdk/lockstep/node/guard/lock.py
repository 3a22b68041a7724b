"""One home, one process: an OS lock that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.protocol.errors import GuardRefused

FILE_NAME = "home.lock"
VERIFIER_FILE = "verifier.lock"
"""Of a verifier, which may work beside a worker in one home."""


@contextmanager
def held(home: Path, who: str, file: str = FILE_NAME) -> Iterator[None]:
    """Hold `home` for `who` ("worker", "coordinator"); raises GuardRefused if another process does."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Not inheritable: a child that outlives its parent must not keep the home.
    lock = os.open(home / file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # INVARIANT: one home, one process.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(lock, 64, 0).decode(errors="replace").strip() or file.removesuffix(".lock").replace(
                "home", "process"
            )
            raise GuardRefused(
                f"another {holder} works in {home}",
                hint="stop it first; two processes need two homes and two keys",
                code="guard_refused.locked",
            ) from error
        name(lock, who)
        yield
    finally:
        os.close(lock)


def name(lock: int, who: str) -> None:
    """Write down who holds a lock: whoever is refused reads it."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{who} (process {os.getpid()})".encode(), 0)
