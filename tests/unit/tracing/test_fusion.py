"""Traced softmax layers run in strips: the bits of the separate ops, on any data, and no tensor of T x T."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.protocol.programs.program import Kind, Program
from lockstep.tracing import trace
from tests.unit.numerics.comparison import CONTEXT, compare, normal, strange

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Data = Callable[[np.random.Generator, int], Array]


def large(rng: np.random.Generator, n: int) -> Array:
    """Finite numbers of which products are not."""
    return normal(rng, n) * np.float32(1e18)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two heads share the keys and values of one (Ainslie et al. 2023)."""
    H = q.shape[1]
    return F.scaled_dot_product_attention(q, k[:, : H // 2], v[:, : H // 2], is_causal=True, enable_gqa=True)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As eager implementations write it: a least number where the mask forbids."""
    mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return torch.softmax(torch.where(mask, scores, torch.finfo(torch.float32).min), dim=-1) @ v


def window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each position sees itself and the 20 before it."""
    T = q.shape[-2]
    i, j = torch.arange(T).unsqueeze(1), torch.arange(T).unsqueeze(0)
    scores = (q @ k.transpose(-2, -1)).masked_fill((j > i) | (j < i - 20), float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """ALiBi (Press et al. 2022): the mask is not the only thing that depends on the column."""
    T = q.shape[-2]
    i, j = torch.arange(T).unsqueeze(1), torch.arange(T).unsqueeze(0)
    scores = (q @ k.transpose(-2, -1) + (j - i) * 0.5).masked_fill(j > i, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v


def attention_step(attend: Attend, B: int, T: int, H: int, D: int) -> Program:
    """The output and the gradients of a layer that splits one projection into q, k and v."""

    def step(qkv: Tensor, wanted: Tensor) -> list[Tensor]:
        x = qkv.detach().requires_grad_()
        q, k, v = (part.transpose(1, 2) for part in x.view(B, T, 3, H, D).unbind(2))
        y = attend(q, k, v).transpose(1, 2).reshape(-1)
        (gradient,) = torch.autograd.grad((y * y * wanted).sum(), x)  # which needs y first
        return [y, gradient]

    return trace(step, torch.zeros(B * T * 3 * H * D), torch.zeros(B * T * H * D))


def computed(program: Program, state: list[Array | None]) -> set[int]:
    """Sizes of the outputs that a plain run computes on their own."""
    spent = paths.compile(program).profile(state, CONTEXT)
    return {op.header.elements for op, nanoseconds in zip(program.ops, spent, strict=True) if nanoseconds}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attend", [causal, whole, grouped, by_hand, window, biased])
@pytest.mark.parametrize(("B", "T", "H", "D"), [(2, 33, 4, 8), (1, 300, 4, 16)])
@pytest.mark.parametrize("data", [normal, strange, large])
def test_attention_gives_the_bits_of_its_ops(attend: Attend, B: int, T: int, H: int, D: int, data: Data) -> None:
    program = attention_step(attend, B, T, H, D)
    rng = np.random.default_rng((B, T, H, D))
    state: list[Array | None] = [data(rng, n) for n in (B * T * 3 * H * D, B * T * H * D)]
    compare(program, state, budget=T, threads=(1, 2))
    assert B * H * T * T not in computed(program, state)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rows", [7, 70])
@pytest.mark.parametrize("V", [50, 300])
@pytest.mark.parametrize("data", [normal, strange])
def test_cross_entropy_gives_the_bits_of_its_ops(rows: int, V: int, data: Data) -> None:
    C = 20

    def step(x: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
        leaves = [t.detach().requires_grad_() for t in (x, weight)]
        loss = F.cross_entropy(leaves[0].view(rows, C) @ leaves[1].view(V, C).T, targets.long())
        return [loss, *torch.autograd.grad(loss, leaves)]

    program = trace(step, torch.zeros(rows * C), torch.zeros(V * C), torch.zeros(rows, dtype=torch.int32))
    rng = np.random.default_rng((rows, V))
    targets = rng.integers(0, V, rows).astype(np.int32)
    targets[0] = -100  # ignored
    compare(program, [data(rng, rows * C), data(rng, V * C), targets, None], budget=V, threads=(1, 2))


def test_a_long_row_and_a_group_that_other_ops_read() -> None:
    """Probabilities that the Program returns lie in memory, beside the strips that use them."""
    T, D = 70, 8

    def step(q: Tensor, k: Tensor) -> list[Tensor]:
        p = torch.softmax(q.view(T, D) @ k.view(T, D).T, dim=-1)
        return [(p @ k.view(T, D)).reshape(-1), p.reshape(-1), (p.T * 2).reshape(-1)]

    program = trace(step, torch.zeros(T * D), torch.zeros(T * D))
    rng = np.random.default_rng(5)
    compare(program, [normal(rng, T * D), normal(rng, T * D)], budget=T)
    assert sum(op.kind == Kind.FOLD for op in program.ops) == 4
