"""A worker writes a name of any length into the log that all have to read: the contract bounds it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.protocol.jobs import NO_STATE, Phase
from lockstep.protocol.market.ids import commitment
from lockstep.protocol.types import Cid
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where, reveal_of

LONGEST = 128
LIAR = "worker-0"


def revealed(court: Court) -> Ended:
    """The owner of a slot reveals one byte too many, and then as many as there may be."""
    market = court.contracts.market
    made = reveal_of(court.compute(court.run(0)))
    claim = market.claim_id_of(court.job_id, 0, 0)
    digest = commitment(claim, court.address(LIAR), made)
    court.send(market.commit(court.job_id, 0, 0, digest), LIAR)
    court.wait(Phase.REVEALING)
    rules = set()
    for name in ("trace_cid", "payload_cid"):
        endless = replace(made, **{name: Cid("b" * (LONGEST + 1))})
        rules.add(court.refused(market.reveal(court.job_id, 0, 0, endless), LIAR))
    (rule,) = rules
    longest = replace(made, payload_cid=Cid("b" * LONGEST))
    court.send(market.reveal(court.job_id, 0, 0, longest), LIAR)
    assert court.record(claim).payload_cid == "", "what names no content is read as none"
    return Ended("refused", Where(rule="CidTooLong"), Where(rule=rule))


def merged(court: Court) -> Ended:
    """The merger names a checkpoint by one byte too many."""
    court.claim()
    court.wait(Phase.FREEZING)
    market = court.contracts.market
    bodies = court.ledger().jobs[court.job_id].rounds[0].bodies
    court.send(market.freeze(court.job_id, 0, bodies), "requester")
    merger = court.name_of(market.merger_of(court.job_id, 0))
    endless = market.merge(court.job_id, 0, NO_STATE, NO_STATE, "b" * (LONGEST + 1))
    rule = court.refused(endless, merger)
    court.settle()
    court.balance()
    return Ended("refused", Where(rule="CidTooLong"), Where(rule=rule))


CHEAT = Cheat("endless name of content", "refused", {"in a reveal": revealed, "in a merge": merged})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_name_of_content_in_a_log_is_bounded(court: Court, form: str) -> None:
    run(court, CHEAT, form)
