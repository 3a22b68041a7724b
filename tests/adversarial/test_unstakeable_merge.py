"""A job whose merge no worker can stake on would fail round by round; it is not accepted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.protocol.errors import ChainError
from lockstep.protocol.types import Wei
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where
from tests.support import toyjob

CEILING = Wei(2 * toyjob.TOY_TERMS.slot_stake)
"""The most that a merge's stake may be."""
UNHEARD_OF = Wei(3 * 10**26)
"""Below the largest lock, above all tokens that there are."""


def on_chain(court: Court) -> Ended:
    """Sent to the contract as it is; at the ceiling a job is merged by a worker, and paid."""
    court.forget()
    for stake in (UNHEARD_OF, Wei(CEILING + 1)):
        with pytest.raises(ChainError, match=r"JobInvalid\(stakes\)"):
            court.submit(merge_stake=stake)
    assert not court.events("JobCreated")
    court.reset(merge_stake=CEILING)
    court.claim()
    court.settle()
    court.balance()
    return Ended("refused", Where(rule="stakes"), Where(rule="stakes"))


def by_the_sdk(court: Court) -> Ended:
    """Quoted by the requester's own SDK, which sends and stores nothing."""
    court.forget()
    before, net = court.wealth("requester"), court.network()
    for stake in (UNHEARD_OF, Wei(CEILING + 1)):
        with pytest.raises(ChainError, match=r"JobInvalid\(stakes\)") as refused:
            net.quote(toyjob.training_job(terms=replace(toyjob.TOY_TERMS, merge_stake=stake)))
        assert "merge_stake <= 2 x slot_stake" in refused.value.hint
    assert court.wealth("requester") == before
    assert court.spent == []
    assert net.quote(toyjob.training_job(terms=replace(toyjob.TOY_TERMS, merge_stake=CEILING)))
    return Ended("refused", Where(rule="stakes"), Where(rule="stakes"))


CHEAT = Cheat("unstakeable merge", "refused", {"sent to the contract": on_chain, "quoted by the SDK": by_the_sdk})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_job_whose_merge_nobody_can_stake_on_is_refused(court: Court, form: str) -> None:
    run(court, CHEAT, form)
