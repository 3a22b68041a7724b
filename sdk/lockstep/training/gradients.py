"""The loss of a model as a function of its parameters, and its gradient, as a step traces them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.capture import RefusedEarlier, naming, origin_of
from lockstep.tracing.hooks import hooked
from lockstep.training.losses import Loss
from lockstep.training.parameters import Layout, complex_again, complex_parameters, frozen_parameters
from lockstep.training.wrappers import bare, named_parameters
from lockstep.training.written import WrittenState, cumulative, is_replaced, tensors_by_name


def gradient(
    model: nn.Module,
    loss: Loss,
    layout: Layout,
    shards: Sequence[Tensor],
    rows: Tensor,
    read: set[str] | None = None,
    buffers: dict[str, Tensor] | None = None,
) -> list[Tensor]:
    """Returns the loss's gradient with respect to the shards, by autograd; the rest of the model is constant.

    Gradient hooks of parameters are applied. A parameter that the loss does not read has gradient zero; the names of
    the others are added to `read`. `buffers` are updated with what the model writes. Raises LoweringError if the loss
    reads no parameter at all.
    """
    leaves = {name: part.detach().requires_grad_() for name, part in layout.split(*shards).items()}
    hooked(leaves, named_parameters(model).items())
    value = loss_at(model, loss, leaves, rows, buffers)
    # INVARIANT: a step has a gradient.
    if not value.requires_grad:
        raise LoweringError(
            "the loss has no gradient: it depends on no trained parameter",
            hint="compute it from the model's output without detach(), no_grad() or argmax; functions of "
            "torch.autograd.functional need create_graph=True",
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
    """Returns the loss of the model with these parameters, by name; the rest of the model is constant.

    Complex parameters are given, and differentiated, as their real view. The loss is called with the model itself,
    which holds them during the call, with its methods, submodules and attributes. `written`: the buffers and frozen
    parameters, f32 by name, that a call may write; each call starts from the values of the last one, and the final
    values remain. Raises LoweringError if a traced call replaces any other buffer by a computed value, which would be
    lost.
    """
    with bare(model) as own, naming(own), cumulative(own):
        pairs = complex_parameters(own)
        held = {**frozen_parameters(own), **dict(own.named_buffers())}
        state = {**parameters, **held}
        with _reparametrize_module(own, state, tie_weights=True):
            with complex_again(own, pairs), WrittenState(own, written or {}, held) as statistics:
                value = loss(own, rows)
            after = tensors_by_name(own)
        if written is not None:
            written.update(statistics)
    replaced = [n for n, before in held.items() if n not in statistics and is_replaced(after.get(n), before)]
    # INVARIANT: what a step writes is part of its state.
    if replaced:
        raise RefusedEarlier(
            origin_of(after[replaced[0]]),
            f"a buffer that its call replaces ({replaced[0]}), which is not part of the state",
            hint="write it in every call, in the same shape, or remove it",
        )
    return value
