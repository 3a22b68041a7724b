"""Emulates a device: compiles the CUDA kernels' source for the processor and runs their threads one after another.

The emulation is slow and exact: indices, barriers and the order of operations are those of a device. It does not test a
device's speed, compiler or floating-point units.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import numpy as np

from lockstep.base.machine import memory
from lockstep.numerics import libraries
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.cuda.device import (
    FOLDER,
    HEADERS,
    MMA,
    UNITS,
    Address,
    DeviceMemory,
    RecordedLaunch,
    Words,
    addresses,
)
from lockstep.numerics.fused import ISA_FLAGS
from lockstep.numerics.resident import DeviceFailed
from lockstep.protocol.errors import DoctorError

POISON = 0xFFFFFFFF
"""Word with which fresh memory is filled: a NaN, and as a gather index out of range."""
GUARD = 64
"""Guard words after each allocation, to detect writes beyond its end."""
SHARED_BYTES = 99 << 10
"""Shared memory of a block in bytes, as on the smallest devices with the newest unit."""

FLAGS = (
    *("-std=c++20", "-Og", "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math"),
    *("-fno-strict-aliasing", "-fwrapv", "-U_FORTIFY_SOURCE"),
)
"""Compiler flags; _FORTIFY_SOURCE is off because it takes a switch to another stack for an error."""
_turn = threading.Lock()
"""Serialises launches within a process: the position and the shared memory of a block are globals."""


def recipe(source: str, unit: str = MMA) -> libraries.BuildRecipe:
    """Returns the recipe of a library with a function launch_<kernel> for each kernel; codes are multiplied as on
    `unit`.

    Raises DoctorError without a compiler.
    """
    compiler = libraries.find_compiler()
    if compiler is None:
        raise DoctorError("the emulated device needs a C++ compiler", hint="install g++ or clang++, or set CXX")
    return libraries.BuildRecipe(
        source,
        (*FLAGS, *ISA_FLAGS.get(_native.best_isa(), ()), f"-DLOCKSTEP_UNIT={UNITS.index(unit)}"),
        compiler,
        (*HEADERS, FOLDER / "emulation.hpp"),
    )


class Emulator:
    """A `device.Device` emulated on the processor.

    `descending` runs the threads of a block in reverse order, `size` is the memory in bytes (default: all of the
    machine's), and `unit` is one of `UNITS`.
    """

    label = "emulated"
    name = "emulated on the processor, thread by thread"

    def __init__(self, *, descending: bool = False, size: int | None = None, unit: str = MMA) -> None:
        self.shared_bytes, self.unit = SHARED_BYTES, unit
        self._descending = descending
        self._size = memory().total if size is None else size
        self._allocations: dict[Address, Words] = {}
        self._overrun = False

    def load(self, source: str) -> EmulatedKernels:
        """Compiles kernels with the C++ compiler, or takes them from the cache.

        Raises DoctorError with the compiler's message.
        """
        return EmulatedKernels(libraries.build(recipe(source, self.unit)), self._descending)

    @property
    def memory(self) -> DeviceMemory:
        """Total and free bytes of the emulated memory."""
        used = sum(memory.nbytes for memory in list(self._allocations.values()))
        return DeviceMemory(self._size, self._size - used)

    def enter(self) -> None:
        """Does nothing: any thread may use the emulation."""

    def allocate(self, words: int) -> Address:
        """Allocates words filled with `POISON`; raises DeviceFailed if there is not enough memory."""
        if 4 * words > (free := self.memory.free):
            raise DeviceFailed(
                f"the emulated device has {free:,} bytes, and {4 * words:,} are needed", hint="use another device"
            )
        memory = np.full(words + GUARD + 64, POISON, np.uint32)
        skipped = -memory.ctypes.data % 256 // 4
        own = memory[skipped : skipped + words + GUARD]
        self._allocations[own.ctypes.data] = own
        return own.ctypes.data

    def free(self, address: Address) -> None:
        """Frees an allocation."""
        self._overrun |= _overrun(self._allocations.pop(address))

    def write(self, address: Address, words: Words) -> None:
        """Copies contiguous words to the emulated memory."""
        ctypes.memmove(address, words.ctypes.data, words.nbytes)

    def read(self, address: Address, words: Words) -> None:
        """Copies from the emulated memory into a contiguous array."""
        ctypes.memmove(words.ctypes.data, address, words.nbytes)

    def wait(self) -> None:
        """Does nothing: every call is done when it returns."""

    @property
    def intact(self) -> bool:
        """True if no kernel has written beyond the end of an allocation."""
        return not self._overrun and not any(map(_overrun, self._allocations.values()))


def _overrun(memory: Words) -> bool:
    return bool((memory[-GUARD:] != POISON).any())


class EmulatedKernels:
    """Kernels in a shared library (`device.Kernels`)."""

    def __init__(self, library: ctypes.CDLL, descending: bool) -> None:
        self._library, self._descending = library, descending

    def launch(self, name: str, blocks: int, threads: int, shared: int, arguments: Address) -> None:
        """Runs a kernel, one block after another."""
        function = self._library[f"launch_{name}"]
        sizes = ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_uint(shared)
        with _turn:
            function(*sizes, ctypes.c_bool(self._descending), ctypes.c_void_p(arguments))

    def record(self, nodes: Sequence[RecordedLaunch]) -> Callable[[], None]:
        """Returns a function that runs the given launches in order."""
        recorded = [(node, addresses(node.arguments)) for node in nodes]

        def start() -> None:
            for node, pointers in recorded:
                self.launch(node.kernel, node.blocks, node.threads, node.shared, pointers.ctypes.data)

        return start
