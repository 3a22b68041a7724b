"""The memory of a planned step: what need not wait in it, in bytes of the arena; the bits are those of the ops."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.built import COMPILED, kernels
from lockstep.protocol.programs.program import F32, Program
from tests.unit.numerics.comparison import compare, normal

pytestmark = pytest.mark.skipif(not COMPILED, reason="the portable kernels fuse nothing")

SMALL = 32 << 10
"""Bytes: what lies beside the tensors that a test is about."""


def arena(program: Program) -> int:
    """Bytes of the arena of a plain run."""
    constants = [c.header.elements for c in program.consts]
    return kernels.bytes_of_run(program.header, list(program.descriptors), constants)[0]


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
