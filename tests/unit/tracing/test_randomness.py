"""Numbers that torch would draw from its generator come from the job's Philox words: moments, seeds, gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import distributions as D  # noqa: N812
from torch import nn, randn_like
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.tracing import trace
from tests.unit.tracing.functions import RANDOM

A = torch.ops.aten
N = 1 << 14
WEIGHTS = torch.tensor([0.2, 0.1, 0.3, 0.4])
CONCENTRATIONS = torch.tensor([1.0, 2.0, 1.0])
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
    "randint": (lambda x: torch.randint(7, (N,)).float(), 3.0, 4.0),
    "randint.low": (lambda x: torch.randint(-3, 8, (N,)).float(), 2.0, 10.0),
    "randint_like": (lambda x: torch.randint_like(x, 7), 3.0, 4.0),
    "randint_like.low_dtype": (lambda x: torch.randint_like(x, -3, 8, dtype=torch.int64).float(), 2.0, 10.0),
    "randperm": (lambda x: torch.randperm(64).float().repeat(N // 64), 31.5, (64**2 - 1) / 12),
    "multinomial": (lambda x: torch.multinomial(WEIGHTS.repeat(N, 1), 1).reshape(-1).float(), 1.9, 1.29),
    "normal.Tensor_Tensor": (lambda x: torch.normal(x + 2, x + 3), 2.0, 9.0),
    "normal.Tensor_float": (lambda x: torch.normal(x + 2, 3.0), 2.0, 9.0),
    "normal.float_Tensor": (lambda x: torch.normal(2.0, x + 3), 2.0, 9.0),
    "normal.float_float": (lambda x: torch.normal(2.0, 3.0, (N,)), 2.0, 9.0),
    "log_normal": (lambda x: torch.empty(N).log_normal_(0.5, 0.4).log(), 0.5, 0.16),
    "cauchy": (lambda x: (torch.empty(N).cauchy_(1, 2) - 1).div(2).atan(), 0.0, math.pi**2 / 12),
    "geometric": (lambda x: torch.empty(N).geometric_(0.4), 2.5, 3.75),
    "_standard_gamma": (lambda x: torch._standard_gamma(x + 2.5), 2.5, 2.5),
    "_sample_dirichlet": (lambda x: torch._sample_dirichlet(CONCENTRATIONS.repeat(N, 1))[:, 0], 0.25, 0.0375),
    "rrelu_with_noise_functional": (lambda x: F.rrelu(x - 1, 0.2, 0.5, training=True), -0.35, 0.0075),
    "rand.generator": (lambda x: torch.rand(N, generator=None), 0.5, 1 / 12),
    "rand_like.generator": (lambda x: torch.rand_like(x, generator=None), 0.5, 1 / 12),
    "randn.generator": (lambda x: torch.randn(N, generator=None), 0.0, 1.0),
    "randn_like.generator": (lambda x: torch.randn_like(x, generator=None), 0.0, 1.0),
    "randint.generator": (lambda x: torch.randint(7, (N,), generator=None).float(), 3.0, 4.0),
    "randint.low_generator": (lambda x: torch.randint(-3, 8, (N,), generator=None).float(), 2.0, 10.0),
    "randint_like.generator": (lambda x: torch.randint_like(x, 7, generator=None), 3.0, 4.0),
    "randint_like.low_generator_dtype": (lambda x: torch.randint_like(x, -3, 8, generator=None), 2.0, 10.0),
    "randperm.generator": (lambda x: torch.randperm(64, generator=None).float().repeat(N // 64), 31.5, 341.25),
    "native_dropout": (lambda x: torch.native_dropout(x + 1, 0.4, True)[0], 1.0, 2 / 3),
}
"""Rule to a draw, its mean and its variance."""
FORMS: dict[str, tuple[Draw, float, float]] = {
    "small gamma": (lambda x: torch._standard_gamma(x + 0.4), 0.4, 0.4),
    "large range of integers": (lambda x: torch.randint(-(1 << 30), 1 << 30, (N,)) / 2.0**30, 0.0, 1 / 3),
    "integers below 10^5": (lambda x: torch.randint(100_000, (N,)) / 100_000, 0.5, 1 / 12),
    "bools": (lambda x: torch.randint(2, (N,), dtype=torch.bool).float(), 0.5, 0.25),
    "floats in place": (lambda x: torch.empty(N).random_() / 2**24, 0.5, 1 / 12),
    "floats below a bound": (lambda x: torch.empty(N).random_(7), 3.0, 4.0),
    "integers in place": (lambda x: torch.empty(N, dtype=torch.int64).random_(2, 9).float(), 5.0, 4.0),
    "several of one row": (lambda x: torch.multinomial(WEIGHTS, N, replacement=True).float(), 1.9, 1.29),
    "without replacement": (lambda x: torch.multinomial(WEIGHTS.repeat(N, 1), 2)[:, 0].float(), 1.9, 1.29),
    "categorical": (lambda x: D.Categorical(probs=WEIGHTS).sample((N,)).float(), 1.9, 1.29),
    "categorical of logits": (lambda x: D.Categorical(logits=WEIGHTS.log().repeat(N, 1)).sample().float(), 1.9, 1.29),
    "normal": (lambda x: D.Normal(x + 2, x + 3).rsample(), 2.0, 9.0),
    "gamma": (lambda x: D.Gamma(x + 2.5, x + 2.0).sample(), 1.25, 0.625),
    "beta": (lambda x: D.Beta(x + 2, x + 3).sample(), 0.4, 0.04),
    "dirichlet": (lambda x: D.Dirichlet(CONCENTRATIONS).sample((N,))[:, 0], 0.25, 0.0375),
    "laplace": (lambda x: D.Laplace(x + 1, x + 0.5).rsample(), 1.0, 0.5),
    "gumbel": (lambda x: D.Gumbel(x, x + 1).rsample(), 0.5772, math.pi**2 / 6),
    "uniform": (lambda x: D.Uniform(x - 1, x + 3).rsample(), 1.0, 16 / 12),
    "exponential distribution": (lambda x: D.Exponential(x + 2).rsample(), 0.5, 0.25),
    "bernoulli distribution": (lambda x: D.Bernoulli(x + 0.3).sample(), 0.3, 0.21),
    "student": (lambda x: D.StudentT(x + 9.0).sample(), 0.0, 9 / 7),
    "truncated normal": (lambda x: nn.init.trunc_normal_(torch.empty(N), 0.5, 2.0, -1.5, 2.5), 0.5, 4 * 0.29112),
    "truncated tail": (lambda x: nn.init.trunc_normal_(torch.empty(N), 0.0, 1.0, 2.0, 3.0), 2.3158, 0.0616),
    "gumbel softmax": (lambda x: F.gumbel_softmax(WEIGHTS.log().repeat(N, 1), hard=True)[:, 3], 0.4, 0.24),
    "alpha dropout": (lambda x: F.alpha_dropout(randn_like(x), 0.3, True), 0.0, 1.0),
    "dropout of channels": (lambda x: F.dropout2d((x + 1).view(1, N, 1, 1), 0.4).reshape(-1), 1.0, 2 / 3),
    "dropout of channels in place": (lambda x: F.dropout1d((x + 1).view(N, 1), 0.4, inplace=True).view(-1), 1.0, 2 / 3),
    "alpha dropout of channels": (
        lambda x: F.feature_alpha_dropout(randn_like(x).view(N, 1), 0.3, True).view(-1), 0.0, 1.0
    ),
    "rrelu in place": (lambda x: F.rrelu(x - 1, 0.2, 0.5, training=True, inplace=True), -0.35, 0.0075),
    "counted arrivals": (
        lambda x: (torch.empty(N, 24).exponential_().cumsum(-1) < (x + 3).unsqueeze(-1)).sum(-1).float(), 3.0, 3.0
    ),
}  # fmt: skip
"""Other ways to the same draws."""


def drawn(draw: Draw, t: int = 1) -> np.ndarray:
    """The draw of step t, natively."""
    program = trace(lambda x: [draw(x)], torch.zeros(N))
    (y,) = compile(program).run([np.zeros(N, np.float32)], StepContext(bytes(32), 0, 1, t))
    return y


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*DRAWS, *FORMS])
def test_draw_has_its_moments_and_another_step_another_draw(name: str) -> None:
    draw, mean, variance = (DRAWS | FORMS)[name]
    y = drawn(draw)
    assert abs(y.mean() - mean) < 5 * (variance / N) ** 0.5, "within five standard errors"
    assert abs(y.var() - variance) < 0.1 * variance
    assert (y == drawn(draw)).all(), "the same step draws the same"
    assert (y != drawn(draw, 2)).mean() > 0.3
    assert np.isfinite(y).all()


def test_every_drawing_rule_has_a_case() -> None:
    assert set(DRAWS) == set(RANDOM.split())


def test_a_drawn_slope_is_that_of_the_gradient() -> None:
    def slopes(x: torch.Tensor) -> list[torch.Tensor]:
        leaf = (x - 1).requires_grad_()
        y = F.rrelu(leaf, 0.2, 0.5, training=True)
        return [y.detach(), torch.autograd.grad(y.sum(), leaf)[0]]

    y, slope = compile(trace(slopes, torch.zeros(N))).run([np.zeros(N, np.float32)], StepContext(bytes(32), 0, 1, 1))
    assert (slope == -y).all()
    assert slope.min() >= np.float32(0.2)
    assert slope.max() <= np.float32(0.5)


def test_integers_have_equal_shares_to_both_ends() -> None:
    counts = np.bincount(drawn(lambda x: torch.randint(100, (N,)).float()).astype(int), minlength=100)
    assert len(counts) == 100
    assert ((counts - N / 100) ** 2 / (N / 100)).sum() < 99 + 5 * (2 * 99) ** 0.5, "chi squared, five deviations"


@pytest.mark.slow
def test_a_permutation_has_every_number_once_and_all_orders_are_alike() -> None:
    y = drawn(lambda x: torch.stack([torch.randperm(3) for _ in range(256)]).reshape(-1).float()).reshape(-1, 3)
    assert (np.sort(y, 1) == np.arange(3)).all()
    counts = np.bincount((y @ [9, 3, 1]).astype(int))
    assert (counts > 0).sum() == 6, "each order occurs"
    assert abs(counts[counts > 0] - 256 / 6).max() < 5 * (256 * 5 / 36) ** 0.5


def test_what_is_drawn_without_replacement_differs_and_what_has_no_weight_is_never_drawn() -> None:
    y = drawn(lambda x: torch.multinomial(torch.tensor([1.0, 0.0, 2.0, 3.0]).repeat(64, 1), 3).float().reshape(-1))
    assert (np.sort(y.reshape(-1, 3), 1) == [0, 2, 3]).all()


def test_two_draws_of_a_program_differ() -> None:
    y = drawn(lambda x: torch.rand(N) - torch.rand(N))
    assert (y != 0).mean() > 0.99
