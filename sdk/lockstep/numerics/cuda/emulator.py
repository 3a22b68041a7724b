"""The emulated device: the kernels' own source compiled for the processor, one thread after the other.

Slow, and exact: indices, barriers and the order of operations are those of the device. What only a device shows is its
speed, its compiler and its floating-point units.
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
"""The word that fresh memory holds: a NaN, and a gather index beyond any table."""
GUARD = 64
"""Words beyond each allocation that nobody may write."""
SHARED_BYTES = 99 << 10
"""Shared memory of a block: what the smallest devices with the newest unit have."""

FLAGS = (
    *("-std=c++20", "-Og", "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math"),
    *("-fno-strict-aliasing", "-fwrapv", "-U_FORTIFY_SOURCE"),
)
"""Without fortification, which takes a jump to another stack for an error."""
_turn = threading.Lock()
"""A block's position and its shared memory are globals: one launch at a time in a process."""


def recipe(source: str, unit: str = MMA) -> libraries.BuildRecipe:
    """A library with a function launch_<kernel> for each kernel, whose products of codes run on one of
    `UNITS`; raises DoctorError without a compiler."""
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
    """Emulates a `device.Device` on the processor. `descending` runs the threads of a block in reverse order, `size` is
    its memory in bytes (default: all of the machine's), and `unit` is one of `UNITS`."""

    label = "emulated"
    name = "emulated on the processor, thread by thread"

    def __init__(self, *, descending: bool = False, size: int | None = None, unit: str = MMA) -> None:
        self.shared_bytes, self.unit = SHARED_BYTES, unit
        self._descending = descending
        self._size = memory().total if size is None else size
        self._allocations: dict[Address, Words] = {}
        self._overrun = False

    def load(self, source: str) -> EmulatedKernels:
        """Compiles kernels with the C++ compiler, or takes them from the cache; raises DoctorError with the compiler's
        message."""
        return EmulatedKernels(libraries.build(recipe(source, self.unit)), self._descending)

    @property
    def memory(self) -> DeviceMemory:
        """See `Device`."""
        used = sum(memory.nbytes for memory in list(self._allocations.values()))
        return DeviceMemory(self._size, self._size - used)

    def enter(self) -> None:
        """See `Device`: any thread may ask."""

    def allocate(self, words: int) -> Address:
        """See `Device`; the words are poisoned."""
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
        """True if no kernel has written beyond the end of an allocation."""
        return not self._overrun and not any(map(_overrun, self._allocations.values()))


def _overrun(memory: Words) -> bool:
    return bool((memory[-GUARD:] != POISON).any())


class EmulatedKernels:
    """`device.Kernels` of a shared library."""

    def __init__(self, library: ctypes.CDLL, descending: bool) -> None:
        self._library, self._descending = library, descending

    def launch(self, name: str, blocks: int, threads: int, shared: int, arguments: Address) -> None:
        """See `Kernels`."""
        function = self._library[f"launch_{name}"]
        sizes = ctypes.c_uint(blocks), ctypes.c_uint(threads), ctypes.c_uint(shared)
        with _turn:
            function(*sizes, ctypes.c_bool(self._descending), ctypes.c_void_p(arguments))

    def record(self, nodes: Sequence[RecordedLaunch]) -> Callable[[], None]:
        """See `Kernels`."""
        recorded = [(node, addresses(node.arguments)) for node in nodes]

        def start() -> None:
            for node, pointers in recorded:
                self.launch(node.kernel, node.blocks, node.threads, node.shared, pointers.ctypes.data)

        return start
