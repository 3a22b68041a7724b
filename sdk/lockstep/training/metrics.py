"""The metrics in an evaluation's merge. Needs no torch, so that a result can be read without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.protocol.programs.program import Kind, Program

NAME = "evaluation"
"""`strategy.name` in the spec of an evaluation."""
SUM, REST, BATCHES = range(3)
"""Words of the metrics, f32 [3]: the sum of the batches' losses is sum + rest, where rest is the rounding error."""
MAX_BATCHES = 1 << 24
"""The most batches of a job: binary32 counts this many exactly."""


@dataclass(frozen=True)
class EvaluationSpec:
    """The facts that follow neither from the metrics' words nor from the Programs; hashed into the job."""

    next_token: bool
    """True: the loss is the mean cross-entropy of each next token, in nats."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the object `strategy` of a job's spec."""
        return {"name": NAME, **asdict(self)}

    @staticmethod
    def of(strategy: Mapping[str, Any]) -> EvaluationSpec:
        """The inverse of `to_dict`; raises UsageError if the job is not an evaluation."""
        if strategy.get("name") != NAME:
            raise UsageError(
                f"the job trains with strategy {strategy.get('name')!r} and has no metrics",
                "only an evaluation has metrics",
            )
        return EvaluationSpec(strategy.get("next_token") is True)


@dataclass(frozen=True)
class Metrics:
    """The result of an evaluation up to its last merged round."""

    loss: float
    """Mean over the batches, each a mean over its rows."""
    batches: int
    """Batches of the accepted slots of all rounds."""
    rows: int
    """Rows of those batches; a row drawn twice counts twice."""
    perplexity: float | None
    """exp(loss) if the loss is over each next token, else None."""
    left_out: int
    """Slots that were convicted after their merge; the numbers above exclude them."""


def read_metrics(
    outer: Sequence[NDArray[np.float32]], step: Program, spec: EvaluationSpec, left_out: int = 0
) -> Metrics:
    """The metrics of a merge's outer state, one f32 [3], with `step` before it; PayloadInvalid if it holds none."""
    # INVARIANT: an evaluation's outer state is its metrics: a sum, what rounding took of it, a whole number of batches.
    if [(x.dtype, x.shape) for x in outer] != [(np.float32, (3,))] or not _is_count(float(outer[0][BATCHES])):
        raise PayloadInvalid("the job's outer state has no metrics", "its Programs are not those of an evaluation")
    words = outer[0]
    batches, total = int(words[BATCHES]), float(words[SUM])
    # Where the sum is infinite, or no number, there is no rest.
    total += float(words[REST]) if math.isfinite(total) else 0.0
    loss = total / batches if batches else math.nan
    return Metrics(loss, batches, batches * rows_of(step), _exp(loss) if spec.next_token else None, left_out)


def rows_of(step: Program) -> int:
    """Returns the number of rows of the dataset that one step draws."""
    return sum(op.extents[0] for op in step.ops if op.kind == Kind.DRAW)


def _is_count(x: float) -> bool:
    return x.is_integer() and x >= 0


def _exp(x: float) -> float:
    """e^x, infinite above the largest float64."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
