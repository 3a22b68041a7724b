"""Chooses the device that a process computes on before it opens anything, and reports it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.base.lines import event
from lockstep.base.machine import processor_name

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.numerics.devices import Choice


def on_device(settings: Settings) -> tuple[Settings, Choice]:
    """Returns the settings with the chosen device, and the reason for the choice; raises the errors of
    `devices.choose`."""
    from lockstep.numerics.devices import choose

    chosen = choose(settings.device)
    return replace(settings, device=chosen.device), chosen


def machine_name(settings: Settings, chosen: Choice) -> str:
    """Returns the name of the compute device, or of the processor with its number of threads."""
    if chosen.device != "cpu":
        return chosen.name
    return f"{processor_name()}, {settings.threads} thread{'s' if settings.threads > 1 else ''}"


def tell(chosen: Choice) -> None:
    """Prints the event that names the device and the reason for its choice."""
    event("device", device=chosen.device, name=chosen.name, why=chosen.why)
