"""Shared objects of generated C++: compiled once per user and machine, found again by the hash of what made them.

The cache is a directory of mode 0700; a file in it is loaded only if it is the user's own and ends with its digest.
`LOCKSTEP_CACHE` names another directory, `CXX` another compiler.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

from lockstep.protocol.errors import DoctorError

COMPILERS = ("g++", "clang++", "c++")
BUILD_SECONDS = 300
"""A compiler that takes longer is given up."""
KEPT = 64
"""Libraries in the cache; those unused for longest go first."""
DIGEST = 32

_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler of this machine."""

    command: tuple[str, ...]
    version: str
    """All that it says of itself: libraries of another version are not taken for its own."""


def find_compiler() -> Compiler | None:
    """What CXX names, else the first of g++, clang++ and c++ that runs."""
    named = os.environ.get("CXX")
    for command in [shlex.split(named)] if named else [[name] for name in COMPILERS]:
        place = shutil.which(command[0]) if command else None
        version = _version((place, *command[1:])) if place else None
        if place and version:
            return Compiler((place, *command[1:]), version)
    return None


@cache
def _version(command: tuple[str, ...]) -> str | None:
    try:
        said = subprocess.run([*command, "--version"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said.stdout.decode(errors="replace") if said.returncode == 0 else None


@dataclass(frozen=True)
class Recipe:
    """What a library is made of."""

    source: str
    flags: tuple[str, ...]
    compiler: Compiler

    @property
    def key(self) -> bytes:
        """The library's name: the hash of everything that its bits depend on."""
        parts = (self.source, *self.flags, *self.compiler.command, self.compiler.version)
        return hashlib.sha256(b"\0".join(part.encode() for part in parts)).digest()


def cached(recipe: Recipe) -> ctypes.CDLL | None:
    """The library if it was built before and is what was written then; one that is damaged is removed."""
    place = _place(_directory(), recipe)
    if not _is_sound(place, recipe.key):
        return None
    os.utime(place)
    return ctypes.CDLL(str(place))


def build(recipe: Recipe, *, nice: bool = False) -> ctypes.CDLL:
    """The library, compiled (`nice`: behind all other work) unless the cache has it; DoctorError if that cannot be.

    Of several processes one compiles, and the others wait for it; one that dies leaves nothing that is ever loaded.
    """
    directory = _directory()
    with _locked(directory):
        if (library := cached(recipe)) is not None:
            return library
        for left in directory.glob("build-*"):  # whoever was building there held the lock, and is dead
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix="build-", dir=directory, ignore_cleanup_errors=True) as room:
            made = _compile(recipe, Path(room), nice)
            with made.open("ab") as file:
                file.write(_digest(made.read_bytes(), recipe.key))
                file.flush()
                os.fsync(file.fileno())
            made.chmod(0o600)
            made.replace(_place(directory, recipe))
        _prune(directory)
        if (library := cached(recipe)) is None:
            raise DoctorError(f"{directory} does not keep what is written there", hint="set LOCKSTEP_CACHE")
        return library


def _directory() -> Path:
    """The cache, made if need be; raises DoctorError unless it is the user's alone."""
    named = os.environ.get("LOCKSTEP_CACHE")
    path = Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("lockstep"))
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = path.stat()
    except OSError as error:
        raise DoctorError(f"{path} cannot be a cache: {error.strerror}", hint="set LOCKSTEP_CACHE") from error
    # INVARIANT: nobody but the user can place code where it is loaded from.
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise DoctorError(f"{path} is open to others", hint=f"chmod 700 {path}, or set LOCKSTEP_CACHE")
    return path


def _place(directory: Path, recipe: Recipe) -> Path:
    return directory / f"{recipe.key.hex()[:40]}.so"


def _digest(code: bytes, key: bytes) -> bytes:
    return hashlib.sha256(key + code).digest()


def _is_sound(place: Path, key: bytes) -> bool:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        found, content = os.fstat(file.fileno()), file.read()
    own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    # A loader ignores what stands behind the object: the digest needs no file of its own, and no second rename.
    if own and _digest(content[:-DIGEST], key) == content[-DIGEST:]:
        return True
    place.unlink(missing_ok=True)
    return False


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """One builder at a time; the lock ends with its holder, however that ends."""
    try:
        file = (directory / "lock").open("w")
    except OSError as error:
        raise DoctorError(f"{directory} cannot be written: {error.strerror}", hint="set LOCKSTEP_CACHE") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(recipe: Recipe, room: Path, nice: bool) -> Path:
    source, made = room / "loops.cpp", room / "loops.so"
    source.write_text(recipe.source)
    behind = ("nice", "-n", "10") if nice and shutil.which("nice") else ()
    command = [*behind, *recipe.compiler.command, *recipe.flags, str(source), "-o", str(made)]
    code, said = _run(command, room)
    if code != 0 or not made.exists():
        last = said.strip().splitlines()[-1:] or [f"exit status {code}"]
        raise DoctorError(
            f"{recipe.compiler.command[0]} cannot compile loops: {last[0]}", hint="set CXX to another one"
        )
    return made


def _run(command: Sequence[str], room: Path) -> tuple[int, str]:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=room
        )
    except OSError as error:
        return 127, str(error)
    _running.add(process)
    try:
        _, said = process.communicate(timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return 124, f"nothing after {BUILD_SECONDS} s"
    finally:
        _running.discard(process)
    return process.returncode, said.decode(errors="replace")


@atexit.register
def _end_compilers() -> None:
    for process in list(_running):
        process.kill()


def _prune(directory: Path) -> None:
    found = sorted(directory.glob("*.so"), key=lambda place: place.stat().st_mtime, reverse=True)
    for place in found[KEPT:]:
        place.unlink(missing_ok=True)
