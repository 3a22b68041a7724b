"""Selects the device that computes, as named by the user, and self-tests it before any stake is locked.

>>> choose("cpu").path
'auto'
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lockstep.base.machine import memory
from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.built import kernels as _native
from lockstep.numerics.executor import Executable
from lockstep.numerics.selftest import check_machine
from lockstep.protocol.errors import DoctorError, LockstepError, UsageError
from lockstep.protocol.programs.program import F32

if TYPE_CHECKING:
    from lockstep.numerics.cuda.executable import CudaExecutable
    from lockstep.numerics.cuda.loaded import DeviceState

MEASURED_SECONDS = 0.2
"""Least seconds of the product that measures a device's speed; the size grows until it takes so long."""
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
RUNS = 3


@dataclass(frozen=True)
class Choice:
    """A device that passed the self-test."""

    device: str
    """"cpu", "cuda:N" or "emulated"."""
    name: str
    """The product name that its maker gives it."""
    why: str
    """The reason for this choice, for the log."""

    @property
    def path(self) -> str:
        """The `path` argument of `paths.compile` for this device."""
        return "auto" if self.device == "cpu" else self.device


def choose(wanted: str) -> Choice:
    """Chooses the device for "auto", "cpu", "cuda:N" or "emulated"; "auto" is the first CUDA device that passes the
    self-test, else the processor.

    Raises UsageError if the device is not there, DoctorError if its arithmetic is another.
    """
    if wanted == "auto":
        return _automatic()
    if wanted == "cpu":
        return _processor("it was asked for")
    from lockstep.numerics.cuda import open_device

    return Choice(wanted, open_device(wanted).name, "it was asked for")


def _automatic() -> Choice:
    from lockstep.numerics.cuda import count_devices, open_device

    try:
        labels = [f"cuda:{i}" for i in range(count_devices())]
    except (UsageError, DoctorError) as error:
        return _processor(error.message)
    refused = []
    for label in labels:
        try:
            return Choice(label, open_device(label).name, "it is the first that passed the self-test")
        except LockstepError as error:
            refused.append(f"{label}: {error.message}")
    return _processor("; ".join(refused) or "no CUDA device: the driver counts none")


@dataclass(frozen=True)
class Examined:
    """Name, memory and speed of a device, from a short measurement."""

    device: str
    name: str
    passed: bool
    message: str
    """The self-test's error; empty if it passed."""
    memory_bytes: int = 0
    free_bytes: int = 0
    gflops: float = 0.0
    """Speed of a square float32 product in 10^9 operations per second; on the processor with the given threads."""
    start_seconds: float = 0.0
    """Seconds to open and self-test the device: few if its kernels are cached."""


def examine(device: str, threads: int = 1) -> Examined:
    """Opens, tests and measures "cpu", "cuda:N" or "emulated". Raises UsageError if the device is missing."""
    began = time.perf_counter()
    try:
        chosen = choose(device)
    except DoctorError as error:
        return Examined(device, device, passed=False, message=error.message)
    start = time.perf_counter() - began
    total, free = _memory(device)
    rate = speed(chosen.path, threads)
    return Examined(device, chosen.name, True, "", total, free, round(rate / 1e9, 2), round(start, 3))


def present() -> list[str]:
    """Returns the names of this machine's devices, the processor first, without the emulated one."""
    from lockstep.numerics.cuda import count_devices

    try:
        return ["cpu", *(f"cuda:{i}" for i in range(count_devices()))]
    except UsageError:
        return ["cpu"]


def speed(path: str, threads: int = 1) -> float:
    """Measures the operations per second of a square product on a path of `paths.compile`."""
    for size in SIZES:
        b = ProgramBuilder([(F32, size * size), (F32, size * size)])
        product = b.dot(b.input(0).reshape(size, 1, size), b.input(1).reshape(size, size))
        seconds = _seconds(paths.compile(b.finish([product]), threads=threads, path=path), size * size)
        if seconds >= MEASURED_SECONDS:
            break
    return 2 * size**3 / seconds


def _seconds(executable: Executable, words: int) -> float:
    """Returns the shortest of several runs on two random inputs that are already on the device."""
    from lockstep.numerics.cuda.executable import CudaExecutable

    rng = np.random.default_rng(0)
    state: list[Array | None] = [rng.standard_normal(words, np.float32) for _ in range(2)]
    context = StepContext(bytes(32), 0, 0, 1)
    run: Callable[[], object] = partial(executable.run, state, context)
    if isinstance(executable, CudaExecutable):
        run = partial(_step, executable, executable.upload(state), context)
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _step(executable: CudaExecutable, state: DeviceState, context: StepContext) -> None:
    executable.step(state, context)
    executable.device.wait()


def _memory(device: str) -> tuple[int, int]:
    """Returns (total, free) bytes of memory."""
    if device == "cpu":
        held = memory()
        return held.total, held.available
    from lockstep.numerics.cuda import open_device

    return open_device(device).memory


def _processor(why: str) -> Choice:
    check_machine()
    return Choice("cpu", f"processor, {_native.best_isa()} kernels", why)
