"""Witnesses as processes: drawn, looking, killed, paid."""

from __future__ import annotations

import pytest

from lockstep.protocol.jobs import Phase
from lockstep.protocol.market import ids
from lockstep.protocol.market.types import Duty, DutyStatus, Outcome
from lockstep.protocol.types import Cid, ClaimId, Seconds, Wei
from tests.e2e.market import Market, kill, wait_for
from tests.support.waiting import wait

pytestmark = [pytest.mark.slow, pytest.mark.chain, pytest.mark.usefixtures("in_the_twin")]

FEE, STAKE = Wei(10**17), Wei(2 * 10**18)
UNPUBLISHED = dict.fromkeys(range(3), Cid(""))
TERMS = {"witness_fee": FEE, "witness_stake": STAKE, "audit_seconds": Seconds(40), "attest_seconds": Seconds(60)}


def publish(market: Market, claims: list[ClaimId], r: int = 0) -> None:
    """Every owner shows its list, once it may."""
    for slot, worker in enumerate(market.workers):
        roots = worker.held[claims[slot]].trace
        cid = market.store.put(b"".join(roots))
        worker.outbox.send(market.contracts.witnesses.publish(market.job_id, r, slot, cid), f"publish/{r}")


def to_final(market: Market, r: int = 0) -> None:
    """Merged, and its window over."""
    market.merge(r=r)
    market.devnet.advance(market.params.windows.challenge_seconds)
    market.requester.send(market.contracts.market.finalize(market.job_id, r), f"finalize/{r}")
    assert market.contracts.market.phase(market.job_id, r) == Phase.FINAL


def audit_of(market: Market, r: int = 0) -> bytes:
    attempt = market.contracts.market.round(market.job_id, r).attempt
    return ids.audit_id(market.job_id, r, attempt)


def duties(market: Market) -> list[Duty]:
    contract, audit = market.contracts.witnesses, audit_of(market)
    return [contract.duty(audit, i) for i in range(contract.audit(audit).duties)]


def all_are(market: Market, status: DutyStatus) -> bool:
    """Tells if witnesses are drawn, and every duty is as far as `status`."""
    found = duties(market)
    return bool(found) and all(duty.status == status for duty in found)


@pytest.mark.parametrize("terms", [{**TERMS, "witnesses": 2}])
def test_witnesses_look_survive_a_kill_and_are_paid(market: Market) -> None:
    names = ("witness-0", "witness-1")
    processes = {name: market.verifier(name, None, "--witness") for name in names}
    for process in processes.values():
        wait_for(process, "enrolled")
    market.seal()
    claims = market.claim([market.run(slot) for slot in range(3)], trace_cids=UNPUBLISHED)
    # Killed while it looks or has just looked: its chain and what it saw are on disk before anything is sent.
    wait(lambda: bool(duties(market)), "witnesses are drawn")
    kill(processes["witness-1"])
    processes["witness-1"] = market.verifier("witness-1", None, "--witness")
    wait(lambda: all_are(market, DutyStatus.COMMITTED), "both have committed")
    assert {d.account for d in duties(market)} == {market.address(name) for name in names}, "none is drawn twice"
    publish(market, claims)
    wait(lambda: all_are(market, DutyStatus.AGREED), "both have spoken")
    assert market.contracts.market.round(market.job_id, 0).receipts == 2, "they said which payloads are there"
    to_final(market)
    wait(lambda: all_are(market, DutyStatus.CLOSED), "both are settled")
    vault = market.contracts.vault
    assert [vault.credits(market.address(name)) for name in names] == [FEE, FEE]
    closed = [e for e in market.events() if e.name == "DutyClosed"]
    assert [e.outcome for e in closed] == [Outcome.PAID, Outcome.PAID]
    assert market.contracts.market.job(market.job_id).fees_due == 0
    for process in processes.values():
        assert process.stop(60) == 0, process.last_words()
    assert [vault.free(market.address(name)) for name in names] == [STAKE, STAKE], "retired on leaving"
