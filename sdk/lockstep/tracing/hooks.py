"""Attaches the gradient hooks of parameters to the tensors that replace the parameters during a trace.

weight.register_hook(lambda grad: grad * mask)        # fires in `gradient`, and is part of the Program
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from lockstep.protocol.errors import UsageError


def hooked(leaves: Mapping[str, torch.Tensor], named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    """Registers the hooks of named parameters on the leaves of the same names; other parameters are frozen and get no
    gradient.

    Raises UsageError, with the parameter's name, for a hook that needs `.grad`.
    """
    trained = {name: p for name, p in named if name in leaves}
    replaced = {p.untyped_storage()._cdata: (name, p) for name, p in trained.items()}
    for name, p in trained.items():
        # INVARIANT: a hook is part of the step, or its parameter is refused.
        if p._post_accumulate_grad_hooks:
            raise UsageError(
                f"the parameter {name} has a hook that runs after its gradient is accumulated",
                hint="a step has no .grad: change the gradient in register_hook, which is part of the Program",
            )
        if p.is_complex() and p._backward_hooks:
            raise UsageError(
                f"the complex parameter {name} has a hook of its gradient",
                hint="hold its real view, torch.view_as_real, as the parameter: its hooks get what a step computes",
            )
        for hook in (p._backward_hooks or {}).values():
            leaves[name].register_hook(_RedirectedHook(name, hook, replaced, leaves))


class _RedirectedHook(TorchDispatchMode):
    """A hook in which reads of a parameter are redirected to the traced leaf that replaces it."""

    def __init__(
        self,
        name: str,
        hook: Callable[[torch.Tensor], torch.Tensor | None],
        replaced: Mapping[int, tuple[str, torch.Tensor]],
        leaves: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        self.name, self.hook, self.replaced, self.leaves = name, hook, replaced, leaves

    def __call__(self, grad: torch.Tensor) -> torch.Tensor | None:
        """Returns the hook's replacement of `grad`; None if the hook changes nothing."""
        with self:
            return self.hook(grad)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, self._placed, (args, kwargs or {}))
        return func(*args, **kwargs)

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        name, p = self.replaced.get(x.untyped_storage()._cdata, ("", None))
        if p is None:
            return x
        # INVARIANT: no weight of the start is a constant of a step.
        if (x.shape, x.stride(), x.storage_offset()) != (p.shape, p.stride(), p.storage_offset()):
            raise UsageError(
                f"the hook of {self.name} reads a part of the parameter {name} that was taken before",
                hint="take the part inside the hook",
            )
        return self.leaves[name].detach()
