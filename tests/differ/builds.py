"""Builds variants of the kernels in folders of their own: with changed lines, or with a CMake option."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "out/differ/builds"
SOURCES = ("CMakeLists.txt", "sdk/lockstep/numerics/kernels", "sdk/lockstep/protocol/native")
KERNELS = "sdk/lockstep/numerics/kernels"


@dataclass(frozen=True)
class Change:
    """A text in a kernel's source and its replacement."""

    file: str
    """File name in the folder of the kernels."""
    before: str
    after: str

    def apply(self, source: str) -> str:
        """Returns the changed source. Raises ValueError unless the text occurs exactly once."""
        if source.count(self.before) != 1:
            raise ValueError(f"{self.file} has {source.count(self.before)} times: {self.before}")
        return source.replace(self.before, self.after)


def build(name: str, changes: Iterable[Change] = (), options: Iterable[str] = ()) -> Path:
    """Builds the kernels with these changes and CMake options, in the folder of that name; returns the extension's
    path.

    Only files that changed since its last build are compiled.
    """
    folder = FOLDER / name
    texts = {path: path.read_bytes() for path in _files()}
    for change in changes:
        path = ROOT / KERNELS / change.file
        texts[path] = change.apply(texts[path].decode()).encode()
    wanted = {folder / "source" / path.relative_to(ROOT): text for path, text in texts.items()}
    for path, text in wanted.items():
        if not path.exists() or path.read_bytes() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
    for path in (folder / "source").rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()
    configure = [
        "cmake", "-S", str(folder / "source"), "-B", str(folder / "build"), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={_nanobind()}", *options,
    ]  # fmt: skip
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    for command in (configure, ["cmake", "--build", str(folder / "build"), "--target", "_native"]):
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PATH": path})
        if done.returncode:
            raise RuntimeError(f"{name} does not build: {(done.stdout + done.stderr)[-3000:]}")
    (found,) = (folder / "build").glob("_native*.so")
    return found


def _files() -> list[Path]:
    found = []
    for name in SOURCES:
        path = ROOT / name
        found += [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return found


def _nanobind() -> str:
    done = subprocess.run([sys.executable, "-m", "nanobind", "--cmake_dir"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def without(name: str) -> None:
    """Removes a build."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
