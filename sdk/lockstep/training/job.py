"""Traces a model, a loss and a strategy into the three Programs of a job.

State layouts are those of docs/protocol.md section 3, for parameters of one flat tensor; the strategy defines a slot's
further state, and the outer state, which is passed from merge to merge. With AdamW's moments and an outer momentum
(shared depth 1, payload depth 0):

    slot    [parameters, -] [anchor, -] [m, v] [counter, -]      step -> the same, encode -> [payload] [-]
    merge   [parameters, -, momentum, -] lifted, [payloads ...], [mask] lifted -> [parameters, -, momentum, -]

and if a slot's state is carried, with both depths 2, since the moments' age is carried with them:

    slot    [parameters, ...] [anchor, ...] [m, v, age, -] [counter, ...]      encode -> [payload, ...] [m, v, age, -]

Steps and merges never change a parameter that the loss does not read: no optimizer decays it, no codec rounds it.

Running statistics, if the model has any, are one more tensor after [parameters], [anchor] and [payload]: a step writes
it, a payload carries it unencoded, and a merge takes the mean over the accepted slots.

More than 2^30 parameters are split into several flat tensors, shards, in place of each one above (m of each, then v of
each), and the depths increase accordingly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lockstep.execution.jobs import JobPrograms, TrainingJob, zeros_of
from lockstep.presets import DEVNET, Terms
from lockstep.protocol.errors import LoweringError, UsageError
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market.job_rules import MAX_SLOTS, MAX_STEPS
from lockstep.protocol.merkle import ceil_log2
from lockstep.protocol.programs.program import Program
from lockstep.protocol.programs.rules import MAX_STATE_DEPTH
from lockstep.protocol.sections import Sections
from lockstep.protocol.types import Address
from lockstep.storage.dataset import Dataset
from lockstep.storage.fields import RowForm
from lockstep.storage.payload import F32_FORMAT, Checkpoint
from lockstep.tracing import context, draw, random_words, trace
from lockstep.tracing.arithmetic import FLOAT32, Arithmetic, Products
from lockstep.tracing.attributes import Attributes
from lockstep.tracing.capture import warning_once
from lockstep.tracing.functions import TRAINED
from lockstep.tracing.host import counting_once
from lockstep.training.averages import AverageSpec, checked_decay
from lockstep.training.gradients import gradient, loss_at
from lockstep.training.losses import Loss, RandomLoss, bound
from lockstep.training.merging import merged_statistics
from lockstep.training.models import describe, is_own, loss_of, next_token_loss
from lockstep.training.parameters import (
    FIRST,
    NOTHING_WRITTEN,
    SHARD_ELEMENTS,
    Layout,
    describe_frozen,
    first_statistics,
    initial_parameters,
    layout_of,
    unallocated,
    unallocated_statistics,
    writable,
)
from lockstep.training.probing import not_next_token
from lockstep.training.reading import WINDOW_STREAM, read
from lockstep.training.strategies.base import Strategy
from lockstep.training.strategies.loop import Loop
from lockstep.training.wrappers import unwrapped
from lockstep.training.written import written_by


@dataclass(frozen=True)
class Batch:
    """The shape of the batch that one step reads."""

    rows: int = 8
    """Rows per forward pass."""
    row_length: int = 65
    """L: elements of a dataset row (next-token models: context + 1)."""
    accumulation: int = 1
    """Forward passes per step, whose gradients are averaged."""
    form: RowForm | None = None
    """The form of the dataset's rows, which `of` takes from it."""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.row_length < (2 if self.form is None else 1) or self.accumulation < 1:
            raise UsageError(
                f"the batch is empty: {self}", "use at least 1 for rows and accumulation, and at least 2 for row_length"
            )

    @property
    def words(self) -> int:
        """Words of a drawn row."""
        return self.row_length if self.form is None else self.form.words

    def of(self, dataset: Dataset) -> Batch:
        """Returns the batch with the form of a dataset's rows; for rows of fields, also with their length."""
        return replace(self, form=dataset.form, row_length=dataset.row_tokens if dataset.fielded else self.row_length)

    def given(self, rows_BL: Tensor, words: Callable[..., Tensor], passed: int) -> Any:
        """Returns drawn rows of one pass in the form that the loss takes; `words(count, stream)` are random."""
        return read(self.form, rows_BL, partial(words, stream=WINDOW_STREAM + passed))


@dataclass(frozen=True)
class TracedPrograms:
    """A job's three Programs, and the names of the parameters in their flat tensor."""

    step: Program
    encode: Program
    merge: Program
    layout: Layout
    sections: Sections
    loss: Program | None = None
    """The loss over the rows of one step, for onlookers; None in an evaluation, whose result is a loss already."""
    average: AverageSpec | None = None
    """The moving average of the weights that merges keep, if any."""


def build_programs(
    model: nn.Module,
    loss: Loss | RandomLoss,
    strategy: Strategy,
    *,
    batch: Batch,
    rounds: int,
    slots: int,
    shard_elements: int = SHARD_ELEMENTS,
    arithmetic: Arithmetic = FLOAT32,
    ema: float = 0.0,
) -> TracedPrograms:
    """Traces the Programs of a job of `rounds` rounds with `slots` workers each.

    `arithmetic` selects which products of the model are integer products; encoding and merging have none. `ema` is the
    decay of the weights' moving average over the merges; 0: none is kept.
    The model's weights are not read: it may be built `without_weights()`. Raises LoweringError if it uses operations
    that cannot become a Program, UsageError if its flat tensors, of at most `shard_elements`, do not fit a state.
    """
    if rounds < 1 or slots < 1:
        raise UsageError(
            f"rounds is {rounds}" if rounds < 1 else f"slots is {slots}", "use at least 1 round and at least 1 slot"
        )
    check_size(rounds, strategy.inner_steps, slots)
    decay = checked_decay(ema)

    def traced(layout: Layout) -> TracedPrograms:
        return _traced(
            model, loss, strategy, layout, batch=batch, rounds=rounds, slots=slots, arithmetic=arithmetic, ema=decay
        )

    return with_written(model, loss, batch, shard_elements, traced)


def with_written(
    model: nn.Module,
    loss: Loss | RandomLoss,
    batch: Batch,
    shard_elements: int,
    traced: Callable[[Layout], TracedPrograms],
    written: Mapping[str, str] = NOTHING_WRITTEN,
) -> TracedPrograms:
    """Returns the Programs that `traced` makes for a model's layout; if that fails, for the layout with the buffers and
    frozen parameters that a call of the loss writes, if these are not only the ones known to be `written`.

    Raises LoweringError as `traced` does.
    """
    layout = layout_of(model, shard_elements, written)
    with warning_once(), counting_once():
        try:
            return traced(layout)
        except LoweringError:
            if {s.name for s in layout.statistics}.issuperset(writable(model)):
                raise
            written = written_state(model, loss, batch, layout)
            if {s.name for s in layout.statistics}.issuperset(written):
                raise
        layout = layout_of(model, shard_elements, written)
        try:
            return traced(layout)
        except LoweringError as error:
            raise _naming_state(error, model, layout) from error


def _drawn(batch: Batch, passed: int) -> Any:
    """Returns what the loss takes in one pass of a step, as the step draws it."""
    return batch.given(draw(passed * batch.rows, batch.rows, batch.words), random_words, passed)


def written_state(model: nn.Module, loss: Loss | RandomLoss, batch: Batch, layout: Layout) -> dict[str, str]:
    """Returns the names of buffers and frozen parameters that a step writes, in the order of the model, with lines."""

    def value(own: nn.Module) -> Tensor:
        return bound(loss, partial(random_words, stream=0))(own, _drawn(batch, 0))

    return written_by(model, layout, value, Attributes(model))


def _naming_state(error: LoweringError, model: nn.Module, layout: Layout) -> LoweringError:
    """Returns the error for a step that reads its own state as a fixed number, with that state's names and a remedy."""
    state = writable(model)
    asked = [s.name for s in layout.statistics if s.name.rpartition(".")[2] in error.message]
    whole = [s.name for s in layout.statistics if s.merge == FIRST and not state[s.name].is_floating_point()]
    named = (asked or whole)[:3]
    if "depends on data" not in error.message or not named:
        return error
    return LoweringError(
        f"{error.message}; the step writes {', '.join(named)}, whose value is not fixed",
        hint="index by a tensor instead of int() and slices: at = (self.pointer + torch.arange(n)) % size, "
        "self.queue[at] = x, self.pointer.copy_((self.pointer + n) % size); choose with torch.where instead of `if`",
    )


def _traced(
    model: nn.Module,
    loss: Loss | RandomLoss,
    strategy: Strategy,
    layout: Layout,
    *,
    batch: Batch,
    rounds: int,
    slots: int,
    arithmetic: Arithmetic,
    ema: float,
) -> TracedPrograms:
    """Traces the Programs for one layout."""
    count = len(layout.sizes)
    flats, scalar = unallocated(layout), _scalar()
    rules = strategy.rules(rounds, layout)
    beside, outer = rules.init(flats, scalar), rules.outer(flats, scalar)
    averages = flats if ema else []
    sections = sections_of(strategy, layout, slots, len(averages))
    check_width(layout, sections)
    held, statistics = len(layout.held), unallocated_statistics(layout)
    read: set[str] = set()
    attributes = Attributes(model)

    def own_of(state: Sequence[Tensor]) -> Sequence[Tensor]:
        return state[sections.carry][: len(beside)]

    def step(*state: Tensor) -> list[Tensor | None]:
        live, anchor, counter = state[sections.live][:held], state[sections.anchor][:held], state[sections.clock]
        buffers = layout.buffers(live)
        live = live[:count]
        with attributes.kept():
            grad = mean_gradient(model, loss, layout, live, batch, read, buffers)
        own, parameters = rules.step(own_of(state), counter, live, grad)
        if rules.moves:
            parameters = layout.kept(read, live, parameters)
        return sections.slot_state([*parameters, *layout.joined(buffers)], anchor, own, counter + 1)

    def encode(*state: Tensor) -> list[Tensor | None]:
        live, anchor = state[sections.live][:held], state[sections.anchor][:count]
        payload, carry = rules.encode(own_of(state), anchor, live[:count], context("round"))
        return sections.encoded([*payload, *live[count:]], carry if strategy.carry else ())

    def evaluate(*state: Tensor, differentiates: bool = False) -> list[Tensor | None]:
        with attributes.kept():
            return [mean_loss(model, loss, layout, state[sections.live][:held], batch, differentiates=differentiates)]

    def merge(*state: Tensor) -> list[Tensor | None]:
        base, handed = state[sections.shared][:held], state[sections.outer]
        after, average = handed[: len(outer)], handed[len(outer) : len(outer) + len(averages)]
        payloads, mask = [state[section][:held] for section in sections.payloads], state[sections.mask]
        moved, left = rules.merge(base[:count], after, [p[:count] for p in payloads], mask, context("round"))
        moved = layout.kept(read, base[:count], moved)
        left = [*left, *(ema * old + (1 - ema) * new for old, new in zip(average, moved, strict=False))]
        if statistics:
            joined = merged_statistics(layout, [p[-1] for p in payloads], mask)
            # A round without payloads fails: this keeps the function total.
            moved = [*moved, torch.where(mask.sum() > 0, joined, base[-1])]
        return sections.checkpoint(moved, left)

    flats = [*flats, *statistics]
    start = sections.slot_state(flats, flats, beside, scalar)
    sent = [*(torch.empty(size, device="meta") for size in rules.sizes), *statistics]
    joined = sections.merge_state(flats, [*outer, *averages], [sent] * slots, torch.empty(slots, device="meta"))
    products = Products(arithmetic)
    with attributes:
        stepped = trace(step, *start, products=products)
        products.refuse_unused()
        looking = traced_loss(evaluate, *start, products=products)
    encoded, merged = trace(encode, *start), trace(merge, *joined)
    spec = AverageSpec(ema, len(outer), count) if ema else None
    return TracedPrograms(stepped, encoded, merged, layout, sections, looking, spec)


def traced_loss(value: Callable[..., list[Tensor | None]], *start: Tensor | None, **options: Any) -> Program:
    """Traces a function of a loss; `differentiates`: the loss itself takes a gradient of the parameters."""
    try:
        return trace(value, *start, **options)
    except LoweringError as error:
        if "does not require grad" not in error.message:
            raise
        return trace(partial(value, differentiates=True), *start, **options)


def check_width(layout: Layout, sections: Sections) -> None:
    """Raises UsageError if a merge's state, with a payload for each slot, would exceed the entries of a Program's."""
    slots, depth = sections.slots, sections.payload_depth
    if depth + ceil_log2(slots) + 2 > MAX_STATE_DEPTH:
        most = 1 << (MAX_STATE_DEPTH - 2 - depth)
        raise UsageError(
            f"{slots} slots of {len(layout.held)} shards, {1 << depth} entries each in a merge",
            f"a state has at most {1 << MAX_STATE_DEPTH} entries: "
            + (f"use at most {most} slots" if most > 1 else "use a smaller model"),
        )


def check_size(rounds: int, steps: int, slots: int) -> None:
    """Raises UsageError for a job larger than the market allows; `steps` is per round."""
    if slots > MAX_SLOTS or rounds * steps > MAX_STEPS:
        raise UsageError(
            f"{rounds} rounds of {steps} steps in {slots} slots",
            f"the market allows {MAX_SLOTS} slots, and {MAX_STEPS} steps per slot",
        )


def check_parties(dataset: Dataset, batch: Batch, slots: int, min_slots: int) -> None:
    """Raises UsageError unless enough slots can be accepted and the dataset's rows are the batch's."""
    if not 1 <= min_slots <= slots:
        raise UsageError(f"min_slots is {min_slots}, slots is {slots}", "min_slots must lie between 1 and slots")
    # INVARIANT: a step reads rows of exactly the dataset's length.
    if dataset.row_tokens != batch.words:
        raise UsageError(
            f"the dataset's rows have {dataset.row_tokens} tokens, but the batch reads {batch.words}",
            "rebuild the dataset with rows as long as the batch's",
        )
    windows = None if dataset.fielded or dataset.form is None else dataset.form.windows
    if windows is not None and windows.length != batch.row_length:
        raise UsageError(
            f"the dataset's windows have {windows.length} tokens, but the batch reads {batch.row_length}",
            "rebuild the dataset with windows as long as the batch's rows",
        )


def default_loss(model: nn.Module, dataset: Dataset | None, batch: Batch) -> Loss | RandomLoss:
    """Returns the model's own loss on tokens; for a custom class that predicts the next token, cross-entropy. Raises
    UsageError for other models, and if the dataset's rows are fields."""
    if dataset is not None and dataset.fielded:
        raise UsageError(f"rows of {dataset.form} but no loss", "give a loss: default losses read rows of tokens")
    if not is_own(describe(model)):
        return loss_of(model)
    row = [0] * batch.row_length if dataset is None else dataset.rows[0, : batch.row_length].tolist()
    why = not_next_token(unwrapped(model), row, 0 if dataset is None else dataset.vocabulary)
    if why:
        raise UsageError(
            f"the loss of a {type(unwrapped(model)).__name__} is not known: {why}",
            "give one, as def loss(model, rows) -> scalar; without one a model turns tokens [B, T] into logits "
            "[B, T, V] by those up to each, and rows have T + 1 tokens: Batch(row_length=T + 1)",
        )
    return next_token_loss


def sections_of(strategy: Strategy, layout: Layout, slots: int, averages: int = 0) -> Sections:
    """Returns the parts of a job's states, as deep as their tensors need; `averages` lie behind the outer state."""
    shards, rules = unallocated(layout), strategy.rules(1, layout)
    beside, outer = rules.init(shards, _scalar()), rules.outer(shards, _scalar())
    shared = ceil_log2(max(len(layout.held), len(beside), len(outer) + averages))
    # INVARIANT: the payloads' tree is at least as deep as the shared state's (docs/protocol.md section 3: q + p >= b).
    payload = max(ceil_log2(len(layout.held)), shared - ceil_log2(slots))
    # INVARIANT: a payload has the depth of the carry beside it.
    return Sections(shared, shared if strategy.carry else payload, slots)


def _scalar() -> Tensor:
    return torch.empty((), dtype=torch.int32, device="meta")


def mean_gradient(
    model: nn.Module,
    loss: Loss | RandomLoss,
    layout: Layout,
    shards: Sequence[Tensor],
    batch: Batch,
    read: set[str] | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> list[Tensor]:
    """Returns the gradient of the loss over one step's rows, shard by shard; `read` and `buffers` as in `gradient`."""
    return mean_of_passes(
        loss, batch, lambda drawing, rows: gradient(model, drawing, layout, shards, rows, read, buffers)
    )


def mean_of_passes(loss: Loss | RandomLoss, batch: Batch, values: Callable[[Loss, Any], list[Tensor]]) -> list[Tensor]:
    """Returns the means of `values` over one step's rows, drawn in passes of `batch.rows`.

    The loss's random words in pass k come from stream k.
    """
    totals: list[Tensor] = []
    for passed in range(batch.accumulation):
        rows = _drawn(batch, passed)
        found = values(bound(loss, partial(random_words, stream=passed)), rows)
        totals = [a + b for a, b in zip(totals, found, strict=True)] if totals else found
    return totals if batch.accumulation == 1 else [total * (1 / batch.accumulation) for total in totals]


def mean_loss(
    model: nn.Module,
    loss: Loss | RandomLoss,
    layout: Layout,
    held: Sequence[Tensor],
    batch: Batch,
    *,
    differentiates: bool = False,
) -> Tensor:
    """Returns f32 (): the loss over one step's rows, which a training step with that batch would minimise.

    `held`: the tensors of a checkpoint, first the shards, then the statistics. A loss that `differentiates` takes a
    gradient with respect to the parameters itself.
    """
    named, buffers = layout.split(*held), layout.buffers(held)
    if differentiates:
        named = {name: leaf.detach().requires_grad_() for name, leaf in named.items()}
    for leaf in named.values():
        setattr(leaf, TRAINED, True)
    (mean,) = mean_of_passes(loss, batch, lambda drawing, rows: [loss_at(model, drawing, named, rows, buffers)])
    return mean.detach() if differentiates else mean


def training_job(
    model: nn.Module,
    strategy: Strategy,
    dataset: Dataset,
    *,
    batch: Batch,
    rounds: int,
    slots: int,
    min_slots: int,
    loss: Loss | RandomLoss | None = None,
    seed: int = 0,
    first: NDArray[np.float32] | None = None,
    earlier: nn.Module | None = None,
    aggregator: Address = ZERO_ADDRESS,
    terms: Terms = DEVNET,
    weights: bool = True,
    shard_elements: int = SHARD_ELEMENTS,
    arithmetic: Arithmetic = FLOAT32,
    ema: float = 0.0,
    title: str = "",
) -> TrainingJob:
    """Makes a training job from a model, for `Network.quote`.

    The initial weights are `first` (the concatenated shards), or drawn from `seed`. Buffers that a step writes start
    with the values of `earlier`, or else of the model. Without `weights` none are made: the job can be quoted, whatever
    its size, but not submitted. `loss` defaults to the model's own. Frozen parameters keep their values. Warns if the
    warm-up is longer than the job.
    """
    batch = batch.of(dataset)
    check_parties(dataset, batch, slots, min_slots)
    if rounds > 0 and isinstance(strategy, Loop):
        for text in strategy.warnings(rounds):
            warnings.warn(text, stacklevel=2)
    model = unwrapped(model)
    built = build_programs(
        model,
        loss or default_loss(model, dataset, batch),
        strategy,
        batch=batch,
        rounds=rounds,
        slots=slots,
        shard_elements=shard_elements,
        arithmetic=arithmetic,
        ema=ema,
    )
    genesis = None
    if weights:
        if first is not None and first.shape not in ((built.layout.size,), (sum(built.layout.held),)):
            raise UsageError(
                f"the initial weights have {first.size} elements, but the model has {built.layout.size}",
                "start from the same model",
            )
        shards = built.layout.cut(initial_parameters(model, seed) if first is None else first)
        if len(shards) < len(built.layout.held):
            shards = (*shards, *first_statistics(model if earlier is None else earlier, built.layout))
        zeros = zeros_of(built.merge.output_layout[built.sections.outer])
        if built.average is not None:
            zeros = (*zeros[: built.average.outer], *shards[: built.average.tensors])
        genesis = Checkpoint(shards, zeros)
    return TrainingJob(
        programs=JobPrograms(built.step, built.encode, built.merge),
        dataset=dataset,
        genesis=genesis,
        model=describe(model),
        parameters=described_parameters(model, built),
        strategy={**strategy.to_dict(), **({} if built.average is None else built.average.to_dict())},
        inner_steps=strategy.inner_steps,
        rounds=rounds,
        slots=slots,
        min_slots=min_slots,
        shared_depth=built.sections.shared_depth,
        payload_depth=built.sections.payload_depth,
        carry=strategy.carry,
        aggregator=aggregator,
        terms=terms,
        loss=built.loss,
        arithmetic={} if arithmetic == FLOAT32 else arithmetic.to_dict(),
        # Statistics are sent as they are, which formats of codes cannot carry.
        wire_format=F32_FORMAT if built.layout.statistics else strategy.wire,
        title=title,
    )


def described_parameters(model: nn.Module, built: TracedPrograms) -> tuple[dict[str, Any], ...]:
    """Returns the `parameters` of a job's spec: those in the flat tensor, then the frozen ones."""
    roots = {const.root.hex() for const in built.step.consts}
    return (*built.layout.describe(), *describe_frozen(model, roots, built.layout))
