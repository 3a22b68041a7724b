"""Draws of the host while tracing, statistics that would be frozen, and gradients that are missing: refused by name."""

from __future__ import annotations

import gc
import importlib
import random
import re
from collections.abc import Callable
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace
from lockstep.tracing.host import counting_once
from lockstep.training.job import Batch, build_programs
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters, layout_of
from lockstep.training.strategies import diloco

NUMPY: np.random.Generator
LEGACY: np.random.RandomState
OWN: random.Random
TORCH: torch.Generator


@pytest.fixture(autouse=True)
def generators() -> None:
    """Made after whatever was there is frozen: a trace looks for them as for those of a user's program."""
    global NUMPY, LEGACY, OWN, TORCH
    NUMPY, LEGACY, OWN, TORCH = np.random.default_rng(3), np.random.RandomState(3), random.Random(3), torch.Generator()


def test_generators_that_appear_between_two_traces_are_found_where_objects_are_counted_once() -> None:
    gc.unfreeze()
    try:
        with counting_once():
            trace(lambda x: [x * 2], torch.zeros(4))
            assert gc.get_freeze_count()
            made = [random.Random(5), np.random.default_rng(5)]
            for draw in (lambda: OWN.random(), lambda: made[0].random(), lambda: made[1].random()):
                with pytest.raises(LoweringError, match="drawn on the host"):
                    trace(lambda x, draw=draw: [x * draw()], torch.zeros(4))
        assert not gc.get_freeze_count()
    finally:
        gc.freeze()


# --- draws of the host -------------------------------------------------------------------------------------

DRAWS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "numpy's functions": (lambda x: x * float(np.random.rand()), "numpy.random.RandomState"),
    "a mask of numpy": (lambda x: x * torch.from_numpy(np.random.uniform(size=4) < 0.5), "numpy.random.RandomState"),
    "a generator of numpy": (lambda x: x * NUMPY.random(), "numpy.random.Generator"),
    "an old generator of numpy": (lambda x: x * LEGACY.rand(), "numpy.random.RandomState"),
    "random": (lambda x: x * random.random(), "random"),
    "a generator of random": (lambda x: x * OWN.gauss(0, 1), "random"),
    "a seed of the system": (lambda x: x * np.random.default_rng().random(), "entropy"),
    "a generator of torch": (lambda x: x * torch.rand(4, generator=TORCH), "torch.Generator"),
    "a write of a generator of torch": (lambda x: x * torch.empty(4).uniform_(generator=TORCH), "torch.Generator"),
    "torch's seed": (lambda x: x * torch.rand(4, generator=torch.manual_seed(7)), "torch.Generator"),
}


class Drawing(nn.Module):
    """A module that draws."""

    def __init__(self, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Its draws."""
        return self.draw(x)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", DRAWS)
def test_draw_of_the_host_is_refused_with_module_and_line(name: str) -> None:
    draw, generator = DRAWS[name]
    model = nn.Sequential(nn.Identity(), Drawing(draw))
    with pytest.raises(LoweringError, match=re.escape(generator)) as caught:
        trace(lambda x: [model(x)], torch.zeros(4))
    assert "module `1`" in caught.value.message
    assert "test_host.py" in caught.value.message
    assert "torch.rand" in caught.value.hint


def test_draw_is_refused_without_a_second_run_of_what_follows() -> None:
    calls: list[str] = []

    def case(x: torch.Tensor) -> list[torch.Tensor]:
        calls.append("before")
        x = x * random.random()
        calls.append("after")
        return [x]

    with pytest.raises(LoweringError, match=r"x = x \* random\.random\(\)"):
        trace(case, torch.zeros(4))
    assert calls == ["before", "after", "before"]


class Dropped:
    """A cycle whose finalizer is code that a trace looks at."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        assert self.own is self


def test_no_collection_of_garbage_hides_where_a_draw_stands() -> None:
    calls: list[str] = []

    def case(x: torch.Tensor) -> list[torch.Tensor]:
        for _ in range(10):
            Dropped()
        x = x * (random.random() + len(list(map(list, repeat((), 5_000)))))
        calls.append("after")
        return [x]

    with pytest.raises(LoweringError, match=r"x = x \* \(random\.random\(\)"):
        trace(case, torch.zeros(4))
    assert calls == ["after"], "the second run ends at the draw"
    assert gc.isenabled()


def test_generator_with_a_fixed_seed_draws_the_same_in_every_step() -> None:
    program = trace(lambda x: [x + np.random.default_rng(5).random()], torch.zeros(4))
    due = np.float32(np.random.default_rng(5).random())
    assert (compile(program).run([np.zeros(4, np.float32)], StepContext(bytes(32), 0, 0, 1))[0] == due).all()


def test_import_that_reads_entropy_is_no_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_by_uuid.py").write_text("import uuid\nNAME = uuid.uuid4()\n")
    monkeypatch.syspath_prepend(tmp_path)
    calls: list[int] = []

    def importing(x: torch.Tensor) -> list[torch.Tensor]:
        calls.append(len(importlib.import_module("named_by_uuid").NAME.hex))
        return [x * 2]

    assert trace(importing, torch.zeros(4)).ops
    assert calls == [32], "traced once"


def test_draw_that_is_not_there_a_second_time_is_passed() -> None:
    calls: list[float] = []

    def once(x: torch.Tensor) -> list[torch.Tensor]:
        calls.append(random.random() if not calls else 0.0)
        return [x * 2]

    assert trace(once, torch.zeros(4)).ops
    assert len(calls) == 2, "traced again, to see who drew"


def test_draw_from_another_generator_the_second_time_is_refused() -> None:
    calls: list[float] = []

    def alternating(x: torch.Tensor) -> list[torch.Tensor]:
        calls.append(float(np.random.rand()) if calls else random.random())
        return [x * calls[-1]]

    with pytest.raises(LoweringError, match=r"numpy\.random\.RandomState"):
        trace(alternating, torch.zeros(4))
    assert len(calls) == 2


# --- running statistics ------------------------------------------------------------------------------------

MEAN, VAR = torch.zeros(3), torch.ones(3)
ROWS = np.arange(48, dtype=np.int32).reshape(4, 12) % 7


def value(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """A loss of numbers."""
    return (model(rows.float().view(-1, 3) / 7) ** 2).mean()


class Counting(nn.Module):
    """Replaces a buffer by what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Centred by the running mean."""
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.mean(0)
        return self.linear(x - self.seen)


def built(model: nn.Module, loss=value, **inner: float):
    """The Programs of a job of one round."""
    spec = diloco.DiLoCo(inner=AdamW(**inner), inner_steps=2)
    return build_programs(model, loss, spec, batch=Batch(2, 12), rounds=1, slots=2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (Drawing(lambda x: torch.batch_norm(x, None, None, MEAN, VAR, True, 0.1, 1e-5, False)), "running statistics"),
        (Drawing(lambda x: torch.nn.functional.instance_norm(x.T[None], MEAN, VAR)[0].T), "running statistics"),
        (Drawing(lambda x: x + MEAN.mul_(0.9)), "a write to a tensor that is no part of the state"),
    ],
    ids=["torch.batch_norm", "instance_norm", "a tensor of nobody"],
)
def test_statistics_that_no_module_holds_are_refused(layer: nn.Module, what: str) -> None:
    model = nn.ModuleDict({"first": nn.Linear(3, 3), "norm": layer})

    def loss(called: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return (called(rows) ** 2).mean()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = model

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.parts["norm"](self.parts["first"](rows.float().view(-1, 3)).reshape(-1, 3))

    with pytest.raises(LoweringError, match=what) as caught:
        built(Net(), loss)
    assert "module `" in caught.value.message
    assert caught.value.hint


def test_statistics_of_evaluation_are_constants() -> None:
    norm = nn.BatchNorm1d(3)
    model = nn.Sequential(nn.Linear(3, 3), norm, Counting()).eval()
    before = built(model).step.root
    norm.running_mean.fill_(0.25)
    assert built(model).step.root != before, "the statistics' values are part of the step"


# --- gradients ---------------------------------------------------------------------------------------------


class Spare(nn.Module):
    """A model with parameters that its loss never reads, between others."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 300)
        self.spare = nn.Linear(300, 7)
        self.last = nn.Linear(300, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Past the spare layer."""
        return self.last(self.first(x).tanh())


def test_parameter_that_the_loss_never_reads_does_not_decay_as_in_torch() -> None:
    model = Spare()
    layout, start = layout_of(model), initial_parameters(model, 0)
    step = compile(built(model, weight_decay=0.5, warmup=0).step)
    zero = np.zeros_like(start)
    state = [start, None, start, None, zero, zero, np.array(0, np.int32), None]
    moved = step.run(state, StepContext(bytes(32), 0, 0, 1), np.ascontiguousarray(ROWS))[0]
    before, after = (layout.split(torch.from_numpy(np.array(flat))) for flat in (start, moved))
    for name in before:
        same = torch.equal(before[name], after[name])
        assert same == name.startswith("spare"), f"{name}: left alone exactly where the loss does not read it"


def test_loss_that_no_parameter_reaches_is_refused() -> None:
    with pytest.raises(LoweringError, match="no trained parameter") as caught:
        built(nn.Linear(3, 3), lambda model, rows: value(model, rows).detach())
    assert "detach" in caught.value.hint


def test_gradient_without_a_rule_is_refused_at_the_line_of_its_forward() -> None:
    """A Dirichlet sample has a rule, its gradient by the concentration has none."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(7, 3)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return torch.distributions.Dirichlet(self.table(rows).exp()).rsample()

    def loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return (model(rows) ** 2).mean()

    drawn = trace(lambda x: [torch.distributions.Dirichlet(x.exp()).rsample().sum()], torch.zeros(4))
    assert drawn.ops, "its value has a rule"
    with pytest.raises(LoweringError, match=r"_dirichlet_grad.*test_host\.py:\d+ .*rsample") as caught:
        built(Words(), loss)
    assert caught.value.hint
