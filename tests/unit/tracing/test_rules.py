"""Every rule of the table against float64 torch, on the graph alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import LoweringError
from lockstep.protocol.programs.opcodes import FUNCTIONS
from lockstep.protocol.programs.program import Kind, Program, Tag
from lockstep.protocol.programs.rules import MAX_FUNCTIONS, MAX_INSTRS, MAX_OPERANDS, MAX_TENSOR_OPERANDS
from lockstep.tracing import trace
from tests.unit.tracing import wide
from tests.unit.tracing.helpers import Case, grad_of, ints, m, ramp, rows
from tests.unit.tracing.windows import WINDOWS

A = torch.ops.aten
N = 24
KEPT = torch.ones(6)
"""A table that no state carries."""
FLOATS: dict[str, Case] = {
    "add": lambda x: [x + 2 * x.flip(0), torch.add(x, x * x, alpha=3), x + 1.5],
    "add scalar": lambda x: [A.add.Scalar(x, 1.5), A.sub.Scalar(x, 1.5), A.mul.Scalar(x, 1.5), A.div.Scalar(x, 3.0)],
    "sub": lambda x: [x - x.flip(0), torch.sub(x, x * x, alpha=0.5), 1 - x, A.rsub.Tensor(x, x * x)],
    "mul": lambda x: [x * x.flip(0), x * 3],
    "div": lambda x: [x / (x.flip(0) + 9), x / 3, 1 / (x + 9)],
    "div floor": lambda x: [
        torch.div(x, 0.3, rounding_mode="floor"),
        torch.div(x, x.flip(0).abs() + 0.7, rounding_mode="trunc"),
        A.div.Tensor_mode(x, x * 0 + 0.7, rounding_mode=None),
        torch.floor_divide(x, x.abs() + 0.3),
        A.floor_divide.Scalar(x, 0.7),
    ],
    "integer division": lambda x: [
        i.to(torch.float32)
        for i in (
            torch.floor_divide(ints(x), 4),
            torch.div(ints(x), 4, rounding_mode="trunc"),
            torch.div(ints(x), -4, rounding_mode="floor"),
            ints(x).remainder(-5),
            ints(x).remainder(ints(x.flip(0)).abs() + 1),
        )
    ],
    "remainder": lambda x: [x.remainder(0.75), x.remainder(x.flip(0).abs() + 0.5)],
    "addcmul": lambda x: [torch.addcmul(x, x, x.flip(0), value=0.5), torch.addcdiv(x, x, x.flip(0) + 9, value=0.5)],
    "lerp": lambda x: [torch.lerp(x, x.flip(0), 0.25), torch.lerp(x, x.flip(0), x.abs())],
    "neg": lambda x: [-x, (-ints(x)).to(torch.float32), ints(x).abs().to(torch.float32), x.abs(), +x],
    "roots": lambda x: [x.abs().sqrt(), (x.abs() + 1).rsqrt(), x.abs().add(1).reciprocal()],
    "pow": lambda x: [x**2, x**3, x.abs() ** 0.5, (x.abs() + 1) ** -1.5, (x.abs() + 1) ** -2, x**0, x.abs() ** 2.5],
    "pow tensor": lambda x: [(x.abs() + 1) ** x, 2.0**x],
    "pow of any sign": lambda x: [x ** ints(x).to(x.dtype), (-2.0) ** ints(x), x**17, x**18, x**-19],
    "exp log": lambda x: [x.exp(), (x.abs() + 1).log(), (x.abs() + 1).log2(), (x.abs() + 1).log10()],
    "tanh": lambda x: [x.tanh(), grad_of(torch.tanh)(x)],
    "sigmoid": lambda x: [x.sigmoid(), F.silu(x), grad_of(torch.sigmoid)(x), grad_of(F.silu)(x)],
    "relu": lambda x: [F.relu(x), grad_of(F.relu)(x), F.relu(ints(x)).float()],
    "gelu tanh": lambda x: [F.gelu(x, approximate="tanh"), grad_of(lambda y: F.gelu(y, approximate="tanh"))(x)],
    "rounding": lambda x: [(4 * x).round(), (4 * x).floor(), (4 * x).ceil(), (4 * x).trunc(), (1e9 * x).round()],
    "sign": lambda x: [x.sign(), x.sgn(), (0 / x.clamp(min=0)).isnan().to(x.dtype), ints(x).sign().to(torch.float32)],
    "compare": lambda x: (
        [
            c.to(torch.float32)
            for y in (x, ints(x))
            for c in (y < y.flip(0), y > 1, y <= y.flip(0), y >= 1, y == y.flip(0), y != 1, y.ne(y.flip(0)), y.lt(0))
        ]
        + [c.to(torch.float32) for c in (x > x.flip(0), x >= x.flip(0), x <= 0.5, x == 0.5, x.flip(0) == x)]
    ),
    "extrema": lambda x: [
        torch.maximum(x, x.flip(0)),
        torch.minimum(x, x.flip(0)),
        torch.maximum(ints(x), ints(x.flip(0))).float(),
        torch.minimum(ints(x), ints(x.flip(0))).float(),
    ],
    "clamp": lambda x: [
        x.clamp(-0.5, 0.5),
        x.clamp(min=-0.5),
        x.clamp(max=0.5),
        x.clamp_min(0.1),
        x.clamp_max(0.1),
        A.clamp_min.Tensor(x, x.flip(0)),
        A.clamp_max.Tensor(x, x.flip(0)),
        torch.clamp(x, x.flip(0) - 1, x.flip(0) + 1),
        ints(x).clamp(-2, 2).to(torch.float32),
    ],
    "where": lambda x: [
        torch.where(x > 0, x, x.flip(0)),
        torch.where(x > 0, x, 2.0),
        torch.where(x > 0, 2.0, x),
        x.masked_fill(x > 0, 7.0),
        x.masked_fill(x > 0, torch.tensor(7.0)),
    ],
    "logic": lambda x: [
        c.to(torch.float32)
        for c in (
            (x > 0) & (x < 1),
            (x > 0) | (x < -1),
            (x > 0) ^ (x < 1),
            ~(x > 0),
            torch.logical_and(x > 0, ints(x)),
            torch.logical_or(x > 0, x < -1),
            torch.logical_xor(x > 0, x < 1),
            torch.logical_not(ints(x)),
        )
    ],
    "bits": lambda x: [
        c.to(torch.float32)
        for c in (
            ints(x) & 5,
            ints(x) | 8,
            ints(x) ^ 3,
            ~ints(x),
            ints(x) & ints(x.flip(0)),
            ints(x) << 2,
            ints(x) >> 1,
            ints(x) << rows(x),
            ints(x) >> rows(x),
        )
    ],
    "words": lambda x: [(x.view(torch.int32) & -256).view(torch.float32)] if x.dtype == torch.float32 else [cut(x)],
    "casts": lambda x: [
        (3 * x).to(torch.int32).to(torch.float32),
        x.to(torch.bool).to(torch.int64).to(torch.float32),
        ints(x).bool().float(),
        A.copy(x, ints(x)),
    ],
    "copies": lambda x: [x.clone() * 1, x.detach() + 0, A.alias(x) * 2, A.lift_fresh_copy(x)],
    "reshape": lambda x: [m(x).t().reshape(-1), m(x).reshape(2, 2, 6).permute(2, 0, 1).reshape(-1)],
    "transpose": lambda x: [
        x.view(2, 3, 4).transpose(0, 2).reshape(-1),
        x.view(2, 3, 4).transpose(1, -1).reshape(3, 8).t().reshape(-1),
        x.sum().t() + x.sum().transpose(0, 0),
    ],
    "uneven cut": lambda x: [
        (x.view(6, 4).t().reshape(3, 8) + x.view(3, 8)).reshape(-1),
        (x.view(6, 4).t().reshape(8, 3) * ramp(3)).reshape(-1),
        (x[:4].unsqueeze(0).expand(6, 4).reshape(8, 3) * x.view(8, 3)).reshape(-1),
        (m(x).t().reshape(-1) + x).view(3, 8).t().reshape(-1),
    ],
    "expand": lambda x: [(m(x) + m(x)[0]).reshape(-1), m(x)[:, :1].expand(4, 5).reshape(-1), x.sum().expand(3)],
    "squeeze": lambda x: [
        x.view(1, 4, 1, 6).squeeze().reshape(-1),
        x.view(1, 24).squeeze(0) * 2,
        x.view(1, 24, 1).squeeze((0, 2)) * 3,
        x.unsqueeze(1).reshape(-1) * 4,
    ],
    "slice": lambda x: [x[2:-3], x[::5], m(x)[1:3, 2:].reshape(-1), m(x)[:, 3], m(x)[-1], m(x).t().reshape(-1)[3:9]],
    "flip": lambda x: [m(x).flip(0).reshape(-1), m(x).flip(0, 1).reshape(-1), m(x).t().reshape(-1).flip(0)[1:4]],
    "split": lambda x: [*x.split(10), *x.split([4, 20]), *x.chunk(3), m(x).unbind(1)[2]],
    "cat": lambda x: [
        torch.cat([x, x.flip(0), torch.zeros(3)]),
        torch.cat([torch.tensor([]), x, x[:0]]),
        torch.cat([m(x), m(x).flip(0) * 2, torch.ones(4, 1)], 1).reshape(-1),
        torch.cat([m(x).t(), m(x).flip(1).t()], 0).reshape(-1),
        torch.cat([x.view(2, 3, 4).transpose(0, 1).reshape(3, 8), x.view(3, 8)], 0).reshape(-1),
        torch.stack([x, x * 2], 1).reshape(-1),
    ],
    "cat of views": lambda x: [
        torch.cat([x.view(2, 2, 6).permute(0, 2, 1).reshape(2, 12), x.view(2, 12)], 1).reshape(-1)
    ],
    "repeat": lambda x: [x.repeat(2), m(x).repeat(2, 3).reshape(-1)],
    "pad": lambda x: [F.pad(x, (2, 3)), F.pad(m(x), (1, -2, 2, 0), value=5.0).reshape(-1)],
    "views backward": lambda x: [
        grad_of(lambda y: m(y)[1:3, 2:])(x),
        grad_of(lambda y: m(y)[:, 3])(x),
        grad_of(lambda y: m(y)[1::2, ::3])(x),
        grad_of(lambda y: m(y).t()[2])(x),
        grad_of(lambda y: torch.cat([y, y * y]))(x),
        grad_of(lambda y: m(y).split(2, 1)[1] * 2)(x),
    ],
    "in place": lambda x: in_place(x),
    "triangles": lambda x: [m(x).tril().reshape(-1), m(x).triu(1).reshape(-1), m(x).tril(-1).reshape(-1)],
    "constants": lambda x: [
        torch.full((3,), 2.5) + torch.zeros(3) + torch.ones(3),
        torch.full_like(x, 2.0) + torch.zeros_like(x) + torch.ones_like(x),
        x.new_full((2,), 3.0) + x.new_zeros(2) + x.new_ones(2),
        torch.scalar_tensor(4.0),
        torch.arange(5).float(),
        torch.arange(2, 9, 3).float(),
        torch.arange(0, 1, 0.25),
        torch.arange(3, 7).float(),
        torch.tensor([1.5, 2.5, 3.5]) * 2,
        A.fill.Scalar(x, 3.0),
        A.fill.Tensor(x, x.sum()),
    ],
    "unwritten memory": lambda x: [
        torch.empty(3) * 0,
        torch.empty_like(x) * 0,
        x.new_empty(3) * 0,
    ],
    "sum": lambda x: [
        x.sum(),
        m(x).sum(0),
        m(x).sum(1),
        x.view(2, 3, 4).sum((0, 2)),
        m(x).sum(1, keepdim=True).reshape(-1),
        ints(x).sum().to(torch.float32),
        ints(x).view(4, 6).sum(0).to(torch.float32),
        (x > 0).sum().to(torch.float32),
    ],
    "mean of a transposed line": lambda x: [
        nn.AdaptiveAvgPool1d(1)(x.view(2, 4, 3).transpose(1, 2)).reshape(-1),
        grad_of(lambda y: F.adaptive_avg_pool1d(y.view(2, 4, 3).transpose(1, 2), 1) ** 2)(x),
        nn.AdaptiveAvgPool1d(2)(m(x)).reshape(-1),
    ],
    "mean": lambda x: [x.mean(), m(x).mean(0), m(x).mean(-1, keepdim=True).reshape(-1)],
    "max": lambda x: [x.max(), x.min(), m(x).amax(1), m(x).amin(0), m(x).max(1).values, m(x).min(0).values],
    "var": lambda x: [m(x).var(1), x.var(correction=0)],
    "norms": lambda x: [
        torch.linalg.vector_norm(x),
        torch.linalg.vector_norm(m(x), 1, 0),
        torch.linalg.vector_norm(x, float("inf")),
        torch.linalg.vector_norm(x, float("-inf")),
        torch.linalg.vector_norm(m(x), 3, 1),
        torch.linalg.vector_norm(m(x).relu(), 0, 1),
    ],
    "cumsum": lambda x: [x.cumsum(0), m(x).cumsum(0).reshape(-1)],
    "matmul": lambda x: [
        (m(x) @ m(x).t()).reshape(-1),
        (m(x).t() @ m(x)).reshape(-1),
        (m(x) @ m(x)[0]).reshape(-1),
        x @ x.flip(0),
        (x.view(2, 3, 4) @ x.view(2, 4, 3)).reshape(-1),
        torch.addmm(m(x)[:, :4], m(x), m(x).t(), beta=0.5, alpha=2).reshape(-1),
        torch.baddbmm(x[:3].view(1, 1, 3), x.view(2, 3, 4), x.view(2, 4, 3)).reshape(-1),
    ],
    "linear backward": lambda x: [grad_of(lambda y: F.linear(m(y), m(y) * 2, m(y)[:, 0]))(x)],
    "attention": lambda x: [
        F.scaled_dot_product_attention(*(x.view(2, 3, 4) * s for s in (1, 2, 3)), is_causal=True).reshape(-1),
        grad_of(lambda y: F.scaled_dot_product_attention(*(y.view(1, 2, 3, 4) * s for s in (1, 2, 3)), is_causal=True))(
            x
        ),
        F.scaled_dot_product_attention(x.view(2, 3, 4), x.view(2, 3, 4), x.view(2, 3, 4), scale=0.3).reshape(-1),
    ],
    "index": lambda x: [
        m(x)[rows(x)].reshape(-1),
        m(x)[(rows(x[:3]) - 4).long()].reshape(-1),
        m(x).index_select(1, rows(x[:5])).reshape(-1),
        m(x).index_add(1, rows(x[:5]), m(x)[:, :5], alpha=2).reshape(-1),
        m(x)[rows(x[:5]).long(), rows(x[5:10]).long()],
        m(x)[:, rows(x[:5]).long()].reshape(-1),
        x.view(2, 3, 4)[:, rows(x[:5]).remainder(3).long(), rows(x[5:10]).view(5).long()].reshape(-1),
        x.view(2, 3, 4)[rows(x[:5]).remainder(2).long(), :, rows(x[5:10]).long()].reshape(-1),
        x.view(2, 3, 4)[torch.arange(2).view(2, 1), torch.arange(3).view(1, 3)].reshape(-1),
        x[:6].expand(2, 6)[torch.tensor([[0], [1]]), rows(x[:5]).long()].reshape(-1),
        grad_of(lambda y: m(y)[rows(x).long()])(x),
        grad_of(lambda y: m(y)[rows(x[:5]).long(), rows(x[5:10]).long()])(x),
        grad_of(lambda y: y.view(2, 3, 4)[:, rows(x[:5]).remainder(3).long(), rows(x[5:10]).long()])(x),
        grad_of(lambda y: y.view(2, 3, 4)[rows(x[:5]).remainder(2).long(), :, rows(x[5:10]).long()])(x),
    ],
    "written by index": lambda x: [
        m(x).index_put((torch.tensor([2, 0]),), m(x)[:2] * 2).reshape(-1),
        m(x).index_put((torch.tensor([2, 0]), torch.tensor([1, 5])), x[:2] * 2).reshape(-1),
        m(x).index_put((rows(x[:5]).long(),), x[:6], accumulate=True).reshape(-1),
        m(x).scatter(1, torch.tensor([[2, 0], [1, 5], [3, 4], [0, 1]]), m(x)[:, :2]).reshape(-1),
        m(x).scatter(0, torch.tensor([[2, 0, 1, 1, 3, 0]]), 5.0).reshape(-1),
        ints(x).index_put((torch.tensor([20, 3]),), ints(x)[:2] + 20_000_001).float(),
        ints(x).view(4, 6).index_put((rows(x[:5]).long(),), ints(x)[:6], accumulate=True).reshape(-1).float(),
        ints(x).scatter(0, torch.tensor([20, 3]), ints(x)[:2] + 20_000_001).float(),
        ints(x).scatter_add(0, rows(x).long(), ints(x) + 20_000_001).remainder(7).float(),
    ],
    "positions": lambda x: [
        x.argmax().float(),
        m(x).argmax(1).float(),
        m(x).argmin(0, keepdim=True).reshape(-1).float(),
        m(x).max(1).indices.float(),
        m(x).min(0).indices.float(),
        rows(x).float().view(4, 6).argmax(1).float(),
    ],
    "order": lambda x: [
        *x.sort(),
        *(part.reshape(-1) for part in m(x).sort(0, descending=True)),
        *(part.reshape(-1).float() for part in rows(x).float().view(4, 6).sort(dim=1, stable=True)),
        *(part.reshape(-1).float() for part in m(x).topk(2, 1)),
        *(part.reshape(-1).float() for part in m(x).topk(3, 0, largest=False)),
        *(part.float() for part in ints(x).sort(descending=True, stable=True)),
        grad_of(lambda y: m(y).topk(2, 1).values)(x),
        rows(x).float().histc(4, 0, 3),
        x.histc(5, -0.75, 0.75),
    ],
    "products": lambda x: [
        x.prod(),
        m(x).prod(1),
        m(x).cumprod(0).reshape(-1),
        ints(x).clamp(1, 2).view(4, 6).prod(0).float(),
    ],
    "gather": lambda x: [
        m(x).gather(0, rows(x).view(4, 6).long()).reshape(-1),
        m(x).gather(1, rows(x)[:8].view(4, 2).long()).reshape(-1),
        grad_of(lambda y: m(y).gather(0, rows(x).view(4, 6).long()))(x),
        grad_of(lambda y: m(y).gather(1, rows(x)[:8].view(4, 2).long()))(x),
    ],
    "embedding": lambda x: [
        F.embedding(rows(x), m(x)).reshape(-1),
        F.embedding(torch.arange(3), m(x)).reshape(-1),
        grad_of(lambda y: F.embedding(rows(x).view(2, 12), m(y)))(x),
        grad_of(lambda y: F.embedding(rows(x).view(2, 12), m(y), padding_idx=2))(x),
    ],
    "layer norm": lambda x: [
        F.layer_norm(m(x), (6,)).reshape(-1),
        F.layer_norm(m(x), (6,), ramp(6), ramp(6)).reshape(-1),
        grad_of(lambda y: F.layer_norm(m(y), (6,), m(y)[0], m(y)[1]))(x),
        grad_of(lambda y: F.layer_norm(m(y), (6,)))(x),
        grad_of(lambda y: F.layer_norm(y.view(2, 2, 6), (2, 6), m(y)[:2] * 2))(x),
    ],
    "rms norm": lambda x: [
        F.rms_norm(m(x), (6,), ramp(6), 1e-5).reshape(-1),
        F.rms_norm(m(x), (6,), eps=1e-6).reshape(-1),
        grad_of(lambda y: F.rms_norm(m(y), (6,), m(y)[0], 1e-6))(x),
        grad_of(lambda y: F.rms_norm(m(y), (6,), eps=1e-6))(x),
    ],
    "softmax": lambda x: [
        m(x).softmax(1).reshape(-1),
        m(x).softmax(0).reshape(-1),
        A._safe_softmax(m(x), 1).reshape(-1),
        grad_of(lambda y: m(y).softmax(1))(x),
        m(x).log_softmax(1).reshape(-1),
        grad_of(lambda y: m(y).log_softmax(0))(x),
        m(x).logsumexp(1),
    ],
    "cross entropy": lambda x: [
        F.cross_entropy(m(x), rows(x[:4]).long()),
        F.cross_entropy(m(x), rows(x[:4]).long(), reduction="none"),
        F.cross_entropy(m(x), rows(x[:4]).long(), reduction="sum"),
        F.cross_entropy(m(x), rows(x[:4]).long(), ignore_index=1),
        grad_of(lambda y: F.cross_entropy(m(y), rows(x[:4]).long()))(x),
        grad_of(lambda y: F.cross_entropy(m(y), rows(x[:4]).long(), ignore_index=1))(x),
        grad_of(lambda y: F.cross_entropy(m(y), rows(x[:4]).long(), ignore_index=1, reduction="none"))(x),
    ],
    # Without a write in place torch does not take it apart.
    "binary cross-entropy of logits": lambda x: [
        F.binary_cross_entropy_with_logits(5 * x, x.flip(0).sigmoid()),
        F.binary_cross_entropy_with_logits(x, x.sigmoid(), ramp(N), reduction="none", pos_weight=ramp(N)),
    ],
    "mse": lambda x: [
        F.mse_loss(x, x.flip(0)),
        F.mse_loss(x, x.flip(0), reduction="none"),
        grad_of(lambda y: F.mse_loss(y, x.flip(0)))(x),
        grad_of(lambda y: F.mse_loss(y, x.flip(0), reduction="sum"))(x),
    ],
    **WINDOWS,
}
LOOSE: dict[str, Case] = {
    # Abramowitz and Stegun's polynomial is good to 1.5e-7, Cephes's to 1e-7.
    "erf": lambda x: [torch.erf(x)],
    "gamma": lambda x: [
        torch.lgamma(x.abs() * 3 + 0.05),
        torch.lgamma(-0.9 * x.sigmoid() - 0.05),
        torch.digamma(x.abs() * 3 + 0.2),
        torch.digamma(-0.9 * x.sigmoid() - 0.05),
        torch.polygamma(1, x.abs() + 0.5),
        torch.polygamma(1, -0.8 * x.sigmoid() - 0.1),
        torch.polygamma(3, x.abs() + 0.5),
    ],
    "tails": lambda x: [
        torch.erfinv(x.tanh()),
        torch.special.ndtri(x.sigmoid()),
        torch.special.ndtri((20 * x - 60).exp()),
        torch.special.erfcx(x),
        torch.special.erfcx(50 * x.abs()),
        torch.special.log_ndtr(5 * x),
    ],
    "bessel": lambda x: [
        f(y) for y in (x, 9 * x) for f in (torch.special.i0e, torch.special.i1e, torch.special.i0, torch.special.i1)
    ],
    "gelu": lambda x: [F.gelu(x), grad_of(F.gelu)(x)],
    "circular": lambda x: [x.sin(), x.cos(), (100 * x).sin(), (100 * x).cos(), grad_of(torch.sin)(x)],
}


def cut(x: torch.Tensor) -> torch.Tensor:
    """Floats without their 8 low bits, as float64."""
    return (x.float().view(torch.int32) & -256).view(torch.float32).double()


def in_place(x: torch.Tensor) -> list[torch.Tensor]:
    """Writes that functionalisation removes."""
    y = x.clone()
    y += 1
    y.mul_(x)
    y[3:5] = 7.0
    z = torch.zeros(4, 6)
    z[1] = m(x)[2]
    z[:, :2].copy_(m(x)[:, 2:4])
    z[1:, 1::2].copy_(m(x)[:3, :3])
    return [y, z.reshape(-1)]


def compare(case: Case, tolerance: float) -> None:
    x = torch.from_numpy(np.random.default_rng(5).standard_normal(N).astype(np.float32)) + 0.01
    program = trace(case, x)
    assert_court_s_limits(program)
    got = wide.run(program, [x.numpy()])
    torch.set_default_dtype(torch.float64)
    try:
        due = case(x.double())
    finally:
        torch.set_default_dtype(torch.float32)
    for k, (a, b) in enumerate(zip(got, due, strict=False)):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=tolerance, atol=tolerance, err_msg=f"output {k}")


def assert_court_s_limits(program: Program) -> None:
    """Of every map."""
    for op in program.ops:
        if op.kind != Kind.MAP:
            continue
        tensors = [v for v in op.views if v.tag in (Tag.OP, Tag.STATE, Tag.CONST)]
        functions = [i for i in op.instrs if i.op in FUNCTIONS]
        assert len(op.instrs) <= MAX_INSTRS
        assert len(op.views) <= MAX_OPERANDS
        assert len(tensors) <= MAX_TENSOR_OPERANDS
        assert len(functions) <= MAX_FUNCTIONS


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FLOATS)
def test_rule_computes_what_torch_computes_in_maps_of_the_court_s_size(name: str) -> None:
    compare(FLOATS[name], 5e-7)


@pytest.mark.parametrize("name", LOOSE)
def test_approximation_is_as_good_as_documented(name: str) -> None:
    compare(LOOSE[name], 4e-7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda x: x[0].item() * x, "data"),
        (lambda x: x[x > 0], "data"),
        (lambda x: x.nonzero(), "data"),
        (lambda x: x if x.sum() > 0 else -x, "data"),
        (lambda x: x.double(), "float64"),
        (lambda x: x.half(), "float16"),
        (lambda x: torch.special.bessel_j0(x), "bessel_j0"),
        (lambda x: torch.poisson(x), "Poisson"),
        (lambda x: torch.randint(1 << 40, (3,)), "2\\^31 apart|integers"),
        (lambda x: torch.empty(3, dtype=torch.int64).random_(), "bounds"),
        (lambda x: torch.polygamma(9, x), "9-th derivative"),
        (lambda x: x.view(torch.int16), "int16"),
        (lambda x: x.repeat(3).prod(), "72 factors"),
        (lambda x: x.histc(4), "extremes"),
        (lambda x: torch.linalg.inv(torch.zeros(17, 17) + x[0]), "17 rows"),
        (lambda x: torch.linalg.svd(m(x))[1], "full singular value"),
        (lambda x: torch.repeat_interleave(x, rows(x)), "counts of data"),
        (lambda x: F.fractional_max_pool2d(x.view(1, 1, 4, 6), 2, 2), "fractional"),
        (lambda x: F.batch_norm(m(x), torch.zeros(6), KEPT, training=True).reshape(-1), "running statistics"),
        (lambda x: KEPT.add_(x[:6]), "not part of the state"),
        (lambda x: torch.tensor([2**40]) + x.long(), "32 bits"),
    ],
)
def test_what_cannot_be_lowered_is_an_error_with_a_hint(function: Case, what: str) -> None:
    with pytest.raises(LoweringError, match=what) as caught:
        trace(function, torch.linspace(-1, 1, N))
    assert caught.value.hint, "an error says what to do"
    assert "test_rules.py" in caught.value.message, "an error names the user's line"
