"""Quants, and attention in products of codes, as the executor runs them together: the bits of the ops, one by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Quantised, Tensor
from lockstep.numerics.built import COMPILED
from lockstep.protocol.programs.program import F32, I32, Program
from tests.unit.numerics.comparison import CONTEXT, PATHS, compare, normal, strange

ROOT = Path(__file__).parents[3]
STREAM = 1 << 31


def unused(program: Program, state: list[Array | None]) -> list[str]:
    """Names of the ops that have no step of their own in a plain run."""
    spent = paths.compile(program).profile(state, CONTEXT)
    return [program.name_of(i) for i, nanoseconds in enumerate(spent) if nanoseconds == 0]


def rest(b: ProgramBuilder, x: Tensor, q: Quantised, name: str, *, minus: bool = True) -> Tensor:
    """x [rows, K] - codes x scales, as the tracer writes it; K is whole groups."""
    rows, terms = x.shape
    shape = (rows * q.groups, q.words, 4)
    lanes = q.codes.reshape(*shape[:2]).unsqueeze(2).expand(*shape)
    up = b.iota((4,), 0, 24, -8).expand(*shape)
    scales = q.scales.reshape(shape[0]).unsqueeze(1).unsqueeze(1).expand(*shape)

    def expression(e: Expression, x: int, code: int, up: int, scale: int) -> None:
        value = e.fmul(e.i2f(e.ishr(e.ishl(code, up), e.i32(24))), scale)
        e.fsub(x, value) if minus else e.fsub(value, x)

    return b.map(shape, [x.reshape(*shape), lanes, up, scales], expression, dtype=F32, name=name).reshape(rows, terms)


def two_limbs(b: ProgramBuilder, x: Tensor, words: int, stream: int, name: str) -> tuple[Quantised, Quantised]:
    high = b.quant(x, words, name=f"{name}.high")
    return high, b.quant(rest(b, x, high, f"{name}.rest"), words, stream, name=f"{name}.low")


def joined(b: ProgramBuilder, parts: list[Quantised], name: str) -> Quantised:
    codes = b.concat([p.codes for p in parts], 1, f"{name}.codes")
    return Quantised(codes, b.concat([p.scales for p in parts], 1, f"{name}.scales"), parts[0].words)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("what", ["normal", "strange"])
@pytest.mark.parametrize(
    ("rows", "columns", "groups", "words"),
    [(5, 33, 1, 64), (37, 20, 3, 16), (9, 16, 2, 2), (3, 8, 2, 1), (70, 3, 1, 4)],
)
def test_two_limbs_of_a_tensor_and_of_its_transpose(
    what: str, rows: int, columns: int, groups: int, words: int
) -> None:
    """The limbs of x along its rows, and of y, which lies transposed: what they leave need not be in memory."""
    K = 4 * words * groups
    rng = np.random.default_rng((rows, columns, groups, words))
    b = ProgramBuilder([(F32, rows * K), (F32, K * columns)])
    x = b.input(0).reshape(rows, K)
    y = b.map((columns, K), [b.input(1).reshape(K, columns).permute(1, 0)], name="transposed")
    (high_x, low_x), (high_y, low_y) = (
        two_limbs(b, t, words, STREAM + i, n) for i, (t, n) in enumerate(((x, "x"), (y, "y")))
    )
    left, right = joined(b, [high_x, high_x, low_x], "left"), joined(b, [high_y, low_y, high_y], "right")
    out = b.qdot(left.unsqueeze(1), right, name="product")
    program = b.finish([out])
    data = normal if what == "normal" else strange
    state = [data(rng, rows * K), data(rng, K * columns)]
    state += [None] * (len(program.inputs) - len(state))
    compare(program, state)
    also_read = b.finish([out, low_x.scales, high_y.codes, None])
    compare(also_read, state)


REASONS = ("kept", "read elsewhere", "other terms", "exchanged")
"""Why what the first limb leaves is needed by somebody besides the second."""


def program_with_a_rest(reason: str) -> Program:
    """A Program of two limbs whose rest is needed for one of `REASONS`."""
    rows, K, words = 6, 128, 16
    b = ProgramBuilder([(F32, rows * K)])
    x = b.input(0).reshape(rows, K)
    high = b.quant(x, words, name="high")
    left = rest(b, x, high, "rest", minus=reason != "exchanged")
    low = b.quant(left, words // 2 if reason == "other terms" else words, STREAM, name="low")
    outputs = [high.codes, low.codes, low.scales]
    whole = left.reshape(rows * K // (4 * words), words, 4)
    outputs.append(whole if reason == "kept" else b.max(left) if reason == "read elsewhere" else high.scales)
    return b.finish(outputs)


@pytest.mark.parametrize("reason", REASONS)
def test_what_the_limbs_leave_is_in_memory_where_somebody_reads_it(reason: str) -> None:
    program = program_with_a_rest(reason)
    state: list[Array | None] = [normal(np.random.default_rng(1), 6 * 128)]
    state += [None] * (len(program.inputs) - len(state))
    compare(program, state)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("terms", [4, 100, 259, 384, 1021])
def test_padding_is_multiplied_by_nobody_and_changes_no_bit(terms: int) -> None:
    """One group, the last of several, a concatenation's parts; an infinity in one row poisons that row."""
    rows, columns = 19, 35
    rng = np.random.default_rng(terms)
    b = ProgramBuilder([(F32, rows * terms), (F32, columns * terms)])
    x, y = b.quant(b.input(0).reshape(rows, terms)), b.quant(b.input(1).reshape(columns, terms), stream=STREAM)
    outputs = [
        b.qdot(x.unsqueeze(1), y, name="plain"),
        b.qdot(joined(b, [x, x], "left").unsqueeze(1), joined(b, [y, y], "right"), name="twice"),
    ]
    left = normal(rng, rows * terms)
    left[terms // 2] = np.inf
    compare(b.finish(outputs), [left, normal(rng, columns * terms)], budget=2000)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("terms", "quantised", "multiplied"), [(100, 64, 2), (20, 4, 2), (12, 2, 1), (12, 2, 4), (5, 1, 2), (4100, 64, 16)]
)
def test_groups_of_another_size_have_their_padding_elsewhere(terms: int, quantised: int, multiplied: int) -> None:
    """Anybody's Program may multiply codes in other groups than those that they were made in, with any scales."""
    rows, columns = 5, 19
    rng = np.random.default_rng((terms, multiplied))
    b = ProgramBuilder([(F32, rows * terms), (F32, columns * terms), (F32, 3000)])
    x, y = (b.quant(b.input(i).reshape(n, terms), quantised) for i, n in enumerate((rows, columns)))

    def regrouped(q: Quantised, rows: int, start: int) -> Quantised:
        groups = q.codes.shape[-1] // multiplied
        scales = b.input(2).slice(0, start, start + groups).unsqueeze(0).expand(rows, groups)
        return Quantised(q.codes, scales, multiplied)

    out = b.qdot(regrouped(x, rows, 0).unsqueeze(1), regrouped(y, columns, 1500), name="product")
    state = [normal(rng, rows * terms), normal(rng, columns * terms), normal(rng, 3000), None]
    compare(b.finish([out]), state)


LONG = """
import resource, numpy as np
from lockstep.numerics import paths
from lockstep.numerics.builder import ProgramBuilder, Quantised
from lockstep.protocol.programs.program import F32, I32
from tests.unit.numerics.comparison import CONTEXT
groups, words = 1 << 16, 64
b = ProgramBuilder([(I32, groups * words), (F32, groups)])
sides = [
    Quantised(b.input(0).unsqueeze(0).expand(n, groups * words), b.input(1).unsqueeze(0).expand(n, groups), words)
    for n in (14, 33)
]
executable = paths.compile(b.finish([b.qdot(sides[0].unsqueeze(1), sides[1])]), path="PATH", threads=1)
state = [np.zeros(groups * words, np.int32), np.ones(groups, np.float32)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = executable.run(state, CONTEXT)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not COMPILED, reason="the portable kernels have a bound of their own: test_portable.py")
@pytest.mark.parametrize("path", PATHS)
def test_the_longest_product_takes_no_memory_of_its_length(path: str) -> None:
    """Operands are packed a chain at a time: all of them would be 1 GiB for each thread, which no footprint has."""
    command = [sys.executable, "-c", LONG.replace("PATH", path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert int(done.stdout) < 64 << 10, f"{int(done.stdout) >> 10} MiB"


@pytest.mark.parametrize("groups", [256, 257, 512, 700])
def test_chains_of_groups_are_added_in_order(groups: int) -> None:
    """One chain, one group more, whole chains; -0 and NaN among their sums; more columns than a register tile."""
    rows, columns, words = 15, 37, 2
    rng = np.random.default_rng(groups)
    b = ProgramBuilder([(I32, rows * groups * words), (I32, columns * groups * words), (F32, columns * groups)])
    x, y = (b.input(i).reshape(n, groups * words) for i, n in enumerate((rows, columns)))
    scales = b.input(2).reshape(columns, groups)
    left = Quantised(x, scales.slice(0, 0, rows), words).unsqueeze(1)
    program = b.finish([b.qdot(left, Quantised(y, scales, words), name="product")])
    factors = normal(rng, columns * groups)
    factors[rng.integers(0, len(factors), 3)] = np.nan
    codes = [rng.integers(-(2**31), 2**31, n * groups * words).astype(np.int32) for n in (rows, columns)]
    codes[0][: groups * words] = 0
    compare(program, [*codes, factors, None], budget=3000)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("batches", "T", "width"), [(12, 64, 16), (9, 70, 8), (16, 67, 20)])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_a_head_at_a_time(batches: int, T: int, width: int, causal: bool) -> None:
    """Scores, softmax, values, and a product of the transposed probabilities."""
    rng = np.random.default_rng((batches, T, width, causal))
    n = batches * T * width
    b = ProgramBuilder([(F32, n), (F32, n), (F32, n), (F32, n)])
    q, k, v, g = (b.input(i).reshape(batches, T, width) for i in range(4))
    by_columns = [
        b.map((batches, width, T), [t.permute(0, 2, 1)], name=name) for t, name in ((v, "v by k"), (g, "g by k"))
    ]
    s = b.qdot(b.quant(q, 4).unsqueeze(2), b.quant(k, 4).unsqueeze(1), name="scores")
    shape = (batches, T, T)

    def masked(e: Expression, x: int, i: int, j: int) -> None:
        e.select(e.ilt(i, j), e.f32(float("-inf")), e.fmul(x, e.f32(0.25))) if causal else e.fmul(x, e.f32(0.25))

    s = b.map(shape, [s, b.iota(shape, 1), b.iota(shape, 2)], masked, dtype=F32, name="masked")
    top = b.max(s, name="top")
    p = b.map(shape, [s, top.unsqueeze(2).expand(*shape)], lambda e, x, m: e.fexp(e.fsub(x, m)), name="exp")
    total = b.sum(p, name="total")
    p = b.map(shape, [p, total.unsqueeze(2).expand(*shape)], lambda e, x, t: e.fdiv(x, t), name="p")
    turned = b.map(shape, [p.permute(0, 2, 1)], name="p by rows")
    outputs = [
        b.qdot(b.quant(p, 16).unsqueeze(2), b.quant(by_columns[0], 16).unsqueeze(1), name="values"),
        b.qdot(b.quant(turned, 16, STREAM).unsqueeze(2), b.quant(by_columns[1], 16).unsqueeze(1), name="gradient"),
    ]
    program = b.finish(outputs)
    state: list[Array | None] = [normal(rng, n) for _ in range(4)]
    compare(program, state)


def test_quants_of_one_tensor_are_one_step() -> None:
    """Beside the first quant of each operand nothing is run but the product."""
    rows, K = 64, 256
    b = ProgramBuilder([(F32, rows * K), (F32, rows * K)])
    limbs = [two_limbs(b, b.input(i).reshape(rows, K), 64, STREAM + i, name) for i, name in enumerate("xy")]
    (high_x, low_x), (high_y, low_y) = limbs
    left, right = joined(b, [high_x, high_x, low_x], "left"), joined(b, [high_y, low_y, high_y], "right")
    program = b.finish([b.qdot(left.unsqueeze(1), right, name="product")])
    state: list[Array | None] = [normal(np.random.default_rng(3), rows * K) for _ in "xy"]
    alone = {"x.high.codes", "y.high.codes", "product"}
    assert unused(program, state) == [
        program.name_of(i) for i in range(len(program.ops)) if program.name_of(i) not in alone
    ]
