"""Caches compiled code on disk, once per user and machine, under the hash of all inputs of the compilation.

The cache is a directory of mode 0700. A file in it is used only if the user owns it and its trailing digest is right.
It holds shared objects (the processor's loops, the emulated device) and machine code of CUDA devices. `LOCKSTEP_CACHE`
names another directory.
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
"""Most files in the cache; the least recently used are removed first."""
KEPT_BYTES = 512 << 20
"""Most bytes of all files together."""
DIGEST = 32
LOCKS = 16
"""Number of lock files, one per class of keys: different entries are mostly compiled in parallel."""

Make = Callable[[Path], Path]
"""Compiles code in the given empty folder; returns the file."""


@dataclass(frozen=True)
class Entry:
    """One entry of the cache."""

    key: bytes
    """32 bytes: the hash of everything that the code depends on."""
    suffix: str
    """File suffix, ".so" or ".cubin"."""

    def read(self) -> bytes | None:
        """Returns the cached code; None if it is missing or damaged (a damaged file is removed).

        Raises DoctorError unless the user alone can write to the cache.
        """
        return self._read(cache_directory())

    def find(self) -> Path | None:
        """Returns the path of the cached code, for a loader, or None; loaders ignore the digest that follows the
        code.
        """
        folder = cache_directory()
        return None if self._read(folder) is None else self._place(folder)

    def make(self, make: Make) -> bytes:
        """Returns the code from the cache, or compiles it with `make`. Raises DoctorError if the cache cannot be used,
        and the errors of `make`.

        Of several processes one compiles and the others wait; a process that dies leaves no file that is ever read.
        """
        folder = cache_directory()
        # A hit needs no lock: another process may hold it for minutes to compile another entry.
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
            # The digest is appended to the code: no second file, no second rename.
            if own and self._digest(code) == content[-DIGEST:]:
                os.utime(file.fileno())
                return code
        place.unlink(missing_ok=True)
        return None


def entries() -> list[tuple[Path, int, float]]:
    """Returns (file, bytes, last use) of every cached file, most recently used first.

    Raises DoctorError unless the user alone can write to the cache.
    """
    return _found(cache_directory())


def _found(folder: Path) -> list[tuple[Path, int, float]]:
    found = []
    for place in (*folder.glob("*.so"), *folder.glob("*.cubin")):
        try:
            known = place.lstat()
        except FileNotFoundError:  # Another process may remove the file at the same time.
            continue
        found.append((place, known.st_size, known.st_mtime))
    return sorted(found, key=lambda each: each[2], reverse=True)


def _prune(folder: Path) -> None:
    total = 0
    for i, (place, size, _) in enumerate(_found(folder)):
        total += size
        # The most recent file stays, however large it is.
        if i and (i >= KEPT or total > KEPT_BYTES):
            place.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    """Removes the folders of killed compilations: no process holds their lock."""
    for left in folder.glob("build-*"):
        with suppress(BlockingIOError), _locked(folder, left.name.split("-")[1], wait=False):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, turn: str, wait: bool = True) -> Iterator[None]:
    """Holds the lock under which one process at a time compiles; the system releases it whenever the process ends."""
    try:
        file = (folder / f"lock-{turn}").open("w")
    except OSError as error:
        raise DoctorError(f"{folder} cannot be written: {error.strerror}", hint="set LOCKSTEP_CACHE") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
