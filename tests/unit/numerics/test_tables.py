"""Codes of tables in numpy: those of the integer reference, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics import codes, scalar
from lockstep.numerics.tables import quantised, restored, width_of


def reference(row: np.ndarray, width: int) -> tuple[list[int], list[int]]:
    """Words of codes, and scales, of one row."""
    words, scales = [], []
    values = [int(w) for w in row.view(np.uint32)]
    for at in range(0, len(values), 4 * width):
        group = values[at : at + 4 * width]
        scale, inverse = codes.scale_of(codes.magnitude(group), False)
        found = [codes.code_of(x, inverse, None) for x in group] + [0] * (4 * width - len(group))
        words += [codes.packed(found[i : i + 4]) for i in range(0, 4 * width, 4)]
        scales.append(scale)
    return words, scales


def tables() -> dict[str, np.ndarray]:
    generator = np.random.Generator(np.random.Philox(key=3))
    words = generator.integers(0, 1 << 32, (40, 48), np.uint32)
    extreme = np.array([0, 0x80000000, 1, 0x007FFFFF, 0x0D7FFFFF, 0x0D800000, 0x7F7FFFFF, 0x42FE0000], np.uint32)
    return {
        "numbers": generator.standard_normal((30, 300)).astype(np.float32),
        "words of every kind": words.view(np.float32),
        "extreme words": generator.choice(extreme, (60, 12)).view(np.float32),
        "infinities and NaN": generator.choice(
            np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0x3F800000], np.uint32), (60, 5)
        ).view(np.float32),
        "ties": (generator.integers(-254, 255, (30, 16)) / 2).astype(np.float32),
        "one column": generator.standard_normal((9, 1)).astype(np.float32),
    }


@pytest.mark.parametrize("name", tables())
def test_a_table_s_codes_and_scales_are_the_reference_s(name: str) -> None:
    table = tables()[name]
    for width in {1, 2, width_of(table.shape[1])}:
        words, scales = quantised(table, width)
        for row, found, factors in zip(table, words, scales, strict=True):
            due_words, due_scales = reference(row, width)
            assert [int(w) for w in found.view(np.uint32)] == due_words, name
            assert [int(w) for w in factors.view(np.uint32)] == due_scales, name


def test_what_codes_stand_for_is_half_a_code_away_at_most() -> None:
    table = tables()["numbers"]
    words, scales = quantised(table, 64)
    far = np.abs(restored(words, scales, 300) - table).max()
    assert 0 < far <= scales.max() * 0.5001
    assert scalar.NAN == 0x7FC00000


@pytest.mark.parametrize(("terms", "width"), [(1, 1), (4, 1), (5, 2), (64, 16), (65, 32), (256, 64), (257, 64)])
def test_a_group_is_as_short_as_the_terms_allow(terms: int, width: int) -> None:
    assert width_of(terms) == width
