"""Compares training as a Program with training in plain PyTorch, from the same start, data and schedule.

model = GPT(config)
start = initial_parameters(model, seed=0)           # lockstep.training.parameters
found = compare(model, next_token_loss, dataset.rows, start, AdamW(), batch=Batch(8, 65), steps=200)
assert abs(found.ratio - 1) < 0.01
"""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.tracing.arithmetic import FLOAT32, Arithmetic
from lockstep.training.baseline import Sample, load_parameters, optimise
from lockstep.training.job import Batch, build_programs
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import first_statistics, layout_of
from lockstep.training.strategies import diloco


@dataclass(frozen=True)
class Comparison:
    """Training losses of two runs: means over the last steps; eager PyTorch computes each loss before its step."""

    start: float
    """The loss before the first step, the same in both runs."""
    ours: float
    eager: float
    bfloat16: float | None
    """The last loss of eager PyTorch with its forward pass under bfloat16 autocast; None: not run."""
    parameters: int
    """Number of trained parameters."""
    ours_seconds: float
    eager_seconds: float

    @property
    def ratio(self) -> float:
        """Lockstep's value divided by eager PyTorch's."""
        return self.ours / self.eager


def compare(
    model: nn.Module,
    loss: Loss | RandomLoss,
    rows: NDArray[np.int32],
    start: NDArray[np.float32],
    inner: AdamW,
    *,
    batch: Batch,
    steps: int,
    last: int = 20,
    seed: bytes = bytes(32),
    arithmetic: Arithmetic = FLOAT32,
    bfloat16: bool = False,
) -> Comparison:
    """Trains twice from the flat parameters `start`: by the step's Program, and by torch's own AdamW.

    Both draw the rows and words of slot 0 of round 0 under `seed`. `rows` [N, L]; the last `last` steps are averaged.
    `bfloat16` trains once more, under autocast.
    """
    narrow = None
    if bfloat16:
        narrow = fmean(_in_bfloat16(model, loss, Sample(rows, batch, seed), start, inner, steps)[-last:])
    plain = copy.deepcopy(model)
    model, sample = load_parameters(copy.deepcopy(model), start), Sample(rows, batch, seed)
    begin = time.perf_counter()
    losses = optimise(model, lambda t: sample.value(model, loss, t), inner, steps=steps)
    eager_seconds = time.perf_counter() - begin

    spec = diloco.DiLoCo(inner=inner, inner_steps=steps)
    built = build_programs(model, loss, spec, batch=batch, rounds=1, slots=2, arithmetic=arithmetic)
    step = paths.compile(built.step)
    zero = np.zeros_like(start)
    flat = [start, *(first_statistics(plain, built.layout) or (None,))]
    state: list[Array | None] = [*flat, *flat, zero, zero, np.array(0, np.int32), None]
    ours, ours_seconds = [], 0.0
    for t in range(1, steps + 1):
        if t > steps - last:
            live = state[0]
            assert live is not None, "the state begins with the parameters"
            with torch.no_grad():
                ours.append(sample.value(load_parameters(model, live), loss, t).item())
        begin = time.perf_counter()
        state = list(step.run(state, StepContext(seed, 0, 0, t), sample.rows))
        ours_seconds += time.perf_counter() - begin
    return Comparison(
        losses[0], fmean(ours), fmean(losses[-last:]), narrow, layout_of(model).used,
        ours_seconds, eager_seconds,
    )  # fmt: skip


def _in_bfloat16(
    model: nn.Module, loss: Loss | RandomLoss, sample: Sample, start: NDArray[np.float32], inner: AdamW, steps: int
) -> list[float]:
    trained = load_parameters(copy.deepcopy(model), start)

    def value(t: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return sample.value(trained, loss, t)

    return optimise(trained, value, inner, steps=steps)
