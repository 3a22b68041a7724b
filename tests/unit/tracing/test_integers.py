"""Products of integers, traced at many shapes: every word as the reference has it, every value near float64's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics import reference
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.trace import layout_root, materialise
from lockstep.numerics.validate import validate
from lockstep.protocol.programs.program import CODES, Kind, Op, Program
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.training.baseline import Sample
from lockstep.training.job import Batch, build_programs
from lockstep.training.models import loss_of
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco
from tests.unit.tracing import wide
from tests.unit.tracing.test_arithmetic import run, step_of, traced
from tests.unit.training.test_models import INNER, NAMES, H, losses_beside, rows, small

CONTEXT = StepContext(wide.SEED, 0, 0, 1)
BOUNDS = {"int8": 3e-2, "int8x2": 4e-4}
"""The bound on a product's error, relative to its norm."""
SAMPLES = 4
"""Elements of each op that are computed in Python integers, beside its first and its last."""
EXTENTS = (1, 2, 3, 5, 8, 17)
TERMS = (1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 100, 127, 129, 255, 256, 257, 300, 513)
"""Terms of a product: below a group, at its end, beyond it; powers of two and their neighbours."""

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Shape = tuple[int, ...]


def of_codes(program: Program) -> list[tuple[int, Op]]:
    """The ops that quantise and that multiply codes."""
    return [(i, op) for i, op in enumerate(program.ops) if op.kind == Kind.QUANT or op.is_qdot]


def judged(
    program: Program, state: Sequence[Array | None], dataset: Array | None = None, context: StepContext = CONTEXT
) -> int:
    """Words of codes, scales and products that were compared with the reference; the new state must be the same
    whether each op's output is kept, or ops run as fast as they can."""
    state = [*state, *[None] * (len(program.inputs) - len(state))]
    executable = compile(program)
    step = materialise(executable, state, context, dataset)
    step.hold(frozenset(range(len(program.ops))))
    operands, random, compared = step.operands(), Random(0), 0
    for index, op in of_codes(program):
        found, last = step.output(index).words, op.header.elements - 1
        for element in {0, last, *(random.randint(0, last) for _ in range(SAMPLES))}:
            due = reference.element(op, element, operands)
            assert int(found[element]) == due, (index, op, element)
            compared += 1
    fast = executable.run(state, context, dataset)
    assert step.root == layout_root(program.output_layout, fast)
    return compared


def linear(random: Random) -> tuple[Function, Shape, Shape]:
    k, lead = random.choice(TERMS), tuple(random.choice(EXTENTS) for _ in range(random.randint(0, 2)))
    return F.linear, (*lead, random.choice(EXTENTS), k), (random.choice(EXTENTS), k)


def batched(random: Random) -> tuple[Function, Shape, Shape]:
    k, m, n = random.choice(TERMS), random.choice(EXTENTS), random.choice(EXTENTS)
    batch = tuple(random.choice((1, 2, 3)) for _ in range(random.randint(1, 2)))
    return torch.matmul, (*batch, m, k), (*batch, k, n)


def turned(random: Random) -> tuple[Function, Shape, Shape]:
    """As attention's scores: both operands have their heads between rows and terms."""
    shape = (random.choice((1, 2)), random.choice((2, 5, 9)), random.choice((1, 3)), random.choice((4, 16, 33, 64)))
    return lambda q, k: q.transpose(1, 2) @ k.transpose(1, 2).mT, shape, shape


def convolution(random: Random) -> tuple[Function, Shape, Shape]:
    """By windows: k is channels x kernel."""
    groups, kernel = random.choice((1, 1, 2)), random.choice((1, 2, 3))
    stride, padding, dilation = random.choice((1, 2)), random.choice((0, 1)), random.choice((1, 1, 2))
    channels, made = groups * random.choice((1, 3, 8)), groups * random.choice((1, 4))
    size = dilation * (kernel - 1) + random.choice((1, 3, 4))

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)

    return function, (random.choice((1, 2)), channels, size, size + 1), (made, channels // groups, kernel, kernel)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", BOUNDS)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [linear, batched, turned, convolution])
def test_products_of_any_shape(make: Callable[[Random], tuple[Function, Shape, Shape]], seed: int, form: str) -> None:
    random = Random(f"{make.__name__} {seed}")
    function, a, b = make(random)
    program = traced(function, a, b, Arithmetic("int8", {"*": form}))
    generator = np.random.default_rng(seed)
    state = [generator.standard_normal(i.shape[0]).astype(np.float32) for i in program.inputs if i is not None]
    assert judged(program, state) >= 3
    wanted = step_of(function, a, b)(*(torch.from_numpy(x).double() for x in state))
    values = zip(run(program, state), wide.run(program, state), (x.detach().numpy() for x in wanted), strict=False)
    for found, graph, due in values:
        for value in (found, graph):
            assert np.linalg.norm(value - due) <= BOUNDS[form] * np.linalg.norm(due), (a, b)


def test_shapes_of_every_sort_are_among_them() -> None:
    """Ragged groups, groups that are not full, several of them, rows of one code."""
    terms = {make(Random(f"{make.__name__} {seed}"))[1][-1] for make in (linear, batched) for seed in range(6)}
    assert min(terms) < CODES
    assert max(terms) > 256
    assert any(k > 64 and k % 64 for k in terms)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e30, 3e38])
def test_products_of_extreme_numbers_are_the_reference_s(scale: float) -> None:
    """Subnormal scales, sums beyond float32, rows of zeros."""
    program = traced(F.linear, (5, 300), (7, 300), Arithmetic("int8"))
    generator = np.random.default_rng(1)
    with np.errstate(all="ignore"):
        state = [
            (scale * generator.uniform(-1, 1, i.shape[0])).astype(np.float32) for i in program.inputs if i is not None
        ]
    state[0][:300] = 0
    assert judged(program, state) >= 3


@cache
def model_step(name: str, steps: int = H) -> tuple[Program, Array, Array]:
    """A model's step of integer products, its first parameters, its rows."""
    model, length = small(name)
    spec = diloco.DiLoCo(inner=INNER, inner_steps=steps)
    built = build_programs(
        model, loss_of(model), spec, batch=Batch(4, length), rounds=1, slots=2, arithmetic=Arithmetic("int8")
    )
    return built.step, initial_parameters(model, 1), rows(length)


def start(flat: Array) -> list[Array | None]:
    zero = np.zeros_like(flat)
    return [flat, None, flat, None, zero, zero, np.array(0, np.int32), None]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_every_word_of_a_model_s_step_is_the_reference_s(name: str) -> None:
    """A LoRA has the base's codes, which are constants, too; a CNN has windows."""
    program, flat, dataset = model_step(name)
    validate(program)
    assert len(of_codes(program)) >= 9
    assert judged(program, start(flat), dataset) >= 3 * len(of_codes(program)) - 3


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_twenty_steps_of_integers_end_near_torch_s_loss(name: str) -> None:
    program, flat, dataset = model_step(name)
    model, length = small(name)
    loss, batch = loss_of(model), Batch(4, length)
    step, state = compile(program), start(flat)
    sample = Sample(dataset, batch, wide.SEED)
    for t in range(1, H + 1):
        state = list(step.run(state, StepContext(wide.SEED, 0, 0, t), sample.rows))
    before, due, got = losses_beside(model, loss, flat, state[0], sample)
    assert got == pytest.approx(due, abs=0.03 * (before - due))
