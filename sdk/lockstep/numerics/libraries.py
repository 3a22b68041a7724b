"""Builds shared objects from generated C++, cached by `numerics.compiled`; `CXX` selects the compiler."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lockstep.numerics.compiled import Entry
from lockstep.protocol.errors import DoctorError

COMPILERS = ("g++", "clang++", "c++")
BUILD_SECONDS = 300
"""Time limit of a compilation, in seconds."""

COMPILER_BYTES = 4 << 30
"""Memory limit of a compiler in bytes, where `prlimit` is available."""

_failed: dict[bytes, str] = {}
"""Errors by recipe: a compilation that failed in this process is not repeated."""
_running: set[subprocess.Popen[bytes]] = set()


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler on this machine."""

    command: tuple[str, ...]
    version: str
    """The compiler's whole version text; it is part of the key of its libraries."""


def find_compiler() -> Compiler | None:
    """Returns the compiler that CXX names, else the first of g++, clang++ and c++ that runs; None without one."""
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
class BuildRecipe:
    """All inputs of a library's compilation."""

    source: str
    flags: tuple[str, ...]
    compiler: Compiler
    headers: tuple[Path, ...] = ()
    """Headers that the source includes by name."""

    @property
    def key(self) -> bytes:
        """Hashes everything that the library depends on."""
        parts = (self.source, *self.flags, *self.compiler.command, self.compiler.version)
        parts += tuple(path.read_text() for path in self.headers)
        return hashlib.sha256(b"\0".join(part.encode() for part in parts)).digest()

    @property
    def entry(self) -> Entry:
        """The library's entry in the cache."""
        return Entry(self.key, ".so")


def cached(recipe: BuildRecipe) -> ctypes.CDLL | None:
    """Loads a library from the cache; None if it is missing or damaged."""
    place = recipe.entry.find()
    try:
        return None if place is None else ctypes.CDLL(str(place))
    except OSError:  # Another process may remove the file between the two calls.
        return None


def build(recipe: BuildRecipe, *, nice: bool = False) -> ctypes.CDLL:
    """Loads a library from the cache, or compiles it, at low priority if `nice`.

    Raises DoctorError if compilation fails.
    """
    if (why := _failed.get(recipe.key)) is not None:
        raise _uncompiled(recipe, why)
    recipe.entry.make(lambda room: _compile(recipe, room, nice))
    if (library := cached(recipe)) is None:
        raise DoctorError("a library was removed as soon as it was built", hint="set LOCKSTEP_CACHE")
    return library


def _compile(recipe: BuildRecipe, room: Path, nice: bool) -> Path:
    source, made = room / "source.cpp", room / "made.so"
    source.write_text(recipe.source)
    behind = ["nice", "-n", "10"] if nice and shutil.which("nice") else []
    behind += ["prlimit", f"--as={COMPILER_BYTES}"] if shutil.which("prlimit") else []
    folders = [f"-I{path.parent}" for path in recipe.headers]
    command = [*behind, *recipe.compiler.command, *recipe.flags, *folders, str(source), "-o", str(made)]
    code, output = _run(command, room)
    if code != 0 or not made.exists():
        last = output.strip().splitlines()[-1:] or [f"exit status {code}"]
        raise _uncompiled(recipe, _failed.setdefault(recipe.key, last[0]))
    return made


def _uncompiled(recipe: BuildRecipe, why: str) -> DoctorError:
    return DoctorError(
        f"{recipe.compiler.command[0]} cannot compile this machine's code: {why}", hint="set CXX to another one"
    )


def _run(command: Sequence[str], room: Path) -> tuple[int, str]:
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=room
        )
    except OSError as error:
        return 127, str(error)
    _running.add(process)
    try:
        _, output = process.communicate(timeout=BUILD_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return 124, f"nothing after {BUILD_SECONDS} s"
    finally:
        _running.discard(process)
    return process.returncode, output.decode(errors="replace")


@atexit.register
def _end_compilers() -> None:
    for process in list(_running):
        process.kill()
