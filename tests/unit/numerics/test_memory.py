"""The memory of a planned step: what need not wait in it, in bytes of the arena; the bits are those of the ops."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Quantised, Tensor
from lockstep.numerics.built import COMPILED, kernels
from lockstep.protocol.programs.program import F32, I32, Program
from tests.unit.numerics.comparison import compare, normal, strange
from tests.unit.numerics.test_fusion_random import check_program

pytestmark = pytest.mark.skipif(not COMPILED, reason="the portable kernels fuse nothing")

STREAM = 1 << 31
SMALL = 32 << 10
"""Bytes: what lies beside the tensors that a test is about."""


def arena(program: Program) -> int:
    """Bytes of the arena of a plain run."""
    constants = [c.header.elements for c in program.consts]
    return kernels.bytes_of_run(program.header, list(program.descriptors), constants)[0]


def distance(b: ProgramBuilder, x: Tensor, ops: int) -> Tensor:
    """As many small ops, each reading the one before: what is read on both sides of them waits long."""
    for _ in range(ops):
        x = b.map(x.shape, [x], lambda e, v: e.fneg(v))
    return x


def turned(b: ProgramBuilder, x: Tensor) -> Tensor:
    """A transposed copy, as a product along the other axis reads it."""
    n = len(x.shape)
    axes = (*range(n - 2), n - 1, n - 2)
    return b.map([x.shape[a] for a in axes], [x.permute(*axes)], name="turned")


def times(e: Expression, x: int, y: int) -> None:
    e.fmul(x, y)


# --- planned figures ---------------------------------------------------------------------------------------


def test_outputs_lie_without_gaps_where_that_is_possible() -> None:
    """4, 4 and then 5 units, of which two are held at a time: taken in their order they would need 13."""
    unit = 1 << 14
    b = ProgramBuilder([(F32, 5 * unit), (F32, 4 * unit)])
    first = b.map((4 * unit,), [b.input(0).slice(0, 0, 4 * unit)], lambda e, x: e.fneg(x))
    low = b.min(first)
    second = b.map((4 * unit,), [b.input(1), low], lambda e, x, y: e.fadd(x, y))
    top = b.max(first)
    third = b.map((5 * unit,), [b.input(0), top], lambda e, x, y: e.fsub(x, y))
    program = b.finish([b.max(second), b.min(third)])
    assert arena(program) <= 9 * unit * 4 + SMALL, f"{arena(program) / unit / 4:.2f} units"
    rng = np.random.default_rng(0)
    compare(program, [normal(rng, 5 * unit), normal(rng, 4 * unit)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["normal", "strange"])
def test_a_loss_over_a_product_of_codes_holds_logits_and_their_gradient(what: str) -> None:
    """Neither the logits less their maximum, nor exponentials, nor a one-hot matrix is in memory."""
    T, V, D = 96, 640, 32
    b = ProgramBuilder([(F32, T * D), (F32, V * D), (I32, T), (F32, 1)])
    x, table = b.quant(b.input(0).reshape(T, D), 8), b.quant(b.input(1).reshape(V, D), 8)
    logits = b.qdot(x.unsqueeze(1), table, name="logits")
    top = b.max(logits)
    less = b.map((T, V), [logits, top.unsqueeze(1)], lambda e, s, m: e.fsub(s, m))
    raised = b.map((T, V), [less], lambda e, s: e.fexp(s))
    log = b.map((T,), [b.sum(raised)], lambda e, s: e.flog(s))
    share, target = b.input(3).expand(T, V), b.input(2).unsqueeze(1)

    def one_hot(e: Expression, j: int, t: int, share: int) -> None:
        e.select(e.ieq(j, t), share, e.f32(0.0))

    hot = b.map((T, V), [b.iota((T, V), 1), target, share], one_hot, dtype=F32)
    mass = b.sum(hot)

    def gradient(e: Expression, h: int, s: int, log: int, mass: int) -> None:
        e.fsub(h, e.fmul(e.fexp(e.fsub(s, log)), mass))

    grad = b.map((T, V), [hot, less, log.unsqueeze(1), mass.unsqueeze(1)], gradient, dtype=F32, name="gradient")
    codes = b.quant(grad, 64, STREAM)
    program = b.finish([codes.codes, codes.scales])
    assert arena(program) <= 2 * T * V * 4 + SMALL, f"{arena(program) / T / V / 4:.2f} tensors"
    rng = np.random.default_rng(1)
    data = normal if what == "normal" else strange
    targets = rng.integers(0, V, T).astype(np.int32)
    compare(program, [data(rng, T * D), data(rng, V * D), targets, normal(rng, 1)])


@pytest.mark.slow
def test_what_quants_alone_read_late_waits_as_codes() -> None:
    """Six tensors of which the forward reads rows and the backward columns, as a linear layer's inputs."""
    R, C, layers = 64, 256, 6
    b = ProgramBuilder([(F32, R * C * layers), (F32, C * 8)])
    inputs = b.input(0).reshape(layers, R, C)
    weights = b.quant(b.input(1).reshape(8, C))
    saved, made = [], []
    for layer in range(layers):
        x = inputs.slice(0, layer, layer + 1)._with((R, C), (C, 1))
        saved.append(b.map((R, C), [x], lambda e, v: e.ftanh(v), name=f"x{layer}"))
        made.append(b.qdot(b.quant(saved[-1]).unsqueeze(1), weights, name="forward"))
    late = distance(b, b.max(made[-1]), 20)
    for x, y in zip(reversed(saved), reversed(made), strict=True):
        gradient = b.map((8, R), [y.permute(1, 0), late], times)
        made.append(b.qdot(b.quant(gradient, 16, STREAM).unsqueeze(1), b.quant(turned(b, x), 16), name="backward"))
    program = b.finish([*made[layers:], b.min(late)])
    assert arena(program) <= (layers / 4 + 1.5) * R * C * 4 + SMALL, f"{arena(program) / R / C / 4:.2f} tensors"
    rng = np.random.default_rng(2)
    compare(program, [strange(rng, R * C * layers), normal(rng, C * 8)] + [None] * (len(program.inputs) - 2))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("reads", [1, 2])
def test_a_cheap_map_of_what_waits_anyway_is_computed_again(reads: int) -> None:
    """A normalisation's output before and after its gain, or the product of two that wait."""
    R, C, layers = 64, 128, 6
    b = ProgramBuilder([(F32, R * C * layers * 2), (F32, C)])
    inputs = b.input(0).reshape(layers, 2, R * C)
    gain = b.input(1).unsqueeze(0).expand(R, C)

    def part(layer: int, which: int) -> Tensor:
        x = inputs.slice(0, layer, layer + 1).slice(1, which, which + 1)._with((R, C), (C, 1))
        return b.map((R, C), [x], lambda e, v: e.fexp(v))

    saved, outputs = [], []
    for layer in range(layers):
        x = part(layer, 0)
        y = part(layer, 1) if reads == 2 else gain
        saved.append((x, y, b.map((R, C), [x, y], times, name="again")))
        outputs.append(b.max(saved[-1][2]))
    last = distance(b, outputs[-1], 80)
    for x, y, again in reversed(saved):
        last = b.map((R, C), [again, last.unsqueeze(1)], times, name="late")
        outputs += [b.dot(last, x), b.dot(last, y)]
        last = b.max(last)
    program = b.finish(outputs)
    assert arena(program) <= (reads * layers + 3) * R * C * 4 + SMALL, f"{arena(program) / R / C / 4:.2f} tensors"
    rng = np.random.default_rng(3)
    compare(program, [strange(rng, R * C * layers * 2), normal(rng, C)])


class Attention:
    """Heads of T queries and keys of width D: probabilities from a product of codes, then what a gradient reads."""

    def __init__(self, b: ProgramBuilder, x: Tensor, name: str) -> None:
        self.b, self.name = b, name
        self.heads, _, self.T, self.D = x.shape
        self.x, self.shape = x, (self.heads, self.T, self.T)
        q, k, v = (self.part(i) for i in range(3))
        scores = b.qdot(b.quant(q, 4).unsqueeze(2), b.quant(k, 4).unsqueeze(1), name=f"{name}.scores")

        def mask(e: Expression, s: int, i: int, j: int) -> None:
            e.select(e.ilt(i, j), e.f32(float("-inf")), e.fmul(s, e.f32(0.25)))

        s = b.map(self.shape, [scores, b.iota(self.shape, 1), b.iota(self.shape, 2)], mask, dtype=F32)
        top = b.max(s).unsqueeze(2)
        raised = b.map(self.shape, [s, top], lambda e, x, m: e.fexp(e.fsub(x, m)))
        total = b.sum(raised).unsqueeze(2)
        self.p = b.map(self.shape, [raised, total], lambda e, x, t: e.fdiv(x, t), name=f"{name}.p")
        self.y = self.product(b.quant(self.p, 16), b.quant(turned(b, v), 16), "values")

    def part(self, i: int) -> Tensor:
        return self.x.slice(1, i, i + 1)._with((self.heads, self.T, self.D), (self.x.strides[0], self.D, 1))

    def product(self, a: Quantised, c: Quantised, name: str) -> Tensor:
        return self.b.qdot(a.unsqueeze(2), c.unsqueeze(1), name=f"{self.name}.{name}")

    def gradients(self, g: Tensor) -> list[Tensor]:
        """Of v and of q."""
        b = self.b
        of_v = self.product(b.quant(turned(b, self.p), 16), b.quant(turned(b, g), 16, STREAM), "gradient of v")
        of_p = self.product(b.quant(g, 4, STREAM), b.quant(self.part(2), 4), "gradient of p")
        mass = b.dot(of_p, self.p).unsqueeze(2)

        def of_softmax(e: Expression, p: int, g: int, m: int) -> None:
            e.fmul(p, e.fsub(g, m))

        of_s = b.map(self.shape, [self.p, of_p, mass], of_softmax)
        return [of_v, self.product(b.quant(of_s, 16, STREAM), b.quant(turned(b, self.part(1)), 16), "gradient of q")]


def attentions(heads: int, T: int, D: int, layers: int) -> Program:
    """Layers of attention, and their gradients in reverse."""
    size = heads * 3 * T * D
    b = ProgramBuilder([(F32, size * layers), (F32, heads * T * D)])
    x = [b.input(0).slice(0, i * size, (i + 1) * size).reshape(heads, 3, T, D) for i in range(layers)]
    made = [Attention(b, b.map((heads, 3, T, D), [part], lambda e, v: e.fneg(v)), f"{i}") for i, part in enumerate(x)]
    late = distance(b, b.max(made[-1].y), 70)
    g = b.input(1).reshape(heads, T, D)
    outputs = [attention.y for attention in made]
    for attention in reversed(made):
        outputs += attention.gradients(b.map((heads, T, D), [g, late.unsqueeze(2)], times))
    return b.finish(outputs)


@pytest.mark.slow
@pytest.mark.parametrize(("heads", "T", "D"), [(12, 128, 16), (8, 67, 12)])
def test_probabilities_wait_in_no_layer(heads: int, T: int, D: int) -> None:
    """They are computed again. A further layer keeps its inputs' codes: a quarter of its probabilities at most."""
    one, three = (arena(attentions(heads, T, D, layers)) for layers in (1, 3))
    assert three - one < 2 * heads * T * T, f"{(three - one) / 2 / heads / T / T / 4:.2f} of a layer's"
    rng = np.random.default_rng((heads, T))
    program = attentions(heads, T, D, 2)
    state: list[Array | None] = [normal(rng, heads * 3 * T * D * 2), normal(rng, heads * T * D)]
    compare(program, state + [None] * (len(program.inputs) - 2))


# --- random graphs -----------------------------------------------------------------------------------------


class Network:
    """Layers of random ops, then what reads their tensors again, in a random order and by random readers."""

    R, C, WORDS = 64, 128, 1 << 17

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = ProgramBuilder([(F32, self.WORDS), (F32, self.WORDS)])
        self.saved: list[Tensor] = []
        self.attentions: list[Attention] = []
        self.outputs: list[Tensor] = []
        self.x = self.leaf()

    def leaf(self) -> Tensor:
        size = self.R * self.C
        at = self.rng.randrange(self.WORDS // size)
        return self.b.input(self.rng.randrange(2)).slice(0, at * size, (at + 1) * size).reshape(self.R, self.C)

    def any(self) -> Tensor:
        return self.rng.choice([self.x, *self.saved[-3:]])

    def save(self, x: Tensor) -> None:
        self.saved.append(x)
        if self.rng.random() < 0.7:
            self.x = x

    def scale(self) -> None:
        gain = self.leaf().slice(0, 0, 1).expand(self.R, self.C) if self.rng.random() < 0.5 else self.any()
        self.save(self.b.map((self.R, self.C), [self.any(), gain], times))

    def activation(self) -> None:
        curved = self.b.map((self.R, self.C), [self.any()], lambda e, v: e.ftanh(v))
        self.saved.append(curved)
        self.save(self.b.map((self.R, self.C), [self.any(), curved], lambda e, x, y: e.ffma(x, y, x)))

    def linear(self) -> None:
        rows, columns = (self.b.quant(x, self.rng.choice((4, 16, 32))) for x in (self.any(), self.any()))
        if rows.words == columns.words:
            product = self.b.qdot(rows.unsqueeze(1), columns)
            self.outputs.append(self.b.max(product))
        else:
            self.outputs += [rows.codes, columns.scales]

    def attend(self) -> None:
        heads, T, D = 8, 64, self.rng.choice((4, 8))
        x = self.b.input(self.rng.randrange(2)).slice(0, 0, heads * 3 * T * D).reshape(heads, 3, T, D)
        made = Attention(self.b, self.b.map(x.shape, [x], lambda e, v: e.fneg(v)), f"{len(self.attentions)}")
        self.attentions.append(made)
        self.outputs.append(made.y)

    def late(self) -> None:
        """One reader of a tensor of the layers."""
        b, x = self.b, self.rng.choice(self.saved)
        which = self.rng.randrange(5)
        if which == 0:
            codes = b.quant(turned(b, x), 16, self.rng.choice((0, STREAM)))
            self.outputs.append(b.qdot(codes.unsqueeze(1), b.quant(turned(b, self.leaf()), 16)))
        elif which == 1:
            self.outputs.append(b.dot(x, self.any()))
        elif which == 2:
            self.x = b.map((self.R, self.C), [x, self.x], times)
            self.outputs.append(b.max(self.x))
        elif which == 3:
            self.outputs.append(b.sum(b.map((self.C, self.R), [x.permute(1, 0), self.leaf().permute(1, 0)], times)))
        else:
            self.outputs.append(b.dot(x.unsqueeze(1), self.leaf()))

    def program(self) -> Program:
        pick, rng = self.rng.choices, self.rng
        steps: list[Callable[[], None]] = [self.scale, self.activation, self.linear, self.attend]
        self.scale()
        for _ in range(rng.randint(3, 9)):
            pick(steps, (4, 2, 2, 1))[0]()
        self.outputs.append(distance(self.b, self.b.max(self.any()), rng.choice((5, 20, 70, 70))))
        for attention in reversed(self.attentions):
            g = attention.part(rng.randrange(3))
            self.outputs += attention.gradients(self.b.map(g.shape, [g], lambda e, v: e.fmul(v, e.f32(0.5))))
        for _ in range(rng.randint(3, 12)):
            self.late()
        kept = [x for x in self.saved if rng.random() < 0.1]
        return self.b.finish([*kept, *(x for x in self.outputs[:-2] if rng.random() < 0.9), *self.outputs[-2:]])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 30, 3))
def test_random_networks_give_the_bits_of_their_ops(first: int) -> None:
    for seed in range(first, first + 3):
        program = Network(seed).program()
        rng = np.random.default_rng(seed)
        state: list[Array | None] = [(normal, strange)[seed % 4 == 3](rng, Network.WORDS) for _ in range(2)]
        check_program(program, state, rng, f"seed {seed}")


@pytest.mark.slow
def test_many_random_networks_and_compiled_ones() -> None:
    for seed in range(1000, 1600):
        program, rng = Network(seed).program(), np.random.default_rng(seed)
        state: list[Array | None] = [(normal, strange)[seed % 4 == 3](rng, Network.WORDS) for _ in range(2)]
        check_program(program, state, rng, f"seed {seed}", fused="require" if seed < 1020 else "off")
