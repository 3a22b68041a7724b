"""A model's loss as a job: only forward passes, claimed, replayed, disputed and paid like training.

Each slot draws `batches` batches per round, and its payload is the sum of their losses; a merge adds the accepted
slots' sums to those of earlier rounds and leaves the parameters unchanged. State layouts are those of
docs/protocol.md section 3, for parameters of one flat tensor with both depths 0:

    slot    [parameters] [parameters] [sum, rest] [counter]      step -> the same, encode -> [sum, rest, batches] [-]
    merge   [parameters, metrics] lifted, [payloads ...], [mask] lifted -> [parameters, metrics]

The market's base, payload and outer state are here the model, a slot's metrics and the job's. The round's seed
determines the rows: nobody chooses them, and the mean is an unbiased estimate of the mean over the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.execution.jobs import JobPrograms, TrainingJob
from lockstep.presets import DEVNET, Terms
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.sections import Sections
from lockstep.protocol.types import Address
from lockstep.storage.dataset import Dataset
from lockstep.storage.payload import Checkpoint
from lockstep.tracing import trace
from lockstep.tracing.attributes import Attributes
from lockstep.training.job import (
    Batch,
    TracedPrograms,
    check_parties,
    check_size,
    check_width,
    default_loss,
    described_parameters,
    mean_loss,
    traced_loss,
    with_written,
    written_state,
)
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.metrics import BATCHES, MAX_BATCHES, REST, SUM, EvaluationSpec
from lockstep.training.models import describe, next_token_loss
from lockstep.training.parameters import (
    NOTHING_WRITTEN,
    SHARD_ELEMENTS,
    Layout,
    first_statistics,
    layout_of,
    running_statistics,
    unallocated,
    unallocated_statistics,
    writable,
)
from lockstep.training.wrappers import unwrapped


def build_programs(
    model: nn.Module,
    loss: Loss | RandomLoss,
    *,
    batch: Batch,
    batches: int,
    rounds: int,
    slots: int,
    shard_elements: int = SHARD_ELEMENTS,
) -> TracedPrograms:
    """Traces the Programs of an evaluation of `rounds` rounds with `slots` workers each, `batches` steps a slot.

    The model is traced in evaluation mode. Raises LoweringError if it uses operations that cannot become a Program.
    """
    if min(rounds, slots, batches) < 1:
        raise UsageError(f"rounds is {rounds}, slots is {slots}, batches is {batches}", "use at least 1 of each")
    check_size(rounds, batches, slots)
    # INVARIANT: batches are counted in binary32 without rounding.
    if rounds * slots * batches > MAX_BATCHES:
        raise UsageError(f"{rounds} x {slots} x {batches} batches", f"use at most {MAX_BATCHES}, with more rows each")

    def traced(layout: Layout) -> TracedPrograms:
        return _traced(model, loss, layout, batch=batch, batches=batches, slots=slots)

    written: Mapping[str, str] = NOTHING_WRITTEN
    if any(m.training for m in model.modules()) and writable(model).keys() > running_statistics(model).keys():
        # In evaluation mode it may not write what a checkpoint of its training has.
        written = written_state(model, loss, batch, layout_of(model, shard_elements))
    return with_written(model, loss, batch, shard_elements, traced, written)


def _traced(
    model: nn.Module, loss: Loss | RandomLoss, layout: Layout, *, batch: Batch, batches: int, slots: int
) -> TracedPrograms:
    """Traces the Programs for one layout."""
    attributes = Attributes(model)
    sections, shards = sections_of(layout, slots), len(layout.held)
    check_width(layout, sections)

    def step(*state: Tensor, differentiates: bool = False) -> list[Tensor | None]:
        total, counter = state[sections.carry.start], state[sections.clock]
        with attributes.kept():
            total = _added(
                total,
                mean_loss(model, loss, layout, state[sections.live][:shards], batch, differentiates=differentiates),
            )
        return sections.slot_state(state[sections.live], state[sections.anchor], [total], counter + 1)

    def encode(*state: Tensor) -> list[Tensor | None]:
        return sections.encoded([torch.cat([state[sections.carry.start], torch.tensor([float(batches)])])])

    def merge(*state: Tensor) -> list[Tensor | None]:
        metrics, mask = state[sections.outer.start], state[sections.mask]
        total, count = metrics[:BATCHES], metrics[BATCHES]
        for slot, section in enumerate(sections.payloads):
            heard = torch.where(mask[slot] > 0, state[section.start], 0.0)
            total = _added(total, heard[SUM], heard[REST])
            count = count + heard[BATCHES]
        return sections.checkpoint(state[sections.shared], [torch.cat([total, count.reshape(1)])])

    pair, words, accepted = (torch.empty(n, device="meta") for n in (2, 3, slots))
    tensors = [*unallocated(layout), *unallocated_statistics(layout)]
    clock = torch.empty((), dtype=torch.int32, device="meta")
    start = sections.slot_state(tensors, tensors, [pair], clock)
    joined = sections.merge_state(tensors, [words], [[words]] * slots, accepted)
    with _evaluating(model), attributes:
        stepped = traced_loss(step, *start)
        if attributes.left:
            # A second step may read what the first one has left, which a Program cannot.
            traced_loss(step, *start)
    return TracedPrograms(stepped, trace(encode, *start), trace(merge, *joined), layout, sections)


def sections_of(layout: Layout, slots: int) -> Sections:
    """Returns the parts of the states, as deep as a checkpoint's tensors need; the payloads' tree is no less deep."""
    shared = ceil_log2(len(layout.held))
    return Sections(shared, max(0, shared - ceil_log2(slots)), slots)


def _added(total: Tensor, value: Tensor, rest: Tensor | None = None) -> Tensor:
    """Adds to f32 [2], (sum, rest), a value with its own rest: the sum's rounding error is kept in the rest.

    Ogita, Rump and Oishi 2005, Sum2: new + lost is exactly old + value, whichever of the two is larger (Knuth 1969,
    section 4.2.2, theorem B).
    """
    old, kept = total[SUM], total[REST]
    new = old + value
    part = new - old
    lost = (old - (new - part)) + (value - part)
    return torch.stack([new, kept + (lost if rest is None else lost + rest)])


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Puts the model into evaluation mode, without dropout; restores every module's mode afterwards."""
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
    """Makes an evaluation for `Network.quote`: the model with `parameters`, f32 [P], on rows of the dataset.

    `parameters`: a checkpoint's concatenated shared tensors, or `baseline.flat_parameters(model)`, with which the
    model's own buffers are used; each accepted slot adds `batches` batches in each round. `loss` defaults to the
    model's own. Raises UsageError if a size does not fit.
    """
    batch = batch.of(dataset)
    check_parties(dataset, batch, slots, min_slots)
    model = unwrapped(model)
    value = loss or default_loss(model, dataset, batch)
    built = build_programs(model, value, batch=batch, batches=batches, rounds=rounds, slots=slots)
    if parameters.shape == (built.layout.size,) and built.layout.statistics:
        parameters = np.concatenate([parameters, *first_statistics(model, built.layout)])
    # INVARIANT: what is evaluated are the parameters of this model.
    if parameters.dtype != np.float32 or parameters.shape != (sum(built.layout.held),):
        raise UsageError(
            f"the parameters are {parameters.dtype} {parameters.shape}, the model has {sum(built.layout.held)} words",
            "give a flattened checkpoint of this model",
        )
    return TrainingJob(
        programs=JobPrograms(built.step, built.encode, built.merge),
        dataset=dataset,
        genesis=Checkpoint(built.layout.cut(parameters), (np.zeros(3, np.float32),)),
        model=describe(model),
        parameters=described_parameters(model, built),
        strategy=EvaluationSpec(value is next_token_loss).to_dict(),
        inner_steps=batches,
        rounds=rounds,
        slots=slots,
        min_slots=min_slots,
        shared_depth=built.sections.shared_depth,
        payload_depth=built.sections.payload_depth,
        aggregator=aggregator,
        terms=terms,
    )
