"""Witnesses as processes: drawn, looking, killed, paid; and one that a worker told its roots, against a volunteer."""

from __future__ import annotations

import pytest

from lockstep.protocol.jobs import Phase
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.types import AuditStatus, Duty, DutyStatus, Outcome, StateLeaf
from lockstep.protocol.types import Cid, ClaimId, Seconds, Wei
from tests.e2e.market import Market, kill, wait_for
from tests.e2e.test_verifier import lie
from tests.support.waiting import wait
from tests.support.watching import PlayedWitness

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


@pytest.mark.parametrize("terms", [{**TERMS, "witnesses": 3}])
def test_a_witness_without_a_list_replays_to_the_end_and_one_that_differs_convicts(market: Market) -> None:
    processes = [market.verifier(f"witness-{i}", None, "--witness") for i in range(3)]
    for process in processes:
        wait_for(process, "enrolled")
    market.seal()
    market.defend()
    _, lying = lie(market, "wrong-lr", 1)
    claims = market.claim([market.run(0), lying, market.run(2)], trace_cids=UNPUBLISHED)
    wait(lambda: all_are(market, DutyStatus.COMMITTED), "looked")
    by_account = {market.address(process.name): process for process in processes}
    drawn = {d.slot: by_account[d.account] for d in duties(market)}
    assert sorted(drawn) == [0, 1, 2]
    # Slot 0 shows its list; slots 1 and 2 do not: their witnesses replay them whole.
    worker = market.workers[0]
    cid = market.store.put(b"".join(worker.held[claims[0]].trace))
    worker.outbox.send(market.contracts.witnesses.publish(market.job_id, 0, 0, cid), "publish")
    for slot, verdict in enumerate(("agrees", "differs", "agrees")):
        assert wait_for(drawn[slot], "witnessed", slot=slot)["verdict"] == verdict
    assert wait_for(drawn[1], "won", claim=claims[1].hex())["verdict"] == "fraud"
    to_final(market)
    wait(lambda: all_are(market, DutyStatus.CLOSED), "all are settled")
    assert [e.outcome for e in market.events() if e.name == "DutyClosed"] == [Outcome.PAID] * 3


@pytest.mark.parametrize("terms", [{**TERMS, "witnesses": 1}])
def test_a_witness_that_the_worker_told_its_roots_falls_with_it(market: Market) -> None:
    market.home("cartel")
    account = market.devnet.account("cartel")
    from lockstep.chain.outbox import Outbox

    outbox = Outbox(market.folder / "cartel.sqlite", market.devnet.w3, account)
    market._fund([outbox])
    sent = iter(range(100))
    cartel = PlayedWitness(
        market.contracts.witnesses, market.job_id, market.address("cartel"),
        lambda call: outbox.send(call, f"{call.label}/{next(sent)}"),
    )  # fmt: skip
    cartel.enrol()
    market.seal()
    lying = lie(market, "other-data", 0)[1], lie(market, "other-data", 1)[1], lie(market, "other-data", 2)[1]
    claims = market.claim(list(lying), trace_cids=UNPUBLISHED)
    market.defend()
    draw = market.contracts.witnesses.draw(market.job_id, 0)
    market.requester.send(draw, "draw/open")
    market.devnet.mine(2)
    market.requester.send(draw, "draw")
    audit = audit_of(market)
    assert market.contracts.witnesses.audit(audit).status == AuditStatus.DRAWN  # type: ignore[arg-type]
    (duty,) = duties(market)
    record = market.ledger().jobs[market.job_id].rounds[0].claims[duty.slot]
    held = market.workers[duty.slot].held[record.id]

    def leaf(place: int, u: int) -> StateLeaf:
        return held.run.leaf(u, held.run.state_before(u + 1), place)

    word = cartel.word(audit, 0, record.body, held.trace, leaf)  # type: ignore[arg-type]
    cartel.commit(audit, 0, record.id, word)  # type: ignore[arg-type]
    cartel.reveal(audit, 0, word)  # type: ignore[arg-type]
    publish(market, claims)

    verifier = market.verifier()
    won = wait_for(verifier, "won", claim=record.id.hex())
    assert won["verdict"] == "fraud"
    market.requester.send(market.contracts.witnesses.settle(audit, 0), "settle")  # type: ignore[arg-type]
    assert market.contracts.vault.lock_of(draws.stake_key(market.job_id, cartel.address)) is None
    (closed,) = [e for e in market.events() if e.name == "DutyClosed"]
    assert (closed.outcome, closed.amount) == (Outcome.SLASHED, STAKE)
    outbox.close()
