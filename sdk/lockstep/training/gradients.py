"""The loss of a model as a function of its parameters, and its gradient: what a step traces of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.utils._named_member_accessor import NamedMemberAccessor
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.hooks import RemovableHandle

from lockstep.protocol.errors import LoweringError
from lockstep.tracing.capture import naming
from lockstep.tracing.hooks import hooked
from lockstep.training.losses import Loss
from lockstep.training.parameters import Layout, frozen_parameters
from lockstep.training.wrappers import bare, named_parameters


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
    hooked(leaves, named_parameters(model).items())
    value = loss_at(model, loss, leaves, rows, buffers)
    # INVARIANT: a step has a gradient.
    if not value.requires_grad:
        raise LoweringError(
            "the loss has no gradient: it depends on no trained parameter",
            hint="compute it without detach(), no_grad() and argmax, from what the model returns; functions of "
            "torch.autograd.functional take create_graph=True",
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

    Complex parameters are given, and differentiated, as their real view. The loss gets the model itself, in which they
    stand for the call: its methods, parts and attributes are there. `written` are the buffers, f32 by name, that a call
    may write: each call of the model starts from what the last one left, and the last one's are there afterwards.
    Raises LoweringError if a call, while traced, replaces any other buffer by what it computes: that would be lost.
    """
    with bare(model) as own, naming(own):
        buffers = dict(own.named_buffers())
        pairs = [name for name, p in own.named_parameters(remove_duplicate=False) if p.is_complex()]
        state = {**parameters, **frozen_parameters(own), **buffers}
        with (
            _reparametrize_module(own, state, tie_weights=True),
            _complex(own, pairs),
            _Written(own, written or {}, buffers) as statistics,
        ):
            value = loss(own, rows)
            after = dict(own.named_buffers())
        if written is not None:
            written.update(statistics)
    replaced = [
        name
        for name, buffer in buffers.items()
        if name not in statistics and after.get(name) is not buffer and is_fake(after.get(name))
    ]
    # INVARIANT: what a step writes is part of its state.
    if replaced:
        raise LoweringError(
            f"a buffer that its call replaces ({replaced[0]}), which is no part of the state",
            hint="only batch norms' statistics are: call model.eval(), or leave the buffer out",
        )
    return value


@contextmanager
def _complex(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Parameters that stand as real views are complex for the call: a pair while it is traced."""
    placed = []
    for name in names:
        path, _, own = name.rpartition(".")
        held = model.get_submodule(path)._parameters
        placed.append((held, own, held[own]))
        held[own] = torch.view_as_complex(held[own])  # type: ignore[arg-type, assignment]
    try:
        yield
    finally:
        for held, own, real in placed:
            held[own] = real


class _Written:
    """The buffers of a model that its calls write, f32 by name, while a loss is computed.

    Each call of the whole model writes to a copy of what the last one left. Parts that the loss calls by themselves
    write to the copies that stand there.
    """

    def __init__(self, model: nn.Module, values: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        self.values = dict(values)
        self._model, self._access = model, NamedMemberAccessor(model)
        self._dtypes = {name: buffers[name].dtype for name in values}
        # A buffer that two modules share stands under both names.
        named = dict(model.named_buffers(remove_duplicate=False))
        self._names = {name: [n for n, b in named.items() if b is buffers[name]] for name in values}
        self._placed: dict[str, tuple[Tensor, int]] = {}
        self._calls = 0
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> dict[str, Tensor]:
        if self.values:
            self._place()
            self._handles = [
                self._model.register_forward_pre_hook(self._before, prepend=True),
                self._model.register_forward_hook(self._after, always_call=True),
            ]
        return self.values

    def __exit__(self, *_error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._take(all_of_them=False)

    def _before(self, _model: nn.Module, _inputs: Any) -> None:
        if self._calls == 0:
            self._take(all_of_them=False)
            self._place()
        self._calls += 1

    def _after(self, _model: nn.Module, _inputs: Any, _output: Any) -> None:
        self._calls -= 1
        if self._calls == 0:
            self._take(all_of_them=True)

    def _place(self) -> None:
        """A copy is written to, so that the state itself never is."""
        for name, value in self.values.items():
            copy = value.to(self._dtypes[name], copy=True)
            for each in self._names[name]:
                self._access.set_tensor(each, copy)
            self._placed[name] = copy, copy._version

    def _take(self, *, all_of_them: bool) -> None:
        for name, (placed, version) in self._placed.items():
            standing = self._access.get_tensor(name)
            if all_of_them or standing is not placed or standing._version != version:
                self.values[name] = standing.detach().to(torch.float32)
                self._placed[name] = standing, standing._version
