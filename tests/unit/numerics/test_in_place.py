"""Products that read an operand where a copy took it from: strides or a table of places tell where, never both."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics.builder import ProgramBuilder, Tensor
from lockstep.protocol.programs.program import F32
from tests.unit.numerics.comparison import compare, normal


def _turned(b: ProgramBuilder, entry: int, outer: int, rows: int, places: int) -> tuple[Tensor, Tensor]:
    """([outer, rows, places] as a map leaves it, its copy as [rows, outer x places])."""
    x = b.map((outer, rows, places), [b.input(entry).reshape(outer, rows, places)], lambda e, v: e.fadd(v, v))
    copy = b.map((rows, outer, places), [x.permute(1, 0, 2)])
    return x, copy.reshape(rows, outer * places)


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize(
    ("outer", "M", "N", "places"),
    [
        pytest.param(2, 6, 8, 144, id="two chunks"),
        pytest.param(2, 6, 8, 128, id="one chunk"),
        pytest.param(3, 5, 7, 257, id="four chunks, nothing a multiple"),
        pytest.param(2, 200, 33, 17, id="parts of rows"),
        pytest.param(2, 16, 16, 144, id="rows that fill vectors"),
        pytest.param(9, 3, 24, 29, id="runs shorter than a vector"),
        pytest.param(2, 2, 3, 1, id="single terms"),
    ],
)
def test_a_product_of_turned_copies_has_the_reference_bits(side: str, outer: int, M: int, N: int, places: int) -> None:
    b = ProgramBuilder([(F32, outer * M * places), (F32, outer * N * places)])
    x, turned_x = _turned(b, 0, outer, M, places)
    y, turned_y = _turned(b, 1, outer, N, places)
    K = outer * places
    left = turned_x if side != "right" else b.input(0).reshape(M, K)
    right = turned_y if side != "left" else b.input(1).reshape(N, K)
    product = b.dot(left.unsqueeze(1), right.unsqueeze(0))
    # What was copied is an output, so that it is in memory; nothing else reads the copies.
    program = b.finish([product, x, y])
    rng = np.random.default_rng(0)
    compare(program, [normal(rng, h.elements) for h in program.inputs if h is not None], threads=(1, 2, 4))
