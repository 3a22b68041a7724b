"""Conditions while tracing: constants are known, guards are passed, what depends on data is refused; empty slices."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace
from tests.unit.tracing import functions
from tests.unit.tracing.helpers import Case, m, rows

N = 24
X = np.linspace(-1.03, 1.07, N).astype(np.float32)
logger = logging.getLogger(__name__)


def run(case: Case) -> np.ndarray:
    """The first output of a traced function, natively."""
    program = trace(lambda x: [case(x)], torch.from_numpy(X))
    return compile(program).run([X], StepContext(bytes(32), 0, 0, 1))[0]


def same(case: Case) -> None:
    """The Program's value is eager torch's."""
    np.testing.assert_allclose(run(case), case(torch.from_numpy(X)), rtol=1e-6, atol=1e-6)  # type: ignore[arg-type]


# --- constants ---------------------------------------------------------------------------------------------


def test_condition_on_a_constant_is_what_it_is_in_eager() -> None:
    positions = torch.arange(N)

    def case(x: torch.Tensor) -> torch.Tensor:
        return 2 * x if (torch.arange(N) == positions).all() else x

    same(case)


def test_written_constant_is_known_by_its_new_value() -> None:
    def case(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(N)
        mask[3:] = 1
        return x * (2 if mask.sum() == N - 3 else 5)

    same(case)


def test_what_is_computed_of_a_constant_may_be_written_to() -> None:
    """`nn.MultiheadAttention` fills a new mask of floats beside a boolean one, which its module keeps."""
    kept = torch.arange(N) > 3

    def case(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros_like(kept, dtype=x.dtype).masked_fill_(kept, 2.0)
        mask[:2] = x[:2]
        return x * mask

    same(case)
    with pytest.raises(LoweringError):
        run(lambda x: x * kept.logical_not_())


def test_constant_that_data_is_written_to_is_known_no_more() -> None:
    def case(x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(N)
        half = mask[:4]
        half.copy_(x[:4])
        return x if mask.sum() > 0 else -x

    with pytest.raises(LoweringError, match="data"):
        run(case)


def test_places_of_a_known_mask_are_indices() -> None:
    mask = torch.arange(N) % 3 == 0
    same(lambda x: torch.cat([x[mask], x[mask.nonzero()[:, 0]], x[8:16]]))


def test_item_of_a_constant_is_its_number() -> None:
    same(lambda x: x * torch.arange(7).max().item())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_constant_of_another_float_is_rounded_once(dtype: torch.dtype) -> None:
    table = torch.linspace(0, 1, N, dtype=torch.float64).to(dtype)
    same(lambda x: x * table.float() + (table * 3).to(torch.float32))


TABLE = torch.linspace(0, 1, N, dtype=torch.float64)


def _under_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return (m(x) @ m(x).t()).reshape(-1)


WIDE: dict[str, tuple[Case, Case, str]] = {
    "half": (lambda x: x.half() * 2, lambda x: x * 2, "float16"),
    "bfloat16": (lambda x: x.to(torch.bfloat16).exp().float(), lambda x: x.exp(), "bfloat16"),
    "double": (lambda x: x.double() * 3, lambda x: x * 3, "float64"),
    "a sum in float64": (lambda x: x.sum(dtype=torch.float64).expand(2), lambda x: x.sum().expand(2), "float64"),
    "a softmax in float64": (lambda x: x.softmax(0, dtype=torch.float64), lambda x: x.softmax(0), "float64"),
    "a table": (lambda x: TABLE[rows(x).long()].float(), lambda x: TABLE.float()[rows(x).long()], "float64"),
    "a table, times data": (lambda x: x * TABLE, lambda x: x * TABLE.float(), "float64"),
    "a power": (lambda x: x.float_power(2), lambda x: x * x, "float64"),
    "autocast": (_under_autocast, lambda x: (m(x) @ m(x).t()).reshape(-1), "bfloat16"),
}  # fmt: skip
NARROW: dict[str, Case] = {
    "uint8": lambda x: (x * 1000).long().to(torch.uint8) * 1.0,
    "int8": lambda x: (x * 300).long().to(torch.int8) * 1.0,
    "int16": lambda x: (x * 9e4).long().short() * 1.0,
    "a mask of bytes": lambda x: (x > 0).byte() * x,
    "a sum of bytes": lambda x: ((x * 300).long().byte() + 200) * 1.0,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NARROW)
def test_integers_of_fewer_bits_are_torch_s_without_a_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(NARROW[name])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", WIDE)
def test_other_types_are_taken_as_ours_with_one_warning_that_names_the_line(name: str) -> None:
    case, due, kind = WIDE[name]

    def both(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        y = case(leaf)
        grads = torch.autograd.grad(y.sum(), leaf)[0] if y.requires_grad else torch.zeros(1)  # type: ignore[attr-defined]
        return torch.cat([y.detach().reshape(-1).float(), grads])  # type: ignore[attr-defined]

    with pytest.warns(UserWarning, match=rf"{kind}.* taken as .*test_known\.py") as told:
        got = run(both)
    assert len(told) == 1
    leaf = torch.from_numpy(X).requires_grad_()
    y: torch.Tensor = due(leaf)  # type: ignore[assignment]
    grads = torch.autograd.grad(y.sum(), leaf)[0] if y.requires_grad else torch.zeros(1)
    np.testing.assert_allclose(got, torch.cat([y.detach(), grads]).numpy(), rtol=2e-6, atol=2e-6)


def test_constants_alone_keep_their_type_and_warn_of_nothing(recwarn: pytest.WarningsRecorder) -> None:
    same(lambda x: x * (TABLE.to(torch.bfloat16) * 3).float() + TABLE.cumsum(0).float())
    assert not [w for w in recwarn if "taken as" in str(w.message)]


@pytest.mark.parametrize(
    ("case", "hint"),
    [
        (lambda x: x.to(torch.float8_e4m3fn).float(), "leave the cast out"),
        (lambda x: torch.zeros(N, dtype=torch.float64).copy_(x).float(), "make it of float32"),
        (lambda x: x.view(torch.int16)[:N].float(), "float32"),
    ],
)
def test_type_that_cannot_be_honest_is_refused(case: Case, hint: str) -> None:
    with pytest.raises(LoweringError, match=r"test_known\.py") as caught:
        run(case)
    assert hint in caught.value.hint


# --- shapes and values of data -----------------------------------------------------------------------------

OF_DATA: dict[str, Case] = {
    "a mask": lambda x: x[x > 0],
    "a mask of rows": lambda x: m(x)[x[:4] > 0].sum(1),
    "nonzero": lambda x: x[(x > 0).nonzero()[:, 0]],
    "unique": lambda x: torch.unique(x),
    "bincount": lambda x: torch.bincount((x * 4).long().abs()).float(),
    "masked_select": lambda x: x.masked_select(x > 0),
    "item": lambda x: x[: int((x > 0).sum())],
    "tolist": lambda x: x * sum(x.tolist()),
    "numpy": lambda x: x * float(x.numpy().mean()),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", OF_DATA)
def test_shape_of_data_is_refused_in_one_trace(name: str) -> None:
    """Questions of torch about such shapes draw numbers of their own, which are no draw of the host."""
    calls: list[int] = []

    def case(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return OF_DATA[name](x)  # type: ignore[return-value]

    with pytest.raises(LoweringError, match=r"depends on data.*test_known\.py") as caught:
        run(case)
    assert "torch.where" in caught.value.hint
    assert len(calls) == 1


# --- guards ------------------------------------------------------------------------------------------------


def test_guard_that_raises_or_logs_is_passed() -> None:
    same(functions.guarded)


def test_condition_with_another_branch_is_refused() -> None:
    def chooses(x: torch.Tensor) -> torch.Tensor:
        if (x > 0).any():
            x = x * 2
        return x

    with pytest.raises(LoweringError, match="data"):
        run(chooses)


def test_guard_with_an_else_is_refused() -> None:
    def chooses(x: torch.Tensor) -> torch.Tensor:
        if (x > 0).any():
            logger.warning("positive")
        else:
            x = -x
        return x

    with pytest.raises(LoweringError, match="data"):
        run(chooses)


# --- empty slices ------------------------------------------------------------------------------------------


def test_empty_slices_vanish_forward_and_backward() -> None:
    def case(x: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().requires_grad_()
        turned, kept = m(leaf)[:, :6], m(leaf)[:, 6:]
        y = torch.cat([turned.sin(), 2 * kept], -1) + F.pad(kept, (0, 6), value=1.0)
        return torch.autograd.grad((y * y).sum(), leaf)[0]

    same(case)


def test_mask_that_writes_a_number_is_a_choice() -> None:
    def case(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[y > 0] = 7.0
        return y

    same(case)


def test_one_hot_with_a_number_of_classes() -> None:
    same(lambda x: F.one_hot((x > 0).long(), 3)[:, 1] * x)


# --- recurrent layers --------------------------------------------------------------------------------------

LAYERS: dict[str, nn.Module] = {
    "lstm": nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True),
    "lstm without biases": nn.LSTM(6, 5, bias=False),
    "gru": nn.GRU(6, 5, 2, bidirectional=True),
    "rnn": nn.RNN(6, 5, batch_first=True),
    "rnn relu": nn.RNN(6, 5, nonlinearity="relu"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layer_is_float64_s_with_its_gradients(name: str) -> None:
    layer = LAYERS[name]
    weights = {k: p.detach() for k, p in layer.named_parameters()}
    sizes = [w.numel() for w in weights.values()]
    start = torch.cat([w.reshape(-1) for w in weights.values()])

    def value(flat: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        leaf = flat.detach().requires_grad_()
        parts = dict(zip(weights, leaf.split(sizes), strict=True))
        given = {k: p.view(weights[k].shape) for k, p in parts.items()}
        y, last = torch.func.functional_call(layer, given, (x.view(2, 2, 6),))
        ends = last if isinstance(last, tuple) else (last,)
        total = (y * y).sum() + sum(e.sin().sum() for e in ends)
        return [torch.autograd.grad(total, leaf)[0], y.detach().reshape(-1)]

    program = trace(value, start, torch.from_numpy(X))
    got = compile(program).run([start.numpy(), X], StepContext(bytes(32), 0, 0, 1))
    due = value(start.double(), torch.from_numpy(X).double())
    for a, b in zip(got, due, strict=False):
        np.testing.assert_allclose(a, b.numpy(), rtol=0, atol=4e-6 * max(1, b.abs().max().item()))


def test_long_recurrence_is_refused_with_what_to_do() -> None:
    layer = nn.GRU(1, 2)
    with pytest.raises(LoweringError, match="513 steps") as caught:
        trace(lambda x: layer(x.view(513, 1, 1))[0].reshape(-1), torch.zeros(513))
    assert "512" in caught.value.hint


def test_a_dtype_far_behind_the_inputs_is_refused_as_soon_as_one_beside_them() -> None:
    """Such a value is asked once if it is a constant, not along each of the 2^80 ways to the input."""

    def residual(x: torch.Tensor) -> torch.Tensor:
        for _ in range(80):
            x = x + torch.tanh(x)
        return x.to(torch.float8_e5m2).to(torch.float32)

    with pytest.raises(LoweringError, match=r"float8_e5m2"):
        trace(residual, torch.zeros(4))
