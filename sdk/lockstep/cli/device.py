"""The device that a process computes on: chosen before it opens anything, told when it is ready."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.base.lines import event

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.numerics.devices import Choice


def on_device(settings: Settings) -> tuple[Settings, Choice]:
    """The settings with the device that was found, and why it was this one; raises what `devices.choose` raises."""
    from lockstep.numerics.devices import choose

    chosen = choose(settings.device)
    return replace(settings, device=chosen.device), chosen


def tell(chosen: Choice) -> None:
    """Say on stdout what computes and why."""
    event("device", device=chosen.device, name=chosen.name, why=chosen.why)
