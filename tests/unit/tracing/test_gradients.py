"""Every rule, forward and backward, by the native executor in binary32 against eager float64 torch.

A case is named by the rules that it checks: those of its forward stand between its input and its output, so that its
gradient goes through them; those of backwards stand in its gradient. Rules without a gradient are checked by value.
`test_every_rule_is_checked` holds the three tables against the table of rules.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import fx
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.tracing import trace
from lockstep.tracing.capture import capture
from lockstep.tracing.lowering import RULES
from tests.unit.tracing import functions, wide
from tests.unit.tracing.helpers import Case, m, ramp
from tests.unit.tracing.windows import images, lines, own

A = torch.ops.aten
N = 24
AT = torch.tensor([3, 0, 2, 2, 1])
"""Rows of a matrix of four, one of them twice."""
PLACED = torch.tensor([[2, 0], [1, 5], [3, 4], [0, 1]])
PLACES = torch.tensor([[2, 0], [1, 5], [3, 3], [0, 1]])
"""Columns of a matrix of six, by row; one of them twice in a row."""
CONTEXT = StepContext(bytes(range(32)), round=2, slot=1, t=5)


def positive(x: torch.Tensor) -> torch.Tensor:
    """Where roots and logarithms have a slope."""
    return x * x + 0.5


def cube(x: torch.Tensor) -> torch.Tensor:
    """[2, 3, 4]."""
    return x.view(2, 3, 4)


def chain(x: torch.Tensor, *functions: Case) -> torch.Tensor:
    """The functions of x side by side, so that each has a gradient of its own."""
    return torch.cat([f(x).reshape(-1) for f in functions])


GRADIENTS: dict[str, Case] = {
    # arithmetic
    "add.Tensor sub.Tensor mul.Tensor neg": lambda x: torch.sub(x + x * x.flip(0), -x, alpha=0.5),
    "add.Scalar sub.Scalar mul.Scalar div.Scalar": lambda x: A.div.Scalar(
        A.mul.Scalar(A.sub.Scalar(A.add.Scalar(x, 1.5), 0.25), 3.0), 7.0
    ),
    "rsub.Scalar rsub.Tensor": lambda x: A.rsub.Scalar(x, 1.0) * A.rsub.Tensor(x, x * x),
    "div.Tensor reciprocal": lambda x: x / (x.flip(0) + 9) + (x + 9).reciprocal(),
    "div.Tensor_mode": lambda x: A.div.Tensor_mode(x, x.flip(0) + 9, rounding_mode=None),
    "remainder.Scalar remainder.Tensor": lambda x: x.remainder(0.75) + x.remainder(positive(x.flip(0))),
    "addcmul addcdiv": lambda x: torch.addcdiv(torch.addcmul(x, x, x.flip(0), value=0.5), x, x.flip(0) + 9, value=0.5),
    "lerp.Scalar lerp.Tensor": lambda x: torch.lerp(torch.lerp(x, x.flip(0), 0.25), x * x, x.flip(0)),
    "abs": lambda x: x.abs() * x,
    "sqrt rsqrt": lambda x: positive(x).sqrt() + positive(x).rsqrt(),
    "pow.Tensor_Scalar": lambda x: x**3 + x**2 + positive(x) ** 0.5 + positive(x) ** -1.5 + positive(x) ** 2.5,
    "pow.Tensor_Tensor pow.Scalar": lambda x: positive(x) ** x.flip(0) + 2.0**x,
    # functions
    "exp log log2 log10": lambda x: x.exp() + positive(x).log() + positive(x).log2() + positive(x).log10(),
    "tanh tanh_backward": lambda x: x.tanh(),
    "sigmoid sigmoid_backward": lambda x: x.sigmoid(),
    "silu silu_backward": lambda x: F.silu(x),
    "relu threshold_backward": lambda x: F.relu(x),
    "gelu gelu_backward": lambda x: chain(x, F.gelu, lambda y: F.gelu(y, approximate="tanh")),
    "erf": lambda x: x.erf(),
    "sin cos": lambda x: x.sin() + (3 * x).cos(),
    # choice
    "maximum minimum": lambda x: torch.maximum(x, x.flip(0)) + torch.minimum(2 * x, x * x),
    "clamp clamp_min clamp_max": lambda x: x.clamp(-0.5, 0.5) * A.clamp_min(x, 0.1) + A.clamp_max(x, 0.1) * x,
    "clamp.Tensor clamp_min.Tensor clamp_max.Tensor": lambda x: (
        torch.clamp(x, x.flip(0) - 1, x.flip(0) + 1) * A.clamp_min.Tensor(x, x * x) + A.clamp_max.Tensor(x, x * x)
    ),
    "where.self": lambda x: torch.where(x > 0, x * x, x.flip(0)),
    "masked_fill.Scalar": lambda x: (x * x).masked_fill(x > 0, 7.0),
    "masked_fill.Tensor": lambda x: (x * x).masked_fill(x > 0, x.sum()),
    # copies and views
    "_to_copy clone alias": lambda x: A.alias(A._to_copy(x * x)).clone() * x,
    "lift_fresh_copy": lambda x: A.lift_fresh_copy(x * x),
    "fill.Tensor": lambda x: A.fill.Tensor(x, (x * x).sum()),
    "view permute transpose.int t": lambda x: cube(x).permute(2, 0, 1).transpose(0, 2).reshape(3, 8).t() @ m(x)[:3],
    "_unsafe_view": lambda x: A._unsafe_view(x * x, [4, 6]),
    "expand": lambda x: m(x)[:, :1].expand(4, 6) * m(x),
    "unsqueeze squeeze squeeze.dim squeeze.dims": lambda x: (
        x.view(1, N, 1).squeeze() * x.unsqueeze(0).squeeze(0) * x.view(1, N, 1).squeeze((0, 2))
    ),
    "slice.Tensor slice_backward": lambda x: chain(
        x, lambda y: y[2:-3] * y[3:-2], lambda y: m(y)[1:, 2:], lambda y: y * y + y[30::3].sum()
    ),
    "select.int select_backward": lambda x: m(x)[:, 3] * m(x)[:, -1] + m(x).t()[2],
    "flip": lambda x: m(x).flip(0, 1) * m(x),
    "split.Tensor": lambda x: x.split(10)[0] * x.split(10)[1],
    "split_with_sizes": lambda x: x.split([4, 8, 12])[1] * x.split([8, 16])[0],
    "unbind.int": lambda x: m(x).unbind(1)[2] * m(x).unbind(1)[5],
    "cat stack": lambda x: torch.cat([torch.stack([x, x * x], 1), x.view(12, 2)]),
    "repeat": lambda x: m(x).repeat(2, 3) * ramp(18),
    "constant_pad_nd": lambda x: F.pad(m(x) * m(x), (1, -2, 2, 0), value=5.0),
    "slice_scatter": lambda x: chain(
        x,
        lambda y: torch.slice_scatter(m(y) * 2, m(y)[:2] * m(y)[2:], 0, 1, 3),
        lambda y: torch.slice_scatter(m(y) * 2, m(y)[:, :0], 1, 7, 9, 3) * m(y),
    ),
    "select_scatter": lambda x: torch.select_scatter(m(x) * 2, m(x)[:, 1] * m(x)[:, 2], 1, 4),
    "tril triu": lambda x: m(x).tril(1) * m(x).triu(-1),
    # folds
    "sum sum.dim_IntList": lambda x: (x * x).sum() * cube(x).sum((0, 2)),
    "mean mean.dim": lambda x: (x * x).mean() * m(x).mean(0),
    "amax amin": lambda x: chain(x, lambda y: m(y).amax(1), lambda y: m(y).amin(0)),
    "max min": lambda x: x.max() * x + x.min(),
    "max.dim min.dim": lambda x: chain(x, lambda y: m(y).max(1).values, lambda y: m(y).min(0).values),
    "var.correction": lambda x: chain(x, lambda y: m(y).var(1), lambda y: y.var(correction=0)),
    "linalg_vector_norm": lambda x: chain(x, torch.linalg.vector_norm, lambda y: torch.linalg.vector_norm(m(y), 1, 0)),
    "cumsum": lambda x: chain(x, lambda y: y.cumsum(0), lambda y: m(y).cumsum(1) * m(y)),
    "prod": lambda x: x[:6].prod() * x,
    "prod.dim_int": lambda x: m(x).prod(1),
    "mm addmm": lambda x: torch.addmm(m(x)[:, :4], m(x), m(x).t(), beta=0.5, alpha=2) @ m(x),
    "bmm baddbmm": lambda x: torch.baddbmm(x[:3].view(1, 1, 3), cube(x), x.view(2, 4, 3) * 2) @ cube(x),
    "mv dot": lambda x: (m(x) @ m(x)[0]) * (x @ x.flip(0)),
    "logsumexp": lambda x: m(x).logsumexp(1),
    # indexing
    "index.Tensor": lambda x: chain(x, lambda y: m(y)[AT] * ramp(6), lambda y: m(y)[AT, AT.flip(0)]),
    "index_put": lambda x: m(x).index_put((AT,), m(x)[:1] * m(x)[1:2], accumulate=True),
    "index_add": lambda x: m(x).index_add(1, AT, m(x)[:, :5] * m(x)[:, 1:], alpha=0.5),
    "index_select": lambda x: m(x).index_select(1, AT) * ramp(5),
    "gather": lambda x: m(x).gather(1, PLACES) * ramp(2),
    "scatter_add": lambda x: (m(x) * 2).scatter_add(1, PLACES, m(x)[:, :2] * m(x)[:, 2:4]),
    "scatter.src scatter.value": lambda x: (
        (m(x) * 2).scatter(1, PLACED, m(x)[:, :2] * 3).scatter(1, PLACED[:, :1], 5.0)
    ),
    "embedding embedding_dense_backward": lambda x: F.embedding(AT, m(x), padding_idx=2) * ramp(6),
    "sort topk": lambda x: chain(x, lambda y: y.sort().values * ramp(N), lambda y: m(y).topk(2, 1).values),
    "sort.stable": lambda x: m(x).sort(dim=0, stable=True, descending=True).values * ramp(6),
    # layers
    "native_layer_norm native_layer_norm_backward": lambda x: chain(
        x, lambda y: F.layer_norm(m(y), (6,), m(y)[0], m(y)[1]), lambda y: F.layer_norm(cube(y), (3, 4))
    ),
    "_softmax _softmax_backward_data": lambda x: chain(x, lambda y: m(y).softmax(1), lambda y: m(y).softmax(0)),
    "_safe_softmax": lambda x: A._safe_softmax(m(x), 1),
    "_log_softmax _log_softmax_backward_data": lambda x: m(x).log_softmax(1),
    "nll_loss_forward nll_loss_backward": lambda x: chain(
        x,
        lambda y: F.cross_entropy(m(y), AT[:4]),
        lambda y: F.cross_entropy(m(y), AT[:4], ignore_index=2),
        lambda y: F.cross_entropy(m(y), AT[:4], reduction="sum"),
        lambda y: F.cross_entropy(m(y), AT[:4], reduction="none"),
    ),
    "mse_loss mse_loss_backward": lambda x: chain(
        x, lambda y: F.mse_loss(y, y.flip(0) * y), lambda y: F.mse_loss(y, y * y, reduction="sum")
    ),
    "native_batch_norm native_batch_norm_backward": lambda x: chain(
        x,
        lambda y: F.batch_norm(images(y), None, None, y[:4], y[4:8], True),
        lambda y: F.batch_norm(m(y), ramp(6), ramp(6), y[:6], y[4:10]),
    ),
    "native_group_norm native_group_norm_backward": lambda x: F.group_norm(images(x), 2, x[:4], x[4:8]),
    # windows
    "convolution convolution_backward": lambda x: chain(
        x,
        lambda y: F.conv2d(images(y), own(y, 2, 4, 3, 3), y[:2], padding=1),
        lambda y: F.conv2d(images(y), own(y, 4, 2, 3, 3), y[:4], (2, 1), (1, 2), (1, 2), groups=2),
        lambda y: F.conv1d(lines(y), own(y, 3, 2, 3), y[:3], stride=2, padding=1),
        lambda y: F.conv_transpose2d(images(y), own(y, 4, 1, 3, 3), y[:2], 2, 1, 1, groups=2),
    ),
    "max_pool2d_with_indices max_pool2d_with_indices_backward": lambda x: chain(
        x, lambda y: F.max_pool2d(images(y), 2), lambda y: F.max_pool2d(images(y), 3, 2, 1)
    ),
    "avg_pool2d avg_pool2d_backward": lambda x: chain(
        x,
        lambda y: F.avg_pool2d(images(y) * images(y), 2),
        lambda y: F.avg_pool2d(images(y), 3, 2, 1, count_include_pad=False),
        lambda y: F.avg_pool2d(images(y) * images(y), 99, ceil_mode=True),
        lambda y: F.avg_pool2d(images(y), (99, 3), (99, 1), (1, 1), ceil_mode=True),
    ),
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward": lambda x: F.adaptive_avg_pool2d(
        images(x) * images(x), (2, 1)
    ),
}

WHOLE = torch.tensor([5, -7, 0, 3, 12, -1])
BITS = torch.tensor([5, -7, 0, 3, 12, -1], dtype=torch.int32)
VALUES: dict[str, Case] = {
    "floor ceil round trunc": lambda x: [(4 * x).floor(), (4 * x).ceil(), (4 * x).round(), (4 * x).trunc()],
    "sign sgn": lambda x: [x.sign(), x.sgn(), WHOLE.sign().to(x.dtype)],
    "isnan": lambda x: [(0 * x / (x > 0)).isnan().to(x.dtype)],
    "floor_divide floor_divide.Scalar": lambda x: [
        torch.floor_divide(x.detach(), positive(x.detach())),
        A.floor_divide.Scalar(x.detach(), 0.7),
        torch.floor_divide(WHOLE, 4).to(x.dtype),
    ],
    "detach copy": lambda x: [A.copy(x.detach(), x.detach() * 2)],
    "lt.Tensor le.Tensor gt.Tensor ge.Tensor eq.Tensor ne.Tensor": lambda x: [
        f(x, x.flip(0)).to(x.dtype) for f in (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)
    ],
    "lt.Scalar le.Scalar gt.Scalar ge.Scalar eq.Scalar ne.Scalar": lambda x: [
        f(y, 3).to(x.dtype) for y in (x, WHOLE) for f in (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)
    ],
    "logical_and logical_or logical_xor logical_not": lambda x: [
        y.to(x.dtype)
        for y in (
            torch.logical_and(x > 0, x < 1),
            torch.logical_or(x > 0, x < -1),
            torch.logical_xor(x > 0, x < 1),
            torch.logical_not(WHOLE),
        )
    ],
    "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_not": lambda x: [
        y.to(x.dtype) for y in (BITS & BITS.flip(0), BITS | BITS.flip(0), BITS ^ BITS.flip(0), ~BITS)
    ],
    "__lshift__.Tensor __rshift__.Tensor": lambda x: [
        A.__lshift__.Tensor(BITS, BITS & 3).to(x.dtype),
        A.__rshift__.Tensor(BITS, BITS & 3).to(x.dtype),
    ],
    "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar __lshift__.Scalar __rshift__.Scalar": lambda x: [
        y.to(x.dtype)
        for y in (
            A.bitwise_and.Scalar(BITS, 6),
            A.bitwise_or.Scalar(BITS, 6),
            A.bitwise_xor.Scalar(BITS, 6),
            A.__lshift__.Scalar(BITS, 3),
            A.__rshift__.Scalar(BITS, 1),
        )
    ],
    "view.dtype": lambda x: [(BITS * 65536 + 0x3F800000).view(torch.float32).to(x.dtype)],
    "histc": lambda x: [x.histc(5, -0.75, 0.75)],
    "argmax argmin": lambda x: [m(x).argmax(1).to(x.dtype), m(x).argmin(0).to(x.dtype)],
    "full full_like new_full fill.Scalar": lambda x: [
        torch.full((3,), 2.5),
        torch.full_like(x, 2.5),
        x.new_full((2,), 3.0),
        A.fill.Scalar(x, 3.0),
    ],
    "zeros zeros_like new_zeros ones ones_like new_ones scalar_tensor": lambda x: [
        torch.zeros(3) + torch.ones(3) + torch.scalar_tensor(4.0),
        torch.zeros_like(x) + torch.ones_like(x),
        x.new_zeros(2) + x.new_ones(2),
    ],
    "_new_zeros_with_same_feature_meta": lambda x: [A._new_zeros_with_same_feature_meta(x[:2], x) + 2.0],
    "empty.memory_format empty_like new_empty": lambda x: [
        torch.empty(3).fill_(1.0) * 2,
        torch.empty_like(x).fill_(3.0),
        x.new_empty(2).fill_(4.0),
    ],
    "arange arange.start arange.start_step": lambda x: [
        torch.arange(5).to(x.dtype),
        torch.arange(2, 5).to(x.dtype),
        torch.arange(0, 1, 0.25),
        torch.arange(2, 9, 3).to(x.dtype),
    ],
}

ALL_GRADIENTS = [*GRADIENTS.items(), *functions.GRADIENTS.items()]
ALL_VALUES = [*VALUES.items(), *functions.VALUES.items()]


def names(key: str) -> set[str]:
    """The rules of a case."""
    return {f"aten.{name}" for name in key.split()}


def both(case: Case) -> Case:
    """[the value, the gradient of its weighted sum], flat."""

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        leaf = x.detach().requires_grad_()
        y = case(leaf)
        assert isinstance(y, torch.Tensor)
        weights = ramp(y.numel()).view(y.shape)
        return [y.reshape(-1), torch.autograd.grad((y * weights).sum(), leaf)[0]]

    return run


def flat(case: Case) -> Case:
    """Every value, flat."""
    return lambda x: [y.reshape(-1) for y in case(x)]


def check(case: Case, tolerance: float) -> None:
    """The Program of the case against float64: on the native executor, and its graph alone."""
    x = torch.from_numpy(np.random.default_rng(5).standard_normal(N).astype(np.float32)) + 0.01
    program = trace(case, x)
    got, graph = compile(program).run([x.numpy()], CONTEXT), wide.run(program, [x.numpy()])
    torch.set_default_dtype(torch.float64)
    try:
        due = case(x.double())
    finally:
        torch.set_default_dtype(torch.float32)
    for k, (a, g, b) in enumerate(zip(got, graph, due, strict=False)):
        scale = max(1.0, b.detach().abs().max().item())
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=0, atol=tolerance * scale, err_msg=f"output {k}")
        np.testing.assert_allclose(g, b.detach().numpy(), rtol=2e-6, atol=2e-6, err_msg=f"output {k}, the graph alone")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("key", "case"), ALL_GRADIENTS)
def test_value_and_gradient_are_float64_s_by_the_rules_that_a_case_is_named_by(key: str, case: Case) -> None:
    check(both(case), 4e-6)
    x, backward = torch.linspace(-1, 1, N), {name for name in names(key) if "backward" in name}
    assert names(key) - backward <= {_target(node) for node in _between(capture(case, [x]).graph)}
    if backward:
        assert backward <= {_target(node) for node in capture(both(case), [x]).graph.nodes}


def _unrolled(x: torch.Tensor) -> torch.Tensor:
    """An image of 48 x 16, cut into quarters four times, as hierarchical vision models do: nine axes of the input."""
    y = (x.view(N, 1) * ramp(32)).view(1, 48, 16)
    for _ in range(4):
        n, height, width = y.shape
        y = y.view(n, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3).reshape(4 * n, height // 2, width // 2)
    return y * y.mean(2, keepdim=True) + y.flip(0)


VIEWED: dict[str, Case] = {
    "views of nine axes": _unrolled,
    "a part that is broadcast along the axis": lambda x: torch.cat([x.view(2, 1, 12).expand(2, 3, 12).reshape(-1), x]),
    "a part that is broadcast along another axis": lambda x: torch.cat(
        [x.view(2, 1, 12).expand(2, 3, 12).reshape(6, 12), (m(x).t().reshape(2, 12) * 2).repeat(3, 1)], 1
    ),
    "a border around what is broadcast": lambda x: F.pad(
        x.view(2, 1, 12).expand(2, 3, 12).reshape(6, 4, 3).transpose(1, 2), (0, 1, 1, 0)
    ),
}
"""Values that no op can read through one window as they are."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", VIEWED.values(), ids=VIEWED.keys())
def test_what_no_window_can_read_is_stored_first(case: Case) -> None:
    check(both(case), 4e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("key", "case"), ALL_VALUES)
def test_value_is_float64_s_by_the_rules_that_a_case_is_named_by_and_has_no_slope(key: str, case: Case) -> None:
    check(flat(case), 1e-6)
    assert names(key) <= {_target(node) for node in capture(case, [torch.linspace(-1, 1, N)]).graph.nodes}
    leaf = torch.linspace(-1.03, 1.07, N).requires_grad_()
    for y in case(leaf):
        if y.requires_grad:
            assert not torch.autograd.grad(y.sum(), leaf)[0].any(), "where it has a slope, the slope is zero"


def test_every_rule_is_checked() -> None:
    differentiated, valued = (set().union(*map(names, t)) for t in (dict(ALL_GRADIENTS), dict(ALL_VALUES)))
    # Extrema and powers of integers have no gradient, those of floats have one.
    both_ways = names("max amin pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar")
    assert differentiated & valued == both_ways, "a rule either has a gradient or has none"
    rules = {name for name in RULES if not name.startswith("lockstep.")}
    assert differentiated | valued | names(functions.RANDOM) == rules, "every rule, and nothing that is none"


def _target(node: fx.Node) -> str:
    return str(node.target).removesuffix(".default")


def _between(graph: fx.Graph) -> Iterator[fx.Node]:
    """Float nodes on a path from the input to the output."""
    reached: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder" or (_is_float(node) and reached & set(node.all_input_nodes)):
            reached.add(node)
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed:
            needed |= set(node.all_input_nodes)
    return (node for node in graph.nodes if node in reached & needed)


def _is_float(node: fx.Node) -> bool:
    value = node.meta.get("val")
    parts = value if isinstance(value, (tuple, list)) else [value]
    return any(isinstance(part, torch.Tensor) and part.is_floating_point() for part in parts)
