"""Compiled code on disk: made once per user and machine, found again by the hash of everything that made it.

The cache is a directory of mode 0700; a file in it is taken only if it is the user's own and ends with its digest.
Shared objects of the processor's loops and of the emulated device, and the machine code of CUDA devices, lie there.
`LOCKSTEP_CACHE` names another directory.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.base.settings import cache_directory
from lockstep.protocol.errors import DoctorError

KEPT = 256
"""Files in the cache; those unused for longest go first."""
KEPT_BYTES = 512 << 20
"""Bytes of all files together."""
DIGEST = 32
LOCKS = 16
"""Locks, one for each class of keys: two entries that differ are mostly made side by side."""

Make = Callable[[Path], Path]
"""Makes the code in a folder that is its own; returns the file."""


@dataclass(frozen=True)
class Entry:
    """One place in the cache."""

    key: bytes
    """32 bytes: the hash of everything that the code depends on."""
    suffix: str
    """".so" or ".cubin"."""

    def read(self) -> bytes | None:
        """Returns the code if it was made before and is undamaged, removes it if it is damaged. Raises DoctorError if
        the cache is not the user's alone."""
        return self._read(cache_directory())

    def find(self) -> Path | None:
        """Returns the file of the cached code for a loader, or None; the loader ignores the bytes after the code."""
        folder = cache_directory()
        return None if self._read(folder) is None else self._place(folder)

    def make(self, make: Make) -> bytes:
        """Returns the code, compiled by `make` unless the cache has it; raises DoctorError if the cache cannot be used,
        and the errors of `make`.

        Of several processes one makes it, and the others wait; one that dies leaves nothing that is ever read.
        """
        folder = cache_directory()
        # What is there needs no lock: somebody may be making a neighbour for minutes.
        if (code := self._read(folder)) is not None:
            return code
        turn = f"{self.key[0] % LOCKS:x}"
        with _locked(folder, turn):
            if (code := self._read(folder)) is not None:
                return code
            room = Path(tempfile.mkdtemp(prefix=f"build-{turn}-", dir=folder))
            try:
                self._keep(make(room), folder)
            finally:
                shutil.rmtree(room, ignore_errors=True)
        _sweep(folder)
        _prune(folder)
        if (code := self._read(folder)) is None:
            raise DoctorError(f"{folder} does not keep what is written there", hint="set LOCKSTEP_CACHE")
        return code

    def _keep(self, made: Path, folder: Path) -> None:
        with made.open("ab") as file:
            file.write(self._digest(made.read_bytes()))
            file.flush()
            os.fsync(file.fileno())
        made.chmod(0o600)
        made.replace(self._place(folder))

    def _place(self, folder: Path) -> Path:
        return folder / f"{self.key.hex()[:40]}{self.suffix}"

    def _digest(self, code: bytes) -> bytes:
        return hashlib.sha256(self.key + code).digest()

    def _read(self, folder: Path) -> bytes | None:
        place = self._place(folder)
        try:
            descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            place.unlink(missing_ok=True)
            return None
        with os.fdopen(descriptor, "rb") as file:
            found, content = os.fstat(file.fileno()), file.read()
            code = content[:-DIGEST]
            own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
            # The digest stands behind the code: it needs no file of its own, and no second rename.
            if own and self._digest(code) == content[-DIGEST:]:
                os.utime(file.fileno())
                return code
        place.unlink(missing_ok=True)
        return None


def entries() -> list[tuple[Path, int, float]]:
    """Returns (file, bytes, last use) of all code in the cache, most recently used first; raises DoctorError unless the
    cache belongs to the user alone."""
    return _found(cache_directory())


def _found(folder: Path) -> list[tuple[Path, int, float]]:
    found = []
    for place in (*folder.glob("*.so"), *folder.glob("*.cubin")):
        try:
            known = place.lstat()
        except FileNotFoundError:  # another process makes room, too
            continue
        found.append((place, known.st_size, known.st_mtime))
    return sorted(found, key=lambda each: each[2], reverse=True)


def _prune(folder: Path) -> None:
    total = 0
    for i, (place, size, _) in enumerate(_found(folder)):
        total += size
        # What was made last stays, however large it is.
        if i and (i >= KEPT or total > KEPT_BYTES):
            place.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Removes the files of makers that were killed: nobody holds their lock."""
    for left in folder.glob("build-*"):
        with suppress(BlockingIOError), _locked(folder, left.name.split("-")[1], wait=False):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, turn: str, wait: bool = True) -> Iterator[None]:
    """Holds the lock under which one process at a time compiles; it is released when the process ends, however that
    is."""
    try:
        file = (folder / f"lock-{turn}").open("w")
    except OSError as error:
        raise DoctorError(f"{folder} cannot be written: {error.strerror}", hint="set LOCKSTEP_CACHE") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
