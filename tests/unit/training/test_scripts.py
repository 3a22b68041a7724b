"""Habits of training scripts: losses that use their model, wrappers around it. The step is that of eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.base.decoding import several
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import LoweringError, Malformed, UsageError
from lockstep.protocol.programs.program import F32
from lockstep.storage import containers
from lockstep.tracing import trace
from lockstep.tracing.known import MAX_ELEMENTS
from lockstep.training import evaluation
from lockstep.training.baseline import flat_parameters
from lockstep.training.export import save_model
from lockstep.training.gradients import gradient
from lockstep.training.job import Batch, TracedPrograms, build_programs, mean_loss
from lockstep.training.losses import Loss
from lockstep.training.optimizers import AdamW
from lockstep.training.optimizers.schedules import ConstantRate
from lockstep.training.parameters import (
    describe_frozen,
    first_statistics,
    layout_of,
    real_view,
    unallocated,
    unallocated_statistics,
)
from lockstep.training.strategies import diloco
from lockstep.training.trial import trial
from lockstep.training.wrappers import unwrapped

ROWS = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(1))
CONTEXT = StepContext(bytes(32), 0, 0, 1)


class Router(nn.Module):
    """Leaves a loss of its own behind."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        share = self.gate(x).softmax(-1)
        self.balance = share.mean((0, 1)).square().sum()
        return x * share.amax(-1, keepdim=True)


class Net(nn.Module):
    """Tokens in, tokens out; one part is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.router, self.fixed = nn.Embedding(32, 8), Router(), nn.Linear(8, 8)
        self.head = nn.Linear(8, 32)
        self.fixed.requires_grad_(False)
        self.pad = 3

    def encode(self, tokens: Tensor) -> Tensor:
        """All but the head."""
        return torch.tanh(self.fixed(self.router(self.tokens(tokens))))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encode(tokens))

    def training_step(self, rows: Tensor) -> Tensor:
        """The loss, as Lightning has it."""
        return loss(self, rows)


def loss(model: Callable[..., Tensor], rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


def found(model: nn.Module, value: Loss) -> list[np.ndarray]:
    """The gradient and the statistics after a step by its Program; None where nothing is written."""
    layout = layout_of(model)

    def step(*held: Tensor) -> list[Tensor]:
        buffers = layout.buffers(held)
        grads = gradient(model, value, layout, held[: len(layout.sizes)], ROWS, buffers=buffers)
        return [*grads, *layout.joined(buffers)]

    program = trace(step, *unallocated(layout), *unallocated_statistics(layout))
    return compile(program, fused="off").run([flat_parameters(model), *first_statistics(model, layout)], CONTEXT)


def due(model: nn.Module, value: Loss) -> list[np.ndarray]:
    """The same in eager torch."""
    layout, own = layout_of(model), unwrapped(model)
    value(own, ROWS).backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in own.named_parameters() if p.requires_grad}
    return [layout.join(grads).numpy(), *first_statistics(model, layout)]


# --- losses that use their model ---------------------------------------------------------------------------

LOSSES: dict[str, Loss] = {
    "a method": lambda m, r: m.encode(r).square().mean(),
    "a method that calls the model": lambda m, r: m.training_step(r),
    "what forward left": lambda m, r: loss(m, r) + 0.01 * m.router.balance,
    "parameters": lambda m, r: loss(m, r) + 1e-2 * sum(p.square().sum() for p in m.parameters() if p.requires_grad),
    "two weights": lambda m, r: loss(m, r) + (m.head.weight - m.tokens.weight).square().mean(),
    "an attribute": lambda m, r: F.cross_entropy(m(r).flatten(0, 1), r.flatten(), ignore_index=m.pad),
    "a part, by its name": lambda m, r: m.get_submodule("router.gate")(m.tokens(r)).square().mean(),
    "state_dict": lambda m, r: loss(m, r) + m.state_dict(keep_vars=True)["head.bias"].square().sum(),
    "a functional call": lambda m, r: torch.func.functional_call(
        m, {n: 2 * p for n, p in m.named_parameters()}, (r,)
    ).square().mean(),
    "second derivatives by rows": lambda m, r: torch.func.vmap(
        torch.func.hessian(lambda z: m.head(z).tanh().sum())
    )(m.tokens.weight[:2].detach()).square().mean(),
    "gradients of each row": lambda m, r: sum(g.square().mean() for g in torch.func.vmap(
        torch.func.grad(lambda p, z: torch.func.functional_call(m.head, p, (z,)).square().sum()), in_dims=(None, 0)
    )(dict(m.head.named_parameters()), m.tokens.weight[:2]).values()),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LOSSES)
def test_loss_gets_the_model_itself(name: str) -> None:
    model = Net()
    before = {n: id(p) for n, p in model.named_parameters()}
    got = found(model, LOSSES[name])[0]
    assert {n: id(p) for n, p in model.named_parameters()} == before, "the parameters are back"
    np.testing.assert_allclose(got, due(model, LOSSES[name])[0], rtol=1e-4, atol=1e-6)


def test_loss_program_sees_the_same_parameters_as_trained() -> None:
    model, penalised = Net(), LOSSES["parameters"]
    batch, layout = Batch(2, 9), layout_of(model)
    program = trace(lambda flat: [mean_loss(model, penalised, layout, [flat], batch)], *unallocated(layout))
    got = compile(program).run([flat_parameters(model)], CONTEXT, ROWS.numpy().astype(np.int32)[:1])
    assert float(got[0]) == pytest.approx(penalised(model, ROWS[:1].repeat(2, 1)).item(), rel=1e-5)


class Normed(nn.Module):
    """Two parts with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Sequential(nn.Linear(9, 9), nn.BatchNorm1d(9)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        lambda m, r: m(r / 32).sin().sum() + m(r / 16).cos().sum(),
        lambda m, r: m.first(r / 32).sin().sum(),
        lambda m, r: m.first(r / 32).sin().sum() + m(r / 8).cos().sum() + m.second(r / 16).sin().sum(),
    ],
    ids=["two calls", "a part", "parts and the whole"],
)
def test_statistics_of_parts_that_a_loss_calls_are_those_of_eager_torch(value: Loss) -> None:
    model = Normed()
    got = found(model, value)
    for mine, theirs in zip(got, due(model, value), strict=False):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
def test_loss_that_takes_a_gradient_by_parameters_has_its_programs() -> None:
    model = nn.Linear(9, 1)

    def adapted(m: nn.Module, rows: Tensor) -> Tensor:
        x, own = rows / 32, dict(m.named_parameters())
        steps = torch.autograd.grad(torch.func.functional_call(m, own, (x,)).square().mean(), list(own.values()),
                                    create_graph=True)  # fmt: skip
        moved = {n: p - 0.1 * g for (n, p), g in zip(own.items(), steps, strict=True)}
        return torch.func.functional_call(m, moved, (x + 1,)).square().mean()

    np.testing.assert_allclose(found(model, adapted)[0], due(model, adapted)[0], rtol=1e-4, atol=1e-6)
    assert built(model, adapted).loss is not None
    rows = Batch(2, 9)
    assert evaluation.build_programs(model, adapted, batch=rows, batches=2, rounds=1, slots=2).step.ops


# --- complex parameters ------------------------------------------------------------------------------------


class Spectral(nn.Module):
    """A layer of a Fourier neural operator, and a diagonal state space's kernel; one complex parameter is frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.modes, self.scale = nn.Parameter(torch.randn(2, 3, dtype=torch.cfloat)), nn.Linear(2, 2)
        self.turn = nn.Parameter(torch.randn(3, dtype=torch.cfloat), requires_grad=False)
        self.bias = nn.Parameter(torch.randn((), dtype=torch.complex128))

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(torch.stack([x, x.square()], -1)).transpose(1, 2)
        kept = torch.einsum("bix,ix->bx", torch.fft.rfft(x)[..., :3], self.modes * self.turn)
        kernel = ((self.modes[0] * 0.1).unsqueeze(-1) * torch.arange(9)).exp().sum(0).real
        return torch.fft.irfft(kept + self.bias.to(torch.cfloat), n=9) * kernel


def spectral(model: nn.Module, rows: Tensor) -> Tensor:
    return model(rows / 16 - 1).square().mean()


def test_complex_parameters_train_as_their_real_views_and_come_back_complex(tmp_path: Path) -> None:
    model = Spectral()
    layout = layout_of(model)
    assert [(p.name, p.shape) for p in layout.parameters if p.is_complex] == [("modes", (2, 3, 2)), ("bias", (2,))]
    flat = flat_parameters(model).astype(np.float32)
    program = trace(lambda held: gradient(model, spectral, layout, [held], ROWS), torch.from_numpy(flat))
    (got,) = compile(program).run([flat], CONTEXT)
    spectral(model, ROWS).backward()
    grads = {n: real_view(p.grad).float() for n, p in model.named_parameters() if p.grad is not None}
    np.testing.assert_allclose(got, layout.join(grads).numpy(), rtol=1e-4, atol=1e-6)

    optimizer, rule = torch.optim.AdamW(model.parameters(), 0.01, (0.9, 0.95), weight_decay=0.1), AdamW(0.01, clip=1e30)
    made = replace(rule, warmup=0, schedule=ConstantRate()).over(1, None, layout)
    shards = [torch.from_numpy(flat)]
    zeros = [torch.zeros_like(x) for x in made.init(shards, torch.zeros((), dtype=torch.int32))]
    _, (moved,) = made.update(zeros, torch.zeros((), dtype=torch.int32), shards, [torch.from_numpy(np.array(got))])
    optimizer.step()
    np.testing.assert_allclose(moved, flat_parameters(model), rtol=1e-4, atol=1e-6)

    save_model(tmp_path, moved.numpy(), layout.describe(), {"model": "own"})
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["modes"].dtype == torch.complex64
    torch.testing.assert_close(stored["modes"], model.modes.detach())


def test_job_of_complex_parameters_has_a_spec_that_names_them() -> None:
    made = built(Spectral(), spectral)
    described = [
        *made.layout.describe(),
        *describe_frozen(Spectral(), {c.root.hex() for c in made.step.consts}, made.layout),
    ]
    assert {p["name"] for p in described if p.get("complex")} == {"modes", "bias", "turn"}
    reader = several(containers._PARAMETER, 9)
    assert reader(described, "parameters") == described
    with pytest.raises(Malformed):
        reader([{**described[0], "complex": False}], "parameters")


# --- attributes that calls change --------------------------------------------------------------------------


class Keeping(nn.Module):
    """A line of which one call keeps something for the next."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.call = nn.Linear(9, 4), call
        self.table: Tensor | None = None
        self.tables: dict[int, Tensor] = {}
        self.several: list[Tensor] = []
        self.length, self.count = 0, torch.zeros(())
        self.other, self.cached = SimpleNamespace(table=None), lru_cache(cosines)
        self.register_buffer("late", None)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def cosines(n: int) -> Tensor:
    return torch.arange(n).float().cos()


def _attribute(m: Any, x: Tensor) -> Tensor:
    if m.table is None or len(m.table) != x.shape[1]:
        m.table = cosines(x.shape[1])
    return m.line(x * m.table)


def _entry(m: Any, x: Tensor) -> Tensor:
    if x.shape[1] not in m.tables:
        m.tables[x.shape[1]] = cosines(x.shape[1])
    return m.line(x * m.tables[x.shape[1]])


def _element(m: Any, x: Tensor) -> Tensor:
    if not m.several:
        m.several.append(cosines(x.shape[1]))
    return m.line(x * m.several[0])


def _buffer(m: Any, x: Tensor) -> Tensor:
    if not hasattr(m, "cosines"):
        m.register_buffer("cosines", cosines(x.shape[1]))
        m.late = torch.ones(1)
    return m.line(x * m.cosines * m.late)


def _length(m: Any, x: Tensor) -> Tensor:
    if m.length != x.shape[1]:
        m.length, m.table = x.shape[1], cosines(x.shape[1])
    return m.line(x * m.table)


def _large(m: Any, x: Tensor) -> Tensor:
    if m.length == 0:
        m.length, m.table = 1, cosines(MAX_ELEMENTS + 9)
    return m.line(x * m.table[:9])


def _object(m: Any, x: Tensor) -> Tensor:
    if m.other.table is None:
        m.other.table = cosines(x.shape[1])
    return m.line(x * m.other.table)


def _function(m: Any, x: Tensor) -> Tensor:
    return m.line(x * m.cached(x.shape[1]))


def _logged(m: Any, x: Tensor) -> Tensor:
    """Reads what the call before has left, and uses it for nothing."""
    y = m.line(x)
    m.table = y.detach().mean() if m.table is None else 0.9 * m.table + 0.1 * y.detach().mean()
    m.count = m.count + 1
    return y


def _cleared(m: Any, x: Tensor) -> Tensor:
    m.several.clear()
    m.several.append(m.line(x).mean())
    return m.line(x) + sum(m.several)


def _last(m: Any, x: Tensor) -> Tensor:
    y, last = m.line(x), m.table
    m.table = y.detach().mean(0)
    return y if last is None else y - last


def _counting(m: Any, x: Tensor) -> Tensor:
    m.count = m.count + 1
    return m.line(x) / m.count


def _growing(m: Any, x: Tensor) -> Tensor:
    m.several.append(m.line(x).mean())
    return m.line(x) + sum(m.several)


def squares(model: Callable[..., Tensor], rows: Tensor) -> Tensor:
    return model(rows / 32).square().mean()


def built(model: nn.Module, value: Loss) -> TracedPrograms:
    return build_programs(model, value, diloco.DiLoCo(inner_steps=2), batch=Batch(2, 9), rounds=1, slots=2)


def state_of(model: Any) -> list[object]:
    return [
        {**vars(model)}, {**model._buffers}, {**model.tables}, [*model.several], {**vars(model.other)},
    ]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "call", [_attribute, _entry, _element, _buffer, _length, _large, _object, _function, _logged, _cleared]
)
def test_what_a_call_keeps_is_there_in_no_later_trace_and_in_no_model(call: Callable[[Any, Tensor], Tensor]) -> None:
    model = Keeping(call)
    before = state_of(model)
    programs = built(model, squares)
    assert programs.loss is not None
    assert state_of(model) == before
    assert model.cached.cache_info().currsize == 0
    drawn = ROWS.numpy().astype(np.int32)[:1]
    zeros = [None if h is None else np.zeros(h.shape, np.float32 if h.dtype == F32 else np.int32)
             for h in programs.loss.inputs[1:]]  # fmt: skip
    got = compile(programs.loss).run([flat_parameters(model), *zeros], CONTEXT, drawn)
    assert float(got[0]) == pytest.approx(squares(model, ROWS[:1].repeat(2, 1)).item(), rel=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("call", "name"), [(_last, "table"), (_counting, "count"), (_growing, "several")])
def test_state_outside_of_the_parameters_is_refused_by_name(call: Callable[[Any, Tensor], Tensor], name: str) -> None:
    model = nn.Sequential(nn.Identity(), Keeping(call))
    before = state_of(model[1])
    with pytest.raises(LoweringError, match=rf"module `1`.*step before.*1\.{name}.*test_scripts\.py") as caught:
        built(model, squares)
    assert "forward" in caught.value.hint
    assert state_of(model[1]) == before
    rows = Batch(2, 9)
    with pytest.raises(LoweringError, match="step before"):
        evaluation.build_programs(model, squares, batch=rows, batches=2, rounds=1, slots=2)


# --- wrappers ----------------------------------------------------------------------------------------------


def _compiled_part() -> nn.Module:
    model = Net()
    model.head = torch.compile(model.head)
    return model


def _compiled_in_place() -> nn.Module:
    model = Net()
    model.router.compile()
    model.compile()
    return model


def _compiled_function() -> nn.Module:
    model = Net()
    model.encode = torch.compile(model.encode)
    return model


WRAPPED: dict[str, Callable[[], nn.Module]] = {
    "torch.compile": lambda: torch.compile(Net()),
    "a part of torch.compile": _compiled_part,
    "compile()": _compiled_in_place,
    "a function of torch.compile": _compiled_function,
    "DataParallel of torch.compile": lambda: nn.DataParallel(torch.compile(Net())),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WRAPPED)
def test_wrapper_changes_neither_the_step_nor_a_name(name: str) -> None:
    model, plain = WRAPPED[name](), Net()
    kinds = [type(m) for m in model.modules()]
    assert layout_of(model) == layout_of(plain)
    assert (found(model, loss)[0] == found(plain, loss)[0]).all()
    assert [type(m) for m in model.modules()] == kinds, "the wrappers are back"


@pytest.mark.slow
def test_compiled_model_is_tried_as_it_is() -> None:
    model, batch, spec = torch.compile(Net(), backend="aot_eager"), Batch(2, 9), diloco.DiLoCo(inner_steps=2)
    built = build_programs(model, loss, spec, batch=batch, rounds=1, slots=2)
    tried = trial(model, loss, spec, batch, built)
    assert tried.gradients, tried.eager
    assert not tried.differing


def _scripted() -> nn.Module:
    model = Net()
    model.head = torch.jit.script(model.head)
    return model


def _hooked() -> nn.Module:
    model = nn.DataParallel(Net())
    model.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "what", "hint"),
    [
        (_scripted, "head.*torch.jit", "before torch.jit"),
        (lambda: torch.jit.script(nn.Linear(2, 2)), "the model.*torch.jit", "before torch.jit"),
        (_hooked, "DataParallel of a Net has hooks", "before wrapping it"),
    ],
)
def test_wrapper_that_cannot_be_opened_is_refused_by_name(make: Callable[[], nn.Module], what: str, hint: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        layout_of(make())
    assert hint in caught.value.hint
