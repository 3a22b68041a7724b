"""What one machine reaches in plain eager PyTorch: the loss that a job is compared with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import Layout, layout_of, tensors

Loss = Callable[[Callable[[torch.Tensor], torch.Tensor], torch.Tensor], torch.Tensor]


def load_parameters(model: nn.Module, flat: NDArray[np.float32]) -> nn.Module:
    """The model, its parameters set from a flat tensor of its layout."""
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, values in tensors(layout_of(model), flat):
            named[name].copy_(values)
    return model


def flat_parameters(model: nn.Module) -> NDArray[np.float32]:
    """The inverse of `load_parameters`."""
    layout: Layout = layout_of(model)
    return layout.join({n: p.detach() for n, p in model.named_parameters()}).numpy()


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
    """`steps` of torch's own AdamW with `inner`'s schedule and clipping; the training loss of each, nats per token.

    `rows` [N, L] are drawn with replacement, `batch_rows` a step, as a job draws them.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=inner.learning_rate,
        betas=(inner.beta1, inner.beta2),
        eps=inner.epsilon,
        weight_decay=inner.weight_decay,
    )
    draws = np.random.Generator(np.random.Philox(key=seed)).integers(0, len(rows), (steps, batch_rows))
    losses = []
    for step, drawn in enumerate(draws):
        for group in optimizer.param_groups:
            group["lr"] = inner.rate(step, steps)
        optimizer.zero_grad()
        value = loss(model, torch.from_numpy(rows[drawn].astype(np.int64)))
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), inner.clip)
        optimizer.step()
        losses.append(value.item())
    return losses


def evaluate(model: nn.Module, loss: Loss, rows: NDArray[np.int32], *, batch_rows: int = 64) -> float:
    """Mean loss over all rows [N, L], nats per token."""
    total = 0.0
    with torch.no_grad():
        for at in range(0, len(rows), batch_rows):
            part = rows[at : at + batch_rows]
            total += loss(model, torch.from_numpy(part.astype(np.int64))).item() * len(part)
    return total / len(rows)
