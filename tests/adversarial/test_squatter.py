"""A squatter takes seats that others want, and leaves when nobody has time to take them."""

from __future__ import annotations

import pytest

from lockstep.protocol.jobs import Phase
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where

SQUATTED = (1, 2)


def play(court: Court, min_slots: int) -> Ended:
    """Two of three seats are mallory's; `min_slots`: of the job, which goes on with one worker or
    fails."""
    court.forget()
    court.owners = dict.fromkeys(SQUATTED, "mallory")
    court.create(min_slots=min_slots, max_fail=0)
    market, params = court.contracts.market, court.params
    court.send(market.start_round(court.job_id, 0), "requester")
    court.send(market.join(court.job_id, 0, SQUATTED[0]), "mallory")
    court.send(market.leave(court.job_id, 0, SQUATTED[0]), "mallory")
    for slot in SQUATTED:
        court.send(market.join(court.job_id, 0, slot), "mallory")
    ends = market.round(court.job_id, 0).join_ends
    for before in (params.windows.join_seconds // 2, 4):
        court.advance(ends - before - court.now())
        rule = court.refused(market.leave(court.job_id, 0, SQUATTED[0]), "mallory")
    assert court.now() < ends, "the window is still open"
    court.send(market.join(court.job_id, 0, 0), "worker-0")
    court.devnet.mine(2)
    court.send(market.seal(court.job_id, 0), "requester")
    court.claim(absent=SQUATTED)
    if min_slots > 1:
        fail(court)
    court.settle()
    gained = court.balance({"mallory": len(SQUATTED) * params.role.slot_price})
    assert gained["worker-0"] == (params.role.slot_price + params.merge.price if min_slots == 1 else 0)
    return Ended("fined", Where(rule="WrongPhase"), Where(rule=rule))


def fail(court: Court) -> None:
    """Too few have revealed: the round fails, at the squatter's cost."""
    court.wait(Phase.FREEZING)
    bodies = court.ledger().jobs[court.job_id].rounds[0].bodies
    court.send(court.contracts.market.freeze(court.job_id, 0, bodies), "requester")
    assert court.phase() == Phase.FAILED


CHEAT = Cheat(
    "squatter", "fined",
    {
        "silent in a round that goes on": lambda court: play(court, 1),
        "silent in a round that fails": lambda court: play(court, 2),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_squatter_cannot_leave_late_and_pays_for_its_silence(court: Court, form: str) -> None:
    run(court, CHEAT, form)
