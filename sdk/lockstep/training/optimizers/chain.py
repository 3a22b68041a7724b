"""Optimizers as a chain of small functions: clip, decay, a direction of their own, the step along it.

    g = clip(g)                         by value, then by the global norm
    g = g + decay x                     if the decay is coupled, an L2 penalty
    direction, memory = direction(g, memory)
    x = x (1 - rate decay)              if it is not (Loshchilov and Hutter 2019)
    x = x - rate direction

An optimizer is a frozen dataclass derived from Chained, with a `direction`; its corrections for the age of its memory
are rows of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from math import prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.optimizers.groups import Grouped, Groups, Partition
from lockstep.training.optimizers.schedule import Scheduled, brief
from lockstep.training.optimizers.schedules import CosineRate, RateShape
from lockstep.training.parameters import Layout
from lockstep.training.strategies.base import Shards, Transformation

Memory = list[Tensor]
NEUTRAL = (1.0, 0.0)


class At(NamedTuple):
    """The rate, the decay and the factors of a step for one run of parameters."""

    rate: Tensor | float
    decay: float
    """The weight decay; 0 if the chain has added it to the gradient."""
    row: Callable[[], Sequence[Tensor]]

    @property
    def factors(self) -> Sequence[Tensor]:
        """The row of the optimizer's table at the age of its memory; looked up when it is first read."""
        return self.row()

    def step(self, x: Tensor, direction: Tensor) -> Tensor:
        """x after the decay and the step."""
        kept = x * (1 - self.rate * self.decay) if self.decay else x
        return kept - self.rate * direction


def norm_scale(grad: Shards, clip: float) -> Tensor:
    """Returns the factor that scales a gradient's global norm down to `clip` (Pascanu 2013, algorithm 1)."""
    norm = torch.sqrt(reduce(torch.add, [(g * g).sum() for g in grad]))
    return torch.clamp(clip / (norm + 1e-6), max=1.0)


@dataclass(frozen=True, kw_only=True)
class Chained(Scheduled, Grouped):
    """An optimizer of a chain."""

    coupled: ClassVar[bool] = False
    """True: the decay is added to the gradient."""
    whole: ClassVar[bool] = False
    """True: a parameter's direction depends on all of it, in its shape; else elements are independent."""
    counts: ClassVar[bool] = False
    """True: the memory holds its age even if it restarts."""

    learning_rate: float = field(default=1e-3, kw_only=False)
    """The highest learning rate."""
    weight_decay: float = 0.0
    """Weight decay per step, times the learning rate."""
    decayed: str = "all"
    """The parameters that decay: "all", "matrices" (no norms and biases), or "hidden" (no embeddings either, by their
    names)."""
    clip: float = 0.0
    """The largest global norm of a gradient; 0: none."""
    clip_value: float = 0.0
    """The largest magnitude of an element of a gradient, cut before its norm; 0: none."""
    warmup: int = 10
    """Steps of linear warm-up over the whole job."""
    final_fraction: float = 0.1
    """The learning rate of the last step as a fraction of the highest, for schedules that decay to one."""
    schedule: RateShape = field(default_factory=CosineRate)
    """The learning rate after the warm-up: "cosine", "constant", "linear", "wsd", "inverse_sqrt", "step" or
    "one_cycle"."""
    groups: Groups = field(default_factory=Groups)
    """Parameters with a rate or a decay of their own: [], or in its place tables by patterns of names, as
    [strategy.inner.groups."*.bias"], with learning_rate or weight_decay; of several that match, the last decides."""

    def __post_init__(self) -> None:
        self.check_rate()
        self.check_groups()
        if not (self.weight_decay >= 0 and self.clip >= 0 and self.clip_value >= 0):
            raise UsageError(
                f"{type(self).__name__} cannot run with {brief(self)}",
                "weight_decay, clip and clip_value must not be below 0",
            )

    def check_lies(self, *, inside: Sequence[str] = (), above: Sequence[str] = (), least: Sequence[str] = ()) -> None:
        """Raises UsageError unless fields lie in [0, 1), are above 0, or are at least 0."""
        for names, fine, what in (
            (inside, lambda x: 0 <= x < 1, "must lie in [0, 1)"),
            (above, lambda x: x > 0, "must be above 0"),
            (least, lambda x: x >= 0, "must not be below 0"),
        ):
            for name in names:
                if not fine(getattr(self, name)):
                    raise UsageError(f"{type(self).__name__} cannot run with {brief(self)}", f"{name} {what}")

    # -- what an optimizer says of itself

    def kept(self) -> int:
        """Tensors of its memory as large as the parameters."""
        return 0

    def shapes(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Further tensors of its memory for a parameter of a shape, if it is `whole`."""
        return []

    def ages(self, age: int) -> list[float]:
        """Factors of memory that has seen `age` gradients, this one included; [] at every age if there are none."""
        return []

    def rows(self, ages: int) -> list[list[float]]:
        """`ages` of 1 .. ages."""
        return [self.ages(age) for age in range(1, ages + 1)] if self.ages(1) else []

    def direction(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(the direction that the step goes against, the memory after it)."""
        raise NotImplementedError

    def moved(self, at: At, x: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """(a run after the step, its memory)."""
        direction, memory = self.direction(at, x, g, memory)
        return at.step(x, direction), memory

    def moved_all(self, runs: Sequence[tuple[At, Tensor, Tensor, Memory]]) -> list[tuple[Tensor, Memory]]:
        """`moved` of every run."""
        return [self.moved(*run) for run in runs]

    # -- what a chain makes of it

    def clipped(self, grad: Shards) -> list[Tensor]:
        """The gradient by value, then by norm."""
        if self.clip_value:
            grad = [torch.clamp(g, -self.clip_value, self.clip_value) for g in grad]
        if self.clip:
            scale = norm_scale(grad, self.clip)
            grad = [g * scale for g in grad]
        return list(grad)

    def rate_at(self, steps: int) -> _Rates:
        """The learning rate as a function of the counter."""
        if self.steady:
            return _Rates(None, self.learning_rate)
        table = torch.tensor([[self.rate(step, steps)] for step in range(steps)], dtype=torch.float32)
        return _Rates(table, self.learning_rate)

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the transformation. Its state: `kept()` memory tensors, each as one tensor a shard; then, if there
        are any, the further tensors of all parameters, concatenated to f32 [n]; then the memory's age, i32 (), if
        `ages` gives factors and the memory either never restarts or `counts`."""
        cut, rates = self.cut_of(layout, self.whole), self.rate_at(steps)
        rest = _Rest.of(cut, self.shapes) if self.whole else _Rest((), 0)
        count, kept = len(layout.sizes), self.kept()
        aged = bool(self.rows(1)) and (restart is None or self.counts)
        # What restarts has the age that the counter says.
        lives = steps if aged or restart is None else min(steps, restart)
        rows = self.rows(lives)
        ages = torch.tensor([rows[step % lives] for step in range(steps)], dtype=torch.float32) if rows else None

        def init(p: Shards, counter: Tensor) -> list[Tensor]:
            further = [torch.empty(rest.size, device=p[0].device)] if rest.size else []
            return [*(list(p) * kept), *further, *([counter] if aged else [])]

        def update(state: Shards, counter: Tensor, p: Shards, grad: Shards) -> tuple[list[Tensor], list[Tensor]]:
            rate, age = rates(counter), state[-1] if aged else counter
            row = cache(lambda: () if ages is None else F.embedding(age, ages).unbind(0))
            held = [cut.cut(state[k * count : (k + 1) * count]) for k in range(kept)]
            todo: list[tuple[At, Tensor, Tensor, Memory]] = []
            for at, (run, x, g) in enumerate(zip(cut.runs, cut.cut(p), cut.cut(self.clipped(grad)), strict=True)):
                ratio, decay = run.key or NEUTRAL
                if decay and self.coupled:
                    g, decay = g + decay * x, 0.0
                here = At(rate if ratio == 1 else rate * ratio, decay, row)
                todo.append((here, x, g, [*(each[at] for each in held), *rest.read(state, kept * count, at)]))
            own = iter(self.moved_all([each for run, each in zip(cut.runs, todo, strict=True) if run.key]))
            # Padding stays as it is.
            done = [
                next(own) if run.key else (x, memory) for run, (_, x, _, memory) in zip(cut.runs, todo, strict=True)
            ]
            moved, after = [x for x, _ in done], [memory for _, memory in done]
            beside = [each.reshape(-1) for memory in after for each in memory[kept:]]
            states = [each for k in range(kept) for each in cut.join([memory[k] for memory in after])]
            further = [torch.cat(beside)] if rest.size else []
            return [*states, *further, *([age + 1] if aged else [])], cut.join(moved)

        return Transformation(init, update)


class _Rates(NamedTuple):
    """A learning rate that the counter looks up, or one for every step."""

    table: Tensor | None
    steady: float

    def __call__(self, counter: Tensor) -> Tensor | float:
        if self.table is None:
            return self.steady
        (rate,) = F.embedding(counter, self.table).unbind(0)
        return rate


class _Rest(NamedTuple):
    """The places of each run's further tensors in their flat tensor."""

    places: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    """By run: (offset, shape) of each."""
    size: int

    @classmethod
    def of(cls, cut: Partition, shapes: Callable[[tuple[int, ...]], list[tuple[int, ...]]]) -> _Rest:
        places: list[tuple[tuple[int, tuple[int, ...]], ...]] = []
        end = 0
        for run in cut.runs:
            found = []
            for shape in [] if run.shape is None else shapes(run.shape):
                found.append((end, shape))
                end += prod(shape)
            places.append(tuple(found))
        return cls(tuple(places), end)

    def read(self, state: Shards, entry: int, run: int) -> list[Tensor]:
        if not self.size:
            return []
        return [state[entry][at : at + prod(shape)].view(shape) for at, shape in self.places[run]]
