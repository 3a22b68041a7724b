"""Three writings of the scalar operations, one meaning: Python, C++ and Solidity give the same bits."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.float32 import REQUIRED, WITHOUT_LIBRARY, Evm, evm
from lockstep.numerics._native import apply_op
from lockstep.numerics.scalar import Op, apply
from lockstep.numerics.vectors import vectors

FUNCTIONS = (Op.FEXP, Op.FLOG, Op.FTANH)
GAS_OF_NORMAL_NUMBERS = {
    Op.FFMA: 900, Op.FADD: 600, Op.FSUB: 600, Op.FMUL: 600, Op.FEXP: 17_000,
}  # fmt: skip


@pytest.fixture(scope="module")
def chain() -> Iterator[Evm]:
    with evm() as machine:
        yield machine


@pytest.mark.parametrize("op", Op, ids=lambda op: op.name)
def test_native_is_the_specification(op: Op) -> None:
    a, b, c = vectors(op, 600 if op in FUNCTIONS else 3000, seed=11)
    want = [apply(op, *words) for words in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
    np.testing.assert_array_equal(apply_op(int(op), a, b, c), np.array(want, np.uint32))


@pytest.mark.chain
@pytest.mark.parametrize("op", [op for op in Op if op not in WITHOUT_LIBRARY], ids=lambda op: op.name)
def test_solidity_is_native(chain: Evm, op: Op) -> None:
    a, b, c = vectors(op, 6000, seed=12)
    np.testing.assert_array_equal(chain.results(op, a, b, c), apply_op(int(op), a, b, c))


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.parametrize("op", REQUIRED, ids=lambda op: op.name)
def test_solidity_is_native_on_many_vectors(chain: Evm, op: Op) -> None:
    a, b, c = vectors(op, 100_000, seed=13)
    np.testing.assert_array_equal(chain.results(op, a, b, c), apply_op(int(op), a, b, c))


@pytest.mark.chain
def test_golden_vectors_hold_in_all_three(chain: Evm, vectors: Path) -> None:
    rows = json.loads((vectors / "float32.json").read_text())["vectors"]
    for op in Op:
        words = np.array([[int(w, 16) for w in row[1:]] for row in rows if row[0] == op.name.lower()], np.uint32)
        a, b, c, want = (np.ascontiguousarray(column) for column in words.T)
        np.testing.assert_array_equal(apply_op(int(op), a, b, c), want, err_msg=f"native {op.name}")
        if op not in WITHOUT_LIBRARY:
            np.testing.assert_array_equal(chain.results(op, a, b, c), want, err_msg=f"Solidity {op.name}")


@pytest.mark.chain
@pytest.mark.parametrize("op", GAS_OF_NORMAL_NUMBERS, ids=lambda op: op.name)
def test_gas_of_normal_numbers(chain: Evm, op: Op) -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(500).astype(np.float32).view(np.uint32) for _ in range(3))
    assert chain.gas(op, a, b, c).mean() <= GAS_OF_NORMAL_NUMBERS[op]
