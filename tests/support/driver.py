"""Provides a CUDA driver without a device (tests/native/libcuda.c), backed by emulated kernels."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.numerics import libraries
from lockstep.numerics.cuda.emulator import recipe
from lockstep.numerics.cuda.generate import generate
from lockstep.protocol.programs.program import Program


def source(program: Program) -> str:
    """Returns the kernels of a Program on this driver's device."""
    return generate(program, 227 << 10).source  # SHARED_OF_THIS of libcuda.c


def environment(folder: Path, sources: Iterable[str]) -> dict[str, str]:
    """Returns an environment with this driver and the kernels of generated sources; compiled code is kept in the
    folder.
    """
    for module in ("cuda", "cuda.bindings", "nvidia", "nvidia.cu13"):
        if find_spec(module) is None:
            pytest.skip(f"no package {module}: pip install 'lockstep-compute[cuda]'")
    driver = Path(__file__).parents[1] / "native/libcuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", str(driver), "-o", str(folder / "libcuda.so.1"), "-ldl"], check=True)
    # Kernels in a source are separated by blank lines; Programs share some kernels.
    kernels = dict.fromkeys(text for source in sources for text in source.split("\n\n"))
    library = libraries.build(recipe("\n\n".join(kernels)))
    cache = {"LOCKSTEP_CACHE": str(folder / "cache")}
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "EMULATED_LIBRARY": str(library._name), **cache}
