"""Withdrawal before the window ends: a liar takes out what it can, and what it cannot is slashed."""

import pytest

from lockstep.protocol.types import Wei
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import UNBOND_SECONDS, Court, Where
from tests.adversarial.lies import lying, named
from tests.adversarial.test_moment_flip import ELEMENT, STEP, flips


def play(court: Court) -> Ended:
    honest = court.run(0)
    vault = court.contracts.vault
    assert court.params.windows.challenge_seconds < UNBOND_SECONDS, "unbonding is longer than any window"
    claims = court.claim({0: lying(honest, flips("m", 7))})
    free = vault.free(court.address("worker-0"))
    assert court.refused(vault.request_unbond(Wei(free + 1)), "worker-0") == "StakeTooLow", "a claim's stake is locked"
    court.send(vault.request_unbond(free), "worker-0")
    assert court.refused(vault.withdraw_unbonded(), "worker-0") == "Unbonding"
    assert court.refused(court.contracts.market.leave(court.job_id, 0, 0), "worker-0") == "WrongPhase"
    (game,) = court.audit_and_play()
    assert court.convicted(claims[0])
    court.settle()
    court.advance(UNBOND_SECONDS)
    court.send(vault.withdraw_unbonded(), "worker-0")
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, named(honest.program(STEP), "m"), ELEMENT, rule="op"))


CHEAT = Cheat("withdrawal before the window ends", "fraud", {"all that is free": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_claims_stake_cannot_be_withdrawn_before_its_window_ends(court: Court, form: str) -> None:
    run(court, CHEAT, form)
