"""The learning rate over the steps of a job: linear warm-up, then the shape of a schedule."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from lockstep.protocol.errors import UsageError
from lockstep.training.described import Described
from lockstep.training.optimizers.schedules import ConstantRate, CosineRate, RateShape

_LOOKED_AT = 4096
"""Steps of a warm-up that are searched for the largest rate."""


def brief(value: Any) -> str:
    """Returns a frozen dataclass as text with only its non-default fields, for errors.

    >>> brief(CosineRate(length=5))
    'CosineRate(length=5)'
    """
    said = []
    for each in fields(value):
        own = getattr(value, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if own != default:
            said.append(f"{each.name}={own!r}")
    return f"{type(value).__name__}({', '.join(said)})"


class Scheduled(Described):
    """A frozen dataclass with a learning rate that follows the step's number in the job, or the round's."""

    learning_rate: float
    warmup: int
    final_fraction: float
    schedule: RateShape = CosineRate()

    def check_rate(self) -> None:
        """Raises UsageError unless the learning rate is above 0 at first and never below."""
        if not (self.learning_rate > 0 and self.warmup >= 0 and 0 <= self.final_fraction <= 1):
            raise UsageError(
                f"no learning rate follows from {brief(self)}",
                "learning_rate is above 0, warmup not below, final_fraction in [0, 1]",
            )

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0 .. steps - 1."""
        shape = self.schedule.shape(step, steps, self.warmup, self.final_fraction)
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup and not self.schedule.rises else 1.0
        return self.learning_rate * warm * shape

    @property
    def steady(self) -> bool:
        """True if the learning rate is the same in every step."""
        return isinstance(self.schedule, ConstantRate) and not self.warmup

    def unreached(self, steps: int, restart: int | None) -> str:
        """Returns a warning with the largest rate of a warm-up that is longer than the job; "" otherwise."""
        if self.warmup <= steps or self.schedule.rises:
            return ""
        largest = max(self.rate(step, steps) for step in range(max(0, steps - _LOOKED_AT), steps))
        return (
            f"warmup is {self.warmup}, and there are {steps} steps: "
            f"the largest learning rate is {largest:.1e} of {self.learning_rate:.1e}"
        )
