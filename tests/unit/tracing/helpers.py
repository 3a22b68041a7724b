"""What the cases of the rules are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch

Case = Callable[..., object]


def grad_of(function: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """The gradient of a weighted sum of the function's output by its flat input."""

    def run(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        y = function(leaf)
        weights = ramp(y.numel()).reshape(y.shape)
        return torch.autograd.grad((y * weights).sum(), leaf)[0]

    return run


def ramp(n: int) -> torch.Tensor:
    """Weights that torch does not write with linspace, which has no rule."""
    return torch.arange(n) / n + 1


def m(x: torch.Tensor) -> torch.Tensor:
    """The flat input as a matrix."""
    return x.view(4, 6)


def ints(x: torch.Tensor) -> torch.Tensor:
    """Integers -6 .. 6 out of the floats."""
    return (x * 4).round().clamp(-6, 6).to(torch.int32)


def rows(x: torch.Tensor) -> torch.Tensor:
    """Indices 0 .. 3 out of the floats."""
    return ints(x).remainder(4)
