"""The CUDA path: Programs on a device, in the same bits."""

from __future__ import annotations

from functools import cache

from lockstep.numerics.cuda.device import Cuda
from lockstep.numerics.cuda.executable import CudaExecutable
from lockstep.numerics.cuda.selftest import check_device
from lockstep.protocol.program import Program

__all__ = ["CudaExecutable", "compile_for_device", "default_device"]


@cache
def default_device() -> Cuda:
    """The first CUDA device, once it has passed the self-test. Raises UsageError without one, DoctorError for one whose
    arithmetic is another."""
    device = Cuda()
    check_device(device)
    return device


def compile_for_device(program: Program) -> CudaExecutable:
    """What `executor.compile(program, path="cuda")` returns."""
    return CudaExecutable(program, device=default_device())
