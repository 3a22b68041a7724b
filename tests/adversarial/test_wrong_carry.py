"""Wrong carry-in: a slot starts from moments of its own instead of from those that the contract puts into its S_0."""

from dataclasses import replace

import numpy as np
import pytest

from tests.adversarial.cheat import Cheat, Ended, convict, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named

FIRST_MOMENT, SECOND_MOMENT = 4, 5
"""Entries of the state's carry quarter."""


def play(court: Court, entry: int, reader: str) -> Ended:
    """The moments that the slot had at the end of its last round, kept though carry is off."""
    honest = court.run(0)
    start = list(honest.start)
    start[entry] = np.full_like(honest.start[entry], 0.25)
    declared = Where(1, named(honest.program(1), reader), 0, rule="op")
    return convict(court, replace(honest, start=start), declared)


CHEAT = Cheat(
    "wrong carry-in", "fraud",
    {
        "first moment": lambda court: play(court, FIRST_MOMENT, "m"),
        "second moment": lambda court: play(court, SECOND_MOMENT, "v"),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_carry_of_ones_own_is_convicted_where_it_is_read(court: Court, form: str) -> None:
    run(court, CHEAT, form)
