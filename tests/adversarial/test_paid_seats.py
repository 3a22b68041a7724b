"""A requester voids its own job to have the deposit back as the pay of its own seats."""

from __future__ import annotations

import pytest

from lockstep.execution.invalidity import proof
from lockstep.protocol.programs.defects import Held, ProgramParts, find, job_of
from lockstep.protocol.types import Digest
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import WALLET, Court, Where
from tests.adversarial.test_undefendable_program import later_operand
from tests.support import toyjob


def play(court: Court, commits: bool) -> Ended:
    """The requester joins every slot, `commits` to nothing at all, and an accomplice proves the job
    invalid."""
    court.forget()
    court.owners = dict.fromkeys(range(3), "requester")
    programs = toyjob.schedule()
    made = later_operand(programs.step)
    court.submit(step_program=Digest(made.root))
    court.seal()
    market, params = court.contracts.market, court.params
    for slot in range(3):
        if commits:
            court.send(market.commit(court.job_id, 0, slot, Digest(b"\x11" * 32)), "requester")
    found = find(
        Held(job_of(params), (ProgramParts.of(made), ProgramParts.of(programs.encode), ProgramParts.of(programs.merge)))
    )
    assert found is not None
    for _ in range(2):
        # First what commits to the proof, then the proof.
        _, call = proof(court.contracts.validator, court.address("accomplice"), court.job_id, found[0])
        court.send(call, "accomplice")
    court.settle_void("accomplice")
    paid = 3 * params.role.slot_price if commits else 0
    lost = court.wealth("requester") - WALLET
    assert lost == paid - params.deposit
    together = lost + court.wealth("accomplice") - WALLET
    assert together == -((params.deposit - paid) - (params.deposit - paid) * 30 // 100), "70 % of the rest is burned"
    return Ended("void", Where(rule="deposit"), Where(rule="deposit"))


CHEAT = Cheat(
    "paid seats", "void",
    {
        "joined and nothing more": lambda court: play(court, False),
        "committed to nothing": lambda court: play(court, True),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_requester_that_sits_in_its_own_void_job_has_no_deposit_back(court: Court, form: str) -> None:
    run(court, CHEAT, form)
