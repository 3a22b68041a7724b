"""Payload withheld: a right claim whose payload nobody can fetch. Others' receipts leave it out: no pay, no slash."""

from dataclasses import replace

import pytest

from lockstep.execution.merging import judge_payloads, store_payload, stored_payload
from lockstep.node.demands import Asks
from lockstep.node.replay import PublicData, audit
from lockstep.protocol.jobs import Phase, Receipt
from lockstep.protocol.market.availability import payload_answer, payload_demand_id
from lockstep.protocol.market.receipts import mask_of
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.programs.defects import ProgramParts
from lockstep.protocol.types import Cid
from lockstep.storage.payload import load_payload
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import NOWHERE, Court, Where, published
from worker.progress import Material

LIAR = 0
EVERYTHING = (1 << 64) - 1
LACKING = (0, 0)
"""The leaf that a liar hides: its tensor, and its number."""


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
    court.send(demands.unavailable(court.job_id, 0, LIAR, 0), "verifier")
    court.send(market.attest(court.job_id, 0, [signed(court, who, 0b111) for who in range(3)]), "mallory")
    court.wait(Phase.FREEZING)
    court.advance(court.params.windows.answer_seconds + 1)
    court.send(demands.settle(payload_demand_id(claims[LIAR], 0)), "mallory")
    assert demands.missing(claims[LIAR])
    court.settle()
    assert market.round(court.job_id, 0).mask == 0b110
    gained = court.balance()
    assert gained["worker-0"] == 0, "it earned nothing"
    assert gained["verifier"] == 0, "its bond came back"
    return Ended("excluded", Where(rule="slot 0"), Where(rule="slot 0"))


def one_leaf(court: Court) -> Ended:
    """Colluding receipts say that all is there; what the liar published lacks one leaf, and it answers with a right
    one for whatever else is asked. Who has replayed the claim names exactly that leaf."""
    published_cid: list[Cid] = []

    def spoiled(m: Material) -> Material:
        tensors = tuple(t.copy() for t in load_payload(court.store, m.payload_cid, court.job.payload_layout))
        tensors[LACKING[0]].reshape(-1)[LEAF_ELEMENTS * LACKING[1]] += 1
        published_cid.append(store_payload(court.job, court.store, tensors))
        return replace(m, payload_cid=published_cid[0])

    claims = court.claim(change={LIAR: spoiled})
    market, demands, me = court.contracts.market, court.contracts.demands, court.address("verifier")
    ledger = court.ledger()
    job, round_, record = ledger.find(claims[LIAR])  # type: ignore[misc]
    public = PublicData(court.job, court.store)
    found = audit(public.run_of(job, round_, record), record, court.store)
    assert found.matches, "the claim itself is right"
    assert found.final is not None
    public.keep(record, found.final)
    lacking = public.wrong_leaves(record)
    assert lacking == (LACKING,)
    _, demand = Asks(court.contracts, me).payload(court.job_id, 0, LIAR, claims[LIAR], lacking)
    court.send(demand, "verifier")
    court.devnet.mine(2)
    stored = demands.demand(payload_demand_id(claims[LIAR], 0))
    seed = demands.seed_of(payload_demand_id(claims[LIAR], 0))
    assert stored is not None
    assert seed is not None
    program = court.job.programs.encode
    held = iter(stored_payload(court.job, court.store, record.payload))
    tensors = {k: next(held).tobytes() for k, header in enumerate(program.output_layout) if header is not None}
    shown = payload_answer(stored.wanted, seed, program, tensors.__getitem__)
    answer = demands.answer(payload_demand_id(claims[LIAR], 0), record.body, ProgramParts.of(program).code, shown)
    assert court.refused(answer, "worker-0") == "ProofInvalid", "what it holds is not what it claimed"
    court.send(market.attest(court.job_id, 0, [signed(court, who, 0b111) for who in range(3)]), "mallory")
    court.wait(Phase.FREEZING)
    court.advance(court.params.windows.answer_seconds + 1)
    court.send(demands.settle(payload_demand_id(claims[LIAR], 0)), "mallory")
    court.settle()
    assert market.round(court.job_id, 0).mask == 0b110
    gained = court.balance()
    assert (gained["worker-0"], gained["verifier"]) == (0, 0), "it earned nothing, and the bond came back"
    return Ended("excluded", Where(rule="slot 0"), Where(rule="slot 0"))


CHEAT = Cheat(
    "payload withheld", "excluded",
    {
        "one leaf hidden": one_leaf,
        "hidden by colluding receipts": colluding,
        "stored nowhere": lambda court: play(court, NOWHERE),
        "not a payload": lambda court: play(court, court.store.put(b"not a payload")),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_payload_that_others_cannot_fetch_is_left_out_and_unpaid(court: Court, form: str) -> None:
    run(court, CHEAT, form)
