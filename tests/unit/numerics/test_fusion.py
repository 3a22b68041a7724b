"""What the executor runs in place of several ops gives the bits of those ops, run one by one."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics import executor
from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.executor import Array
from lockstep.protocol.program import F32, I32, Program
from tests.unit.numerics.comparison import CONTEXT, compare, normal, strange


def unused(program: Program, state: list[Array | None]) -> list[str]:
    """Names of the ops whose outputs a plain run does not compute."""
    spent = executor.compile(program).profile(state, CONTEXT)
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


# --- column sums -------------------------------------------------------------------------------------------


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
