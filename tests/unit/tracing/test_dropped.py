"""Layers that an `if` drops at random: each as eager torch has it, by the job's own words, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace

N, STEPS = 8, 200
SEED = bytes(range(32))


class Layer(nn.Module):
    """Doubles; with more than a tensor as its result, as layers with attention weights have it."""

    def forward(self, hidden: torch.Tensor, several: bool = False) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """2 x, or (2 x, x)."""
        return (2 * hidden, hidden) if several else 2 * hidden


class Encoder(nn.Module):
    """The three ways in which libraries write it."""

    def __init__(self, layerdrop: float, form: str) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.layerdrop, self.form = layerdrop, form

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """x -> x 2^k, where k layers are kept."""
        for layer in self.layers:
            drawn = torch.rand([])
            if self.form == "continue":
                if self.training and drawn < self.layerdrop:
                    continue
                hidden = layer(hidden)
            elif self.form == "flag":
                to_drop = False
                if drawn <= self.layerdrop:
                    to_drop = True
                if not to_drop:
                    hidden = layer(hidden, several=True)[0]
            else:
                skip = self.training and drawn < self.layerdrop
                if not skip or hidden is None:
                    outputs = layer(hidden=hidden, several=True)
                    hidden = outputs[0]
                if skip:
                    outputs = (None, None)
        return hidden


FORMS = ("continue", "flag", "skip")


def kept(layerdrop: float, form: str, steps: int = STEPS) -> np.ndarray:
    """i64 [steps]: the layers that each step keeps, by value; its gradient says the same."""
    model = Encoder(layerdrop, form)

    def both(x: torch.Tensor, _: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.detach().requires_grad_()
        y = model(leaf)
        return [y, torch.autograd.grad(y.sum(), leaf)[0]]

    program = compile(trace(both, torch.ones(N), torch.ones(N)))
    found = []
    x = np.ones(N, np.float32)
    for t in range(1, steps + 1):
        y, slope = program.run([x, x], StepContext(SEED, 0, 0, t))
        assert np.array_equal(y, slope)
        assert (y == y[0]).all()
        found.append(int(np.log2(y[0])))
    return np.array(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_each_layer_is_dropped_with_its_probability(form: str) -> None:
    found = kept(0.3, form)
    assert abs(found.mean() / 3 - 0.7) < 4 * (0.3 * 0.7 / (3 * STEPS)) ** 0.5, "within four standard deviations"
    assert set(found) == {0, 1, 2, 3}, "one layer by itself"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_ends_of_the_probability_are_eager_s(form: str) -> None:
    assert (kept(1.0, form, 5) == 0).all()
    assert (kept(-1.0, form, 5) == 3).all()


def test_draws_are_the_step_s_own() -> None:
    assert np.array_equal(kept(0.5, "flag", 40), kept(0.5, "flag", 40))


class Wide(nn.Module):
    """A layer with another shape."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N] -> [N + 1]."""
        return torch.cat([x, x[:1]])


class Refused(nn.Module):
    """Code that is none of these, or cannot be passed over."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.layer, self.wide, self.what, self.layerdrop, self.rate = Layer(), Wide(), what, 0.5, 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x, or what a layer makes of it."""
        if self.what == "another name":
            return x if torch.rand([]) < self.rate else self.layer(x)
        if self.what == "no draw":
            return x if x.sum() < self.layerdrop else self.layer(x)
        dropped = torch.rand([]) < self.layerdrop
        if self.what == "another shape":
            return x if dropped else self.wide(x)
        return x if dropped else x * 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("another name", "depends on data"),
        ("no draw", "depends on data"),
        ("another shape", "does not return a tensor of its input's shape"),
        ("no layer", "never called"),
    ],
)
def test_other_conditions_are_refused(what: str, message: str) -> None:
    model: Callable[[torch.Tensor], torch.Tensor] = Refused(what)
    with pytest.raises(LoweringError, match=re.escape(message)) as caught:
        trace(lambda x: [model(x)], torch.ones(N))
    assert caught.value.hint
