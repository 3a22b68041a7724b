"""What the executor runs in place of several ops gives the bits of those ops, run one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Tensor
from lockstep.protocol.programs.program import F32, I32, Alias, Program
from tests.unit.numerics.comparison import CONTEXT, compare, normal, strange, words

Mask = Callable[[Expression, int, int, int, int], None]
"""A map's expression of a wide element and its batch, row and column."""


def unused(program: Program, state: list[Array | None]) -> list[str]:
    """Names of the ops whose outputs a plain run does not compute."""
    spent = paths.compile(program).profile(state, CONTEXT)
    return [program.name_of(i) for i, nanoseconds in enumerate(spent) if nanoseconds == 0]


# --- the gradient of an embedding --------------------------------------------------------------------------


@pytest.mark.parametrize(("B", "T", "V", "D"), [(1, 3, 5, 7), (2, 300, 40, 33), (3, 171, 9, 64), (1, 1, 2, 16)])
@pytest.mark.parametrize("what", ["normal", "strange", "one infinity"])
def test_rows_are_added_where_the_program_multiplies_a_one_hot_map(B: int, T: int, V: int, D: int, what: str) -> None:
    rng = np.random.default_rng((B, T, V, D))
    b = ProgramBuilder([(I32, B * (T + 1)), (F32, B * T * D)])
    tokens = b.input(0).reshape(B, T + 1).slice(1, 1, T + 1)
    iota = b.iota((V,), 0).unsqueeze(1).unsqueeze(1).expand(V, B, T)
    hot = b.map((V, B, T), [iota, tokens.expand(V, B, T)], lambda e, v, i: e.i2f(e.ieq(v, i)), dtype=F32, name="hot")
    gradient = b.map((D, B * T), [b.input(1).reshape(B * T, D).permute(1, 0)], name="transposed")
    program = b.finish([b.dot(hot.reshape(V, 1, B * T), gradient)])
    grad = strange(rng, B * T * D) if what == "strange" else normal(rng, B * T * D)
    if what == "one infinity":
        grad[rng.integers(len(grad))] = -np.inf
    indices = rng.integers(-1, V + 1, B * (T + 1)).astype(np.int32)  # beyond the table on both sides, too
    compare(program, [indices, grad])
    assert unused(program, [indices, grad]) == ["hot", "transposed"]


@pytest.mark.parametrize("readers", ["one", "two", "one, and the Program's output"])
@pytest.mark.parametrize("what", ["normal", "strange"])
def test_rows_that_a_map_computes_transposed_are_stored_as_its_operands_lie(what: str, readers: str) -> None:
    """As where a normalisation follows an embedding; who reads the map beside the fold gets what is committed."""
    T, V, D = 300, 40, 33
    rng = np.random.default_rng(len(what) + len(readers))
    b = ProgramBuilder([(I32, T), (F32, T * D), (F32, T)])
    iota = b.iota((V,), 0).unsqueeze(1).expand(V, T)
    indices = b.input(0).unsqueeze(0).expand(V, T)
    hot = b.map((V, T), [iota, indices], lambda e, v, i: e.i2f(e.ieq(v, i)), dtype=F32, name="hot")
    x, scale = b.input(1).reshape(T, D).permute(1, 0), b.input(2).unsqueeze(0).expand(D, T)
    rows = b.map((D, T), [x, scale], lambda e, x, s: e.fmul(e.fadd(x, x), s), name="rows")
    outputs = [b.dot(hot.unsqueeze(1), rows)]
    if readers == "two":
        outputs.append(b.max(rows))
    if readers == "one, and the Program's output":
        outputs.append(rows)
    program = b.finish(outputs)
    state = [rng.integers(-1, V + 1, T).astype(np.int32), (strange if what == "strange" else normal)(rng, T * D)]
    state.append(normal(rng, T))
    padded = state + [None] * (len(program.inputs) - len(state))
    compare(program, padded)
    assert unused(program, padded) == (["hot"] if readers == "one" else [])


# --- column sums -------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("B", "T", "D"), [(1, 5, 3), (1, 300, 40), (2, 33, 70), (3, 700, 17), (1, 5000, 20)])
def test_a_map_that_one_fold_reads_is_stored_as_its_operands_lie(B: int, T: int, D: int) -> None:
    """sum over B and T of x * y, as the gradient of a LayerNorm's gain: the committed form folds a transposed map."""
    rng = np.random.default_rng((B, T, D))
    b = ProgramBuilder([(F32, B * T * D), (F32, B * T * D), (F32, B * T)])
    x, y = (b.input(k).reshape(B * T, D).permute(1, 0) for k in range(2))
    scale = b.input(2).expand(D, B * T)
    product = b.map((D, B * T), [x, y, scale], lambda e, v, w, s: e.fmul(e.fmul(v, w), s), name="product")
    turned = b.map((D, B * T), [x, b.iota((D, B * T), 1)], lambda e, v, i: e.fadd(v, e.i2f(i)), name="of an iota, too")
    both = b.map((D, B * T), [x], lambda e, v: e.fmul(v, v), name="read twice")
    halves = b.map((D, B * T), [y], lambda e, v: e.fneg(v), name="read in part").slice(1, 0, max(1, B * T // 2))
    outputs = [b.sum(product), b.max(turned), b.sum(both), b.min(both), b.sum(halves)]
    state = [strange(rng, B * T * D), normal(rng, B * T * D), normal(rng, B * T), None]
    compare(b.finish(outputs), state)


# --- strips of rows ----------------------------------------------------------------------------------------


class Softmax:
    """exp(s - max s) of a product of B x R x K and B x C x K, with an optional map of s first."""

    def __init__(
        self, b: ProgramBuilder, B: int, R: int, C: int, K: int, q: Tensor, k: Tensor, mask: Mask | None = None
    ) -> None:
        self.shape = (B, R, C)
        s = b.dot(q.reshape(B, R, 1, K), k.reshape(B, 1, C, K))
        if mask is not None:
            iotas = [b.iota(self.shape, axis) for axis in range(3)]
            s = b.map(self.shape, [s, *iotas], mask, dtype=F32)
        self.top = b.max(s)
        self.p = b.map(self.shape, [s, self.top.unsqueeze(2)], lambda e, x, m: e.fexp(e.fsub(x, m)))

    def times(self, b: ProgramBuilder, v: Tensor, D: int) -> Tensor:
        B, R, C = self.shape
        return b.dot(self.p.reshape(B, R, 1, C), v.reshape(B, 1, D, C))


def run_plainly(program: Program, state: list[Array | None]) -> None:
    """A plain run on the widest path gives the bits of the separate ops."""
    due = paths.compile(program, fused="off").run(state, CONTEXT, keep=True)
    final = paths.compile(program, fused="off").run(state, CONTEXT)
    for got, alias in zip(final, program.outputs, strict=True):
        if alias.kind == Alias.OP_KIND:
            np.testing.assert_array_equal(words(got), words(due[alias.index]), err_msg=f"op {alias.index}")


def test_a_mask_that_differs_from_batch_to_batch() -> None:
    """What is dead in the first batch, and right behind its last column, lives in the others."""
    B, R, C, K, D = 3, 20, 40, 4, 3
    b = ProgramBuilder([(F32, B * R * K), (F32, B * C * K), (F32, B * D * C)])

    def mask(e: Expression, s: int, n: int, i: int, j: int) -> None:
        far = e.iand(e.ilt(e.i32(0), n), e.ilt(e.i32(30), j))
        e.select(e.ior(e.ilt(j, e.i32(2)), far), s, e.f32(float("-inf")))

    softmax = Softmax(b, B, R, C, K, b.input(0), b.input(1), mask)
    rng = np.random.default_rng(1)
    program = b.finish([softmax.times(b, b.input(2), D)])
    run_plainly(program, [normal(rng, n) for n in (B * R * K, B * C * K, B * D * C)] + [None])


@pytest.mark.parametrize("live", [512, 768, 1024, 2048, 4096])
def test_columns_that_a_mask_leaves_are_packed_in_other_blocks(live: int) -> None:
    """A product of fewer columns may be cut into larger blocks than the whole: there is room for those, too."""
    B, R, C, K, D = 2, 4, live + 40, 256, 3
    b = ProgramBuilder([(F32, B * R * K), (F32, B * C * K), (F32, B * D * C)])
    keep = lambda e, s, n, i, j: e.select(e.ilt(j, e.i32(live)), s, e.f32(float("-inf")))  # noqa: E731
    softmax = Softmax(b, B, R, C, K, b.input(0), b.input(1), keep)
    rng = np.random.default_rng(live)
    program = b.finish([softmax.times(b, b.input(2), D), softmax.top])
    run_plainly(program, [normal(rng, n) for n in (B * R * K, B * C * K, B * D * C)] + [None])


@pytest.mark.parametrize(("R", "C", "K"), [(3, 66_200, 2), (66_200, 3, 2), (3, 3, 66_200)])
def test_more_than_a_chunk_of_chunks(R: int, C: int, K: int) -> None:
    """Sums of more than 2^16 terms have a third level, whichever axis is that long."""
    B, D = 2, 2
    b = ProgramBuilder([(F32, B * R * K), (F32, B * C * K), (F32, B * D * C), (F32, B * D * R)])
    softmax = Softmax(b, B, R, C, K, b.input(0), b.input(1))
    by_columns = b.dot(softmax.p.permute(0, 2, 1).unsqueeze(2), b.input(3).reshape(B, 1, D, R))
    rng = np.random.default_rng(2)
    program = b.finish([softmax.times(b, b.input(2), D), by_columns, softmax.top, None])
    run_plainly(program, [normal(rng, n) for n in (B * R * K, B * C * K, B * D * C, B * D * R)])


@pytest.mark.parametrize("first", [0, 1])
def test_ops_between_two_softmaxes_that_read_both(first: int) -> None:
    """One begins before the other one ends, and what lies between them needs results of both."""
    B, R, C, K, D = 2, 6, 5, 3, 2
    sizes = [B * R * K, B * C * K, B * D * C, B * R * K, B * C * K, B * D * C]
    b = ProgramBuilder([(F32, n) for n in sizes])
    one = Softmax(b, B, R, C, K, b.input(0), b.input(1))
    half = b.map((B * R // 2,), [one.top.reshape(B * R).slice(0, 0, B * R, 2)], lambda e, x: e.fneg(x))
    two = Softmax(b, B, R, C, K, b.input(3), b.input(4))
    if first:  # the second one reads what the first one holds up
        rows = b.map(
            (B, R),
            [two.top, half.unsqueeze(1).expand(B * R // 2, 2)._with((B, R), (R // 2, 0))],
            lambda e, x, y: e.fadd(x, y),
        )
    else:
        halves = [one.top.reshape(B * R).slice(0, 0, 4), two.top.reshape(B * R).slice(0, 1, 5)]
        rows = b.map((4,), halves, lambda e, x, y: e.fadd(x, y))
    last = b.max(two.p)
    outputs = [rows, half, last, two.times(b, b.input(5), D), one.times(b, b.input(2), D), b.sum(one.p)]
    rng = np.random.default_rng(3)
    run_plainly(b.finish(outputs), [normal(rng, n) for n in sizes] + [None] * 2)


def test_a_last_member_that_a_fold_walks_down() -> None:
    """It would be stored as its first operand lies, transposed, were it not part of a group."""
    R, C, K = 12, 10, 3
    b = ProgramBuilder([(F32, R * K), (F32, C * K), (F32, C * R)])
    softmax = Softmax(b, 1, R, C, K, b.input(0), b.input(1))
    turned, top = b.input(2).reshape(C, R).permute(1, 0), softmax.top.reshape(R, 1)
    last = b.map((R, C), [turned, top.expand(R, C)], lambda e, x, m: e.fmul(x, m))
    rng = np.random.default_rng(4)
    program = b.finish([b.sum(last.permute(1, 0))])
    run_plainly(program, [normal(rng, n) for n in (R * K, C * K, C * R)] + [None])


def test_rows_that_are_added_are_no_product_of_a_softmax() -> None:
    """A one-hot map times a row: the added rows' places are not the operands of the fold."""
    V, D, k = 600, 7, (300, 2)
    terms = k[0] * k[1]
    b = ProgramBuilder([(I32, k[0]), (F32, D)])
    index = b.input(0).unsqueeze(1).expand(*k)
    v = b.iota((V, *k), 0)
    hot = b.map((V, *k), [v, index], lambda e, v, i: e.i2f(e.ieq(v, i)), dtype=F32)
    s = b.dot(hot.reshape(V, 1, terms), b.input(1).unsqueeze(1).expand(D, terms))
    top = b.max(s)
    p = b.map((V, D), [s, top.unsqueeze(1)], lambda e, x, m: e.fexp(e.fsub(x, m)))
    rng = np.random.default_rng(5)
    run_plainly(b.finish([b.sum(p)]), [rng.integers(0, V, k[0]).astype(np.int32), normal(rng, D)])


def test_long_chains_of_maps_and_deep_conditions_are_planned() -> None:
    """Neither the ops that could join a group nor a condition's registers, each read twice, make planning slow."""
    B, R, C, K = 2, 3, 4, 2
    b = ProgramBuilder([(F32, B * R * K), (F32, B * C * K)])

    def mask(e: Expression, s: int, n: int, i: int, j: int) -> None:
        x = j
        for _ in range(28):
            x = e.iadd(x, x)
        e.select(x, s, e.f32(float("-inf")))

    softmax = Softmax(b, B, R, C, K, b.input(0), b.input(1), mask)
    x = softmax.p
    for _ in range(5000):
        x = b.map((B, R, C), [x], lambda e, v: e.fneg(v))
    rng = np.random.default_rng(6)
    run_plainly(b.finish([b.sum(x)]), [normal(rng, B * R * K), normal(rng, B * C * K)])
