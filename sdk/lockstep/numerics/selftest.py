"""Start-up self-test: a machine must reproduce golden words before it signs any claim.

It detects a processor, compiler or library that flushes subnormals, contracts multiply-adds or rounds twice. The words
are literals, against which the reference itself is tested.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.numerics.built import kernels as _native
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.programs.program import Fold

_Words = npt.NDArray[np.uint32]

HINT = "this machine must not sign claims: run on another processor, or report it with the output of lscpu"


class Golden(NamedTuple):
    """One operation with operands and the only right result, all as words."""

    what: str
    op: Opcode
    a: int
    b: int
    c: int
    result: int


GOLDEN: tuple[Golden, ...] = (
    Golden(
        "the smallest subnormal survives a product with 1", Opcode.FMUL, 0x00000001, 0x3F800000, 0x00000000, 0x00000001
    ),
    Golden("subnormal products round to even", Opcode.FMUL, 0x00000003, 0x3F000000, 0x00000000, 0x00000002),
    Golden(
        "products below the subnormals are zeros of their sign",
        Opcode.FMUL,
        0x80000001,
        0x00000001,
        0x00000000,
        0x80000000,
    ),
    Golden("subnormal inputs are not zeros", Opcode.FMUL, 0x007FFFFF, 0x40000000, 0x00000000, 0x00FFFFFE),
    Golden("a normal product becomes subnormal", Opcode.FMUL, 0x20000001, 0x1F800001, 0x00000000, 0x00400001),
    Golden("subnormals add", Opcode.FADD, 0x007FFFFF, 0x00000001, 0x00000000, 0x00800000),
    Golden("a difference becomes subnormal", Opcode.FSUB, 0x00800001, 0x00800000, 0x00000000, 0x00000001),
    Golden("x - x is +0", Opcode.FSUB, 0x3F800000, 0x3F800000, 0x00000000, 0x00000000),
    Golden("-0 + -0 is -0", Opcode.FADD, 0x80000000, 0x80000000, 0x00000000, 0x80000000),
    Golden("-0 + +0 is +0", Opcode.FADD, 0x80000000, 0x00000000, 0x00000000, 0x00000000),
    Golden("a tie rounds to even, down", Opcode.FADD, 0x4B800000, 0x3F800000, 0x00000000, 0x4B800000),
    Golden("a tie rounds to even, up", Opcode.FADD, 0x4B800001, 0x3F800000, 0x00000000, 0x4B800002),
    Golden("the largest float overflows", Opcode.FADD, 0x7F7FFFFF, 0x73000000, 0x00000000, 0x7F800000),
    Golden("the largest float stays", Opcode.FADD, 0x7F7FFFFF, 0x72FFFFFF, 0x00000000, 0x7F7FFFFF),
    Golden("inf - inf is the canonical NaN", Opcode.FSUB, 0x7F800000, 0x7F800000, 0x00000000, 0x7FC00000),
    Golden("0 x inf is the canonical NaN", Opcode.FMUL, 0x80000000, 0x7F800000, 0x00000000, 0x7FC00000),
    Golden("a NaN's payload and sign do not survive", Opcode.FADD, 0xFFFFFFFF, 0x3F800000, 0x00000000, 0x7FC00000),
    Golden("fma rounds once", Opcode.FFMA, 0x3F800001, 0x3F800001, 0xBF800002, 0x28800000),
    Golden("fma is not mul and add", Opcode.FFMA, 0x3F7FFFFF, 0x3F800001, 0xBF800000, 0x337FFFFE),
    Golden("fma onto a tie, from above", Opcode.FFMA, 0x3F800001, 0x33800001, 0x3F800000, 0x3F800001),
    Golden("fma with a subnormal sum", Opcode.FFMA, 0x20000000, 0x1F800000, 0x80000001, 0x003FFFFF),
    Golden("fma of tiny products keeps the addend", Opcode.FFMA, 0x00000001, 0x00000001, 0x3F800000, 0x3F800000),
    Golden("fma of a tiny negative product is -0", Opcode.FFMA, 0x80000001, 0x00000001, 0x00000000, 0x80000000),
    Golden("fma of a zero product", Opcode.FFMA, 0x80000000, 0x3F800000, 0x80000000, 0x80000000),
    Golden("fma's product may overflow alone", Opcode.FFMA, 0x7F7FFFFF, 0x40000000, 0xFF7FFFFF, 0x7F7FFFFF),
    Golden("1 / 3", Opcode.FDIV, 0x3F800000, 0x40400000, 0x00000000, 0x3EAAAAAB),
    Golden("a quotient that is subnormal", Opcode.FDIV, 0x00800001, 0x40000000, 0x00000000, 0x00400000),
    Golden("a quotient of subnormals", Opcode.FDIV, 0x00000003, 0x00000002, 0x00000000, 0x3FC00000),
    Golden("division by -0", Opcode.FDIV, 0x3F800000, 0x80000000, 0x00000000, 0xFF800000),
    Golden("0 / 0", Opcode.FDIV, 0x00000000, 0x00000000, 0x00000000, 0x7FC00000),
    Golden("a quotient next to a tie", Opcode.FDIV, 0x3F7FFFFF, 0x3F7FFFFE, 0x00000000, 0x3F800001),
    Golden("the root of 2", Opcode.FSQRT, 0x40000000, 0x00000000, 0x00000000, 0x3FB504F3),
    Golden("the root of a subnormal", Opcode.FSQRT, 0x00000001, 0x00000000, 0x00000000, 0x1A3504F3),
    Golden("the root of -0", Opcode.FSQRT, 0x80000000, 0x00000000, 0x00000000, 0x80000000),
    Golden("the root of -1", Opcode.FSQRT, 0xBF800000, 0x00000000, 0x00000000, 0x7FC00000),
    Golden("the root just below 1", Opcode.FSQRT, 0x3F7FFFFF, 0x00000000, 0x00000000, 0x3F7FFFFF),
    Golden("min orders -0 before +0", Opcode.FMIN, 0x00000000, 0x80000000, 0x00000000, 0x80000000),
    Golden("max gives NaN for either", Opcode.FMAX, 0x3F800000, 0xFF800001, 0x00000000, 0x7FC00000),
    Golden("integers convert to the nearest, ties to even", Opcode.I2F, 0x01000001, 0x00000000, 0x00000000, 0x4B800000),
    Golden("floats convert to the nearest, ties to even", Opcode.F2I, 0x40200000, 0x00000000, 0x00000000, 0x00000002),
    Golden("conversions saturate", Opcode.F2I, 0x4F000000, 0x00000000, 0x00000000, 0x7FFFFFFF),
    Golden("NaN converts to 0", Opcode.F2I, 0x7FC00000, 0x00000000, 0x00000000, 0x00000000),
    Golden("exp of -1", Opcode.FEXP, 0xBF800000, 0x00000000, 0x00000000, 0x3EBC5AB2),
    Golden("exp with a subnormal result", Opcode.FEXP, 0xC2CA0000, 0x00000000, 0x00000000, 0x0000000A),
    Golden("log of a subnormal", Opcode.FLOG, 0x00000001, 0x00000000, 0x00000000, 0xC2CE8ED0),
    Golden("tanh across its threshold", Opcode.FTANH, 0x3F200000, 0x00000000, 0x00000000, 0x3F0DFA40),
)

TERMS = 600
CHAINS = (0x49B1EAEE, 0x4A3CFD80, 0x490B7989)
"""Expected chunks of sum(x_i y_i) over `terms()`: 256 fused steps each, then 88."""


def check_machine(path: str = "auto") -> None:
    """Raises DoctorError unless this machine gives the golden words on a kernel path; checked once per process."""
    for what, got, due in _results(path):
        if got != due:
            raise DoctorError(
                f"self-test of the {path} kernels: {what}: got {got:#010x}, expected {due:#010x}", hint=HINT
            )


def terms() -> tuple[_Words, _Words]:
    """Returns two operands of a dot: words of both signs between 2^-20 and 2^12, every 37th subnormal."""
    i = np.arange(TERMS, dtype=np.uint64)
    scrambled = (i * 0x9E3779B1 + 0x7F4A7C15) & 0xFFFFFFFF
    x = (scrambled & 0x8FFFFFFF) + 0x35800000
    y = (scrambled[::-1] * 5 & 0x8FFFFFFF) + 0x35800000
    x[::37] = scrambled[::37] & 0x807FFFFF
    return x.astype(np.uint32), y.astype(np.uint32)


@cache
def _results(path: str) -> tuple[tuple[str, int, int], ...]:
    """Yields (label, computed word, expected word); each operation fills whole vectors and a remainder."""
    results = []
    for golden in GOLDEN:
        a, b, c = (np.full(35, word, dtype=np.uint32) for word in (golden.a, golden.b, golden.c))
        words = set(_native.apply_op(golden.op, a, b, c, path).tolist())
        results += [(golden.what, word, golden.result) for word in words]
    chains = _native.chunk_results(Fold.DOT, *terms(), path).tolist()
    pairs = zip(chains, CHAINS, strict=True)
    return (*results, *((f"chunk {i} of a dot", got, due) for i, (got, due) in enumerate(pairs)))
