"""Scalar operations in C++ and Solidity: the golden vectors, what they cost in gas, and that a wrong line shows.

Random vectors and whole small formats are compared in `tests/primitives`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.float32 import FLOAT32, WITHOUT_LIBRARY, Evm, evm, normal_operands
from lockstep.numerics._native import apply_op
from lockstep.numerics.scalar import Opcode
from tests.support.scalar_vectors import vectors

MOST_GAS = {Opcode.FFMA: 900, Opcode.FADD: 600, Opcode.FMUL: 600, Opcode.FEXP: 17_000}
"""For normal numbers, on average: what a check of 256 terms can afford."""

MUTATIONS = [
    (
        "fma forgets ties to even",
        Opcode.FFMA,
        "add(shl(sub(256, e), x), and(r, 1)), HALF)",
        "shl(sub(256, e), x), HALF)",
    ),
    ("fma forgets a far addend", Opcode.FFMA, "case 1 { place := 0 }", "case 1 { place := 256 }"),
    ("fma misplaces a far product", Opcode.FFMA, "e := sub(add(e, place), 102)", "e := sub(add(e, place), 101)"),
    ("fma cancels to -0", Opcode.FFMA, "b := 0\n", "\n"),
    ("fma takes the wrong sign", Opcode.FFMA, "b := c\n", "\n"),
    ("an addend's zero sign", Opcode.FFMA, "(a ^ b) & c : c", "(a ^ b) & SIGN : c"),
    ("infinity minus infinity", Opcode.FFMA, " || c == product ^ SIGN", ""),
    ("add of equal magnitudes", Opcode.FADD, "case 0 { x := add(x, y) }", "case 0 { x := add(x, shr(1, y)) }"),
    ("add cancels to -0", Opcode.FADD, "sign := 0\n", "\n"),
    ("subnormals one place off", Opcode.FMUL, "case 1 { low := 0 }", "case 1 { low := 1 }"),
    ("overflow one exponent late", Opcode.FMUL, "if gt(low, 253)", "if gt(low, 254)"),
    ("a subnormal dividend as normal", Opcode.FDIV, "shl(23, iszero(iszero(ea)))", "0x800000"),
    ("div keeps too few places", Opcode.FDIV, "significand := div(x, y)", "significand := shl(56, shr(56, div(x, y)))"),
    ("div of a subnormal", Opcode.FDIV, "mul(22, iszero(iszero(shr(83, significand))))", "0"),
    ("sqrt truncates", Opcode.FSQRT, "shr(2, add(r, 2))", "shr(2, r)"),
    ("sqrt of an odd exponent", Opcode.FSQRT, "and(not(e), 1)", "and(e, 1)"),
    ("exp without its low part", Opcode.FEXP, "r = fma(n, LN2_LO ^ SIGN, r);", ""),
    ("log of subnormals", Opcode.FLOG, "if (x < 0x00800000)", "if (x < 0)"),
    ("tanh from another threshold", Opcode.FTANH, "TANH_SMALL = 0x3f200000", "TANH_SMALL = 0x3f210000"),
    ("rounding to an integer", Opcode.F2I, "and(fixedPoint, 0xffffffff), and(r, 1)", "and(fixedPoint, 0xffffffff), 0"),
]


@pytest.fixture(scope="module")
def chain() -> Iterator[Evm]:
    with evm() as machine:
        yield machine


@pytest.mark.chain
def test_golden_vectors_hold_in_all_three(chain: Evm, vectors: Path) -> None:
    rows = json.loads((vectors / "float32.json").read_text())["vectors"]
    for op in Opcode:
        words = np.array([[int(w, 16) for w in row[1:]] for row in rows if row[0] == op.name.lower()], np.uint32)
        a, b, c, want = (np.ascontiguousarray(column) for column in words.T)
        np.testing.assert_array_equal(apply_op(int(op), a, b, c), want, err_msg=f"native {op.name}")
        if op not in WITHOUT_LIBRARY:
            np.testing.assert_array_equal(chain.results(op, a, b, c), want, err_msg=f"Solidity {op.name}")


@pytest.mark.chain
@pytest.mark.parametrize("op", MOST_GAS, ids=lambda op: op.name)
def test_gas_of_normal_numbers(chain: Evm, op: Opcode) -> None:
    assert chain.gas(op, *normal_operands(op, 500, seed=0)).mean() <= MOST_GAS[op]


@pytest.mark.chain
@pytest.mark.slow
@pytest.mark.parametrize(("op", "line", "mutated"), [m[1:] for m in MUTATIONS], ids=[m[0] for m in MUTATIONS])
def test_a_mutated_line_is_noticed(chain: Evm, op: Opcode, line: str, mutated: str) -> None:
    source = FLOAT32.read_text()
    assert line in source, "the mutation's line is still there"
    a, b, c = vectors(op, 100_000, seed=14)
    mutant = chain.with_float32(source.replace(line, mutated, 1))
    try:
        different = mutant.results(op, a, b, c) != apply_op(int(op), a, b, c)
    except RuntimeError as refused:
        # The harness lets no result above 32 bits pass.
        different = np.array("not a word" in str(refused))
    assert different.any(), "some vector tells the difference"
