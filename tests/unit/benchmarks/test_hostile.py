"""Programs at the limits harm nobody but the child that has them, and the next child works."""

from __future__ import annotations

import pytest

from benchmarks import hostile

GROWN = 256 << 20
"""More than a parent takes to decode the largest of them, and less than a child may take."""


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 40, 8))
def test_a_parent_outlives_what_its_children_do_not(first: int) -> None:
    found = hostile.suffer(range(first, first + 8))
    assert found.draws == sum(found.outcomes.values()) == 8
    assert found.grown_bytes < GROWN
    ended = sum(count for name, count in found.outcomes.items() if "late" in name or "memory" in name or "died" in name)
    assert found.children >= ended, "each had a child of its own from there on"


def test_the_draws_are_the_same_in_every_run() -> None:
    assert [hostile.drawn(seed)[1].root for seed in (3, 4)] == [hostile.drawn(seed)[1].root for seed in (3, 4)]
