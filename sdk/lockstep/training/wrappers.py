"""Removes the wrappers of torch.compile, DataParallel and DistributedDataParallel around models.

A Program is compiled anyway, and slots are the job's own devices: wrappers around a model or any of its submodules are
ignored, and parameters have the names of the unwrapped model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lockstep.protocol.errors import UsageError

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside of all wrappers around a model; raises UsageError for one with hooks, which would be lost."""
    while (inner := _inner(model)) is not None:
        if any(getattr(model, hooks) for hooks in _HOOKS):
            raise UsageError(
                f"the wrapper {type(model).__name__} of a {type(inner).__name__} has hooks of its own",
                "register them on the model before wrapping it",
            )
        model = inner
    return model


@contextmanager
def bare(model: nn.Module) -> Iterator[nn.Module]:
    """The model without wrappers around it and its parts; afterwards the parts have theirs again.

    Raises UsageError for a part of torch.jit or of FSDP, which has no module inside.
    """
    own = unwrapped(model)
    parts = list(own.named_modules())
    for name, part in parts:
        if (kind := _closed(part)) is not None:
            raise UsageError(
                f"{f'the module {name}' if name else 'the model'} is one of {kind}, whose code or parameters torch "
                "shows to nobody",
                f"give the module that it was made of, before {kind}",
            )
    held = [
        (part, name, child, inner)
        for _, part in parts
        for name, child in part._modules.items()
        if child is not None and (inner := unwrapped(child)) is not child
    ]
    compiled = [(part, call) for _, part in parts if (call := part.__dict__.get("_compiled_call_impl")) is not None]
    try:
        for part, name, _, inner in held:
            part._modules[name] = inner
        for part, _ in compiled:
            part._compiled_call_impl = None
        yield own
    finally:
        for part, name, child, _ in held:
            part._modules[name] = child
        for part, call in compiled:
            part._compiled_call_impl = call


@contextmanager
def eagerly() -> Iterator[None]:
    """Functions and modules that are compiled run as they were before."""
    # Without torch._dynamo nothing is compiled, and its import takes seconds.
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns a model's parameters by the names that they have without wrappers."""
    with bare(model) as own:
        return dict(own.named_parameters())


def named_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a model's buffers by the names that they have without wrappers."""
    with bare(model) as own:
        return dict(own.named_buffers())


def _inner(module: nn.Module) -> nn.Module | None:
    """The module that a wrapper wraps; None of what is no wrapper."""
    # By its name: the class lies in torch._dynamo, whose import takes seconds.
    name = "_orig_mod" if type(module).__name__ == "OptimizedModule" else None
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        name = "module"
    return None if name is None else module._modules.get(name)


def _closed(part: Any) -> str | None:
    """Returns the origin of a module that cannot be opened."""
    if isinstance(part, torch.jit.ScriptModule):
        return "torch.jit"
    if type(part).__name__ == "FullyShardedDataParallel" or any(
        type(p).__name__ == "DTensor" for p in part._parameters.values()
    ):
        return "FSDP"
    return None
