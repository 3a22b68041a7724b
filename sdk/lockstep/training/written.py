"""State that calls of a loss write in addition to parameters: found by a call on fake tensors, kept by the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils._named_member_accessor import NamedMemberAccessor
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from lockstep.protocol.errors import LockstepError
from lockstep.tracing.attributes import Attributes
from lockstep.tracing.capture import RefusedEarlier, capture, naming, origin_of, place_here
from lockstep.tracing.functions import CumulativeMomentum
from lockstep.tracing.known import following, written_to
from lockstep.training.parameters import (
    Layout,
    complex_again,
    complex_parameters,
    frozen_parameters,
    running_statistics,
    unallocated,
    writable,
)
from lockstep.training.wrappers import bare


class WrittenState:
    """The buffers and frozen parameters that a model's calls write, f32 by name, while a loss is computed.

    Writes go to a copy, never to the state itself; the copy's final values become the next state. For the statistics
    of batch norms, each call of the whole model writes to a new copy of what the last call left, and submodules that
    the loss calls directly write to the current copies.
    """

    def __init__(self, model: nn.Module, values: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
        """`state` has every buffer and frozen parameter as it stands in the model, by name."""
        self.values = dict(values)
        self._model, self._access = model, NamedMemberAccessor(model)
        self._dtypes = {name: state[name].dtype for name in values}
        # What two modules share stands under both names.
        named = {
            **dict(model.named_buffers(remove_duplicate=False)),
            **dict(model.named_parameters(remove_duplicate=False)),
        }
        self._names = {name: [n for n, b in named.items() if b is state[name]] for name in values}
        norms = running_statistics(model)
        self._renewed = [name for name in values if name in norms]
        self._placed: dict[str, tuple[Tensor, int]] = {}
        """The copies that were placed, and the writes to each before."""
        self._calls = 0
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> dict[str, Tensor]:
        self._place(self.values)
        if self._renewed:
            self._handles = [
                self._model.register_forward_pre_hook(self._before, prepend=True),
                self._model.register_forward_hook(self._after, always_call=True),
            ]
        return self.values

    def __exit__(self, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        if error[0] is None:
            self._take(all_of_them=False)
            for name in self.values:
                if name not in self._renewed:
                    self.values[name] = self._current(name).detach().to(torch.float32)

    def _before(self, _model: nn.Module, _inputs: Any) -> None:
        if self._calls == 0:
            self._take(all_of_them=False)
            self._place(self._renewed)
        self._calls += 1

    def _after(self, _model: nn.Module, _inputs: Any, _output: Any) -> None:
        self._calls -= 1
        if self._calls == 0:
            self._take(all_of_them=True)

    def _place(self, names: Any) -> None:
        for name in names:
            copy = self.values[name].to(self._dtypes[name], copy=True)
            for each in self._names[name]:
                self._access.set_tensor(each, copy)
            self._placed[name] = copy, _writes_to(copy)

    def _take(self, *, all_of_them: bool) -> None:
        for name in self._renewed:
            placed, writes = self._placed[name]
            current = self._access.get_tensor(name)
            if all_of_them or current is not placed or _writes_to(current) != writes:
                self.values[name] = current.detach().to(torch.float32)
                self._placed[name] = current, _writes_to(current)

    def _current(self, name: str) -> Tensor:
        placed, current = self._placed[name][0], tensors_by_name(self._model).get(name)
        # INVARIANT: what a step writes is part of its state.
        if not isinstance(current, Tensor) or current.shape != placed.shape:
            shape = f"one of shape {tuple(current.shape)}" if isinstance(current, Tensor) else "nothing"
            raise RefusedEarlier(
                origin_of(current),
                f"a buffer that its call replaces ({name}) by {shape}, where it had {tuple(placed.shape)}",
                "keep its shape from step to step: pad it with zeros, and count the used entries",
            )
        return current


def _writes_to(x: Tensor) -> int:
    """Writes to a tensor, those through `.data` included, of which its version does not tell."""
    known = following()
    return x._version if known is None else known.writes[x.untyped_storage()._cdata]


class _Writes(TorchDispatchMode):
    """Notes the storages that operations write to, each with the first line that does so."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: dict[int, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for x in written_to(func, args, kwargs):
            if (storage := x.untyped_storage()._cdata) not in self.storages:
                self.storages[storage] = place_here()
        return func(*args, **kwargs)


def written_by(
    model: nn.Module, layout: Layout, value: Callable[[nn.Module], Tensor], attributes: Attributes
) -> dict[str, str]:
    """Returns the names of buffers and frozen parameters that the call `value(model)` of a loss writes or replaces, in
    the order of the model, each with the line that does so. The call is traced, and may fail: what it has written until
    then counts."""
    found: dict[str, str] = {}

    def call(*shards: Tensor) -> list[Tensor]:
        leaves = {name: part.detach().requires_grad_() for name, part in layout.split(*shards).items()}
        with attributes.kept(), bare(model) as own, naming(own), cumulative(own):
            held = {**dict(own.named_buffers()), **frozen_parameters(own)}
            plain = {n for n, x in held.items() if x.layout == torch.strided and not x.is_complex()}
            placed = {n: x.detach().clone() if n in plain else x for n, x in held.items()}
            pairs = complex_parameters(own)
            with _reparametrize_module(own, {**leaves, **placed}, tie_weights=True), _Writes() as writes:
                try:
                    with complex_again(own, pairs):
                        return [value(own)]
                finally:
                    after = tensors_by_name(own)
                    for name, copy in placed.items():
                        storage = copy.untyped_storage()._cdata if name in plain else None
                        if is_replaced(after.get(name), copy):
                            found[name] = origin_of(after[name]).place
                        elif storage in writes.storages:
                            found[name] = writes.storages[storage]

    # The trace of the step says what is wrong.
    with suppress(LockstepError):
        capture(call, unallocated(layout))
    return {name: found[name] for name in writable(model) if name in found}


def tensors_by_name(model: nn.Module) -> dict[str, Any]:
    """Returns the current values of a model's buffers and parameters, by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def is_replaced(current: object, before: Tensor) -> bool:
    """True if a call that is traced has put what it computes in the place of a buffer."""
    return (
        current is not None
        and current is not before
        and (is_fake(current) or type(current) not in (Tensor, nn.Parameter, nn.Buffer))
    )


@contextmanager
def cumulative(model: nn.Module) -> Iterator[None]:
    """Batch norms without a momentum count batches in the state: their momentum is what the counter says."""
    norms = [
        m
        for m in model.modules()
        if isinstance(m, _BatchNorm) and m.training and m.momentum is None and m.running_mean is not None
    ]
    for norm in norms:
        norm.momentum = CumulativeMomentum(norm)  # type: ignore[assignment]
    try:
        yield
    finally:
        for norm in norms:
            norm.momentum = None
