"""An aggregator that omits an accepted payload: its merge counts a slot as absent that the contract has accepted."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.execution.jobs import ClaimRun
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named


def without(honest: ClaimRun, slot: int, lanes: int) -> ClaimRun:
    """The merge over the same checkpoint with zeros in a slot's place, and a mask that says so."""
    start, width = list(honest.start), len(honest.start) // 2
    mask = start[width + lanes].copy()
    mask[slot] = 0.0
    start[width + slot], start[width + lanes] = np.zeros_like(start[width + slot]), mask
    return replace(honest, start=start)


def play(court: Court, slot: int) -> Ended:
    court.reset(aggregator=court.address("aggregator"))
    court.claim()
    lanes = 1 << court.params.role.slot_depth
    claim = court.merge(lambda honest: without(honest, slot, lanes))
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    court.settle()
    gained = court.balance({"aggregator": court.params.merge.stake})
    assert gained[f"worker-{slot}"] >= court.params.role.slot_price, "the omitted slot is paid like the others"
    # How many payloads there are is the first thing that a merge computes.
    return ended(court, game, Where(1, named(court.job.programs.merge, "count"), 0, rule="op"))


CHEAT = Cheat(
    "aggregator that omits an accepted payload", "fraud",
    {f"slot {slot}": lambda court, slot=slot: play(court, slot) for slot in (0, 2)},
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_merge_without_an_accepted_payload_is_convicted_at_its_first_sum(court: Court, form: str) -> None:
    run(court, CHEAT, form)
