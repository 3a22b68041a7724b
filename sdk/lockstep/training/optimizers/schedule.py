"""The learning rate over the steps of a job: linear warm-up, then a cosine to a fraction of the highest."""

from __future__ import annotations

import math


class Scheduled:
    """A frozen dataclass with a learning rate that follows the step's number in the job, or the round's."""

    learning_rate: float
    warmup: int
    final_fraction: float

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of step 0 .. steps - 1."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        progress = max(0.0, (step - self.warmup) / max(1, steps - self.warmup))
        cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
        return self.learning_rate * warm * (self.final_fraction + (1 - self.final_fraction) * cosine)
