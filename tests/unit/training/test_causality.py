"""A later token changes no bit of an earlier logit, in float32 and in products of integers; nor does a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.programs.program import Program
from lockstep.tracing import trace
from lockstep.tracing.arithmetic import FLOAT32, Arithmetic, Products
from lockstep.training.losses import logits
from lockstep.training.models import GPT, MLP, GPTConfig, Llama, LlamaConfig, MLPConfig
from lockstep.training.models.lora import adapt
from lockstep.training.parameters import initial_parameters, layout_of
from tests.unit.training.test_models import started

GROUP = 256
VOCABULARY, LENGTH, LONG = 32, 16, 2 * GROUP + 30
POLICIES = {"float32": FLOAT32, "int8": Arithmetic("int8")}


def forward(model: nn.Module, length: int, policy: Arithmetic) -> Program:
    """(flat parameters, tokens [length]) -> logits."""
    layout = layout_of(model)

    def run(flat: torch.Tensor, tokens: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            found = torch.func.functional_call(model, layout.split(flat), (tokens.view(1, length).long(),))
        return [logits(found).reshape(-1)]

    return trace(
        run, torch.zeros(layout.size), torch.zeros(length, dtype=torch.int32), products=Products(policy)
    )  # fmt: skip


def seen(program: Program, flat: np.ndarray, length: int, changed: int | None) -> np.ndarray:
    """Words of the logits [length, vocabulary]; one token is another."""
    tokens = np.random.default_rng(3).integers(2, VOCABULARY - 1, length).astype(np.int32)
    if changed is not None:
        tokens[changed] += 1
    result = compile(program, fused="off").run([flat, tokens], StepContext(bytes(32), 0, 0, 1))[0]
    return np.asarray(result).reshape(length, -1).view(np.uint32)


def check_causal(model: nn.Module, length: int, policy: Arithmetic) -> None:
    program, flat = forward(model, length, policy), 3 * initial_parameters(model, 0)
    before = seen(program, flat, length, None)
    for t in range(length - 1, length // 2, -max(length // 6, 1)):
        after = seen(program, flat, length, t)
        assert (before[:t] == after[:t]).all(), f"token {t} changes an earlier logit"
        assert (before[t] != after[t]).any(), f"token {t} changes its own logits"


class Linear(nn.Module):
    """Attention without a softmax: products of queries and keys, the later ones left out, times values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.qkv, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, 24), nn.Linear(8, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.tokens(tokens)).split(8, 2)
        return self.head((q @ k.mT).tril() @ v)


class Windows(nn.Module):
    """A convolution over the last three tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)
        self.mixed = nn.Conv1d(8, 8, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixed(F.pad(self.tokens(tokens).mT, (2, 0))).mT)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: GPT(GPTConfig(VOCABULARY, LENGTH, layers=2, heads=2, width=32)),
    "gpt, groups of keys": lambda: GPT(GPTConfig(VOCABULARY, LONG, layers=2, heads=1, width=8)),
    "llama": lambda: Llama(LlamaConfig(VOCABULARY, LENGTH, layers=2, heads=4, kv_heads=2, width=32, hidden=48)),
    "mlp": lambda: MLP(MLPConfig(vocabulary=VOCABULARY)),
    "lora": lambda: adapt(started(GPT(GPTConfig(VOCABULARY, LENGTH, layers=2, heads=2, width=32))), rank=2),
    "linear": Linear,
    "windows": Windows,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["float32", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_a_later_token_changes_no_bit_of_an_earlier_logit(name: str, form: str) -> None:
    check_causal(MODELS[name](), LONG if "groups" in name else LENGTH, POLICIES[form])


class Heads(nn.Module):
    """Attention over what is given."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["float32", "int8"])
def test_a_query_over_cached_keys_has_the_bits_of_the_whole_pass(form: str) -> None:
    heads, last = Heads(), GROUP + 40
    x = np.random.default_rng(0).standard_normal(3 * LONG * 8).astype(np.float32)

    def whole(x: torch.Tensor) -> list[torch.Tensor]:
        q, k, v = (1.5 * x).view(3, 1, 1, LONG, 8).unbind()
        return [heads(q, k, v, True)[0, 0, last]]

    def cached(x: torch.Tensor) -> list[torch.Tensor]:
        q, k, v = (1.5 * x).view(3, 1, 1, LONG, 8).unbind()
        return [heads(q[:, :, last : last + 1], k[:, :, : last + 1], v[:, :, : last + 1], False)[0, 0, 0]]

    words = [
        compile(trace(f, torch.zeros(x.size), products=Products(POLICIES[form])), fused="off")
        .run([x], StepContext(bytes(32), 0, 0, 1))[0]
        .view(np.uint32)
        for f in (whole, cached)
    ]
    assert (words[0] == words[1]).all()
