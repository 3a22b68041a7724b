"""Optimizers and schedules against torch's own, or against their papers' equations, in float64."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import UsageError
from lockstep.tracing import trace
from lockstep.training.describe import strategy_of
from lockstep.training.optimizers import (
    LAMB,
    SGD,
    SOAP,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Adan,
    Groups,
    Lion,
    Members,
    NAdam,
    Nesterov,
    PacedPart,
    RAdam,
    RMSprop,
    ScheduleFree,
    Several,
    Shampoo,
    SignSGD,
    Yogi,
)
from lockstep.training.optimizers.schedules import (
    SCHEDULES,
    ConstantRate,
    CosineRate,
    InverseRoot,
    LinearRate,
    OneCycle,
    RateShape,
    StableDecay,
    StepRate,
)
from lockstep.training.parameters import Layout, Parameter, unallocated
from lockstep.training.strategies.diloco import DiLoCo
from lockstep.training.strategies.registry import OPTIMIZERS

STEPS = 50
SHAPES: dict[str, tuple[int, ...]] = {
    "embed.weight": (12, 8),
    "conv.weight": (4, 3, 3, 2),
    "head.weight": (1, 16),
    "norm.weight": (7,),
    "head.bias": (16,),
    "scale": (),
}
"""Shapes of a model's parameters: matrices, a convolution, vectors, a number."""
STEADY: dict[str, Any] = {"schedule": ConstantRate(), "warmup": 0}
ZERO = torch.zeros((), dtype=torch.int32)
RATE = 2.0**-10
"""Times an eighth a decay that is exact in binary32, whose rounding would add up."""


def laid_out(shards: int = 1) -> Layout:
    """The parameters one after the other, and padding behind those of each shard."""
    ends, places = [0] * shards, []
    for at, (name, shape) in enumerate(SHAPES.items()):
        places.append(Parameter(name, ends[at % shards], shape, at % shards))
        ends[at % shards] += math.prod(shape)
    return Layout(tuple(places), tuple(-(-end // 256) * 256 for end in ends))


LAYOUT = laid_out()


@cache
def start() -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=chance) for name, shape in SHAPES.items()}


@cache
def gradients(t: int) -> dict[str, Tensor]:
    """Numbers of very different sizes; a step multiplies them by a function of its parameters."""
    chance = torch.Generator().manual_seed(100 + t)
    return {name: torch.randn(shape, generator=chance) ** 3 for name, shape in SHAPES.items()}


def slopes(t: int, live: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of step t: without cancellation, so that binary32 does not lose what is compared."""
    return {name: gradients(t)[name].to(x.dtype) * (1 + 0.1 * x * x) for name, x in live.items()}


def eager(optimizer: Any, layout: Layout = LAYOUT, *, steps: int = STEPS, restart: int | None = None) -> list[Tensor]:
    """The shards after the steps, by the optimizer's functions in float32."""
    rule = optimizer.over(steps, restart, layout)
    p = layout.shards(start())
    state = [torch.zeros_like(x) for x in rule.init(p, ZERO)]
    for t in range(steps):
        if restart is not None and t % restart == 0:
            state = [torch.zeros_like(x) for x in state]
        grad = layout.shards(slopes(t, layout.split(*p)))
        state, p = rule.update(state, torch.tensor(t, dtype=torch.int32), p, grad)
    return p


def traced(optimizer: Any) -> np.ndarray:
    """The same by a Program, on the processor's kernels."""
    rule, flats = optimizer.over(STEPS, None, LAYOUT), unallocated(LAYOUT)
    empty = rule.init(flats, ZERO.to("meta"))

    def step(*given: Tensor) -> list[Tensor]:
        p, grad, counter, *state = given
        after, (moved,) = rule.update(state, counter, [p], [grad])
        return [moved, grad, counter + 1, *after]

    program = compile(trace(step, *flats, *flats, ZERO.to("meta"), *empty))
    state: list[Any] = [LAYOUT.shards(start())[0].numpy(), None, np.array(0, np.int32)]
    state += [np.zeros(x.shape, np.int32 if x.dtype == torch.int32 else np.float32) for x in empty]
    width = 1 << (len(state) - 1).bit_length()
    state += [None] * (width - len(state))
    for t in range(STEPS):
        state[1] = LAYOUT.shards(slopes(t, LAYOUT.split(torch.from_numpy(np.array(state[0])))))[0].numpy()
        state = list(program.run(state, StepContext(bytes(32), 0, 0, t + 1), np.zeros((1, 2), np.int32)))
    return np.asarray(state[0])


Moves = Callable[[int, dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]
"""(step, parameters, gradient) -> parameters."""


def wide(moves: Moves) -> Tensor:
    """The parameters after the steps of a reference in float64, flat."""
    p = {name: x.double() for name, x in start().items()}
    for t in range(STEPS):
        p = moves(t, p, slopes(t, p))
    return torch.cat([p[name].reshape(-1) for name in SHAPES])


def apart(x: Any, due: Tensor) -> float:
    """The relative error in norm, without padding."""
    found = torch.from_numpy(np.array(np.asarray(x), np.float64)).reshape(-1)[: due.numel()]
    return float((found - due).norm() / due.norm())


def torch_s(make: Callable[[list[Any]], torch.optim.Optimizer]) -> Moves:
    """An optimizer of torch."""
    held = {name: torch.nn.Parameter(x.double()) for name, x in start().items()}
    optimizer = make([{"params": [x], "name": name} for name, x in held.items()])

    def moves(t: int, p: dict[str, Tensor], g: dict[str, Tensor]) -> dict[str, Tensor]:
        for name, x in held.items():
            x.grad = g[name]
        optimizer.step()
        return {name: x.detach().clone() for name, x in held.items()}

    return moves


def of_moments(step: Callable[..., Tensor], kept: int) -> Moves:
    """A formula x' = step(t, x, g, memory), which writes its memory, `kept` tensors that begin at zero."""
    memory = {name: [torch.zeros(s, dtype=torch.float64) for _ in range(kept)] for name, s in SHAPES.items()}

    def moves(t: int, p: dict[str, Tensor], g: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: step(t + 1, x, g[name], memory[name]) for name, x in p.items()}

    return moves


def lion(t: int, x: Tensor, g: Tensor, memory: list[Tensor]) -> Tensor:
    """Chen 2023, algorithm 2."""
    c = 0.9 * memory[0] + 0.1 * g
    memory[0] = 0.99 * memory[0] + 0.01 * g
    return x - 1e-2 * (c.sign() + 0.1 * x)


def lamb(t: int, x: Tensor, g: Tensor, memory: list[Tensor]) -> Tensor:
    """You 2020, algorithm 2."""
    memory[0] = 0.9 * memory[0] + 0.1 * g
    memory[1] = 0.999 * memory[1] + 0.001 * g**2
    r = (memory[0] / (1 - 0.9**t)) / ((memory[1] / (1 - 0.999**t)).sqrt() + 1e-6)
    u = r + 0.01 * x
    return x - 1e-3 * x.norm() / u.norm() * u


def schedule_free() -> Moves:
    """Defazio 2024, algorithm 1, with x, y and z; what is compared is y, at which gradients are taken."""
    kept = {name: [x.double(), x.double(), torch.zeros(x.shape, dtype=torch.float64)] for name, x in start().items()}
    total = 0.0

    def moves(t: int, p: dict[str, Tensor], g: dict[str, Tensor]) -> dict[str, Tensor]:
        nonlocal total
        rate = 2.5e-3 * math.sqrt(1 - 0.999 ** (t + 1)) * min(1, (t + 1) / 5)
        total += rate**2
        found = {}
        for name, (x, z, v) in kept.items():
            v = 0.999 * v + 0.001 * g[name] ** 2
            z = z - rate * (g[name] / (v.sqrt() + 1e-8) + 0.1 * p[name])
            x = (1 - rate**2 / total) * x + rate**2 / total * z
            kept[name] = [x, z, v]
            found[name] = 0.1 * z + 0.9 * x
        return found

    return moves


def adam(t: int, x: Tensor, g: Tensor, memory: list[Tensor]) -> Tensor:
    """Reddi 2021, algorithm 2, with the rate of Kingma 2015, section 2."""
    memory[0] = 0.9 * memory[0] + 0.1 * g
    memory[1] = 0.99 * memory[1] + 0.01 * g**2
    rate = 0.1 * math.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    return x - rate * memory[0] / (memory[1].sqrt() + 1e-3)


def yogi(t: int, x: Tensor, g: Tensor, memory: list[Tensor]) -> Tensor:
    """Reddi 2021, algorithm 2."""
    memory[0] = 0.9 * memory[0] + 0.1 * g
    memory[1] = memory[1] - 0.01 * g**2 * (memory[1] - g**2).sign()
    return x - 0.01 * memory[0] / (memory[1].sqrt() + 1e-3)


def adan(t: int, x: Tensor, g: Tensor, memory: list[Tensor]) -> Tensor:
    """Xie 2022, algorithm 1, as github.com/sail-sg/Adan has it with `no_prox`."""
    change = g - memory[3] if t > 1 else torch.zeros_like(g)
    memory[0] = 0.98 * memory[0] + 0.02 * g
    memory[1] = 0.92 * memory[1] + 0.08 * change
    memory[2] = 0.99 * memory[2] + 0.01 * (g + 0.92 * change) ** 2
    memory[3] = g
    below = memory[2].sqrt() / math.sqrt(1 - 0.99**t) + 1e-8
    step = memory[0] / (1 - 0.98**t) + 0.92 * memory[1] / (1 - 0.92**t)
    return x * (1 - RATE / 8) - RATE * step / below


def of_blocks(step: Callable[..., Tensor], of_vector: Callable[..., Tensor], block: int) -> Moves:
    """As `of_moments`, for each block of a matrix; `of_vector` for all else, each with a memory by name."""
    memories: dict[tuple[str, int, int], dict[str, Tensor]] = {}

    def moves(t: int, p: dict[str, Tensor], g: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, x in p.items():
            if x.dim() < 2 or min(x.shape[0], x[0].numel()) == 1:
                found[name] = of_vector(t + 1, x, g[name], memories.setdefault((name, 0, 0), {}))
                continue
            found[name], slope = x.flatten(1).clone(), g[name].flatten(1)
            places = [torch.arange(n).chunk(-(-n // block)) for n in slope.shape]
            for i, rows in enumerate(places[0]):
                for j, columns in enumerate(places[1]):
                    at = torch.meshgrid(rows, columns, indexing="ij")
                    memory = memories.setdefault((name, i, j), {})
                    found[name][at] = step(t + 1, found[name][at], slope[at], memory)
            found[name] = found[name].view(x.shape)
        return found

    return moves


def adagrad(t: int, x: Tensor, g: Tensor, memory: dict[str, Tensor], beta2: float = 1.0) -> Tensor:
    """The step of Adagrad, or of RMSprop with its correction."""
    memory["v"] = beta2 * memory.get("v", 0) + (1 - beta2 if beta2 < 1 else 1) * g * g
    return g / ((memory["v"] / (1 - beta2**t if beta2 < 1 else 1)).sqrt() + 1e-10)


def shampoo(beta2: float, graft: bool) -> Callable[..., Tensor]:
    """Gupta 2018, algorithm 1, with the grafting of Anil 2020; roots by eigenvalues."""

    def root(x: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(x + 1e-4 * x.norm() * torch.eye(len(x), dtype=x.dtype))
        return vectors @ torch.diag(values**-0.25) @ vectors.T

    def step(t: int, x: Tensor, g: Tensor, memory: dict[str, Tensor]) -> Tensor:
        due = adagrad(t, x, g, memory, beta2).norm()
        for side, product in (("left", g @ g.T), ("right", g.T @ g)):
            memory[side] = beta2 * memory.get(side, 0) + (1 - beta2 if beta2 < 1 else 1) * product
        over = 1 - beta2**t if beta2 < 1 else 1
        found = root(memory["left"] / over) @ g @ root(memory["right"] / over)
        return x - 1e-3 * found * (due / found.norm() if graft else 1)

    return step


def soap(t: int, x: Tensor, g: Tensor, memory: dict[str, Tensor]) -> Tensor:
    """Vyas 2024, algorithms 3 and 4, the bases from the identity on, a basis in every step."""
    zero = torch.zeros_like(g)
    left, right = (memory.get(name, torch.eye(n, dtype=g.dtype)) for name, n in (("QL", len(g)), ("QR", len(g.T))))
    memory["M"] = 0.95 * memory.get("M", zero) + 0.05 * g
    memory["V"] = 0.95 * memory.get("V", zero) + 0.05 * (left.T @ g @ right) ** 2
    inside = (left.T @ memory["M"] @ right) / (1 - 0.95**t)
    step = left @ (inside / ((memory["V"] / (1 - 0.95**t)).sqrt() + 1e-8)) @ right.T
    for name, q, product in (("L", left, g @ g.T), ("R", right, g.T @ g)):
        side = memory[name] = 0.95 * memory.get(name, 0) + 0.05 * product
        memory[f"Q{name}"] = torch.linalg.qr(side / side.norm() @ q + 1e-3 * q)[0]
    return x * (1 - RATE / 8) - RATE * step


def adam_of_soap(t: int, x: Tensor, g: Tensor, memory: dict[str, Tensor]) -> Tensor:
    """Adam with decoupled decay."""
    memory["m"] = 0.95 * memory.get("m", 0) + 0.05 * g
    memory["v"] = 0.95 * memory.get("v", 0) + 0.05 * g**2
    step = memory["m"] / (1 - 0.95**t) / ((memory["v"] / (1 - 0.95**t)).sqrt() + 1e-8)
    return x * (1 - RATE / 8) - RATE * step


def of_torch(kind: Any, *args: Any, **given: Any) -> Callable[[], Moves]:
    return lambda: torch_s(lambda p: kind(p, *args, **given))


T = torch.optim
REFERENCES: dict[str, tuple[Any, Callable[[], Moves]]] = {
    "adamw": (AdamW(1e-2, **STEADY, clip=1e30), of_torch(T.AdamW, 1e-2, (0.9, 0.95), weight_decay=0.1)),
    "sgd": (SGD(0.01, weight_decay=0.1), of_torch(T.SGD, 0.01, weight_decay=0.1)),
    "sgd, dampened": (SGD(0.01, momentum=0.9, dampening=0.3), of_torch(T.SGD, 0.01, 0.9, 0.3)),
    "sgd, nesterov": (
        SGD(0.01, momentum=0.9, nesterov=True, weight_decay=0.1),
        of_torch(T.SGD, 0.01, 0.9, weight_decay=0.1, nesterov=True),
    ),
    "nesterov": (Nesterov(0.01, 0.9), of_torch(T.SGD, 0.01, 0.9, nesterov=True)),
    "sign_sgd": (SignSGD(**STEADY), lambda: of_moments(lambda t, x, g, memory: x - 1e-3 * g.sign(), 0)),
    "adam": (Adam(), lambda: of_moments(adam, 2)),
    "yogi": (Yogi(), lambda: of_moments(yogi, 2)),
    "lion": (Lion(1e-2, weight_decay=0.1, **STEADY), lambda: of_moments(lion, 1)),
    "rmsprop": (RMSprop(**STEADY), of_torch(T.RMSprop, 1e-3)),
    "rmsprop, centred": (
        RMSprop(momentum=0.9, centered=True, weight_decay=0.1, **STEADY),
        of_torch(T.RMSprop, 1e-3, momentum=0.9, centered=True, weight_decay=0.1),
    ),
    "adagrad": (
        Adagrad(rate_decay=0.1, weight_decay=0.1, **STEADY),
        of_torch(T.Adagrad, 1e-2, lr_decay=0.1, weight_decay=0.1),
    ),
    "nadam": (
        NAdam(1e-2, weight_decay=0.1, **STEADY),
        of_torch(T.NAdam, 1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "radam": (
        RAdam(1e-2, weight_decay=0.1, **STEADY),
        of_torch(T.RAdam, 1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    ),
    "lamb": (LAMB(**STEADY), lambda: of_moments(lamb, 2)),
    "adafactor": (
        Adafactor(weight_decay=0.1, **STEADY),
        of_torch(T.Adafactor, 1e-2, eps=(2.0**-23, 1e-3), weight_decay=0.1),
    ),
    "adan": (Adan(RATE, weight_decay=1 / 8, **STEADY), lambda: of_moments(adan, 4)),
    "shampoo": (
        Shampoo(1e-3, block=6, epsilon=1e-4, graft=False, **STEADY),
        lambda: of_blocks(shampoo(1.0, False), lambda t, x, g, m: x - 1e-3 * adagrad(t, x, g, m), 6),
    ),
    "shampoo, grafted": (
        Shampoo(1e-3, block=6, beta2=0.95, epsilon=1e-4, **STEADY),
        lambda: of_blocks(shampoo(0.95, True), lambda t, x, g, m: x - 1e-3 * adagrad(t, x, g, m, 0.95), 6),
    ),
    "soap": (SOAP(RATE, block=6, weight_decay=1 / 8, **STEADY), lambda: of_blocks(soap, adam_of_soap, 6)),
    "schedule_free": (ScheduleFree(warmup=5, weight_decay=0.1), schedule_free),
}
"""A row of each optimizer and what it is: torch's, or a formula."""
ELSEWHERE = {"muon", "several"}
"""Muon is compared in test_references.py, several optimizers below."""


def test_every_optimizer_has_a_reference() -> None:
    assert {name.split(",")[0] for name in REFERENCES} | ELSEWHERE == set(OPTIMIZERS)


@pytest.mark.parametrize("name", REFERENCES)
def test_an_optimizer_is_its_reference_over_50_steps(name: str) -> None:
    optimizer, reference = REFERENCES[name]
    due = wide(reference())
    assert apart(eager(optimizer)[0], due) < 1e-6
    assert not eager(optimizer)[0][due.numel() :].any(), "padding stays zero"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", REFERENCES)
def test_shards_change_nothing(name: str) -> None:
    optimizer, _ = REFERENCES[name]
    several = laid_out(shards=2)
    one, two = LAYOUT.split(*eager(optimizer, steps=5)), several.split(*eager(optimizer, several, steps=5))
    for parameter in SHAPES:
        torch.testing.assert_close(one[parameter], two[parameter])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [n for n in REFERENCES if "," not in n])
def test_a_program_of_an_optimizer_is_its_reference(name: str) -> None:
    optimizer, reference = REFERENCES[name]
    assert apart(traced(optimizer), wide(reference())) < 1e-6


# -- schedules


def torch_rates(make: Callable[[Any], Any], steps: int = 60) -> list[float]:
    """The rates that a scheduler of torch gives its optimizer, whose own is 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


S = torch.optim.lr_scheduler
SHAPES_OF_RATES: dict[str, tuple[RateShape, float, Callable[[Any], Any]]] = {
    "cosine": (CosineRate(), 0.1, lambda o: S.CosineAnnealingLR(o, 60, eta_min=0.1)),
    "cosine, length": (CosineRate(length=80), 0.0, lambda o: S.CosineAnnealingLR(o, 80)),
    "constant": (ConstantRate(), 0.1, lambda o: S.ConstantLR(o, factor=1.0)),
    "linear": (LinearRate(length=40), 0.25, lambda o: S.LinearLR(o, 1.0, 0.25, total_iters=40)),
    "linear, power": (LinearRate(power=2.0), 0.0, lambda o: S.PolynomialLR(o, 60, power=2.0)),
    "wsd": (
        StableDecay(decay=0.25),
        0.1,
        lambda o: S.LambdaLR(o, lambda t: 1 if t < 45 else 0.1 + 0.9 * (60 - t) / 15),
    ),
    "wsd, sqrt": (
        StableDecay(decay=0.25, form="sqrt"),
        0.0,
        lambda o: S.LambdaLR(o, lambda t: 1 if t < 45 else 1 - math.sqrt((t - 45) / 15)),
    ),
    "wsd, cosine": (
        StableDecay(decay=1.0, form="cosine"), 0.0, lambda o: S.CosineAnnealingLR(o, 60),
    ),
    "inverse_sqrt": (InverseRoot(timescale=9), 0.0, lambda o: S.LambdaLR(o, lambda t: 3 / math.sqrt(10 + t))),
    "step": (StepRate(every=20, factor=0.5), 0.0, lambda o: S.StepLR(o, 20, 0.5)),
    "step, milestones": (StepRate(milestones="10 45"), 0.0, lambda o: S.MultiStepLR(o, [10, 45], 0.1)),
    "step, exponential": (StepRate(every=1, factor=0.97), 0.0, lambda o: S.ExponentialLR(o, 0.97)),
    "one_cycle": (OneCycle(), 0.04 * 1e-4, lambda o: S.OneCycleLR(o, 1.0, total_steps=61)),
}  # fmt: skip


def test_every_schedule_has_a_reference() -> None:
    assert {name.split(",")[0] for name in SHAPES_OF_RATES} == set(SCHEDULES)


@pytest.mark.parametrize("name", SHAPES_OF_RATES)
def test_a_schedule_is_torch_s(name: str) -> None:
    schedule, final, make = SHAPES_OF_RATES[name]
    steps = 61 if name == "one_cycle" else 60
    made = AdamW(learning_rate=1.0, warmup=0, final_fraction=final, schedule=schedule)
    np.testing.assert_allclose([made.rate(t, steps) for t in range(60)], torch_rates(make), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_warms_up_and_a_job_of_any_length_has_a_rate(name: str) -> None:
    for steps in (1, 2, 15, 1000):
        made = SGD(1.0, warmup=4, final_fraction=0.1, schedule=SCHEDULES[name]())
        rates = [made.rate(t, steps) for t in range(steps)]
        assert all(0 < rate <= 1 for rate in rates)
        if not made.schedule.rises:
            assert rates[: 4 if steps > 4 else 1] == [0.25, 0.5, 0.75, 1.0][: 4 if steps > 4 else 1]
        assert made.rate(10 * steps, steps) > 0, "past its end"


def test_inverse_root_is_vaswani_s() -> None:
    made = AdamW(learning_rate=1.0, warmup=40, schedule=InverseRoot())
    due = [min((t + 1) ** -0.5, (t + 1) * 40**-1.5) * 40**0.5 for t in range(200)]
    assert [made.rate(t, 10**6) for t in range(200)] == pytest.approx(due, rel=1e-12)


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("several", "schedule_free")])
def test_every_optimizer_follows_a_schedule(name: str) -> None:
    halved = replace(OPTIMIZERS[name](), learning_rate=0.01, warmup=0, schedule=StepRate(milestones="3", factor=0.5))  # type: ignore[type-var]
    plain = replace(halved, schedule=ConstantRate())
    torch.testing.assert_close(eager(halved, steps=3)[0], eager(plain, steps=3)[0], rtol=1e-6, atol=1e-7)
    assert (eager(halved, steps=4)[0] - eager(plain, steps=4)[0]).abs().max() > 1e-4
    moved = eager(halved, steps=1)[0] - LAYOUT.shards(start())[0]
    slow = replace(halved, schedule=StepRate(milestones="0", factor=0.5))
    again = eager(slow, steps=1)[0] - LAYOUT.shards(start())[0]
    torch.testing.assert_close(again, moved / 2, rtol=1e-3, atol=1e-6)


def test_rate_warms_up_then_decays_to_its_fraction() -> None:
    inner = AdamW(learning_rate=1.0, warmup=4, final_fraction=0.1)
    rates = [inner.rate(s, 40) for s in range(40)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert 0.1 <= rates[-1] < 0.11


def test_a_schedule_is_named_in_a_description_and_its_warm_up_stands_beside_it() -> None:
    given: dict[str, Any] = {"warmup": 3, "schedule": {"name": "wsd", "decay": 0.5}}
    made: Any = strategy_of({"inner": given})
    assert made.inner == AdamW(warmup=3, schedule=StableDecay(decay=0.5))
    assert made.to_dict()["inner"]["schedule"] == {"name": "wsd", "length": 0, "decay": 0.5, "form": "linear"}
    for wrong, hint in (
        ({"name": "wsd", "warmup": 3}, "[strategy.inner]"),
        ({"name": "cosinus"}, "cosine"),
        ({"name": "wsd", "form": "root"}, "sqrt"),
        ({"name": "step", "milestones": "ten"}, "3000 6000"),
        ({"name": "linear", "length": -1}, "rounds times inner_steps"),
    ):
        with pytest.raises(UsageError) as refused:
            strategy_of({"inner": {"schedule": wrong}})
        assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("strategy", "rounds", "figure"),
    [
        (
            DiLoCo(inner_steps=5, inner=AdamW(warmup=1000)),
            2,
            "inner.warmup is 1000, and there are 10 steps: .* 3.0e-05",
        ),
        (DiLoCo(inner_steps=5, inner=AdamW(restart_warmup=9)), 9, "restart_warmup is 9, .* every 5 steps: .* 1.5e-03"),
        (DiLoCo(inner_steps=5, inner=ScheduleFree(warmup=50)), 90, "inner.warmup is 50, and there are 5 steps"),
        (
            DiLoCo(inner_steps=5, inner=Several(Members((("*", PacedPart(Lion(), every=5)),)))),
            9,
            r"inner.\*: warmup is 10",
        ),
        (strategy_of({"name": "allreduce"}), 5, "outer.warmup is 10, and there are 5 steps"),
        (strategy_of({"name": "onebit"}), 5, "^warmup is 10, and there are 5 steps"),
        (DiLoCo(inner_steps=5, inner=AdamW(warmup=10)), 2, ""),
        (DiLoCo(inner_steps=5, inner=AdamW(warmup=99, schedule=OneCycle())), 2, ""),
    ],
)
def test_a_warm_up_that_a_job_is_too_short_for_is_told(strategy: Any, rounds: int, figure: str) -> None:
    said = strategy.warnings(rounds)
    assert bool(said) == bool(figure)
    assert not figure or re.search(figure, said[0])


# -- groups


def decayless(parameter: str) -> bool:
    return len(SHAPES[parameter]) < 2


GROUPS = Groups.of({"embed.*": {"learning_rate": 1e-3, "weight_decay": 0.3}, "*.bias": {"learning_rate": 6e-3}})


def grouped(p: list[Any]) -> torch.optim.Optimizer:
    """torch's AdamW with the same groups."""
    for group in p:
        group["weight_decay"] = 0.0 if decayless(group["name"]) else 0.1
        if group["name"] == "embed.weight":
            group |= {"lr": 1e-3, "weight_decay": 0.3}
        if group["name"] == "head.bias":
            group["lr"] = 6e-3
    return torch.optim.AdamW(p, 3e-3, (0.9, 0.95))


@pytest.mark.parametrize("restart", [None, STEPS])
@pytest.mark.parametrize("shards", [1, 2])
def test_groups_are_torch_s_groups(restart: int | None, shards: int) -> None:
    made, layout = AdamW(clip=1e30, decayed="matrices", groups=GROUPS, **STEADY), laid_out(shards)
    found = layout.split(*eager(made, layout, restart=restart))
    assert apart(torch.cat([found[n].reshape(-1) for n in SHAPES]), wide(torch_s(grouped))) < 1e-6


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n != "several"])
def test_every_optimizer_has_groups(name: str) -> None:
    """One whose groups say what it says itself is it; a rate of zero leaves a parameter as it is."""
    plain: Any = replace(OPTIMIZERS[name](), learning_rate=0.01, weight_decay=0.1)  # type: ignore[type-var]
    same = Groups.of({"head.*": {"learning_rate": 0.01, "weight_decay": 0.1}})
    torch.testing.assert_close(
        eager(plain, steps=4)[0], eager(replace(plain, groups=same), steps=4)[0], rtol=1e-6, atol=1e-7
    )
    still = replace(plain, groups=Groups.of({"head.*": {"learning_rate": 0.0}}))
    found = LAYOUT.split(*eager(still, steps=4))
    kept = {n for n, x in found.items() if torch.equal(x, start()[n])}
    assert kept == {"head.weight", "head.bias"}
    hidden = replace(plain, weight_decay=0.2, decayed="hidden", groups=Groups.of({"conv.*": {"weight_decay": 0.0}}))
    of_heads = replace(plain, weight_decay=0.0, groups=Groups.of({"head.weight": {"weight_decay": 0.2}}))
    torch.testing.assert_close(eager(hidden, steps=4)[0], eager(of_heads, steps=4)[0])


def test_groups_of_a_description_are_read_in_order_and_refused_by_their_place() -> None:
    given = {"*.bias": {"weight_decay": 0}, "head.*": {"learning_rate": 1e-4}}
    made: Any = strategy_of({"inner": {"groups": given}})
    assert made.inner.groups == Groups.of(given)
    said = made.to_dict()["inner"]["groups"]
    assert said == [{"pattern": "*.bias", "weight_decay": 0}, {"pattern": "head.*", "learning_rate": 1e-4}]
    assert strategy_of({"inner": {"groups": said}}) == made
    for wrong, place in (
        ({"*.bias": 3}, 'strategy.inner.groups."*.bias" is 3'),
        ({"*.bias": {"decay": 0.0}}, "nothing is called 'decay'"),
        ({"*.bias": {"weight_decay": "none"}}, "weight_decay is 'none'"),
        ({"*.bias": {"weight_decay": -1.0}}, "weight_decay is -1.0"),
    ):
        with pytest.raises(UsageError) as refused:
            strategy_of({"inner": {"groups": wrong}})
        assert place in refused.value.message
        assert refused.value.hint
    with pytest.raises(UsageError, match="'nom' names no parameter") as refused:
        AdamW(groups=Groups.of({"nom": {"weight_decay": 0.0}})).over(4, 4, LAYOUT)
    assert "norm.weight" in refused.value.hint


# -- clipping


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n not in ("several", "muon")])
def test_every_optimizer_clips(name: str) -> None:
    plain: Any = replace(OPTIMIZERS[name](), clip=1e30)  # type: ignore[type-var]
    layout = LAYOUT
    for clipped, cut in (
        (replace(plain, clip=0.5), lambda g: g * min(1.0, 0.5 / (float(g.norm()) + 1e-6))),
        (replace(plain, clip_value=0.25), lambda g: g.clamp(-0.25, 0.25)),
    ):
        ends = []
        for optimizer, before in ((clipped, lambda g: g), (plain, cut)):
            rule = optimizer.over(5, None, layout)
            p = layout.shards(start())
            state = [torch.zeros_like(x) for x in rule.init(p, ZERO)]
            for t in range(5):
                grad = before(layout.shards(gradients(t))[0])
                state, p = rule.update(state, torch.tensor(t, dtype=torch.int32), p, [grad])
            ends.append(p[0])
        torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


# -- several


def test_parts_are_their_optimizers_each_at_its_pace() -> None:
    lion, adafactor = Lion(1e-3, **STEADY), Adafactor(**STEADY)
    made = Several(
        Members((("*", PacedPart(lion)), ("*.weight", PacedPart(adafactor)), ("head.*", PacedPart(AdamW(), 5))))
    )
    of_names: dict[str, Any] = {"scale": lion, "norm.weight": adafactor, "conv.weight": adafactor}
    alone = {name: LAYOUT.split(*eager(of, steps=10))[name] for name, of in of_names.items()}
    for shards in (1, 2):
        layout = laid_out(shards)
        found = layout.split(*eager(made, layout, steps=10))
        for name, due in alone.items():
            torch.testing.assert_close(found[name], due)
        assert not torch.equal(found["head.bias"], start()["head.bias"])


@pytest.mark.parametrize("restart", [None, 10])
def test_a_part_moves_once_in_so_many_steps(restart: int | None) -> None:
    """As a generator does after n steps of its critic: with the gradient of the n-th."""
    every, lone = 5, Layout((Parameter("x", 0, (3,)),), (3,))
    inner = AdamW(clip=1e30, warmup=2)
    made = Several(Members((("x", PacedPart(inner, every)),)))
    slow, fast = made.over(50, restart, lone), inner.over(10, None if restart is None else 2, lone)
    x, y = [torch.ones(3)], [torch.ones(3)]
    state, held = ([torch.zeros_like(s) for s in rule.init(x, ZERO)] for rule in (slow, fast))
    for t in range(50):
        if restart and t % restart == 0:
            state, held = [torch.zeros_like(s) for s in state], [torch.zeros_like(s) for s in held]
        grad, before = [torch.full((3,), 1.0 + t)], x[0]
        state, x = slow.update(state, torch.tensor(t, dtype=torch.int32), x, grad)
        if t % every == every - 1:
            held, y = fast.update(held, torch.tensor(t // every, dtype=torch.int32), y, grad)
            assert not torch.equal(before, x[0])
        assert torch.equal(x[0], y[0]), t


def test_parts_are_described_by_patterns() -> None:
    parts = {"*": {"name": "lion"}, "generator.*": {"name": "adamw", "every": 5, "beta1": 0.5}}
    made: Any = strategy_of({"inner": {"name": "several", "parts": parts}, "inner_steps": 20})
    assert made.inner.parts.rows[1] == ("generator.*", PacedPart(AdamW(beta1=0.5), 5))
    assert strategy_of({k: v for k, v in made.to_dict().items() if k != "wire"}) == made
    for wrong, place, hint in (
        ({"*": {"name": "lionn"}}, 'strategy.inner.parts."*".name', "lion"),
        ({"*": {"every": 0}}, "every is 0", "at least 1"),
        ({"*": {"every": "5"}}, "every is '5'", "int"),
        ({"*": {"betta1": 0.5}}, "betta1", "beta1"),
        ({}, "has no parts", "adamw"),
        ("*", "strategy.inner.parts is '*'", "tables"),
    ):
        with pytest.raises(UsageError) as refused:
            strategy_of({"inner": {"name": "several", "parts": wrong}})
        assert place in refused.value.message
        assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("parts", "restart", "message"),
    [
        ({"head.*": PacedPart(Lion())}, None, "no part of several updates embed.weight"),
        ({"*": PacedPart(Lion()), "critic.*": PacedPart(Lion())}, None, "'critic.*' names no parameter"),
        ({"*": PacedPart(Lion(), 3)}, 10, "every is 3, and memory restarts every 10 steps"),
    ],
)
def test_parts_that_cannot_be_are_refused(parts: dict[str, PacedPart], restart: int | None, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Several(Members(tuple(parts.items()))).over(20, restart, LAYOUT)
    assert message in refused.value.message
    assert refused.value.hint


# -- what is sent


def test_schedule_free_sends_its_average() -> None:
    rule, y = ScheduleFree().over(STEPS, None, LAYOUT), LAYOUT.shards(start())
    state, z = [torch.zeros_like(s) for s in rule.init(y, ZERO)], [y[0].double()]
    average: Sequence[Tensor] = z
    total = 0.0
    for t in range(STEPS):
        grad = [LAYOUT.shards(gradients(t))[0]]
        state, y = rule.update(state, torch.tensor(t, dtype=torch.int32), y, grad)
        z = [y[0].double() + state[0].double()]
        part = 1 - 0.999 ** (t + 1)
        total += part
        average = [(1 - part / total) * average[0] + part / total * z[0]]
    assert rule.sent is not None
    torch.testing.assert_close(rule.sent(state, y)[0].double(), average[0], rtol=1e-5, atol=1e-6)


# -- AdamW


def test_table_restarts_the_bias_correction_every_round() -> None:
    inner = AdamW(learning_rate=1.0, warmup=0, final_fraction=1.0, weight_decay=0.5, restart_warmup=1)
    table = inner.table(6, restart=3)
    assert table.shape == (6, 3)
    assert table[:3].tolist() == table[3:].tolist()
    assert table[:, 0].tolist() == [0.75, 0.5, 0.5] * 2, "half the rate in the first step of a round"
    assert abs(table[0, 1] - 0.5 / (1 - 0.9)) < 1e-6
    assert abs(table[2, 2] - (1 - 0.95**3) ** -0.5) < 1e-6


@pytest.mark.parametrize("wrong", [{"beta1": 1.0}, {"beta2": -0.1}, {"learning_rate": 0.0}, {"clip": 0.0}])
def test_values_that_cannot_train_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError):
        AdamW(**wrong)


def test_strategy_describes_itself_completely() -> None:
    described = DiLoCo(inner=AdamW(learning_rate=0.5)).to_dict()
    assert described["name"] == "diloco"
    assert described["inner"]["learning_rate"] == 0.5
    assert set(described) >= {"inner_steps", "payload", "outer_learning_rate", "outer_momentum"}
