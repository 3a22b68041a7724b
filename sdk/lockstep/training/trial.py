"""Runs some steps of a model natively, and compares words with an independent executor, gradients with eager PyTorch.

    found = trial(model, loss, batch, rows=None)
    found.wrong                                  # the first wrong word of the kernels, "" if there is none
    [g.name for g in found.gradients if g.differs]

The gradient is that of the step's function, computed by its own Program without an optimizer. Plain eager PyTorch
computes the reference, with the model's own parameters, hooks and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.base.machine import memory, readable
from lockstep.execution import comparing, footprint
from lockstep.execution.jobs import JobPrograms, State, TrainingJob, zeros_of
from lockstep.numerics import paths
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.trace import materialise
from lockstep.protocol.programs.program import Kind, Program
from lockstep.storage.dataset import Dataset
from lockstep.storage.payload import Checkpoint
from lockstep.tracing import trace
from lockstep.tracing.attributes import Attributes
from lockstep.tracing.functions import without_autocast
from lockstep.tracing.known import WIDE
from lockstep.training.baseline import Sample
from lockstep.training.job import Batch, TracedPrograms, mean_gradient
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.parameters import (
    Layout,
    first_statistics,
    initial_parameters,
    real_view,
    tensors,
    unallocated,
    unallocated_statistics,
    writable,
)
from lockstep.training.reading import WINDOW_STREAM
from lockstep.training.rehearsal import Rehearsal
from lockstep.training.strategies.base import Strategy
from lockstep.training.wrappers import eagerly, named_parameters, unwrapped

STEPS = 2
"""Number of steps to run; in the second one the moments are not zero."""
ROWS = 64
"""Number of rows to generate if none are given."""
BOUNDS = (256, 100, 10, 4, 2)
"""Generated rows are integers below the first of these bounds that eager PyTorch accepts: tokens, bytes, classes."""
TOLERANCE = 1e-3
"""Relative error, in the norm of a parameter's gradient, from which a gradient differs."""
NOISE = 1e-6
"""Share of the largest gradient's norm below which an error counts as rounding: a true gradient may be zero."""
ROUNDINGS = 32
"""Factor of eager float32's error against float64 up to which an error counts as rounding."""
DRAWS = 1 << 30
"""The first stream of random words drawn by a model itself, e.g. for dropout; torch draws others."""
_SEED = bytes(32)


@dataclass(frozen=True)
class GradientError:
    """The error of a parameter's gradient, or of a running statistic, against eager PyTorch's."""

    name: str
    error: float | None
    """The norm of the difference divided by the norm, or by NOISE of the largest gradient's norm if that is more; the
    largest of all steps. None: one of them is not finite."""
    differs: bool


@dataclass(frozen=True)
class TriedSteps:
    """Some steps of a model."""

    steps: int
    """Number of steps that were run."""
    rows: str
    """The rows that they drew."""
    exact: bool
    """True if every word was compared with the portable executor; False: sampled words of every op."""
    wrong: str
    """The first word that this machine computed wrongly; empty: none."""
    eager: str
    """The reason why no gradient was compared; empty if they were."""
    precision: str
    """"float64" or "float32": the precision of the reference gradients."""
    gradients: tuple[GradientError, ...]

    @property
    def differing(self) -> tuple[GradientError, ...]:
        """The gradients and statistics that differ."""
        return tuple(g for g in self.gradients if g.differs)


def reason_not_to_run(model: nn.Module, built: TracedPrograms) -> str:
    """Returns the reason why no step of a model can be run here; empty if one can."""
    if any(p.is_meta for p in model.parameters()):
        return "the model has no weights"
    need = footprint.of_program(built.step)
    # The state before a step, the one after it, and eager PyTorch's parameters, gradients and activations.
    wanted = need.constants + 3 * need.results + 2 * need.arena
    if wanted > memory().available:
        return f"some steps take about {readable(wanted)} of memory, which this machine does not have"
    return ""


def trial(
    model: nn.Module,
    loss: Loss | RandomLoss,
    strategy: Strategy,
    batch: Batch,
    built: TracedPrograms,
    rows: NDArray[np.int32] | None = None,
    *,
    threads: int = 1,
) -> TriedSteps:
    """Runs STEPS steps of the Programs `built` of a model. The model is changed: it is eager PyTorch's afterwards.

    `rows`: the dataset, [N, L]; None: some are made.
    """
    model = unwrapped(model)
    first = built.layout.cut(initial_parameters(model, 0))
    statistics = first_statistics(model, built.layout)
    program = _gradient_program(model, loss, built.layout, batch)
    eager = _Eager(model.float(), loss, batch, built.layout)
    told, why = f"{0 if rows is None else len(rows)} rows as given{f' of {batch.form}' if batch.form else ''}", ""
    if rows is None:
        bound, why = eager.bound()
        rows = np.random.default_rng(0).integers(0, bound, (ROWS, batch.row_length)).astype(np.int32)
        told = f"generated rows of integers below {bound}"
    if any(op.kind == Kind.RANDOM and DRAWS <= op.p0 < WINDOW_STREAM for op in program.ops):
        why = "the model draws random numbers, and torch's differ"
    shards = first[: len(built.layout.sizes)]
    dataset = Dataset(rows, 0 if batch.form and batch.form.fields else int(rows.max()) + 1, form=batch.form)
    states, wrong, exact = _steps(_job(built, strategy, (*shards, *statistics), dataset), threads)
    own = paths.compile(program, threads=threads)
    ours = []
    for t, state in enumerate(states[:-1], 1):
        held, context = state[: len(built.layout.held)], StepContext(_SEED, 0, 0, t)
        given = [*held, *[None] * (len(program.inputs) - len(held))]
        found = own.run(given, context, rows)
        compared = comparing.compare(materialise(own, given, context, rows), found, own)
        wrong = wrong or _at("the gradient alone", compared.wrong)
        exact = exact and compared.exact
        ours.append((held, found))
    if why:
        return TriedSteps(len(ours), told, exact, wrong, why, "", ())
    try:
        with eagerly():
            gradients, precision = eager.compared(ours, Sample(rows, batch, _SEED))
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        return TriedSteps(len(ours), told, exact, wrong, f"eager PyTorch cannot compute the loss: {error}", "", ())
    return TriedSteps(len(ours), told, exact, wrong, "", precision, gradients)


def _gradient_program(model: nn.Module, loss: Loss | RandomLoss, layout: Layout, batch: Batch) -> Program:
    """The gradient of a step's loss and the statistics after it, of a checkpoint's tensors."""
    count = len(layout.sizes)

    def gradient(*held: Tensor) -> list[Tensor]:
        buffers = layout.buffers(held)
        with attributes.kept():
            grads = mean_gradient(model, loss, layout, held[:count], batch, None, buffers)
        return [*grads, *layout.joined(buffers)]

    attributes = Attributes(model)
    return trace(gradient, *unallocated(layout), *unallocated_statistics(layout))


def _job(
    built: TracedPrograms, strategy: Strategy, held: tuple[NDArray[np.float32], ...], dataset: Dataset
) -> TrainingJob:
    """Returns a job of one round."""
    sections, outer = built.sections, zeros_of(built.merge.output_layout[built.sections.outer])
    return TrainingJob(
        JobPrograms(built.step, built.encode, built.merge), dataset,
        Checkpoint(held, outer), {}, (), {}, strategy.inner_steps, 1, sections.slots, 1, sections.shared_depth,
        sections.payload_depth,
    )  # fmt: skip


def _steps(job: TrainingJob, threads: int) -> tuple[list[State], str, bool]:
    """(states S_0 .. of a slot's first steps, the first wrong word of any or "", True if every word was compared); the
    encoding of the last one is compared too."""
    rehearsal = Rehearsal(job, threads=threads)
    states, wrong, exact = [rehearsal.start(rehearsal.first(), 0)], "", True
    steps = [(job.programs.step, t) for t in range(1, min(STEPS, job.inner_steps) + 1)]
    for program, t in [*steps, (job.programs.encode, job.inner_steps + 1)]:
        run, context = paths.compile(program, threads=threads), StepContext(_SEED, 0, 0, t)
        after = run.run(states[-1], context, job.dataset.rows)
        found = comparing.compare(materialise(run, states[-1], context, job.dataset.rows), after, run)
        name = "step" if program is job.programs.step else "encode"
        wrong, exact = wrong or _at(f"{name} {t}", found.wrong), exact and found.exact
        if program is job.programs.step:
            states.append(list(after))
    return states, wrong, exact


def _at(place: str, wrong: str) -> str:
    return f"{place}: {wrong}" if wrong else ""


class _InPrecision(TorchFunctionMode):
    """A loss that asks for a type of floats, as `rows.float()` and `x.to(torch.bfloat16)` do, gets another.

    Constants stay what they are: a Program computes them as torch does.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        wide = {torch.float32} if dtype == torch.float64 else set()
        self.types, self.of_data = dict.fromkeys(wide, dtype), dict.fromkeys(wide | WIDE, dtype)
        kinds = torch.Tensor
        self.casts = {kinds.half, kinds.bfloat16, kinds.double, *([kinds.float] if wide else [])}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.casts:
            return args[0].to(self.dtype)
        given = self.of_data if args and isinstance(args[0], Tensor) else self.types
        args = tuple(given.get(a, a) if isinstance(a, torch.dtype) else a for a in args)
        return func(
            *args, **{k: given.get(v, v) if isinstance(v, torch.dtype) else v for k, v in (kwargs or {}).items()}
        )


@dataclass(frozen=True)
class _Eager:
    """A model as eager PyTorch trains it."""

    model: nn.Module
    loss: Loss | RandomLoss
    batch: Batch
    layout: Layout

    def bound(self) -> tuple[int, str]:
        """(bound of made rows, the reason why eager PyTorch takes none of them or "")."""
        told = ""
        for bound in BOUNDS:
            rows = np.random.default_rng(0).integers(0, bound, (ROWS, self.batch.row_length)).astype(np.int32)
            try:
                with torch.no_grad(), eagerly(), self._unchanged(), _InPrecision(torch.float32), without_autocast():
                    Sample(rows, self.batch, _SEED).value(self.model, self.loss, 1)
            except (IndexError, RuntimeError, ValueError, TypeError) as error:
                told = told or f"{type(error).__name__}: {error}".splitlines()[0]
            else:
                return bound, ""
        return BOUNDS[0], f"eager PyTorch computes no loss of made rows ({told}): return rows as a fourth value"

    def compared(self, ours: Sequence[tuple[State, State]], sample: Sample) -> tuple[tuple[GradientError, ...], str]:
        """Returns (every gradient and statistic, the precision of the comparison). `ours` has, for each step, the
        checkpoint's tensors before it and the outputs of the traced Program."""
        worst: dict[str, GradientError] = {}
        precision = "float32"
        for t, (held, found) in enumerate(ours, 1):
            single = self._gradients(held, sample, t, torch.float32)
            exact = self._in_double(held, sample, t)
            precision = "float32" if exact is None else "float64"
            due, names = exact or single, dict(self._named(found))
            most = max(float(_norm(due[p.name])) for p in self.layout.parameters)
            for name, mine in names.items():
                error = _error(name, mine, due[name], single[name], most)
                if name not in worst or _rank(error) > _rank(worst[name]):
                    worst[name] = error
        return tuple(worst.values()), precision

    def _named(self, found: State) -> Iterator[tuple[str, Tensor]]:
        """Yields the traced Program's gradients and statistics, by name, in float64."""
        arrays = [torch.from_numpy(np.array(a)).double() for a in found if a is not None]
        yield from self.layout.split(*arrays[: len(self.layout.sizes)]).items()
        yield from self.layout.buffers(arrays).items()

    def _in_double(self, held: State, sample: Sample, t: int) -> dict[str, Tensor] | None:
        """Gradients and statistics in float64; None if the loss insists on float32."""
        usual = torch.get_default_dtype()
        try:
            torch.set_default_dtype(torch.float64)
            return self._gradients(held, sample, t, torch.float64)
        except (RuntimeError, TypeError, ValueError):
            return None
        finally:
            torch.set_default_dtype(usual)
            self.model.float()

    def _gradients(self, held: State, sample: Sample, t: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Gradients and statistics by name after a step of eager PyTorch from a checkpoint's tensors."""
        self._load(held)
        self.model.to(dtype)
        self.model.zero_grad(set_to_none=True)
        with _InPrecision(dtype), without_autocast():
            sample.value(self.model, self.loss, t).backward()
        named, buffers = named_parameters(self.model), writable(self.model)
        grads = {p.name: named[p.name].grad for p in self.layout.parameters}
        found = {
            name: real_view(torch.zeros_like(named[name]) if grad is None else grad.detach()).double()
            for name, grad in grads.items()
        }
        return {**found, **{s.name: buffers[s.name].detach().double().clone() for s in self.layout.statistics}}

    def _load(self, held: State) -> None:
        named, buffers = named_parameters(self.model), writable(self.model)
        flat = np.concatenate([np.asarray(a) for a in held[: len(self.layout.sizes)]])
        with torch.no_grad():
            for name, values in tensors(self.layout, flat):
                named[name].copy_(values)
            for name, values in self.layout.buffers([torch.from_numpy(np.array(a)) for a in held]).items():
                buffers[name].copy_(values)

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Buffers and frozen parameters are afterwards what they were."""
        before = {name: b.detach().clone() for name, b in writable(self.model).items()}
        try:
            yield
        finally:
            for name, b in writable(self.model).items():
                b.copy_(before[name])


_norm: Callable[[Tensor], Tensor] = torch.linalg.vector_norm


def _error(name: str, mine: Tensor, due: Tensor, single: Tensor, most: float) -> GradientError:
    """Compares one tensor of the traced Program with eager PyTorch's: `single` in float32, `due` in the precision that
    counts. `most` is the norm of the largest gradient."""
    if not torch.equal(torch.isfinite(mine), torch.isfinite(due)):
        return GradientError(name, None, True)
    mine, due, single = (torch.nan_to_num(x, posinf=0.0, neginf=0.0) for x in (mine.reshape(due.shape), due, single))
    off, size, rounding = (float(_norm(x)) for x in (mine - due, due, single - due))
    differs = off > max(TOLERANCE * size, ROUNDINGS * rounding, NOISE * most)
    scale = max(size, NOISE * most)
    return GradientError(name, off / scale if scale else off, differs)


def _rank(error: GradientError) -> tuple[bool, float]:
    return error.differs, float("inf") if error.error is None else error.error
