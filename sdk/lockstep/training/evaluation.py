"""The loss of a model as a job: forward passes alone, claimed, replayed, judged and paid as training is.

Each slot draws `batches` batches of a round, adds up their losses and puts the sum out as its payload; a merge adds the
accepted slots' sums to those of the rounds before and leaves the parameters as they are. State layouts are those of
docs/protocol.md section 3 with both depths 0:

    slot    [parameters] [parameters] [sum, rest] [counter]      step -> the same, encode -> [sum, rest, batches] [-]
    merge   [parameters, metrics] lifted, [payloads ...], [mask] lifted -> [parameters, metrics]

What the market calls base, payload and outer state are here the model, a slot's metrics and the job's. Which rows are
drawn follows from the round's seed: nobody chooses them, and the mean is an unbiased estimate of that over the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.jobs import Schedule, TrainingJob
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.presets import DEVNET, Terms
from lockstep.protocol.types import Address
from lockstep.storage.dataset import Dataset
from lockstep.storage.payload import Checkpoint
from lockstep.tracing import trace
from lockstep.training.job import (
    Batch,
    Programs,
    check_parties,
    check_size,
    described_parameters,
    loss_at,
    mean_of_passes,
)
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.metrics import BATCHES, MAX_BATCHES, REST, SUM, EvaluationSpec
from lockstep.training.models import describe, loss_of, next_token_loss
from lockstep.training.parameters import Layout, layout_of

DEPTH = 0
"""Of shared state and payload: one tensor each."""


def build_programs(
    model: nn.Module, loss: Loss | RandomLoss, *, batch: Batch, batches: int, rounds: int, slots: int
) -> Programs:
    """Traces the Programs of an evaluation of `rounds` rounds with `slots` workers each, `batches` steps a slot.

    The model is traced in evaluation mode. Raises LoweringError if it uses what cannot become a Program.
    """
    if min(rounds, slots, batches) < 1:
        raise UsageError(f"{rounds} rounds of {slots} slots, {batches} batches each", "at least one of each")
    check_size(rounds, batches, slots)
    # INVARIANT: batches are counted in binary32 without rounding.
    if rounds * slots * batches > MAX_BATCHES:
        raise UsageError(f"{rounds} x {slots} x {batches} batches", f"at most {MAX_BATCHES} are counted: larger ones")
    layout, half = layout_of(model), 1 << ceil_log2(slots)

    def step(live: Tensor, anchor: Tensor, total: Tensor, counter: Tensor) -> list[Tensor]:
        return [live, anchor, _added(total, mean_loss(model, loss, layout, live, batch)), counter + 1]

    def encode(live: Tensor, anchor: Tensor, total: Tensor, counter: Tensor) -> list[Tensor | None]:
        return [torch.cat([total, torch.tensor([float(batches)])]), None]

    def merge(*state: Tensor) -> list[Tensor]:
        base, metrics = state[0], state[1]
        payloads, mask = state[2 * half : 2 * half + slots], state[3 * half]
        total, count = metrics[:BATCHES], metrics[BATCHES]
        for slot, payload in enumerate(payloads):
            heard = torch.where(mask[slot] > 0, payload, 0.0)
            total = _added(total, heard[SUM], heard[REST])
            count = count + heard[BATCHES]
        return [base, torch.cat([total, count.reshape(1)])]

    flat, pair, words = torch.zeros(layout.size), torch.zeros(2), torch.zeros(3)
    start = [flat, flat, pair, torch.zeros((), dtype=torch.int32)]
    received = [*[words] * slots, *[None] * (half - slots), torch.zeros(slots), *[None] * (half - 1)]
    shared = [flat, words, *[None] * (2 * half - 2)]
    with _evaluating(model):
        return Programs(trace(step, *start), trace(encode, *start), trace(merge, *shared, *received), layout)


def _added(total: Tensor, value: Tensor, rest: Tensor | None = None) -> Tensor:
    """f32 [2], (sum, rest), and a value with its own rest: what rounding takes of the sum is kept in the rest.

    Ogita, Rump and Oishi 2005, Sum2: new + lost is exactly old + value, whichever of the two is larger (Knuth 1969,
    section 4.2.2, theorem B).
    """
    old, kept = total[SUM], total[REST]
    new = old + value
    part = new - old
    lost = (old - (new - part)) + (value - part)
    return torch.stack([new, kept + (lost if rest is None else lost + rest)])


def mean_loss(model: nn.Module, loss: Loss | RandomLoss, layout: Layout, flat: Tensor, batch: Batch) -> Tensor:
    """f32 scalar: the loss over the rows of one step, which a training step with that batch would descend."""
    return mean_of_passes(loss, batch, lambda drawing, rows: loss_at(model, drawing, layout.split(flat), rows))


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; afterwards every module as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def evaluation_job(
    model: nn.Module,
    dataset: Dataset,
    *,
    parameters: NDArray[np.float32],
    batch: Batch,
    batches: int,
    rounds: int = 1,
    slots: int,
    min_slots: int,
    loss: Loss | RandomLoss | None = None,
    aggregator: Address = ZERO_ADDRESS,
    terms: Terms = DEVNET,
) -> TrainingJob:
    """An evaluation as `Network.quote` takes it: the model with `parameters`, f32 [P], on rows of the dataset.

    `parameters` are a checkpoint's first tensor, or `baseline.flat_parameters(model)`; each accepted slot adds
    `batches` batches in each round. `loss` defaults to the model's own. UsageError if a size does not fit.
    """
    check_parties(dataset, batch, slots, min_slots)
    value = loss or loss_of(model)
    built = build_programs(model, value, batch=batch, batches=batches, rounds=rounds, slots=slots)
    # INVARIANT: what is evaluated are the parameters of this model.
    if parameters.dtype != np.float32 or parameters.shape != (built.layout.size,):
        raise UsageError(
            f"parameters of {parameters.dtype} {parameters.shape} for a model of {built.layout.size} words",
            "give a checkpoint of this model, flat",
        )
    return TrainingJob(
        programs=Schedule(built.step, built.encode, built.merge),
        dataset=dataset,
        genesis=Checkpoint((parameters,), (np.zeros(3, np.float32),)),
        model=describe(model),
        parameters=described_parameters(model, built),
        strategy=EvaluationSpec(value is next_token_loss).to_dict(),
        inner_steps=batches,
        rounds=rounds,
        slots=slots,
        min_slots=min_slots,
        shared_depth=DEPTH,
        payload_depth=DEPTH,
        aggregator=aggregator,
        terms=terms,
    )
