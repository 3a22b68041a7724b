"""The baseline of a job: the loss that one machine reaches in plain eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lockstep.numerics.reference import drawn_row, philox
from lockstep.training.job import Batch
from lockstep.training.losses import Loss, Model, RandomLoss, Words, bound
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import Layout, Parameter, layout_of, real_view, tensors
from lockstep.training.wrappers import named_parameters


def load_parameters(model: nn.Module, flat: NDArray[np.float32]) -> nn.Module:
    """Sets a model's parameters from a flat tensor of its layout; returns the model."""
    named = named_parameters(model)
    with torch.no_grad():
        for name, values in tensors(layout_of(model), flat):
            named[name].copy_(values)
    return model


def flat_parameters(model: nn.Module) -> NDArray[np.float32]:
    """The inverse of `load_parameters`."""
    layout: Layout = layout_of(model)
    return layout.join({n: real_view(p.detach()) for n, p in named_parameters(model).items()}).numpy()


@dataclass(frozen=True)
class Sample:
    """The source of a slot's rows and random words, the same as its Program draws."""

    rows: NDArray[np.int32]
    """[N, L]: the dataset."""
    batch: Batch
    seed: bytes
    """The seed of the round, 32 bytes."""
    round: int = 0
    slot: int = 0

    def value(self, model: Model, loss: Loss | RandomLoss, t: int) -> torch.Tensor:
        """Returns the loss of step t (from 1), averaged over its passes."""
        passes = range(self.batch.accumulation)
        return torch.stack([bound(loss, self.words(t, k))(model, self.given(t, k)) for k in passes]).mean()

    def words(self, t: int, stream: int) -> Words:
        """Returns the source of random words of a stream in step t; a stream is the number of a pass."""
        return partial(self._words, t, stream=stream)

    def given(self, t: int, passed: int) -> Any:
        """Returns the rows of one pass of step t in the form that the loss takes."""
        first, context = passed * self.batch.rows, (self.round, self.slot, t)
        drawn = [drawn_row(self.seed, context, first + j, len(self.rows)) for j in range(self.batch.rows)]
        rows = torch.from_numpy(self.rows[drawn].astype(np.int64))
        # Words are read as what they are, in whatever precision a model is compared.
        with torch._C.DisableTorchFunction():
            return self.batch.given(rows, partial(self._words, t), passed)

    def _words(self, t: int, count: int, stream: int) -> torch.Tensor:
        drawn = [philox(self.seed, stream, at, (self.round, self.slot, t)) for at in range(count)]
        return torch.from_numpy(np.array(drawn, np.uint32).view(np.int32))


def optimise(model: nn.Module, value: Callable[[int], torch.Tensor], inner: AdamW, *, steps: int) -> list[float]:
    """`steps` of torch's own AdamW with `inner`'s schedule, groups and clipping on `value(t)`, t from 1; the loss of
    each."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = list(named.values())
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, p in named.items():
        groups.setdefault(inner.key_of(Parameter(name, 0, tuple(p.shape))), []).append(p)
    optimizer = torch.optim.AdamW(
        [{"params": own, "weight_decay": decay} for (_, decay), own in groups.items()],
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
        eps=inner.epsilon,
    )
    ratios = [ratio for ratio, _ in groups]
    losses = []
    for t in range(1, steps + 1):
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            group["lr"] = ratio * inner.rate(t - 1, steps)
        optimizer.zero_grad()
        loss = value(t)
        loss.backward()
        if inner.clip_value:
            nn.utils.clip_grad_value_(parameters, inner.clip_value)
        nn.utils.clip_grad_norm_(parameters, inner.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_eager(
    model: nn.Module,
    loss: Loss,
    rows: NDArray[np.int32],
    inner: AdamW,
    *,
    steps: int,
    batch_rows: int,
    seed: int,
) -> list[float]:
    """`optimise` on rows [N, L] drawn with replacement, `batch_rows` a step; the training loss of each."""
    draws = np.random.Generator(np.random.Philox(key=seed)).integers(0, len(rows), (steps, batch_rows))
    return optimise(
        model, lambda t: loss(model, torch.from_numpy(rows[draws[t - 1]].astype(np.int64))), inner, steps=steps
    )


def evaluate(model: nn.Module, loss: Loss, rows: NDArray[np.int32], *, batch_rows: int = 64) -> float:
    """Mean loss over all rows [N, L], nats per token."""
    total = 0.0
    with torch.no_grad():
        for at in range(0, len(rows), batch_rows):
            part = rows[at : at + batch_rows]
            total += loss(model, torch.from_numpy(part.astype(np.int64))).item() * len(part)
    return total / len(rows)
