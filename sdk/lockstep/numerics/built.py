"""Selects the processor's kernels: the compiled ones, or numpy where they were not built."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.numerics import _native as kernels
else:
    try:
        from lockstep.numerics import _native as kernels
    except ImportError:
        from lockstep.numerics import portable as kernels

__all__ = ["COMPILED", "build_name", "kernels"]

COMPILED: bool = kernels.__name__.endswith("_native")
"""True if the compiled extension is present; without it the bits are equal, but computing takes some hundred times as
long.
"""


@cache
def build_name() -> str:
    """Returns the name of this build: the package's version, and a digest of all that computes, kernels included.

    Two processes with equal names run the same code.
    """
    digest, folder = sha256(), Path(__file__).parent
    sources = sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    # An editable install has its compiled kernels outside of this folder.
    for file in (*sources, Path(kernels.__file__ or __file__)):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    try:
        release = version("lockstep-compute")
    except PackageNotFoundError:
        release = "unknown"
    return f"{release}+{digest.hexdigest()[:16]}"
