"""Training: models, losses, optimizers, data and strategies, traced into the Programs of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.training.demo import DemoJob, demo_job

__all__ = ["DemoJob", "demo_job"]


def __getattr__(name: str) -> Any:
    # torch comes with the demo, and with nothing that only reads `lockstep.training.data`.
    if name in __all__:
        from lockstep.training import demo

        return getattr(demo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
