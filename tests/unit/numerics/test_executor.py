"""The native kernels: every path, thread count and ragged shape gives the reference's bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lockstep.numerics import paths, portable
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Quantised
from lockstep.numerics.built import COMPILED
from lockstep.numerics.executor import Executable
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import PayloadInvalid, ProgramInvalid, UsageError
from lockstep.protocol.programs.program import F32, I32, Instr, Kind, Op, Program, Tag, View
from tests.unit.numerics.comparison import CONTEXT, PATHS, compare, normal, strange, words

Data = Callable[[np.random.Generator, int], Array]
DATA = pytest.mark.parametrize("data", [normal, strange])
SHAPES = pytest.mark.parametrize(
    ("B", "M", "N", "K"),
    [(1, 5, 7, 3), (2, 16, 32, 256), (1, 14, 33, 257), (3, 29, 70, 100), (1, 100, 130, 513), (2, 1, 9, 300),
     (1, 3, 1, 600), (4, 17, 16, 17), (1, 130, 3, 40), (1, 33, 2, 1100)],
)  # fmt: skip


def rng_of(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# --- folds -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@DATA
@SHAPES
def test_matrix_products_give_the_reference_bits(data: Data, B: int, M: int, N: int, K: int) -> None:
    rng = rng_of(1, B, M, N, K)
    b = ProgramBuilder([(F32, B * M * K), (F32, B * N * K), (F32, K * N)])
    x, y, z = b.input(0).reshape(B, M, K), b.input(1).reshape(B, N, K), b.input(2).reshape(K, N)
    transposed = b.map((N, K), [z.permute(1, 0)], name="transposed")
    outputs = [
        b.dot(x.unsqueeze(2), y.unsqueeze(1), name="batched"),
        b.dot(x.unsqueeze(2), transposed, name="through a transposing copy"),
        b.dot(transposed.unsqueeze(1), x.reshape(B * M, K), name="rows and columns exchanged"),
        b.dot(y.unsqueeze(1).permute(1, 0, 2, 3), x.unsqueeze(2).permute(1, 0, 2, 3), name="batch inside"),
        b.dot(x, x, name="row by row"),
        b.dot(b.word((K,), 0x3F800000, F32), x, name="ones"),
    ]
    program = b.finish(outputs)
    compare(program, [data(rng, B * M * K), data(rng, B * N * K), data(rng, K * N), None], budget=3 * K)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("M", "N", "K"), [(60, 1500, 260), (500, 130, 260), (40, 2900, 20), (61, 90, 1024), (40, 64, 2050)]
)
def test_products_cut_into_blocks_give_the_reference_bits(M: int, N: int, K: int) -> None:
    """More columns than are packed at a time, more rows than strips, narrow ones that are not packed."""
    rng = rng_of(16, M, N, K)
    b = ProgramBuilder([(F32, M * K), (F32, N * K)])
    x, y = b.input(0), b.input(1)
    by_k = [b.map((rows, K), [t.reshape(K, rows).permute(1, 0)]) for t, rows in ((x, M), (y, N))]
    lefts, rights = (x.reshape(M, K), by_k[0]), (y.reshape(N, K), by_k[1])
    outputs = [b.dot(left.unsqueeze(1), right) for left in lefts for right in rights]
    left = normal(rng, M * K)
    left[rng.integers(0, M * K)] = np.inf
    left[rng.integers(0, M * K)] = np.nan
    compare(b.finish(outputs), [left, normal(rng, N * K)], budget=8 * K, threads=(1, 3))


@pytest.mark.sampled(2)
@DATA
@SHAPES
def test_reductions_give_the_reference_bits(data: Data, B: int, M: int, N: int, K: int) -> None:
    rng = rng_of(2, B, M, N, K)
    b = ProgramBuilder([(F32, B * M * K)])
    x = b.input(0).reshape(B, M, K)
    columns = b.map((B, K, M), [x.permute(0, 2, 1)], name="columns")
    whole = b.map((B * M * K,), [b.input(0)], name="whole")
    outputs = [fold(t) for t in (x, columns, whole) for fold in (b.sum, b.max, b.min)]
    overlapping = View(Tag.STATE, 0, 0, (1, 1)), max(1, B * M * K - K + 1)
    b.ops.append(Op(Kind.FOLD, F32, (overlapping[1],), (overlapping[0],), (K,), 1, cumulative=0))
    b.names.append("windows")
    compare(b.finish(outputs), [data(rng, B * M * K)], budget=3 * K)


def codes_of(data: Data, rng: np.random.Generator, n: int) -> Array:
    """Bytes of all values, the extremes more often."""
    found = rng.integers(-128, 128, 4 * n).astype(np.int8)
    at = rng.integers(0, 4 * n, 2 * n)
    found[at] = rng.choice(np.array([-128, -127, 127, 0], np.int8), 2 * n)
    if data is strange:
        found[: 2 * n] = -128
    return found.view(np.int32)


@pytest.mark.sampled(8)
@DATA
@pytest.mark.parametrize(
    ("B", "M", "N", "G", "words"),
    [(1, 5, 7, 3, 1), (2, 16, 32, 4, 64), (1, 14, 33, 1, 16), (3, 29, 70, 2, 8), (1, 100, 130, 5, 32), (2, 1, 9, 3, 2),
     (1, 3, 1, 6, 4), (4, 17, 16, 1, 64), (1, 15, 40, 300, 2), (2, 1, 1, 2, 4)],
)  # fmt: skip
def test_products_of_codes_give_the_reference_bits(data: Data, B: int, M: int, N: int, G: int, words: int) -> None:
    rng = rng_of(20, B, M, N, G, words)
    b = ProgramBuilder([(I32, B * M * G * words), (I32, B * N * G * words), (F32, B * M * G), (F32, B * N * G)])
    shapes = ((B, M), (B, N))
    left, right = (
        Quantised(b.input(i).reshape(*shapes[i], G * words), b.input(2 + i).reshape(*shapes[i], G), words)
        for i in range(2)
    )
    one = replace(left, scales=b.input(2).slice(0, 0, 1).expand(B, M, G))
    outputs = [
        b.qdot(left.unsqueeze(2), right.unsqueeze(1), name="batched"),
        b.qdot(right.unsqueeze(1), left.unsqueeze(2), name="operands exchanged"),
        b.qdot(right.unsqueeze(1).permute(1, 0, 2), left.unsqueeze(2).permute(1, 0, 2), name="batch inside"),
        b.qdot(left, left, name="row by row"),
        b.qdot(one.unsqueeze(2), right.unsqueeze(1), name="one scale for all"),
        b.qdot(one, one.permute(0, 1), name="row by row, one scale"),
    ]
    state = [codes_of(data, rng, B * M * G * words), codes_of(data, rng, B * N * G * words)]
    compare(b.finish(outputs), [*state, data(rng, B * M * G), data(rng, B * N * G)], budget=2000)


def test_groups_of_extreme_codes_are_exact_on_every_path() -> None:
    """Every sum of 256 products of -128, -127, 127 and their mixtures."""
    extremes = np.array([-128, -127, 127, 0, -1], np.int8)
    rows = np.stack([np.full(256, x, np.int8) for x in extremes] + [np.tile(extremes, 52)[:256]] * 2)
    rows[-1, ::2] = -128
    n = len(rows)
    b = ProgramBuilder([(I32, n * 64), (F32, n)])
    held = Quantised(b.input(0).reshape(n, 64), b.input(1).reshape(n, 1), 64)
    program = b.finish([b.qdot(held.unsqueeze(1), held)])
    state = [rows.reshape(-1).view(np.int32), np.ones(n, np.float32)]
    compare(program, state, budget=10**6)
    found = paths.compile(program).run(state, CONTEXT)[0]
    assert found is not None
    wide = rows.astype(np.int64)
    np.testing.assert_array_equal(found, (wide @ wide.T).astype(np.float32))


@pytest.mark.sampled(2)
@DATA
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("stream", [0, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize(
    ("rows", "K", "words"),
    [((), 5, 1), ((3,), 64, 1), ((2, 7), 100, 2), ((5,), 1000, 64), ((300,), 48, 16), ((2,), 513, 32)],
)
def test_quantised_tensors_have_the_reference_bits(
    data: Data, rows: tuple[int, ...], K: int, words: int, stream: int, power: bool
) -> None:
    n = int(np.prod(rows, dtype=int))
    rng = rng_of(21, n, K, words, stream, power)
    b = ProgramBuilder([(F32, n * K + 3)])
    x = b.input(0).slice(0, 3, n * K + 3).reshape(*rows, K)
    back = x if len(rows) < 2 else x.permute(1, 0, 2)
    outputs = [t for each in (x, back) for q in [b.quant(each, words, stream, power)] for t in (q.codes, q.scales)]
    with np.errstate(all="ignore"):
        values = data(rng, n * K + 3) * np.float32(10.0) ** rng.integers(-38, 38, n * K + 3).astype(np.float32)
    if data is normal:
        values[: (n * K) // 2] = normal(rng, (n * K) // 2) * np.float32(2.0**-98)
    compare(b.finish(outputs), [values], budget=600)


@pytest.mark.slow
def test_what_is_quantised_is_multiplied() -> None:
    rng = rng_of(22)
    b = ProgramBuilder([(F32, 30 * 700), (F32, 700 * 50)])
    x, w = b.input(0).reshape(30, 700), b.input(1).reshape(700, 50)
    columns = b.map((50, 700), [w.permute(1, 0)])
    out = b.qdot(b.quant(x, stream=1 << 31).unsqueeze(1), b.quant(columns))
    state = [normal(rng, 30 * 700), normal(rng, 700 * 50)]
    compare(b.finish([out]), state, budget=4000)
    found = paths.compile(b.finish([out])).run(state, CONTEXT)[0]
    due = state[0].reshape(30, 700) @ state[1].reshape(700, 50)
    assert np.abs(np.asarray(found) - due).mean() < 0.02 * np.abs(due).mean()


LEVEL = (65536, 65537)
"""Where a second level of partials begins."""


@pytest.mark.sampled(2)
@pytest.mark.uncounted
@DATA
@pytest.mark.parametrize("K", [4095, 4096, 8700, 70001, *(pytest.param(K, marks=pytest.mark.slow) for K in LEVEL)])
def test_folds_of_many_chunks_give_the_reference_bits(data: Data, K: int) -> None:
    b = ProgramBuilder([(F32, K)])
    x = b.input(0)
    few = x.expand(2, K)
    outputs = [b.dot(x, x), b.max(x)]
    if K < 9000:
        outputs += [b.sum(x), b.min(x), b.dot(few, x.expand(2, K)), b.sum(few.permute(0, 1))]
    compare(b.finish(outputs), [data(rng_of(3, K), K)], budget=K if K < 9000 else 1, threads=(1, 2))


def test_tiny_negative_products_keep_their_zero_inside_a_chunk() -> None:
    """A chunk may end in -0; the level above adds it to +0."""
    b = ProgramBuilder([(F32, 600), (F32, 600)])
    total = b.dot(b.input(0), b.input(1))
    least = np.full(600, 1e-30, np.float32)
    compare(b.finish([total]), [least, -least], budget=600)
    assert words(paths.compile(b.finish([total])).run([least, -least], CONTEXT)[0])[0] == 0, "the sum is +0"


def test_integer_sums_wrap() -> None:
    rng = rng_of(4)
    b = ProgramBuilder([(I32, 3 * 700)])
    x = b.input(0).reshape(3, 700)
    outputs = [b.sum(x), b.sum(b.map((700, 3), [x.permute(1, 0)])), b.sum(b.input(0))]
    compare(b.finish(outputs), [rng.integers(-(1 << 31), 1 << 31, 2100).astype(np.int32)], budget=2100)


def test_folds_of_computed_operands() -> None:
    b = ProgramBuilder([(F32, 40)])
    x = b.input(0).reshape(4, 10)
    outputs = [b.sum(b.iota((5, 300), 1, start=-7, step=3)), b.dot(x, b.word((10,), 0x40000000, F32))]
    step_t = View(Tag.CONTEXT, 0, 2, (0, 0))
    b.ops.append(Op(Kind.FOLD, I32, (4,), (step_t,), (9,), 4))
    b.names.append("context")
    compare(b.finish([*outputs, None, None]), [normal(rng_of(5), 40)])


# --- maps ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(), (1,), (1023,), (1024,), (1025,), (3, 5), (70, 33), (2, 40, 9), (2, 3, 4, 5), (1, 300, 1), (9, 1030)]
)
def test_map_operands_of_every_layout(shape: tuple[int, ...]) -> None:
    """Contiguous, transposed, reversed, strided, broadcast along each axis, iota, context, constant."""
    rng = rng_of(7, *shape)
    size = int(np.prod(shape, dtype=int))
    b = ProgramBuilder([(F32, 2 * size), (F32, None)])
    whole = b.input(0).slice(0, 0, size).reshape(*shape)
    rank = len(shape)
    back = tuple(reversed(range(rank)))
    turned = b.input(0).slice(0, 0, size).reshape(*reversed(shape)).permute(*back)
    spread = b.input(0).slice(0, 0, 2 * size, 2).strides[:1] if rank else ()
    strided = whole if not rank else b.input(0)._with(shape, [2 * s for s in whole.strides])
    reverse = whole._with(shape, [-s for s in whole.strides], size - 1)
    rows = [whole.slice(axis, 0, 1).expand(*shape) for axis in range(rank)]
    assert spread in ((), (2,)), "every second element"
    table = b.const(np.arange(size, dtype=np.float32).reshape(shape))
    iota = b.iota(shape, max(rank - 1, 0), start=-3, step=2) if rank else b.word((), 9)

    def blend(e: Expression, *x: int) -> int:
        acc = x[0]
        for register in x[1:]:
            acc = e.fadd(e.fmul(acc, e.f32(0.5)), register)
        return acc

    outputs = [
        b.map(shape, [whole, turned, strided, reverse, table], blend, name="layouts"),
        b.map(shape, [b.input(1), *rows[:5]], blend, dtype=F32, name="broadcasts"),
        b.map(shape, [iota, b.context(2)], lambda e, i, t: e.imul(e.iadd(i, t), e.i32(3)), name="computed"),
        b.map(shape, [turned], name="a copy, transposed"),
        b.map(shape, [b.input(1)], lambda e, x: e.fadd(e.f32(2.0), e.f32(0.25)), name="a value for all"),
        b.map(shape, [], lambda e: e.f32(2.0), dtype=F32, name="a constant for all"),
        b.map(shape, [b.word(shape, 0xFF800000, F32)], name="an immediate for all"),
    ]
    compare(b.finish([*outputs, None]), [strange(rng, 2 * size), np.array(1.5, np.float32)])


def test_rows_of_every_length_of_every_second_word() -> None:
    """Rows apart from each other, of up to two vectors; of each length one ends with the last word of its source."""
    rng, most, reach = rng_of(19), 34, 300
    b = ProgramBuilder([(F32, reach)])
    outputs = []
    for length in range(1, most):
        gap = 2 * length + 5
        rows = b.input(0)._with((3, length), (gap, 2), reach - 1 - 2 * gap - 2 * (length - 1))
        turned = b.input(0)._with((length, 3), (2, gap), 1)
        outputs += [b.map((3, length), [rows], lambda e, x: e.fadd(x, x), name=f"rows of {length}")]
        outputs += [b.map((length, 3), [turned], name=f"columns of {length}")]
    compare(b.finish([*outputs, None]), [strange(rng, reach)])


def test_a_map_of_32_instructions_reuses_registers_correctly() -> None:
    rng = rng_of(8)
    b = ProgramBuilder([(F32, 3000)])
    opcodes = [Opcode.FADD, Opcode.FMUL, Opcode.FSUB, Opcode.FMAX]
    instrs = [Instr(int(rng.choice(opcodes)), *rng.integers(0, 3 + i, 2).tolist()) for i in range(32)]
    x = b.input(0)
    parts = [x.slice(0, 1000 * i, 1000 * (i + 1)) for i in range(3)]
    compare(b.finish([b.map((1000,), parts, instrs)]), [normal(rng, 3000)], budget=1000)


# --- the other kinds -------------------------------------------------------------------------------------


def test_gather_reads_plus_zero_outside_of_the_table() -> None:
    rng = rng_of(9)
    b = ProgramBuilder([(I32, 60), (F32, 11 * 13)])
    table = b.input(1).reshape(11, 13)
    wide = b.input(0).reshape(12, 5)
    outputs = [
        b.gather(wide, table, name="rows"),
        b.gather(b.input(0), table, axis=1, name="columns"),
        b.pick(b.input(0).slice(0, 0, 11), table, name="one of each row"),
        b.gather(b.iota((20,), 0, start=-2), table, name="computed index"),
    ]
    index = rng.integers(-3, 14, 60).astype(np.int32)
    compare(b.finish(outputs), [index, strange(rng, 143)], budget=2000)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_along_each_axis(axis: int) -> None:
    rng = rng_of(10, axis)
    b = ProgramBuilder([(F32, 4 * 6 * 5), (F32, None)])
    x = b.input(0).reshape(4, 6, 5)
    turned = b.input(0).reshape(5, 6, 4).permute(2, 1, 0)
    outputs = [
        b.concat([x, turned, x.slice(axis, 1, 2), b.word((4, 6, 5), 0, F32)], axis=axis),
        b.concat([b.iota((3, 2), 0), b.iota((4, 2), 1, start=5)], axis=0),
        b.concat([b.input(1).reshape(1), x.reshape(120)]),
    ]
    compare(b.finish([*outputs, None]), [strange(rng, 120), np.array(2, np.float32)], budget=2000)


def test_random_words_depend_on_seed_stream_and_context() -> None:
    b = ProgramBuilder([])
    a, other = b.random((5, 7), stream=3), b.random((4100,), stream=4)
    compare(b.finish([a, other]), [None], budget=200)


def test_draw_reads_whole_rows() -> None:
    dataset = rng_of(11).integers(-9, 9, (50, 17)).astype(np.int32)
    b = ProgramBuilder([])
    compare(b.finish([b.draw(6, 17), b.draw(3, 17, first=6)]), [None], dataset, budget=200)


# --- the edges -------------------------------------------------------------------------------------------


def simple() -> Program:
    b = ProgramBuilder([(F32, 4), None, (I32, None)])
    doubled = b.map((4,), [b.input(0)], lambda e, x: e.fadd(x, x))
    return b.finish([doubled, b.input(2)])


def test_an_untouched_entry_is_the_same_array() -> None:
    clock = np.array(3, np.int32)
    outputs = paths.compile(simple()).run([np.ones(4, np.float32), None, clock, None], CONTEXT)
    assert outputs[1] is clock, "an alias of the input copies nothing"


def test_outputs_are_read_only_and_outlive_the_executable() -> None:
    executable = paths.compile(simple())
    first = executable.run([np.ones(4, np.float32), None, np.array(3, np.int32), None], CONTEXT)[0]
    again = executable.run([np.zeros(4, np.float32), None, np.array(3, np.int32), None], CONTEXT)[0]
    del executable
    assert first is not None
    assert again is not None
    assert first.tolist() == [2.0] * 4, "a later run does not write here"
    assert again.tolist() == [0.0] * 4, "nor does this one see the earlier"
    assert not first.flags.writeable, "what was committed is not edited"


@pytest.mark.parametrize(
    "array", [None, np.ones(5, np.float32), np.ones(4, np.float64), np.ones((2, 2), np.float32), np.ones(4, np.int32)]
)
def test_a_tensor_of_another_header_is_refused(array: Array | None) -> None:
    with pytest.raises(PayloadInvalid, match="state entry 0") as refused:
        paths.compile(simple()).run([array, None, np.array(3, np.int32), None], CONTEXT)
    assert "float32" in refused.value.hint


def test_a_missing_dataset_is_refused() -> None:
    b = ProgramBuilder([])
    executable = paths.compile(b.finish([b.draw(2, 5)]))
    with pytest.raises(PayloadInvalid, match="dataset"):
        executable.run([None], CONTEXT)
    with pytest.raises(PayloadInvalid, match="dataset"):
        executable.run([None], CONTEXT, np.zeros((4, 6), np.int32))
    with pytest.raises(PayloadInvalid, match="no rows"):
        executable.run([None], CONTEXT, np.zeros((0, 5), np.int32))


def test_draws_of_two_lengths_are_refused() -> None:
    b = ProgramBuilder([])
    executable = paths.compile(b.finish([b.draw(2, 5), b.draw(2, 6)]))
    with pytest.raises(PayloadInvalid) as refused:
        executable.run([None], CONTEXT, np.zeros((4, 5), np.int32))
    assert "5 and 6" in refused.value.hint


@pytest.mark.parametrize(
    "op",
    [
        Op(Kind.MAP, F32, (4,), (View(Tag.STATE, 0, 1, (1,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.STATE, 0, 2, (-1,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.STATE, 1, 0, (0,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.STATE, 9, 0, (0,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.OP, 0, 0, (1,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.CONST, 0, 0, (1,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.CONTEXT, 0, 0, (1,)),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.STATE, 0, 0, (1,)),), instrs=(Instr(Opcode.FADD, 0, 1),)),
        Op(Kind.MAP, F32, (4,), (View(Tag.STATE, 0, 0, (1,)),), instrs=(Instr(99, 0),)),
        Op(Kind.MAP, F32, (0,), (View(Tag.STATE, 0, 0, (1,)),)),
        Op(Kind.MAP, F32, (1,) * 9, (View(Tag.STATE, 0, 0, (1,) * 9),)),
        Op(Kind.FOLD, F32, (), (View(Tag.STATE, 0, 0, (1,)),), (5,), 1),
        Op(Kind.FOLD, F32, (), (View(Tag.STATE, 0, 0, (1,)),), (4,), 0),
        Op(Kind.GATHER, F32, (4,), (View(Tag.STATE, 2, 0, (0,)), View(Tag.STATE, 0, 0, (0,))), p0=5, p1=1),
        Op(Kind.GATHER, F32, (4,), (View(Tag.STATE, 2, 0, (0,)), View(Tag.STATE, 0, 0, (0,))), p0=1 << 31, p1=1 << 31),
        Op(Kind.MAP, F32, (1 << 31,), (View(Tag.STATE, 0, 0, (0,)),)),
        Op(Kind.CONCAT, F32, (4,), (View(Tag.STATE, 0, 0, (1,)),), p0=0, sizes=(0xFFFFFFFF,)),
        Op(Kind.CONCAT, F32, (4,), (View(Tag.STATE, 0, 0, (1,)),), p0=0, sizes=(5,)),
        Op(Kind.CONCAT, F32, (4,), (View(Tag.STATE, 0, 0, (1,)),), p0=1, sizes=(4,)),
        Op(Kind.DRAW, I32, (4,), ()),
    ],
    ids=lambda op: op.kind.name,
)
def test_what_would_read_foreign_memory_is_refused(op: Op) -> None:
    """The executor's own net, under the validator."""
    with pytest.raises(ProgramInvalid):
        paths.compile(Program((op,), simple().inputs, simple().outputs[:1]))


@pytest.mark.parametrize("path", ["auto", portable.NAME])
def test_a_run_writes_into_memory_of_its_length_and_of_no_other(path: str) -> None:
    b = ProgramBuilder([(F32, 4)])
    executable = Executable(b.finish([b.map((4,), [b.input(0)])]), path=path)
    state = [np.arange(4, dtype=np.float32)]
    memory = np.zeros(4, np.float32)
    executable.write(state, CONTEXT, None, {0: memory})
    assert memory.tolist() == state[0].tolist()
    with pytest.raises(ValueError, match=r"another number of words|broadcast"):
        executable.write(state, CONTEXT, None, {0: np.zeros(5, np.float32)})


def test_unknown_path_is_refused() -> None:
    with pytest.raises(UsageError, match="path"):
        paths.compile(simple(), path="abacus")


def test_importing_the_executor_imports_no_torch() -> None:
    code = "import sys, lockstep.numerics.trace, lockstep.numerics.validate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0, "numerics know no torch"


def test_this_machine_has_paths_to_compare() -> None:
    assert PATHS[0] == ("scalar" if COMPILED else "portable")
