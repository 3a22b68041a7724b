"""Functions that are replaced: dropout, batch norm, attention in all its forms, strides of one's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.reference import philox
from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace
from lockstep.tracing.functions import DROPOUT_STREAM
from tests.unit.tracing.test_gradients import both, check

N = 4096
CONTEXT = StepContext(bytes(range(32)), round=2, slot=1, t=5)
A = torch.ops.aten
H = torch._higher_order_ops


def run(fn, *state: np.ndarray, context: StepContext = CONTEXT) -> list[np.ndarray]:
    """Traced and run natively."""
    program = trace(fn, *(torch.from_numpy(s) for s in state))
    padded = [*state, *[None] * (len(program.inputs) - len(state))]
    return compile(program).run(padded, context)[: len(state)]


# --- dropout -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_fraction_and_the_mean(p: float) -> None:
    x = np.ones(N, np.float32)
    (y,) = run(lambda x: [F.dropout(x, p)], x)
    kept = y != 0
    assert abs(kept.mean() - (1 - p)) < 4 * (p * (1 - p) / N) ** 0.5, "within four standard deviations"
    assert (y[kept] == np.float32(1 / (1 - p))).all()


def test_dropout_s_mask_is_philox_s_words() -> None:
    (y,) = run(lambda x: [F.dropout(x, 0.25)], np.ones(N, np.float32))
    words = np.array([philox(CONTEXT.seed, DROPOUT_STREAM, o, (2, 1, 5)) for o in range(64)], np.uint32)
    assert ((y[:64] != 0) == (words >> 8 < 0.75 * 2**24)).all()


def test_each_dropout_and_each_step_has_a_mask_of_its_own() -> None:
    x = np.ones(N, np.float32)

    def two(x, _):
        return [nn.Dropout(0.5)(x), F.dropout(x, 0.5)]

    first, second = run(two, x, x)
    assert (first != second).mean() > 0.4
    again, _ = run(two, x, x)
    assert (again == first).all(), "the same step draws the same mask"
    later, _ = run(two, x, x, context=StepContext(CONTEXT.seed, 2, 1, 6))
    assert (first != later).mean() > 0.4


def test_gradient_passes_through_the_mask_of_the_forward() -> None:
    def both(x, _):
        leaf = x.detach().requires_grad_()
        y = F.dropout(leaf, 0.5)
        return [y, torch.autograd.grad(y.sum(), leaf)[0]]

    y, grad = run(both, np.full(N, 3, np.float32), np.zeros(N, np.float32))
    assert (y == 3 * grad).all()


def test_dropout_at_rest_and_at_its_ends() -> None:
    x = np.arange(N, dtype=np.float32)
    assert (run(lambda x: [F.dropout(x, 0.5, training=False)], x)[0] == x).all()
    assert (run(lambda x: [F.dropout(x, 0.0)], x)[0] == x).all()
    assert not run(lambda x: [F.dropout(x, 1.0)], x)[0].any()
    assert (run(lambda x: [F.dropout(x * 1.5, 0.5, inplace=True)], x)[0] != 0).mean() < 0.6


def test_attention_s_dropout_keeps_rows_of_the_expected_sum() -> None:
    def attended(x):
        q = x.view(1, 4, 64, 16)
        return [F.scaled_dot_product_attention(q, q, torch.ones_like(q), dropout_p=0.25).reshape(-1)]

    (y,) = run(attended, np.zeros(N, np.float32))
    assert abs(y.mean() - 1) < 0.02, "weights 1/64 that are kept count 4/3"
    assert y.std() > 0.01


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_nothing(reentrant: bool) -> None:
    def step(wrap):
        def run(x):
            leaf = x.detach().requires_grad_()
            y = wrap(lambda v: F.dropout((v.exp() * v).tanh(), 0.5).exp(), leaf)
            return [torch.autograd.grad(y.sum(), leaf)[0]]

        return run

    saved = trace(step(lambda f, v: checkpoint(f, v, use_reentrant=reentrant)), torch.zeros(8))
    assert saved.root == trace(step(lambda f, v: f(v)), torch.zeros(8)).root


# --- strides of one's own ----------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        lambda x: x.as_strided((5, 8), (4, 1)),
        lambda x: x.view(2, 12).as_strided((3, 2, 4), (2, 12, 1)) * 2,
        lambda x: (x * x).view(4, 6).t().as_strided((4, 3), (6, 2), 1),
        lambda x: torch.as_strided(x * 3, (3, 2, 2), (0, 5, 7), 2),
        lambda x: x[4:20].as_strided((3,), (6,)),
    ],
)
def test_strided_views_are_float64_s(case) -> None:
    check(both(case), 4e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "case",
    [
        lambda x: x.view(4, 6)[:, :3].as_strided((2, 2), (6, 1)),
        lambda x: x[:12].as_strided((13,), (1,)),
        lambda x: x[12:].as_strided((2,), (1,), 0),
        lambda x: x[:1].expand(4).as_strided((2,), (1,)),
    ],
)
def test_strides_through_another_tensor_s_memory_are_refused(case) -> None:
    with pytest.raises(LoweringError, match="not the tensor's own") as caught:
        trace(case, torch.zeros(24))
    assert "unfold" in caught.value.hint


# --- formulas in the place of torch's ----------------------------------------------------------------------

EDGES = torch.tensor([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.5, 0.0]])
SPARSE = {t: EDGES.to(t).to_sparse() for t in (torch.float32, torch.float64)}
ROWS = {t: EDGES.to(t).to_sparse_csr() for t in (torch.float32, torch.float64)}
FIXED = torch.arange(24).view(4, 6) % 5 > 1


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "case",
    [
        lambda x: F.adaptive_avg_pool2d(x.view(2, 2, 3, 2).permute(0, 3, 1, 2), 1),
        lambda x: F.adaptive_avg_pool2d(x.view(2, 2, 3, 2).permute(0, 3, 2, 1), (1, 1)),
        lambda x: F.gaussian_nll_loss(x[:12], x[12:].detach(), (x[:12] * x[:12]).view(12), full=True),
        lambda x: F.gaussian_nll_loss(x.view(4, 6), x.flip(0).detach().view(4, 6), x[:4].exp(), reduction="none"),
        lambda x: F.gaussian_nll_loss(x.view(4, 6), x.flip(0).detach().view(4, 6), 0.5, reduction="sum"),
        lambda x: torch.spmm(SPARSE[x.dtype], x.view(4, 6)),
        lambda x: ROWS[x.dtype] @ x.view(4, 6),
        lambda x: torch.sparse.mm(SPARSE[x.dtype], x.view(4, 6)),
        lambda x: (2 * x.view(4, 6))[FIXED],
        lambda x: (2 * x.view(4, 6))[FIXED[:, 1]].exp() * 3,
        lambda x: (x.view(4, 6) * 2).index_put((FIXED,), x[: int(FIXED.sum())] * 3),
    ],
)
def test_formula_is_float64_s_with_its_gradient(case) -> None:
    check(both(case), 4e-6)


@pytest.mark.parametrize(("low", "high", "zero"), [(-128, 127, 0), (0, 15, 7)])
def test_fake_quantisation_has_torch_s_values_and_gradient(low: int, high: int, zero: int) -> None:
    x = np.linspace(-3, 3, 24).astype(np.float32)
    scales, zeros = torch.tensor([0.1, 0.3, 0.02, 1.5]), torch.full((4,), zero, dtype=torch.int32)

    def step(x, _):
        leaf = x.detach().requires_grad_()
        y = torch.fake_quantize_per_tensor_affine(leaf, 0.1, zero, low, high)
        z = torch.fake_quantize_per_channel_affine(leaf.view(4, 6), scales, zeros, 0, low, high).reshape(-1)
        return [y + z, torch.autograd.grad((y * y + z * z).sum(), leaf)[0]]

    got = run(step, x, np.zeros(24, np.float32))
    for mine, theirs in zip(got, step(torch.from_numpy(x), None), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-6, atol=1e-6)


def test_sparse_tensor_that_is_made_in_the_step_is_refused_with_what_works() -> None:
    with pytest.raises(LoweringError, match=r"sparse.*test_functions\.py") as caught:
        trace(lambda x: [(torch.eye(4).to_sparse() @ x.view(4, 6)).reshape(-1)], torch.zeros(24))
    assert "to_dense" in caught.value.hint


def test_packed_sequence_of_data_s_lengths_is_refused_with_what_works() -> None:
    def packed(x):
        lengths = (x[:4].abs() * 2).long() + 1
        return [nn.utils.rnn.pack_padded_sequence(x.view(4, 6, 1), lengths, True, False).data.sum()]

    with pytest.raises(LoweringError, match=r"packed sequence.*test_functions\.py") as caught:
        trace(packed, torch.zeros(24))
    assert "pad and mask" in caught.value.hint


def test_rows_of_an_expert_are_refused_with_what_works() -> None:
    def routed(x):
        leaf = x.detach().requires_grad_()
        out, (rows,) = torch.zeros(4, 6), torch.where(leaf[:4] > 0)
        out[rows] = 2 * leaf.view(4, 6)[rows]
        return [torch.autograd.grad(out.sum(), leaf)[0]]

    with pytest.raises(LoweringError, match=r"depends on data.*test_functions\.py") as caught:
        trace(routed, torch.zeros(24))
    assert "every expert all rows" in caught.value.hint


BASES = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -3.3, np.inf, -np.inf, np.nan)
EXPONENTS = (0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -2.5, 16777217.0, np.inf, -np.inf, np.nan)


def test_power_of_any_base_by_any_exponent_has_eager_s_value_and_gradients() -> None:
    x, e = (np.array(v, np.float32).ravel() for v in np.meshgrid(BASES, EXPONENTS))

    def powers(x, e):
        x, e = (v.detach().requires_grad_() for v in (x, e))
        y, z, w = x**e, (-2.0) ** e, x**17
        slopes = torch.autograd.grad((y + z + w).sum(), (x, e))
        return [torch.cat([y.detach(), z.detach(), w.detach(), *slopes])]

    (due,) = powers(torch.from_numpy(x), torch.from_numpy(e))
    np.testing.assert_allclose(run(powers, x, e)[0], due.numpy(), rtol=3e-6)


def test_condition_of_data_is_refused_with_what_works() -> None:
    def chosen(x):
        return [torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))]

    def turned(x):
        return [H.while_loop(lambda y: y.sum() < 3, lambda y: (y + 1,), (x,))[0]]

    def scanned(x):
        return [H.scan(lambda c, y: (c + y, c * y), x[0], x)[0]]

    def every_way_out(x):
        turns = x
        for _ in range(3):
            turns = torch.where(turns.sum() < 3, turns + 1, turns)
        rows = torch.stack([y + 1 for y in x.unbind(0)])
        return [torch.cat([torch.where(x.sum() > 0, x.sin(), x.cos()), turns, rows])]

    for refused, hint in ((chosen, "torch.where"), (turned, "fixed number of turns"), (scanned, "torch.stack")):
        with pytest.raises(LoweringError, match=r"test_functions\.py") as caught:
            trace(refused, torch.zeros(6))
        assert hint in caught.value.hint
    x = np.linspace(-1, 0.9, 6, dtype=np.float32)
    np.testing.assert_allclose(run(every_way_out, x)[0], every_way_out(torch.from_numpy(x))[0].numpy(), rtol=1e-6)


def test_hessian_by_rows_has_a_gradient() -> None:
    def laplacian(flat):
        w = flat.detach().view(2, 3).requires_grad_()
        second = torch.func.vmap(torch.func.hessian(lambda z: (z @ w).tanh().sum()))(torch.ones(3, 2) * 0.3)
        return [torch.autograd.grad((second[:, 0, 0] + second[:, 1, 1]).square().sum(), w)[0].reshape(-1)]

    x = np.linspace(-1, 0.9, 6, dtype=np.float32)
    np.testing.assert_allclose(run(laplacian, x)[0], laplacian(torch.from_numpy(x))[0].numpy(), rtol=1e-5)


def test_slope_of_a_gamma_sample_is_torch_s() -> None:
    alpha = torch.logspace(-1.5, 3.5, 120).repeat_interleave(4)
    x = torch._standard_gamma(alpha, generator=torch.Generator().manual_seed(1))
    got = run(lambda a, x: [A._standard_gamma_grad(a, x)], alpha.numpy(), x.numpy())[0]
    np.testing.assert_allclose(got, A._standard_gamma_grad(alpha.double(), x.double()).numpy(), rtol=1e-3)


def test_dirichlet_sample_s_gradient_is_refused_with_what_works() -> None:
    def slope(sample):
        def step(x):
            leaf = x.detach().requires_grad_()
            return [torch.autograd.grad((sample(leaf) * torch.arange(6)).sum(), leaf)[0]]

        return step

    with pytest.raises(LoweringError, match=r"_dirichlet_grad.*test_functions\.py") as caught:
        trace(slope(lambda c: torch.distributions.Dirichlet(c).rsample()), torch.ones(6))
    assert "Gamma samples" in caught.value.hint

    def shares(c):
        g = torch.distributions.Gamma(c, 1.0).rsample()
        return g / g.sum(-1, keepdim=True)

    assert np.isfinite(run(slope(shares), np.ones(6, np.float32))[0]).all()


def test_rows_of_a_vmap_draw_as_its_randomness_says() -> None:
    def dropped(x, randomness):
        return torch.func.vmap(F.dropout, randomness=randomness)(x.view(4, 6)).reshape(-1)

    x = np.ones(24, np.float32)
    different, same = (run(lambda x, how=how: [dropped(x, how)], x)[0].reshape(4, 6) for how in ("different", "same"))
    assert len({row.tobytes() for row in different}) > 1
    assert set(different.ravel()) == {0.0, 2.0}
    assert len({row.tobytes() for row in same}) == 1


# --- batch norm --------------------------------------------------------------------------------------------


def test_running_statistics_are_state_where_they_are_given() -> None:
    norm = nn.BatchNorm1d(4, momentum=0.3)

    def step(x, mean, var):
        buffers = {"running_mean": mean.clone(), "running_var": var.clone(), "num_batches_tracked": torch.zeros(())}
        y = torch.func.functional_call(norm, buffers, (x.view(6, 4),))
        return [y.reshape(-1), buffers["running_mean"], buffers["running_var"]]

    x = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    got = run(step, x, np.zeros(4, np.float32), np.ones(4, np.float32))
    due = nn.BatchNorm1d(4, momentum=0.3)
    y = due(torch.from_numpy(x).view(6, 4))
    for a, b in zip(got, (y.detach().reshape(-1), due.running_mean, due.running_var), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6)


def test_running_statistics_that_nobody_carries_are_refused() -> None:
    norm = nn.Sequential(nn.BatchNorm1d(4))
    with pytest.raises(LoweringError, match=r"module `0`.*running statistics") as caught:
        trace(lambda x: [norm(x.view(6, 4)).reshape(-1)], torch.zeros(24))
    assert "track_running_stats=False" in caught.value.hint


# --- attention ---------------------------------------------------------------------------------------------

MASK = torch.arange(5).view(1, 5) <= torch.tensor([[1], [2], [3], [4], [4]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": MASK},
        {"attn_mask": torch.where(MASK, 0.0, -1e9).view(1, 1, 5, 5)},
        {"attn_mask": torch.where(MASK, 0.5, -torch.inf)},
        {"is_causal": True, "scale": 0.7},
    ],
    ids=["plain", "causal", "scale", "bool mask", "float mask", "infinite mask", "causal scale"],
)
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_is_torch_s(options: dict, heads: int) -> None:
    def attended(x, k, v):
        q, k, v = x.view(2, 4, 5, 6), k.view(2, heads, 5, 6), v.view(2, heads, 5, 6)
        return [F.scaled_dot_product_attention(q, k, v, enable_gqa=heads < 4, **options).reshape(-1), None, None]

    rng = np.random.default_rng(1)
    state = [rng.standard_normal(2 * h * 30).astype(np.float32) for h in (4, heads, heads)]
    due = attended(*(torch.from_numpy(s) for s in state))[0]
    np.testing.assert_allclose(run(attended, *state)[0], due, rtol=2e-5, atol=2e-6)


# --- products by group -------------------------------------------------------------------------------------


def test_every_row_meets_its_own_group_s_matrix() -> None:
    ends = [2, 2, 5, 9]

    def product(x, w):
        offs = torch.tensor(ends, dtype=torch.int32)
        return [torch._grouped_mm(x.view(9, 3), w.view(4, 3, 2), offs=offs).reshape(-1), w]

    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((9, 3)).astype(np.float32), rng.standard_normal((4, 3, 2)).astype(np.float32)
    (got, _) = run(product, x.reshape(-1), w.reshape(-1))
    due = np.concatenate([x[a:b] @ w[g] for g, (a, b) in enumerate(zip([0, *ends], ends, strict=False))])
    np.testing.assert_allclose(got.reshape(9, 2), due, rtol=1e-5, atol=1e-6)


def test_product_of_groups_along_k_is_refused() -> None:
    offs = torch.tensor([1, 3], dtype=torch.int32)
    with pytest.raises(LoweringError, match="grouped product"):
        trace(lambda x: [torch._grouped_mm(x.view(4, 3), x.view(3, 4), offs=offs).reshape(-1)], torch.zeros(12))
