"""Gradient hooks of parameters: part of the step's Program as in eager torch, or refused by the parameter's name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import UsageError
from lockstep.tracing import trace
from lockstep.training.baseline import flat_parameters
from lockstep.training.gradients import gradient
from lockstep.training.models.lora import LoRA, LoRAConfig
from lockstep.training.parameters import layout_of

ROWS = torch.randint(1, 32, (2, 9), generator=torch.Generator().manual_seed(1))
UPPER = (torch.arange(32) >= 16)[:, None]


class Net(nn.Module):
    """One table of 32 x 8 reads and writes tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.mixed, self.head = nn.Embedding(32, 8), nn.Linear(8, 8), nn.Linear(8, 32)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.mixed(self.tokens(tokens))))


def loss(model: Callable[..., torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def found(model: nn.Module, t: int = 1) -> np.ndarray:
    """The gradient by the Program of a step."""
    layout = layout_of(model)
    program = trace(lambda flat: gradient(model, loss, layout, [flat], ROWS), torch.zeros(layout.size))
    return compile(program, fused="off").run([flat_parameters(model)], StepContext(bytes(32), 0, 0, t))[0]


def due(model: nn.Module) -> np.ndarray:
    """The gradient in eager torch."""
    model.zero_grad()
    loss(model, ROWS).backward()
    return layout_of(model).join({name: p.grad for name, p in model.named_parameters() if p.requires_grad}).numpy()


def halved(grad: torch.Tensor) -> None:
    grad.mul_(0.5)


def test_hooks_of_parameters_are_part_of_the_step() -> None:
    model = Net()
    plain = found(model)
    model.head.weight.register_hook(lambda g: g * UPPER)
    model.tokens.weight.register_hook(lambda g: g + 0.1 * model.tokens.weight.data[:, :1])
    model.tokens.weight.register_hook(lambda g: None)
    model.mixed.weight.register_hook(lambda g: g @ (g.t() @ g))
    model.mixed.bias.register_hook(halved)
    model.head.bias.register_hook(lambda g: g + model.head.weight.sum(1))
    np.testing.assert_allclose(found(model), due(model), rtol=1e-4, atol=1e-6)
    assert np.abs(found(model) - plain).max() > 0.01


def test_hook_that_reads_weights_reads_those_of_the_step() -> None:
    model = Net()
    model.head.bias.register_hook(lambda g: model.tokens.weight[:, 0])
    layout = layout_of(model)
    program = trace(lambda flat: gradient(model, loss, layout, [flat], ROWS), torch.zeros(layout.size))
    moved = 2 * flat_parameters(model)
    grad = compile(program, fused="off").run([moved], StepContext(bytes(32), 0, 0, 1))[0]
    places = {p.name: slice(p.offset, p.offset + p.elements) for p in layout.parameters}
    assert (grad[places["head.bias"]] == moved[places["tokens.weight"]].reshape(32, 8)[:, 0]).all()


def test_noise_of_a_hook_is_the_step_s() -> None:
    model = Net()
    model.mixed.bias.register_hook(torch.randn_like)
    first, again, later = found(model), found(model), found(model, t=2)
    assert (first == again).all()
    assert (first != later).sum() == 8, "the bias alone"


def test_hooks_of_frozen_parameters_never_fire_and_those_of_adapters_do() -> None:
    base = Net()
    base.mixed.weight.register_hook(lambda g: 0 * g)
    base.mixed.weight.requires_grad_(False)
    assert np.abs(found(base) - due(base)).max() < 1e-6
    model = LoRA(LoRAConfig(rank=2, targets=["mixed"]), Net())
    nn.init.ones_(model.base.mixed.lora_B.weight)
    model.base.mixed.lora_A.weight.register_hook(lambda g: 3 * g)
    np.testing.assert_allclose(found(model), due(model), rtol=1e-4, atol=1e-6)


def test_hook_that_needs_the_accumulated_gradient_is_refused_by_name() -> None:
    model = Net()
    model.mixed.weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(UsageError, match=r"mixed\.weight") as caught:
        found(model)
    assert "register_hook" in caught.value.hint


def test_weights_that_were_taken_before_a_hook_ran_are_refused() -> None:
    model = Net()
    first = model.tokens.weight.detach()[0]
    model.mixed.bias.register_hook(lambda g: g * first)
    with pytest.raises(UsageError, match=r"mixed\.bias reads a part of the parameter tokens\.weight"):
        found(model)
