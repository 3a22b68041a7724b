"""Losses: functions of a model, the rows of a step and, for some, random words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Model = Callable[..., Any]
"""A model as a function of its inputs: to logits, or to an output of `transformers` that has them."""
Loss = Callable[[Model, Tensor], Tensor]
"""(model, rows i64 [B, L]) -> scalar, the mean over what it predicts. The model is the module, with its methods,
parts and attributes, and the parameters of the step."""
Words = Callable[[int], Tensor]
"""(count) -> i32 [count], random; the same words at every call."""


@dataclass(frozen=True)
class RandomLoss:
    """A loss that draws: fresh words at every step, the same ones on every machine."""

    value: Callable[[Model, Tensor, Tensor], Tensor]
    """(model, rows i64 [B, L], words i32 [B, L, K]) -> scalar."""
    words: int
    """K: words for each element of the rows."""


def logits(output: Any) -> Tensor:
    """Returns a model's logits, which it returns alone or as a field of its output."""
    return output if isinstance(output, Tensor) else output.logits


def bound(loss: Loss | RandomLoss, words: Words) -> Loss:
    """Returns the loss as a function of model and rows alone, with `words` as its random numbers."""
    if not isinstance(loss, RandomLoss):
        return loss

    def value(model: Model, rows_BL: Tensor) -> Tensor:
        return loss.value(model, rows_BL, words(rows_BL.numel() * loss.words).view(*rows_BL.shape, loss.words))

    return value
