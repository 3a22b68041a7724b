"""Every model trains as a Program like in plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from benchmarks.training import CASES, result
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.training.comparison import compare
from lockstep.training.job import Batch
from lockstep.training.models import GPT, MODELS, GPTConfig, Llama, LlamaConfig, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)
ROWS = (np.arange(40).reshape(-1, 1) * 7 + 3 * np.arange(17)).astype(np.int32) % 32
LLAMA = LlamaConfig(vocabulary=32, context=16, layers=1, heads=2, kv_heads=1, width=32, hidden=80)
INNER = AdamW(learning_rate=1e-2, warmup=4)


@dataclass(frozen=True)
class Slower(AdamW):
    """An AdamW whose Programs move half as far as its schedule says."""

    def table(self, steps: int, restart: int, keys: Any = ()) -> Tensor:
        """The schedule, at half the rate."""
        return replace(AdamW(self.learning_rate / 2), warmup=self.warmup).table(steps, restart, keys)


SEEDS = {"cnn": 3, "encoder": 3, "lenet-5": 3}
"""Models that one seed moves by more than half a percent (docs/numerics.md): the mean of so many is compared."""


def compared(inner: AdamW):
    model = GPT(CONFIG)
    start = initial_parameters(model, 0)
    return compare(model, next_token_loss, ROWS, start, inner, batch=Batch(4, 17), steps=20, last=5)


@pytest.mark.slow
def test_both_sides_learn_the_same() -> None:
    found = compared(INNER)
    assert found.eager < 0.9 * found.start
    assert abs(found.ratio - 1) < 1e-4


def test_a_program_that_trains_otherwise_is_seen() -> None:
    assert compared(Slower(INNER.learning_rate, warmup=INNER.warmup)).ratio > 1.01


@pytest.mark.slow
@pytest.mark.parametrize("model", [GPT(CONFIG), Llama(LLAMA)], ids=["gpt", "llama"])
def test_products_of_integers_learn_the_same_within_half_a_percent(model: nn.Module) -> None:
    start = initial_parameters(model, 0)
    found = compare(
        model, next_token_loss, ROWS, start, INNER, batch=Batch(4, 17), steps=30, last=10, arithmetic=Arithmetic("int8")
    )
    assert found.eager < 0.9 * found.start, "the steps teach something"
    assert found.ours != found.eager, "the products are others"
    assert abs(found.ratio - 1) < 0.005


def test_every_registered_model_is_compared() -> None:
    # The multilayer perceptron is the shortest of all jobs, for tests: nobody trains one.
    assert set(MODELS) - {"mlp"} <= set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_hundred_steps_end_within_one_percent_of_torch(name: str) -> None:
    row = result(name)
    assert row["steps"] == 200
    assert row["torch"] < 0.999 * row["start"], "the steps teach something"
    assert abs(row["ratio"] - 1) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if name != "lora"])
def test_two_hundred_steps_of_integer_products_end_within_half_a_percent_of_torch(name: str) -> None:
    row = result(name, products="int8", seeds=SEEDS.get(name, 1))
    assert row["torch"] < 0.999 * row["start"], "the steps teach something"
    assert abs(row["ratio"] - 1) < 0.005
