"""The memory of a planned step: what need not wait in it, in bytes of the arena; the bits are those of the ops."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics.builder import Expression, ProgramBuilder, Tensor
from lockstep.numerics.built import COMPILED, kernels
from lockstep.protocol.programs.program import F32, I32, Program
from tests.unit.numerics.comparison import compare, normal, strange

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
