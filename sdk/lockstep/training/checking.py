"""Checks before anything is paid that a custom model can be trained as a job.

    checked = check("net.py:make")        make() -> (model, loss, Batch) or (model, loss, Batch, data)

The file is imported: only check code that you would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.numerics.validate import validate
from lockstep.protocol.errors import UsageError
from lockstep.training.brought import bring
from lockstep.training.describe import rows_of_brought
from lockstep.training.job import build_programs, check_parties
from lockstep.training.strategies import diloco
from lockstep.training.trial import TriedSteps, reason_not_to_run, trial
from lockstep.training.wrappers import unwrapped


@dataclass(frozen=True)
class WrittenBuffer:
    """A buffer, or a frozen parameter, that a step writes."""

    name: str
    merge: str
    """The rule by which merges combine it."""


@dataclass(frozen=True)
class Checked:
    """The result of a check: the properties of a job of the model."""

    model: str
    """The model's class."""
    parameters: int
    """Number of trained elements."""
    statistics: int
    """Number of elements of buffers that a step writes."""
    ops: int
    """Number of operations of a step."""
    elements: int
    """Number of elements that a step's operations compute."""
    rows: int = 0
    """Number of rows that the function returned or the description names."""
    trial: TriedSteps | None = None
    """The steps that were run and compared; None if none was run."""
    not_run: str = ""
    """The reason why no step was run."""
    written: tuple[WrittenBuffer, ...] = ()
    """The buffers and frozen parameters that a step writes."""

    @property
    def differs(self) -> bool:
        """True if a job would not train what eager PyTorch trains, or if this machine computed wrong bits."""
        return self.trial is not None and bool(self.trial.wrong or self.trial.differing)


def check(target: str, *, described: Mapping[str, Any] | None = None, runs: bool = True, threads: int = 1) -> Checked:
    """Traces and validates the Programs of a job of the model that `target`, "FILE.py:FUNCTION", makes; if `runs`, also
    runs some steps and compares them. Nothing is sent. `described`: keys of a description, whose texts or data are the
    rows if the function returns none.

    Raises LoweringError with the module, the line, the missing rule and a hint; UsageError for a target that makes no
    model.
    """
    if target.endswith(".toml"):
        raise UsageError(f"{target} describes a job, not a model", "`lockstep train quote` checks a description")
    brought, strategy = bring(target), diloco.DiLoCo()
    model, loss, batch, dataset = unwrapped(brought.model), brought.loss, brought.batch, brought.dataset
    if described and {"texts", "data"} & set(described):
        dataset = rows_of_brought(described, Path(), brought)
    if dataset is not None:
        batch = batch.of(dataset)
        check_parties(dataset, batch, 1, 1)
    rows = None if dataset is None else dataset.rows
    built = build_programs(model, loss, strategy, batch=batch, rounds=1, slots=2)
    for program in (built.step, built.encode, built.merge):
        validate(program)
    written, step = sum(s.elements for s in built.layout.statistics), built.step
    name, elements = type(model).__name__, step.ops[-1].cumulative
    why = reason_not_to_run(model, built) if runs else "it was not requested"
    found = None if why else trial(model, loss, strategy, batch, built, rows, threads=threads)
    count = 0 if rows is None else len(rows)
    buffers = tuple(WrittenBuffer(s.name, s.merge) for s in built.layout.statistics)
    return Checked(name, built.layout.used, written, len(step.ops), elements, count, found, why, buffers)
