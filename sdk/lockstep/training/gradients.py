"""The loss of a model as a function of its parameters, and its gradient: what a step traces of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.hooks import hooked
from lockstep.training.losses import Loss
from lockstep.training.parameters import Layout, frozen_parameters


def gradient(
    model: nn.Module,
    loss: Loss,
    layout: Layout,
    shards: Sequence[Tensor],
    rows: Tensor,
    read: set[str] | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> list[Tensor]:
    """Returns the loss's gradient by the shards, by autograd; the rest of the model is constant.

    Gradient hooks of parameters are applied. A parameter that the loss does not read has the gradient zero; the names
    of the others are added to `read`. What the model writes to `buffers` stands there afterwards. Raises LoweringError
    if the loss reads no parameter at all.
    """
    leaves = {name: part.detach().requires_grad_() for name, part in layout.split(*shards).items()}
    hooked(leaves, model.named_parameters())
    value = loss_at(model, loss, leaves, rows, buffers)
    # INVARIANT: a step has a gradient.
    if not value.requires_grad:
        raise LoweringError(
            "the loss has no gradient: it depends on no trained parameter",
            hint="compute it without detach(), no_grad() and argmax, from what the model returns",
        )
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    grads = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), found, strict=True)
    }
    if read is not None:
        read.update(name for name, grad in zip(leaves, found, strict=True) if grad is not None)
    return layout.shards(grads)


def loss_at(
    model: nn.Module,
    loss: Loss,
    parameters: dict[str, Tensor],
    rows: Tensor,
    written: dict[str, Tensor] | None = None,
) -> Tensor:
    """The loss of the model with these parameters, by name; the rest of the model is constant.

    `written` are the buffers, f32 by name, that a call may write: each call of the model starts from what the last one
    left, and the last one's are there afterwards. Raises LoweringError if a call, while traced, replaces any other
    buffer by what it computes: that would be lost.
    """
    written = {} if written is None else written
    buffers = dict(model.named_buffers())
    state = {**parameters, **frozen_parameters(model), **buffers}

    def called(*inputs: Any, **named: Any) -> Any:
        # A clone is written to, so that the state itself never is.
        given = {**state, **{name: value.to(buffers[name].dtype, copy=True) for name, value in written.items()}}
        result = torch.func.functional_call(model, given, inputs, named)
        written.update({name: given[name].detach().to(torch.float32) for name in written})
        replaced = [
            name
            for name, buffer in buffers.items()
            if name not in written and given[name] is not buffer and is_fake(given[name])
        ]
        # INVARIANT: what a step writes is part of its state.
        if replaced:
            raise LoweringError(
                f"a buffer that its call replaces ({replaced[0]}), which is no part of the state",
                hint="only batch norms' statistics are: call model.eval(), or leave the buffer out",
            )
        return result

    return loss(called, rows)
