"""The device that computes: named by the user, found and self-tested before anything is at stake.

>>> choose("cpu").path
'auto'
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.numerics import _native
from lockstep.numerics.selftest import check_machine
from lockstep.protocol.errors import DoctorError, LockstepError, UsageError


@dataclass(frozen=True)
class Choice:
    """A device that passed the self-test."""

    device: str
    """"cpu", "cuda:N" or "emulated"."""
    name: str
    """What its maker calls it."""
    why: str
    """Why this one."""

    @property
    def path(self) -> str:
        """Of `executor.compile`."""
        return "auto" if self.device == "cpu" else self.device


def choose(wanted: str) -> Choice:
    """The device for "auto", "cpu", "cuda:N" or "emulated"; "auto" is the first CUDA device that passes the self-test,
    else the processor.

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


def _processor(why: str) -> Choice:
    check_machine()
    return Choice("cpu", f"processor, {_native.best_isa()} kernels", why)
