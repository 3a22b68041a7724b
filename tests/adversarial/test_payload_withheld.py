"""Payload withheld: a right claim whose payload nobody can fetch. Others' receipts leave it out: no pay, no slash."""

import pytest

from lockstep.merging import judge_payloads
from lockstep.protocol.availability import payload_demand_id
from lockstep.protocol.jobs import Phase, Receipt
from lockstep.protocol.receipts import mask_of
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import NOWHERE, Court, Where, published

LIAR = 0
EVERYTHING = (1 << 64) - 1


def signed(court: Court, who: int, mask: int, signer: str | None = None) -> Receipt:
    """A receipt of a slot's owner."""
    attempt = court.contracts.market.round(court.job_id, 0).attempt
    account = court.accounts[signer or f"worker-{who}"]
    (receipt,) = court.contracts.sign_receipts(account, court.job_id, 0, attempt, mask, [who])
    return receipt


def honest(court: Court, who: int) -> Receipt:
    """What a worker says after it has tried to fetch and decode every payload."""
    ledger = court.ledger().jobs[court.job_id].rounds[0]
    judged = judge_payloads(court.job, court.store, ledger.payloads, {})
    reports = {slot: report for slot, report, _ in judged}
    return signed(court, who, mask_of(reports))


def play(court: Court, cid: str) -> Ended:
    """The liar says that it has everything; the two others say what they could fetch."""
    claims = court.claim(change={LIAR: published(payload_cid=cid)})  # type: ignore[arg-type]
    assert court.audits() == {}, "the claim itself is right: nothing to play for"
    market = court.contracts.market
    court.send(market.attest(court.job_id, 0, [signed(court, LIAR, EVERYTHING)]), "worker-0")
    again = court.refused(market.attest(court.job_id, 0, [signed(court, LIAR, 0)]), "worker-0")
    forged = court.refused(market.attest(court.job_id, 0, [signed(court, 1, EVERYTHING, "worker-0")]), "worker-0")
    assert (again, forged) == ("AlreadyDone", "SignatureInvalid")
    court.send(market.attest(court.job_id, 0, [honest(court, who) for who in (1, 2)]), "mallory")
    court.settle()
    assert market.round(court.job_id, 0).mask == 0b110
    assert market.claim(claims[LIAR]).status.name == "FINAL"
    gained = court.balance()
    assert gained["worker-0"] == 0, "its stake is back, and it earned nothing"
    return Ended("excluded", Where(rule="slot 0"), Where(rule="slot 0"))


def colluding(court: Court) -> Ended:
    """Everybody who speaks says that it has the payload; a stranger demands it on chain, and nobody posts it."""
    claims = court.claim(change={LIAR: published(payload_cid=NOWHERE)})
    market, demands = court.contracts.market, court.contracts.demands
    court.send(demands.unavailable(court.job_id, 0, LIAR), "verifier")
    court.send(market.attest(court.job_id, 0, [signed(court, who, 0b111) for who in range(3)]), "mallory")
    court.wait(Phase.FREEZING)
    court.advance(court.params.answer_seconds + 1)
    court.send(demands.settle(payload_demand_id(claims[LIAR], 0)), "mallory")
    assert demands.missing(claims[LIAR])
    court.settle()
    assert market.round(court.job_id, 0).mask == 0b110
    gained = court.balance()
    assert gained["worker-0"] == 0, "it earned nothing"
    assert gained["verifier"] == 0, "its bond came back"
    return Ended("excluded", Where(rule="slot 0"), Where(rule="slot 0"))


CHEAT = Cheat(
    "payload withheld", "excluded",
    {
        "hidden by colluding receipts": colluding,
        "stored nowhere": lambda court: play(court, NOWHERE),
        "not a payload": lambda court: play(court, court.store.put(b"not a payload")),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_payload_that_others_cannot_fetch_is_left_out_and_unpaid(court: Court, form: str) -> None:
    run(court, CHEAT, form)
