"""Losses: functions of a model, the rows of a step and, for some, random words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lockstep.training.reading import called

Model = Callable[..., Any]
"""A model as a function of its inputs: to logits, or to an output of `transformers` that has them."""
Loss = Callable[..., Tensor]
"""(model, rows i64 [B, L]) -> scalar, the mean over what it predicts. The model is the module, with its methods,
parts and attributes, and the parameters of the step. Rows of fields are a tensor, a tuple, a NamedTuple or a dict of
tensors [B, ...], or one argument for each of them (`training.reading`)."""
Words = Callable[[int], Tensor]
"""(count) -> i32 [count], random; the same words at every call."""


@dataclass(frozen=True)
class RandomLoss:
    """A loss that draws random words: new ones at every step, the same on every machine."""

    value: Callable[..., Tensor]
    """(model, rows i64 [B, L], words i32 [B, L, K]) -> scalar; of several fields (model, fields, words i32 [B, K])."""
    words: int
    """K: words for each element of the rows; where they have several fields, for each row."""


def logits(output: Any) -> Tensor:
    """Returns the logits in a model's output, which is the tensor itself or has it as a field."""
    return output if isinstance(output, Tensor) else output.logits


def bound(loss: Loss | RandomLoss, words: Words) -> Loss:
    """Returns the loss as a function of only model and rows, with `words` as the source of its random numbers."""
    if not isinstance(loss, RandomLoss):
        return lambda model, rows: called(loss, model, rows)

    def value(model: Model, rows: Any) -> Tensor:
        shape = rows.shape if isinstance(rows, Tensor) else _first(rows).shape[:1]
        return called(loss.value, model, rows, words(shape.numel() * loss.words).view(*shape, loss.words))

    return value


def _first(rows: Any) -> Tensor:
    return next(iter(rows.values() if isinstance(rows, dict) else rows))
