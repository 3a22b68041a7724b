"""The CUDA backend: runs Programs on a device, with the same bits as on a processor."""

from __future__ import annotations

from functools import cache

from lockstep.numerics.cuda.device import Cuda, Device, count_devices
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.executable import CudaExecutable
from lockstep.numerics.cuda.selftest import check_device

__all__ = ["CudaExecutable", "count_devices", "open_device"]


@cache
def open_device(label: str = "cuda:0") -> Device:
    """Opens "cuda:N" or "emulated" and runs its self-test.

    Raises UsageError if the device is missing, DoctorError if its arithmetic differs.
    """
    device: Device = Emulator() if label == "emulated" else Cuda(int(label.removeprefix("cuda:")))
    check_device(device)
    return device
