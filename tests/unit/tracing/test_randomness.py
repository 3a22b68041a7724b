"""Numbers that torch would draw from its generator come from the job's Philox words: moments, seeds, gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.tracing import trace
from tests.unit.tracing.functions import RANDOM

A = torch.ops.aten
N = 1 << 14
Draw = Callable[[torch.Tensor], torch.Tensor]
DRAWS: dict[str, tuple[Draw, float, float]] = {
    "rand": (lambda x: torch.rand(N), 0.5, 1 / 12),
    "rand_like": (torch.rand_like, 0.5, 1 / 12),
    "randn": (lambda x: torch.randn(N), 0.0, 1.0),
    "randn_like": (torch.randn_like, 0.0, 1.0),
    "uniform": (lambda x: torch.empty(N).uniform_(-1, 3), 1.0, 16 / 12),
    "normal_functional": (lambda x: torch.empty(N).normal_(2, 3), 2.0, 9.0),
    "exponential": (lambda x: torch.empty(N).exponential_(2), 0.5, 0.25),
    "bernoulli.p": (lambda x: torch.empty(N).bernoulli_(0.3), 0.3, 0.21),
    "bernoulli": (lambda x: torch.bernoulli(x * 0 + 0.3), 0.3, 0.21),
    "bernoulli.Tensor": (lambda x: A.bernoulli.Tensor(x, x * 0 + 0.3), 0.3, 0.21),
}
"""Rule to a draw, its mean and its variance."""


def drawn(draw: Draw, t: int = 1) -> np.ndarray:
    """The draw of step t, natively."""
    program = trace(lambda x: [draw(x)], torch.zeros(N))
    (y,) = compile(program).run([np.zeros(N, np.float32)], StepContext(bytes(32), 0, 1, t))
    return y


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DRAWS)
def test_draw_has_its_moments_and_another_step_another_draw(name: str) -> None:
    draw, mean, variance = DRAWS[name]
    y = drawn(draw)
    assert abs(y.mean() - mean) < 5 * (variance / N) ** 0.5, "within five standard errors"
    assert abs(y.var() - variance) < 0.1 * variance
    assert (y == drawn(draw)).all(), "the same step draws the same"
    assert (y != drawn(draw, 2)).mean() > 0.3


def test_every_drawing_rule_has_a_case() -> None:
    assert set(DRAWS) == set(RANDOM.split())


def test_two_draws_of_a_program_differ() -> None:
    y = drawn(lambda x: torch.rand(N) - torch.rand(N))
    assert (y != 0).mean() > 0.99
