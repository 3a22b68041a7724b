"""Shapes of the learning rate over the steps of a job, after every optimizer's warm-up.

    rate(step) = learning_rate * warm-up * shape            warm-up: min(1, (step + 1) / warmup)

A shape is 1 at the highest rate. Shapes that decay end at the optimizer's `final_fraction`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from lockstep.protocol.errors import UsageError


@dataclass(frozen=True)
class RateShape:
    """A shape of the learning rate."""

    name: ClassVar[str]
    """The name under which SCHEDULES has it."""
    rises: ClassVar[bool] = False
    """True: the shape has its own rise, and the optimizer's warm-up is skipped."""

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """The fraction of the highest rate in step 0 .. steps - 1; `final`: the optimizer's `final_fraction`."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """`schedule` of an optimizer's description."""
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True)
class ConstantRate(RateShape):
    """The highest rate in every step after the warm-up."""

    name: ClassVar[str] = "constant"

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class Falling(RateShape):
    """A shape with a last step, after which it stays at `final_fraction`."""

    length: int = 0
    """Steps from the job's first one to the end of the decay; 0: all steps of the job."""

    def __post_init__(self) -> None:
        if self.length < 0:
            raise UsageError(
                f"length is {self.length}",
                "give a number of steps, or 0 for those of the job, rounds times inner_steps",
            )

    def progress(self, step: int, steps: int, start: int) -> float:
        """0 up to step `start`, 1 from the end on."""
        length = self.length or steps
        return min(1.0, max(0.0, (step - start) / max(1, length - start)))


@dataclass(frozen=True)
class CosineRate(Falling):
    """Half a cosine (Loshchilov and Hutter 2017, equation 5)."""

    name: ClassVar[str] = "cosine"

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """From 1 to `final`."""
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress(step, steps, warmup)))
        return final + (1 - final) * cosine


@dataclass(frozen=True)
class LinearRate(Falling):
    """A straight line, or a power of one."""

    name: ClassVar[str] = "linear"
    power: float = 1.0
    """1 is a line, 2 the polynomial of degree two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.power > 0:
            raise UsageError(f"power is {self.power}", "use a number above 0: 1 is a straight line")

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """From 1 to `final`."""
        return final + (1 - final) * (1 - self.progress(step, steps, warmup)) ** self.power


@dataclass(frozen=True)
class StableDecay(Falling):
    """WSD: warm-up, stable, decay in the last part (Hu 2024, section 4.2; Hägele 2024, equation 1)."""

    name: ClassVar[str] = "wsd"
    decay: float = 0.2
    """The last part of the length, in which the rate falls."""
    form: str = "linear"
    """The form of the fall: "linear", "cosine" or "sqrt", which is 1 - sqrt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.decay <= 1 or self.form not in FORMS_OF_DECAY:
            raise UsageError(
                f"decay is {self.decay}, form is {self.form!r}",
                f"decay lies in [0, 1], form is one of {', '.join(FORMS_OF_DECAY)}",
            )

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """1, then to `final`."""
        length = self.length or steps
        start = max(warmup, length - round(self.decay * length))
        x = self.progress(step, steps, start)
        left = {"linear": 1 - x, "cosine": 0.5 * (1 + math.cos(math.pi * x)), "sqrt": 1 - math.sqrt(x)}[self.form]
        return final + (1 - final) * left


FORMS_OF_DECAY = ("linear", "cosine", "sqrt")


@dataclass(frozen=True)
class InverseRoot(RateShape):
    """The inverse root of the steps (Vaswani 2017, equation 3)."""

    name: ClassVar[str] = "inverse_sqrt"
    timescale: int = 0
    """Steps until the rate is divided by sqrt(2); 0: the steps of the warm-up, or 10,000 without one."""
    least: float = 0.0
    """The lowest rate, as a fraction of the highest."""

    def __post_init__(self) -> None:
        if self.timescale < 0 or not 0 <= self.least <= 1:
            raise UsageError(f"timescale is {self.timescale}, least is {self.least}", "timescale 0 or more, least 0..1")

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """sqrt(scale / (scale + steps since the warm-up))."""
        scale = self.timescale or warmup or 10_000
        return max(self.least, math.sqrt(scale / (scale + max(0, step + 1 - warmup))))


@dataclass(frozen=True)
class StepRate(RateShape):
    """Multiplied by a factor at intervals, or at given steps: 1.0, 0.1, 0.01 (He 2016, section 3.4)."""

    name: ClassVar[str] = "step"
    every: int = 0
    """Steps between two drops; 0: only at the milestones."""
    milestones: str = ""
    """Steps of the job at which the rate drops, e.g. "3000 6000"."""
    factor: float = 0.1
    """The rate is multiplied by this factor at each drop."""
    least: float = 0.0
    """The lowest rate, as a fraction of the highest."""

    def __post_init__(self) -> None:
        words = self.milestones.split()
        fine = self.every >= 0 and all(word.isascii() and word.isdigit() for word in words)
        if not (fine and 0 < self.factor <= 1 and 0 <= self.least <= 1):
            raise UsageError(
                f"no steps follow from {self}",
                'use every from 0, milestones e.g. "3000 6000", factor and least up to 1',
            )

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """Returns the factor to the power of the number of drops so far; by default one drop every third of the job."""
        at = [int(word) for word in self.milestones.split()]
        every = self.every or (0 if at else max(1, steps // 3))
        falls = sum(step >= m for m in at) + (step // every if every else 0)
        return max(self.least, self.factor**falls)


@dataclass(frozen=True)
class OneCycle(Falling):
    """Up and down by half cosines (Smith and Topin 2018); the rise replaces the optimizer's warm-up."""

    name: ClassVar[str] = "one_cycle"
    rises: ClassVar[bool] = True
    rise: float = 0.3
    """The part of the length in which the rate rises."""
    start: float = 0.04
    """The rate of the first step, as a fraction of the highest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.rise <= 1 and 0 < self.start <= 1):
            raise UsageError(f"rise is {self.rise}, start is {self.start}", "rise lies in [0, 1], start in (0, 1]")

    def shape(self, step: int, steps: int, warmup: int, final: float) -> float:
        """From `start` to 1, then to `final` in the last step."""
        last = (self.length or steps) - 1
        top = min(last, max(0.0, self.rise * (last + 1) - 1))
        if step < top:
            return 1 + (self.start - 1) * 0.5 * (1 + math.cos(math.pi * step / top))
        x = min(1.0, (step - top) / (last - top)) if last > top else float(step > top)
        return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * x))


SCHEDULES: dict[str, type[RateShape]] = {
    kind.name: kind for kind in (CosineRate, ConstantRate, LinearRate, StableDecay, InverseRoot, StepRate, OneCycle)
}
"""Schedules by name."""
