"""A device that is none: the kernels' own source compiled for the processor, one thread after the other.

Slow, and exact: indices, barriers and the order of operations are those of the device. What only a device shows is its
speed, its compiler and its floating-point units.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from lockstep.numerics.cuda.device import HEADERS, Address, Words
from lockstep.protocol.errors import DoctorError

POISON = 0xFFFFFFFF
"""What fresh memory holds: a NaN, and a gather index beyond any table."""
GUARD = 64
"""Words beyond each allocation that nobody may write."""


def build(source: str, folder: Path, compiler: str = "c++") -> Path:
    """A library with a function launch_<kernel> for each kernel; raises DoctorError with what the compiler says."""
    native = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    unit, library = folder / "program.cpp", folder / "program.so"
    unit.write_text(source)
    command = [
        compiler, "-std=c++20", "-O1", native, "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math",
        "-fno-strict-aliasing", "-fwrapv", *(f"-I{path.parent}" for path in HEADERS), str(unit), "-o", str(library),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DoctorError(f"{compiler} compiles no kernels: {done.stderr[:2000]}", hint="it needs g++ or clang++")
    return library


class Emulator:
    """`device.Device` on the processor. `descending` runs the threads of a block in the other order."""

    def __init__(self, *, descending: bool = False, compiler: str = "c++") -> None:
        self._descending, self._compiler = descending, compiler
        self._allocations: dict[Address, Words] = {}
        self._overrun = False

    def load(self, source: str) -> EmulatedKernels:
        """Compiles with the C++ compiler; raises DoctorError with what it says."""
        with tempfile.TemporaryDirectory() as folder:
            library = ctypes.CDLL(str(build(source, Path(folder), self._compiler)))
            return EmulatedKernels(library, self._descending)

    def allocate(self, words: int) -> Address:
        """See `Device`; the words are poisoned."""
        memory = np.full(words + GUARD + 64, POISON, np.uint32)
        skipped = -memory.ctypes.data % 256 // 4
        own = memory[skipped : skipped + words + GUARD]
        self._allocations[own.ctypes.data] = own
        return own.ctypes.data

    def free(self, address: Address) -> None:
        """See `Device`."""
        self._overrun |= _overrun(self._allocations.pop(address))

    def write(self, address: Address, words: Words) -> None:
        """See `Device`."""
        ctypes.memmove(address, words.ctypes.data, words.nbytes)

    def read(self, address: Address, words: Words) -> None:
        """See `Device`."""
        ctypes.memmove(words.ctypes.data, address, words.nbytes)

    def wait(self) -> None:
        """See `Device`: nothing is ever under way."""

    @property
    def intact(self) -> bool:
        """Whether no kernel has written beyond the end of an allocation."""
        return not self._overrun and not any(map(_overrun, self._allocations.values()))


def _overrun(memory: Words) -> bool:
    return bool((memory[-GUARD:] != POISON).any())


class EmulatedKernels:
    """`device.Kernels` of a shared library."""

    def __init__(self, library: ctypes.CDLL, descending: bool) -> None:
        self._library, self._descending = library, descending

    def launch(self, name: str, blocks: int, threads: int, arguments: Address) -> None:
        """See `Kernels`."""
        function = self._library[f"launch_{name}"]
        function(
            ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_bool(self._descending), ctypes.c_void_p(arguments)
        )
