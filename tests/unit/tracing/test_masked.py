"""Rows that a mask leaves empty: each function gives what it gives in eager torch, and others pay nothing for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.tracing import layers, trace
from lockstep.tracing.masked import may_be_empty

Case = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of [4, 4] numbers and of four integers, of which the first is 0 and the others are not."""

INF = torch.inf
SEEN = torch.tensor([0, 3, 1, 2], dtype=torch.int32)
KEEP = torch.tensor([[False] * 4, [False, True, False, True], [True] * 4, [False] * 4])
TARGETS = torch.tensor([1, 1, 2, 0])
LEFT = torch.tensor([[True, False, False, False]])
STRICT = torch.ones(4, 4, dtype=torch.bool).tril(-1)
CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()
LEAST = torch.finfo(torch.float32).min
torch.manual_seed(0)
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True)
LAYER = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


def added(keep: torch.Tensor, hidden: float = -INF) -> torch.Tensor:
    return torch.zeros(keep.shape).masked_fill(~keep, hidden)


def attended(mask: torch.Tensor | None, x: torch.Tensor, **options: bool) -> torch.Tensor:
    q, k, v = x.view(1, 1, 4, 4), x.flip(0).view(1, 1, 4, 4), (x + 1).view(1, 1, 4, 4)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)


def of_heads(x: torch.Tensor, **options: object) -> torch.Tensor:
    return ATTENTION(x[None], x[None], x[None], **options)[0]


def by_hand(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Masked softmax whose empty rows are chosen away."""
    weights = x.masked_fill(~keep, -INF).softmax(-1)
    return torch.where(keep.any(-1, keepdim=True), weights, 0.0)


CASES: dict[str, Case] = {
    "boolean mask": lambda x, n: attended(KEEP, x),
    "mask of -inf": lambda x, n: attended(added(KEEP), x),
    "mask of the least number": lambda x, n: attended(added(KEEP, LEAST), x),
    "two masks of the least number": lambda x, n: attended(added(KEEP, LEAST) + added(STRICT, LEAST), x),
    "strict lower triangle": lambda x, n: attended(STRICT, x),
    "boolean mask of data": lambda x, n: attended((n > 0)[None] & CAUSAL, x),
    "mask of -inf by data": lambda x, n: attended(torch.where((n > 0)[:, None], 0.0, -INF), x),
    "logarithm of data as a mask": lambda x, n: attended((n > 0).float().log()[:, None].expand(4, 4), x),
    "mask of rows that are all one": lambda x, n: attended((n > 0).view(4, 1), x),
    "causal": lambda x, n: attended(None, x, is_causal=True),
    "softmax": lambda x, n: added(KEEP).add(x).softmax(-1),
    "softmax by hand": lambda x, n: by_hand(x, KEEP),
    "softmax by hand, by data": lambda x, n: by_hand(x, (n > 0)[:, None] & KEEP),
    "softmax without its NaNs": lambda x, n: x.masked_fill(~KEEP, -INF).softmax(-1).nan_to_num(0.0),
    "log_softmax": lambda x, n: x.masked_fill(~KEEP, -INF).log_softmax(-1),
    "cross_entropy": lambda x, n: F.cross_entropy(x.masked_fill(~KEEP, -INF), TARGETS, reduction="none"),
    "logsumexp": lambda x, n: x.masked_fill(~KEEP, -INF).logsumexp(-1),
    "logsumexp by data": lambda x, n: x.masked_fill((n == 0)[:, None], -INF).logsumexp(-1),
    "logsumexp of infinities": lambda x, n: (-x.masked_fill(KEEP, -INF)).logsumexp((0, 1), keepdim=True),
    "logaddexp": lambda x, n: torch.logaddexp(x.masked_fill(KEEP, -INF), x.flip(1).masked_fill(KEEP, -INF)),
    "logaddexp of infinities": lambda x, n: torch.logaddexp(x.masked_fill(KEEP, INF), x.masked_fill(KEEP, INF)),
}  # fmt: skip


MODULES: dict[str, Case] = {
    "heads, all keys padding": lambda x, n: of_heads(x, key_padding_mask=~KEEP[:1], need_weights=False),
    "heads that show weights": lambda x, n: of_heads(x, key_padding_mask=~KEEP[:1], need_weights=True),
    "encoder layer, causal, padded left": lambda x, n: LAYER(x[None], src_mask=~CAUSAL, src_key_padding_mask=LEFT),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cases", [CASES, MODULES], ids=["functions", "modules"])
def test_rows_without_a_term_have_torch_s_values_and_gradients(cases: dict[str, Case]) -> None:
    def results(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for case in cases.values():
            leaf = x.detach().requires_grad_()
            y = case(leaf.view(4, 4), n)
            found += [y.reshape(-1), torch.autograd.grad(y.square().sum(), leaf)[0]]
        return found

    x = torch.from_numpy(np.random.default_rng(1).standard_normal(16).astype(np.float32))
    program = compile(trace(results, x, SEEN), fused="off")
    found = program.run([x.numpy(), SEEN.numpy()], StepContext(bytes(32), 0, 0, 1))
    # A kernel of torch's own has other gradients for rows of the least number.
    with sdpa_kernel(SDPBackend.MATH):
        due = results(x, SEEN)
    for k, (got, wanted) in enumerate(zip(found, due, strict=False)):
        np.testing.assert_allclose(got, wanted.detach(), rtol=2e-5, atol=2e-6, err_msg=[*cases][k // 2])


WITHOUT_A_GUARD: dict[str, Case] = {
    "no mask": lambda x, n: attended(None, x),
    "causal": lambda x, n: attended(None, x, is_causal=True),
    "triangle": lambda x, n: attended(CAUSAL, x),
    "triangle that the step makes": lambda x, n: attended(torch.ones(4, 4, dtype=torch.bool).tril(), x),
    "triangle by heads": lambda x, n: attended(CAUSAL[None, None].expand(1, 1, 4, 4), x),
    "triangle of -inf": lambda x, n: attended(added(CAUSAL), x),
    "window": lambda x, n: attended(CAUSAL & ~STRICT.tril(-3), x),
    "padding by the least number": lambda x, n: attended(torch.where(n > 0, 0.0, LEAST)[None], x),
    "bias that the model computes": lambda x, n: attended(x[n] @ x, x),
}
WITH_A_GUARD: dict[str, Case] = {
    "padding by data": lambda x, n: attended((n > 0)[None] & CAUSAL, x),
    "empty row": lambda x, n: attended(STRICT, x),
    "two masks of the least number": lambda x, n: attended(added(KEEP, LEAST) + added(STRICT, LEAST), x),
    "mask in the state": lambda x, n: attended(x, x),
}


def test_guard_stands_only_where_a_mask_can_leave_a_row_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []

    def asked(*args: Any) -> bool:
        found.append(may_be_empty(*args))
        return found[-1]

    monkeypatch.setattr(layers, "may_be_empty", asked)
    cases = {**WITHOUT_A_GUARD, **WITH_A_GUARD}
    trace(lambda x, n: [case(x.view(4, 4), n).reshape(-1) for case in cases.values()], torch.zeros(16), SEEN)
    assert dict(zip(cases, found, strict=True)) == {name: name not in WITHOUT_A_GUARD for name in cases}


def test_guard_adds_no_op(monkeypatch: pytest.MonkeyPatch) -> None:
    def padded(x: torch.Tensor, n: torch.Tensor) -> list[torch.Tensor]:
        return [attended((n > 0)[None] & CAUSAL, x.view(4, 4)).reshape(-1), n]

    guarded = trace(padded, torch.zeros(16), SEEN)
    monkeypatch.setattr(layers, "may_be_empty", lambda *_: False)
    plain = trace(padded, torch.zeros(16), SEEN)
    assert len(guarded.ops) == len(plain.ops)
    assert guarded.root != plain.root
