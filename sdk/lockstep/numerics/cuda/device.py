"""The device interface, and its implementation with NVRTC and the CUDA driver.

`emulator.Emulator` is the second implementation of `Device`.
"""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from lockstep.base.settings import cache_directory
from lockstep.numerics import compiled
from lockstep.numerics.resident import DeviceFailed
from lockstep.protocol.errors import DoctorError, UsageError

log = logging.getLogger(__name__)

Address = int
Words = npt.NDArray[np.uint32]

ARITHMETIC = ("-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
"""Compiler options that docs/numerics.md (On a CUDA device) requires, in the spelling of NVRTC and nvcc."""

FOLDER = Path(__file__).parent
HEADERS = (
    FOLDER / "kernels.cuh", FOLDER / "integers.cuh", FOLDER / "tiles.cuh",
    FOLDER.parent / "kernels" / "f32.hpp", FOLDER.parent / "kernels" / "codes.hpp",
)  # fmt: skip
"""Header files that generated source includes."""


UNITS = ("dp4a", "mma.m8n8k16", "mma.m16n8k32", "wgmma.m64k32", "mma.m16n8k16.f16")
"""Hardware units that multiply codes, indexed by LOCKSTEP_UNIT in integers.cuh."""
MMA, WGMMA, HALVES = UNITS[2:]

SHARED_BYTES = 48 << 10
"""Shared memory in bytes that a launch may use on every device; a kernel that needs more must request it when
loaded.
"""


class DeviceMemory(NamedTuple):
    """The memory of a device: total and free bytes."""

    total: int
    free: int


class Device(Protocol):
    """A machine's memory and kernels; it executes all calls in order."""

    @property
    def label(self) -> str:
        """The device's name as given to `--device`."""

    @property
    def name(self) -> str:
        """The manufacturer's product name."""

    @property
    def memory(self) -> DeviceMemory:
        """Total memory of the device, and the part that is free now."""

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a block, in bytes."""

    @property
    def unit(self) -> str:
        """The unit, one of `UNITS`, that multiplies codes."""

    def enter(self) -> None:
        """Prepares the calling thread to use the device."""

    def load(self, source: str) -> Kernels:
        """Compiles a translation unit and returns its kernels."""

    def allocate(self, words: int) -> Address:
        """Allocates uninitialised words, 256-byte aligned; raises DeviceFailed if there is not enough memory."""

    def free(self, address: Address) -> None:
        """Frees an allocation."""

    def write(self, address: Address, words: Words) -> None:
        """Copies contiguous words to the device."""

    def read(self, address: Address, words: Words) -> None:
        """Waits for all earlier calls, then copies from the device into a contiguous array."""

    def wait(self) -> None:
        """Waits until all earlier calls are done."""


class RecordedLaunch(NamedTuple):
    """A recorded launch of a kernel (`Kernels.record`)."""

    kernel: str
    blocks: int
    threads: int
    shared: int
    arguments: npt.NDArray[np.uint64]
    """The values of the arguments, one per cell."""


class Kernels(Protocol):
    """Compiled kernels, by name."""

    def record(self, nodes: Sequence[RecordedLaunch]) -> Callable[[], None]:
        """Records launches; returns a function that starts them all in order.

        Raises DeviceFailed if they cannot be recorded.
        """

    def launch(self, name: str, blocks: int, threads: int, shared: int, arguments: Address) -> None:
        """Launches a kernel whose blocks get `shared` bytes of dynamic shared memory; `arguments` is a host pointer to
        the addresses of its arguments."""


class Cuda:
    """A CUDA device, driven through the package cuda-bindings on its default stream."""

    def __init__(self, ordinal: int = 0) -> None:
        count = count_devices()
        self._driver = _bindings("driver")
        self.label = f"cuda:{ordinal}"
        if not ordinal < count:
            there = ", ".join(f"cuda:{i}" for i in range(count)) or "none"
            raise UsageError(f"no CUDA device {self.label}: this machine has {there}", hint="nvidia-smi lists them")
        self._device = _value(self._driver.cuDeviceGet(ordinal))
        self._context = _value(self._driver.cuDevicePrimaryCtxRetain(self._device))
        self.enter()

    @property
    def name(self) -> str:
        """The product name reported by the driver."""
        return str(_value(self._driver.cuDeviceGetName(64, self._device)).split(b"\0")[0].decode())

    @property
    def memory(self) -> DeviceMemory:
        """Total and free bytes of the device's memory."""
        self.enter()
        free, total = _value(self._driver.cuMemGetInfo())
        return DeviceMemory(int(total), int(free))

    @cached_property
    def architecture(self) -> str:
        """The compilers' name of the architecture: "sm_89", or "sm_90a" for units that only sm_90 has."""
        major, minor = (self._attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        return f"sm_{major}{minor}" + ("a" if (major, minor) == (9, 0) else "")

    @cached_property
    def shared_bytes(self) -> int:
        """Most shared memory of a block, in bytes."""
        return self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    @property
    def unit(self) -> str:
        """The unit, one of `UNITS`, that multiplies codes."""
        return unit_of(self.architecture)

    def _attribute(self, name: str) -> int:
        which = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(_value(self._driver.cuDeviceGetAttribute(which, self._device)))

    def load(self, source: str) -> Kernels:
        """Compiles a source for this device, or takes it from the cache.

        Raises DoctorError with the compiler's first lines.
        """
        image = machine_code(source, self.architecture)
        self.enter()
        place = np.frombuffer(image, np.uint8).ctypes.data
        return _Module(self, _value(self._driver.cuModuleLoadData(place)))

    def allocate(self, words: int) -> Address:
        """Allocates uninitialised words; raises DeviceFailed if there is not enough memory."""
        self.enter()
        return int(_value(self._driver.cuMemAlloc(4 * max(words, 1))))

    def free(self, address: Address) -> None:
        """Frees an allocation."""
        self.enter()
        _value(self._driver.cuMemFree(address))

    def write(self, address: Address, words: Words) -> None:
        """Copies contiguous words to the device."""
        self.enter()
        _value(self._driver.cuMemcpyHtoD(address, words.ctypes.data, words.nbytes))

    def read(self, address: Address, words: Words) -> None:
        """Waits for all earlier calls, then copies from the device into a contiguous array."""
        self.enter()
        _value(self._driver.cuMemcpyDtoH(words.ctypes.data, address, words.nbytes))

    def wait(self) -> None:
        """Waits until all earlier calls are done."""
        self.enter()
        _value(self._driver.cuCtxSynchronize())

    def launch(self, function: Any, blocks: int, threads: int, shared: int, arguments: Address) -> None:
        """Starts a function of a module."""
        _value(self._driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, 0, arguments, 0))

    def graph(self, calls: Iterable[tuple[Any, RecordedLaunch]]) -> Callable[[], None]:
        """Records functions of a module as one CUDA graph; returns a function that starts it."""
        self.enter()
        graph = _value(self._driver.cuGraphCreate(0))
        try:
            last: list[Any] = []
            for function, node in calls:
                parameters = self._driver.CUDA_KERNEL_NODE_PARAMS()
                parameters.func, parameters.sharedMemBytes = function, node.shared
                parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = node.blocks, 1, 1
                parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = node.threads, 1, 1
                # The driver copies the arguments, and the values they point to, before the call returns.
                pointers = addresses(node.arguments)
                parameters.kernelParams = pointers.ctypes.data
                last = [_value(self._driver.cuGraphAddKernelNode(graph, last, len(last), parameters))]
            made = _value(self._driver.cuGraphInstantiate(graph, 0))
        finally:
            _value(self._driver.cuGraphDestroy(graph))

        def start() -> None:
            _value(self._driver.cuGraphLaunch(made, 0))

        weakref.finalize(start, self._end_graph, made).atexit = False
        return start

    def _end_graph(self, made: Any) -> None:
        with suppress(DeviceFailed):  # A lost device has no graphs to free.
            self.enter()
            _value(self._driver.cuGraphExecDestroy(made))

    def function(self, module: Any, name: str, shared: int) -> Any:
        """Returns a kernel of a module, allowed to use `shared` bytes of shared memory."""
        function = _value(self._driver.cuModuleGetFunction(module, name.encode()))
        if shared > SHARED_BYTES:
            which = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _value(self._driver.cuFuncSetAttribute(function, which, shared))
        return function

    def enter(self) -> None:
        """Makes the context current in the calling thread: contexts are per thread, and a worker trains in its own."""
        _value(self._driver.cuCtxSetCurrent(self._context))


def _value(result: tuple[Any, ...]) -> Any:
    """Returns the value (or values) of a driver call; raises DeviceFailed for any status but success."""
    status, *values = result
    if int(status) != 0:
        raise DeviceFailed(f"the CUDA driver returned {status.name}", hint="nvidia-smi shows the device and its memory")
    return tuple(values) if len(values) > 1 else values[0] if values else None


def count_devices() -> int:
    """Counts the CUDA devices of this machine.

    Raises UsageError without a driver or the packages of the `cuda` extra.
    """
    driver, _ = _bindings("driver"), _bindings("nvrtc")
    try:
        _value(driver.cuInit(0))
        return int(_value(driver.cuDeviceGetCount()))
    except (DoctorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"no CUDA device: {reason}", hint="use a machine with an NVIDIA driver, or --device cpu"
        ) from error


class _Module:
    def __init__(self, device: Cuda, module: Any) -> None:
        self._device, self._module = device, module
        self._functions: dict[str, Any] = {}

    def launch(self, name: str, blocks: int, threads: int, shared: int, arguments: Address) -> None:
        self._device.launch(self._function(name, shared), blocks, threads, shared, arguments)

    def record(self, nodes: Sequence[RecordedLaunch]) -> Callable[[], None]:
        return self._device.graph((self._function(node.kernel, node.shared), node) for node in nodes)

    def _function(self, name: str, shared: int) -> Any:
        if name not in self._functions:
            self._functions[name] = self._device.function(self._module, name, shared)
        return self._functions[name]


def unit_of(architecture: str) -> str:
    """Returns the unit, one of `UNITS`, for which integers.cuh is compiled on an architecture such as "sm_89" or
    "sm_90a".
    """
    if architecture == "sm_90a":
        return WGMMA
    number = int(architecture.removeprefix("sm_").rstrip("af"))
    if number == 103:
        return HALVES
    return UNITS[(number >= 75) + (number >= 80)]


def machine_code(source: str, architecture: str) -> bytes:
    """Compiles a source as `compile_source` does, once per user.

    The result is cached under the hash of the source, its includes, the architecture, the options and NVRTC's version.
    """
    settings = *_options(architecture), compiler_version().encode()
    parts = [source.encode(), *(path.read_bytes() for path in HEADERS), *settings]
    key = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()

    def make(room: Path) -> Path:
        made = room / "made.cubin"
        made.write_bytes(compile_source(source, architecture))
        return made

    try:
        # INVARIANT: nobody but the user can place code where it is loaded from.
        cache_directory()
    except DoctorError as error:
        log.warning("the cache of CUDA kernels cannot be used, and kernels are compiled again: %s", error)
        return compile_source(source, architecture)
    return compiled.Entry(key, ".cubin").make(make)


def _options(architecture: str) -> list[bytes]:
    return [f"-arch={architecture}".encode(), b"-std=c++20", *(flag.encode() for flag in ARITHMETIC)]


def compiler_version() -> str:
    """Returns NVRTC's version, such as "13.5". Raises UsageError without NVRTC."""
    try:
        status, *version = _bindings("nvrtc").nvrtcVersion()
    except RuntimeError as error:
        raise UsageError(f"no NVRTC: {str(error).splitlines()[0]}", hint=INSTALL) from error
    if int(status) != 0:
        raise DoctorError(f"NVRTC says {status.name}", hint=INSTALL)
    return ".".join(map(str, version))


def compile_source(source: str, architecture: str) -> bytes:
    """Compiles a source with NVRTC to machine code for an architecture such as "sm_90"; needs no device.

    Raises DoctorError with the compiler's message, UsageError without NVRTC.
    """
    nvrtc = _bindings("nvrtc")
    names = [path.name.encode() for path in HEADERS]
    texts = [path.read_bytes() for path in HEADERS]
    options = _options(architecture)
    try:
        status, program = nvrtc.nvrtcCreateProgram(source.encode(), b"program.cu", len(names), texts, names)
    except RuntimeError as error:
        raise UsageError(f"no NVRTC: {str(error).splitlines()[0]}", hint=INSTALL) from error
    if int(status) != 0:
        raise DoctorError(f"NVRTC says {status.name}", hint=INSTALL)
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = _fetched(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0\n").decode()
        raise DoctorError(f"NVRTC compiles no kernels for {architecture}: {log[:2000]}", hint=INSTALL)
    image = _fetched(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    nvrtc.nvrtcDestroyProgram(program)
    return image


def _fetched(size: Any, contents: Any, program: Any) -> bytes:
    _, length = size(program)
    buffer = bytes(length)
    contents(program, buffer)
    return buffer


INSTALL = "pip install 'lockstep-compute[cuda]' brings the driver's bindings and NVRTC"


def _bindings(name: str) -> ModuleType:
    try:
        return import_module(f"cuda.bindings.{name}")
    except ImportError as error:
        raise UsageError("a CUDA device needs the package cuda-bindings", hint=INSTALL) from error


def addresses(cells: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the addresses of an array's elements, which a launch takes as the addresses of its arguments."""
    return cells.ctypes.data + cells.itemsize * np.arange(len(cells), dtype=np.uint64)
