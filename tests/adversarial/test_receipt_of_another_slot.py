"""A stranger hands in what an account has signed for one slot as its word for another slot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.protocol.jobs import Phase, Receipt
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where

OWNER = "worker-0"
SIGNED, OTHER = 0, 1
"""Slots of the same owner."""


def play(court: Court) -> Ended:
    """The owner says for slot 0 that slot 2 is there, and for slot 1 that it is not; a stranger
    hands the first in twice."""
    court.forget()
    court.owners = {SIGNED: OWNER, OTHER: OWNER}
    court.create()
    court.seal()
    court.claim()
    market = court.contracts.market
    court.wait(Phase.ATTESTING)
    good, bad = signed(court, SIGNED, 0b111), signed(court, OTHER, 0b011)
    copied = replace(good, who=OTHER)
    rule = court.refused(market.attest(court.job_id, 0, [copied]), "mallory")
    assert court.refused(market.attest(court.job_id, 0, [good, copied]), "mallory") == rule
    assert market.round(court.job_id, 0).receipts == 0, "nothing was taken"
    court.send(market.attest(court.job_id, 0, [good, bad]), "mallory")
    assert market.round(court.job_id, 0).receipts == 2
    court.settle()
    court.balance()
    return Ended("refused", Where(rule="SignatureInvalid"), Where(rule=rule))


def signed(court: Court, who: int, mask: int) -> Receipt:
    """A receipt of the owner, for one of its slots."""
    attempt = court.contracts.market.round(court.job_id, 0).attempt
    (receipt,) = court.contracts.sign_receipts(court.accounts[OWNER], court.job_id, 0, attempt, mask, [who])
    return receipt


CHEAT = Cheat("receipt of another slot", "refused", {"of the same owner": play})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_receipt_counts_for_the_slot_that_it_was_signed_for(court: Court, form: str) -> None:
    run(court, CHEAT, form)
