"""The learning rate over the steps of a job: linear warm-up, then a cosine to a fraction of the highest."""

from __future__ import annotations

import math

from lockstep.protocol.errors import UsageError
from lockstep.training.described import Described


class Scheduled(Described):
    """A frozen dataclass with a learning rate that follows the step's number in the job, or the round's."""

    learning_rate: float
    warmup: int
    final_fraction: float

    def check_rate(self) -> None:
        """Raises UsageError unless the learning rate is above 0 at first and never below."""
        if not (self.learning_rate > 0 and self.warmup >= 0 and 0 <= self.final_fraction <= 1):
            raise UsageError(
                f"no learning rate follows from {self}",
                "learning_rate is above 0, warmup not below, final_fraction in [0, 1]",
            )

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0 .. steps - 1."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        progress = max(0.0, (step - self.warmup) / max(1, steps - self.warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return self.learning_rate * warm * (self.final_fraction + (1 - self.final_fraction) * cosine)
