"""The CUDA path: Programs on a device, in the same bits."""

from __future__ import annotations

from functools import cache

from lockstep.numerics.cuda.device import Cuda, Device, count_devices
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.executable import CudaExecutable
from lockstep.numerics.cuda.selftest import check_device

__all__ = ["CudaExecutable", "count_devices", "open_device"]


@cache
def open_device(label: str = "cuda:0") -> Device:
    """The device "cuda:N" or "emulated", once it has passed the self-test. Raises UsageError if it is not there,
    DoctorError if its arithmetic is another."""
    device: Device = Emulator() if label == "emulated" else Cuda(int(label.removeprefix("cuda:")))
    check_device(device)
    return device
