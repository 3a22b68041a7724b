"""The seam to a device, and the one behind it that is made of silicon: NVRTC and the CUDA driver.

`Device` is all that the executable asks of a machine; `emulator.Emulator` is the other one.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lockstep.protocol.errors import DoctorError, UsageError

Address = int
Words = npt.NDArray[np.uint32]

ARITHMETIC = ("-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true")
"""What document 3 asks of a CUDA compiler, in the words of NVRTC and nvcc."""

FOLDER = Path(__file__).parent
HEADERS = (FOLDER / "kernels.cuh", FOLDER.parent / "kernels" / "f32.hpp")
"""What generated source includes."""


class Device(Protocol):
    """Memory and kernels of a machine. Everything that is asked of it happens in order."""

    def load(self, source: str) -> Kernels:
        """The kernels of a translation unit."""

    def allocate(self, words: int) -> Address:
        """Uninitialised words, 256-byte aligned."""

    def free(self, address: Address) -> None:
        """Gives an allocation back."""

    def write(self, address: Address, words: Words) -> None:
        """Copies contiguous words to the device."""

    def read(self, address: Address, words: Words) -> None:
        """Waits for what was asked before, then copies from the device into a contiguous array."""

    def wait(self) -> None:
        """Returns when everything that was asked is done."""


class Kernels(Protocol):
    """Compiled kernels by name."""

    def launch(self, name: str, blocks: int, threads: int, arguments: Address) -> None:
        """Starts a kernel; `arguments` points, on the host, to the addresses of its arguments."""


class Cuda:
    """A CUDA device through the driver (package cuda-bindings), on its default stream."""

    def __init__(self, ordinal: int = 0) -> None:
        self._driver, self._nvrtc = _bindings("driver"), _bindings("nvrtc")
        try:
            self._call(self._driver.cuInit(0))
            self._device = self._call(self._driver.cuDeviceGet(ordinal))
        except (DoctorError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UsageError(
                f"no CUDA device: {reason}", hint="a machine with an NVIDIA driver has one; path auto needs none"
            ) from error
        self._context = self._call(self._driver.cuDevicePrimaryCtxRetain(self._device))
        self._enter()

    @property
    def name(self) -> str:
        """What the driver calls the device."""
        return str(self._call(self._driver.cuDeviceGetName(64, self._device)).split(b"\0")[0].decode())

    def load(self, source: str) -> Kernels:
        """Compiles for this device; raises DoctorError with the compiler's first lines."""
        attribute = self._driver.CUdevice_attribute
        major, minor = (
            self._call(self._driver.cuDeviceGetAttribute(which, self._device))
            for which in (
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            )
        )
        image = compile_source(source, f"sm_{major}{minor}")
        self._enter()
        place = np.frombuffer(image, np.uint8).ctypes.data
        return _Module(self, self._call(self._driver.cuModuleLoadData(place)))

    def allocate(self, words: int) -> Address:
        """See `Device`."""
        self._enter()
        return int(self._call(self._driver.cuMemAlloc(4 * max(words, 1))))

    def free(self, address: Address) -> None:
        """See `Device`."""
        self._enter()
        self._call(self._driver.cuMemFree(address))

    def write(self, address: Address, words: Words) -> None:
        """See `Device`."""
        self._enter()
        self._call(self._driver.cuMemcpyHtoD(address, words.ctypes.data, words.nbytes))

    def read(self, address: Address, words: Words) -> None:
        """See `Device`."""
        self._enter()
        self._call(self._driver.cuMemcpyDtoH(words.ctypes.data, address, words.nbytes))

    def wait(self) -> None:
        """See `Device`."""
        self._enter()
        self._call(self._driver.cuCtxSynchronize())

    def launch(self, function: Any, blocks: int, threads: int, arguments: Address) -> None:
        """Starts a function of a module."""
        self._call(self._driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, 0, arguments, 0))

    def function(self, module: Any, name: str) -> Any:
        """A kernel of a module."""
        return self._call(self._driver.cuModuleGetFunction(module, name.encode()))

    def _enter(self) -> None:
        """A context is current per thread, and a worker trains in one of its own."""
        self._call(self._driver.cuCtxSetCurrent(self._context))

    def _call(self, result: tuple[Any, ...]) -> Any:
        """The value of a driver call; raises DoctorError for any status but success."""
        status, *values = result
        if int(status) != 0:
            raise DoctorError(f"the CUDA driver says {status.name}", hint="nvidia-smi shows the device and its memory")
        return values[0] if values else None


class _Module:
    def __init__(self, device: Cuda, module: Any) -> None:
        self._device, self._module = device, module
        self._functions: dict[str, Any] = {}

    def launch(self, name: str, blocks: int, threads: int, arguments: Address) -> None:
        if name not in self._functions:
            self._functions[name] = self._device.function(self._module, name)
        self._device.launch(self._functions[name], blocks, threads, arguments)


def compile_source(source: str, architecture: str) -> bytes:
    """Machine code for an architecture such as "sm_90", by NVRTC; needs no device. Raises DoctorError with what the
    compiler says, UsageError without NVRTC."""
    nvrtc = _bindings("nvrtc")
    names = [path.name.encode() for path in HEADERS]
    texts = [path.read_bytes() for path in HEADERS]
    options = [f"-arch={architecture}".encode(), b"-std=c++20", *(flag.encode() for flag in ARITHMETIC)]
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
        raise UsageError("the path cuda needs the package cuda-bindings", hint=INSTALL) from error


def addresses(cells: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Where an array's elements lie: what a launch takes, for arguments that are these elements."""
    return cells.ctypes.data + cells.itemsize * np.arange(len(cells), dtype=np.uint64)
