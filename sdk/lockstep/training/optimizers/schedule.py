"""The learning rate over the steps of a job: linear warm-up, then a cosine to a fraction of the highest."""

from __future__ import annotations

import math


def rate_at(step: int, steps: int, *, highest: float, warmup: int, final_fraction: float) -> float:
    """The learning rate of step 0 .. steps - 1."""
    warm = min(1.0, (step + 1) / warmup) if warmup else 1.0
    progress = max(0.0, (step - warmup) / max(1, steps - warmup))
    cosine = 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return highest * warm * (final_fraction + (1 - final_fraction) * cosine)
