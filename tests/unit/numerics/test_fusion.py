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
