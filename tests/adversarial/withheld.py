"""What is withheld, and what is demanded in spite: payloads, carries, and rows of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from lockstep.chain.contracts import Call
from lockstep.execution import jobs
from lockstep.execution.jobs import CarryIn, Job, carry_of
from lockstep.execution.merging import judge_payloads, store_payload, stored_payload
from lockstep.market.demands import DemandIssuer, DemandResponder
from lockstep.market.replay import PublicData, WrongSource, audit
from lockstep.numerics.trace import tensor_root
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market.availability import payload_answer, payload_demand_id, row_answer, row_demand_id
from lockstep.protocol.market.job_rules import answer_floor
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.receipts import mask_of
from lockstep.protocol.merkle import LEAF_ELEMENTS
from lockstep.protocol.programs.defects import Code, ProgramParts
from lockstep.protocol.types import Cid, ClaimId, Digest, GameId, Seconds
from lockstep.storage.payload import load_payload
from lockstep.storage.payload import store_payload as store_tensors
from tests.adversarial.cheat import Story
from tests.adversarial.claims import moments
from tests.adversarial.court import NOWHERE, WALLET, Court, published
from tests.adversarial.inputs import signed
from tests.support.toyjob import ROWS, SIZE
from worker.progress import Material

# -- payloads ----------------------------------------------------------------------------------------------------------


def left_out(court: Court) -> str:
    """Slot 0 is not merged; its claim is right, so its stake comes back, less a slot's price if it was
    demanded in vain."""
    court.settle()
    market = court.contracts.market
    assert market.round(court.job_id, 0).mask == 0b110
    assert market.claim(market.claim_id_of(court.job_id, 0, 0)).status.name == "FINAL"
    return "slot 0"


def misshapen(court: Court) -> Cid:
    """A payload of one element too many."""
    return store_tensors(court.store, [np.zeros(SIZE + 1, np.float32)])


def truncated(court: Court) -> Cid:
    """A payload of which a full disk kept half."""
    cid = store_tensors(court.store, [np.ones(SIZE, np.float32)])
    (path,) = court.store.home.glob(f"blocks/*/{cid}")
    os.truncate(path, path.stat().st_size // 2)
    return cid


def unfetchable(cid: Callable[[Court], Cid]) -> Story:
    """The liar says that it has everything; the two others say what they could fetch and decode."""

    def story(court: Court) -> str:
        court.claim(change={0: published(payload_cid=cid(court))})
        assert court.audits() == {}, "the claim itself is right: nothing to play for"
        market = court.contracts.market
        everything = (1 << 64) - 1
        court.send(market.attest(court.job_id, 0, [signed(court, 0, everything, "worker-0")]), "worker-0")
        for rule, other in (("AlreadyDone", (0, 0)), ("SignatureInvalid", (1, everything))):
            receipt = signed(court, *other, "worker-0")
            assert court.refused(market.attest(court.job_id, 0, [receipt]), "worker-0") == rule
        payloads = court.ledger().jobs[court.job_id].rounds[0].payloads
        judged = mask_of({slot: report for slot, report, _ in judge_payloads(court.job, court.store, payloads, {})})
        honest = [signed(court, who, judged, f"worker-{who}") for who in (1, 2)]
        court.send(market.attest(court.job_id, 0, honest), "mallory")
        return left_out(court)

    return story


def colludes(court: Court, claim: ClaimId) -> str:
    """Everybody who speaks says that all is there; what a stranger has demanded on chain nobody posts."""
    market, demands = court.contracts.market, court.contracts.demands
    receipts = [signed(court, who, 0b111, f"worker-{who}") for who in range(3)]
    court.send(market.attest(court.job_id, 0, receipts), "mallory")
    court.wait(Phase.FREEZING)
    court.advance(court.params.windows.answer_seconds + 1)
    court.send(demands.settle(payload_demand_id(claim, 0)), "mallory")
    assert demands.missing(claim)
    return left_out(court)


def hidden_by_receipts(court: Court) -> str:
    """A stranger demands a payload that is stored nowhere."""
    claim = court.claim(change={0: published(payload_cid=NOWHERE)})[0]
    court.send(court.contracts.demands.unavailable(court.job_id, 0, 0, 0), "verifier")
    return colludes(court, claim)


def one_leaf(court: Court) -> str:
    """What the liar published lacks one leaf, and it answers with a right one for whatever else is asked. Who has
    replayed the claim names exactly that leaf."""

    def spoiled(m: Material) -> Material:
        tensors = tuple(t.copy() for t in load_payload(court.store, m.payload_cid, court.job.payload_layout))
        tensors[0].reshape(-1)[0] += 1
        assert tensors[0].size <= LEAF_ELEMENTS, "leaf 0 of tensor 0"
        return replace(m, payload_cid=store_payload(court.job, court.store, tensors))

    claim = court.claim(change={0: spoiled})[0]
    demands, (job, round_, record) = court.contracts.demands, court.ledger().find(claim)  # type: ignore[misc]
    public = PublicData(court.job, court.store)
    found = audit(public.run_of(job, round_, record), record, court.store)
    assert found.matches, "the claim itself is right"
    assert found.final is not None
    public.keep(record, found.final)
    lacking = public.wrong_leaves(record)
    assert lacking == ((0, 0),)
    _, demand = DemandIssuer(court.contracts, court.address("verifier")).payload(court.job_id, 0, 0, claim, lacking)
    court.send(demand, "verifier")
    court.devnet.mine(2)
    answer = answer_of(court, payload_demand_id(claim, 0), stored_payload(court.job, court.store, record.payload))
    call = demands.answer(payload_demand_id(claim, 0), record.body, *answer)
    assert court.refused(call, "worker-0") == "ProofInvalid", "what it holds is not what it claimed"
    return colludes(court, claim)


def answer_of(court: Court, asked: Any, tensors: Any, carry: bool = False) -> tuple[Code, Any]:
    """The encode's code, and the leaves that a demand asks for, out of these tensors."""
    demands, program, held = court.contracts.demands, court.job.programs.encode, iter(tensors)
    stored, seed = demands.demand(asked), demands.seed_of(asked)
    assert stored is not None
    assert seed is not None
    whole = {k: next(held).tobytes() for k, header in enumerate(program.output_layout) if header is not None}
    shown = payload_answer(stored.wanted, seed, program, whole.__getitem__, carry=carry)
    return ProgramParts.of(program).code, shown


# -- carries -----------------------------------------------------------------------------------------------------------


def without_carry(court: Court, r: int, **lies: Any) -> list[ClaimId]:
    """A round of claims in which slot 0 publishes its payload beside a carry that nobody has."""

    def change(m: Material) -> Material:
        tensors = load_payload(court.store, m.payload_cid, court.job.payload_layout, carries=True)
        return replace(m, payload_cid=store_tensors(court.store, tensors, court.job.wire_format, NOWHERE))

    return court.claim(**lies, r=r, change={0: change})


def due(court: Court, name: str, now: Seconds | None = None) -> list[Call]:
    """What a party's program sends about demands."""
    answers = DemandResponder(court.contracts, court.store, court.address(name))
    return [call for _, call in answers.due(court.ledger(), lambda _: court.job, now or court.now())]


def demands_carry(court: Court, slot: int, name: str) -> ClaimId:
    """Round 1 has begun from the carries of round 0; the carry of a slot is demanded: the claim that starts from it."""
    court.seal(1)
    claim = court.claim(r=1)[slot]
    assert court.contracts.market.claim(claim).carries
    _, demand = DemandIssuer(court.contracts, court.address(name)).carry(court.job_id, 1, slot, claim)
    court.send(demand, name)
    return claim


def unanswered(court: Court) -> str:
    """The carry is demanded of the claim that starts from it; nobody shows it."""
    market, demands = court.contracts.market, court.contracts.demands
    without_carry(court, 0)
    court.merge(r=0)
    claim = demands_carry(court, 0, "verifier")
    asked = payload_demand_id(claim, 0)
    assert not due(court, "worker-0"), "nobody has it"
    early = court.refused(demands.carry_unavailable(court.job_id, 0, 0, 0), "verifier")
    assert early == "NoCarry", "it began at zero"
    court.wait(Phase.FREEZING, r=1)
    court.advance(court.params.windows.answer_seconds + 1)
    assert court.refused(demands.settle(asked), "mallory") == "TooEarly", "the owner has a defender's clock more"
    court.merge(r=1)
    assert market.round(court.job_id, 1).mask == 0b110
    court.seal(2)
    assert court.run(0, 2).carried is None, "what was left out is not carried"
    court.claim(r=2)
    court.advance(court.params.windows.clock_seconds)
    court.send(demands.settle(asked), "mallory")
    assert court.convicted(claim)
    court.settle()
    assert [e.round for e in court.events("Paid") if e.slot == 0] == [0, 2], "the rounds of which all was there"
    return "slot 0"


def wrong_source(court: Court) -> GameId:
    """A false claim whose carry nobody has; it is found from the claim after it, when its own window would be over."""
    market, liar = court.contracts.market, moments(first=0.25)(court.run(0), court)
    first = without_carry(court, 0, lies={0: liar})[0]
    court.merge(r=0)
    court.seal(1)
    *_, (_, final, _) = liar.states()
    ledger = court.ledger().jobs[court.job_id]
    base = PublicData(court.job, court.store).base(ledger, ledger.rounds[1])
    carried = CarryIn(court.record(first).body, carry_of(court.job, final))
    later = court.claim({0: jobs.slot_run(court.job, base, ledger.rounds[1].seed, 1, 0, carried)}, r=1)[0]
    court.merge(r=1)
    window, merged = court.params.windows.challenge_seconds, market.round(court.job_id, 0).merged_at
    court.advance(merged + window + 1 - court.now())
    assert market.window_open(first), "until the claims that stand on it are final"
    assert court.refused(market.finalize(court.job_id, 0), "requester") == "TooEarly"
    public, ledger = PublicData(court.job, court.store), court.ledger().jobs[court.job_id]
    with pytest.raises(WrongSource) as source:
        public.run_of(ledger, ledger.rounds[1], court.record(later))
    record = source.value.record
    assert record.id == first, "the claim to challenge"
    found = audit(public.run_of(ledger, ledger.rounds[0], record), record, court.store)
    game = court.open(first, found)
    court.play(game, court.defender(game), court.challenger(game, found.held))
    assert court.convicted(first)
    court.settle()
    assert market.claim(later).status == ClaimStatus.VOID, "unpaid, and its stake is back"
    assert not [e for e in court.events("Paid") if e.slot == 0], "of neither round"
    return game


def kept_after_exclusion(court: Court) -> GameId:
    """A slot that was convicted before it could be accepted goes on with the moments of its own payload."""
    liar = moments(0.25, 0.25)(court.run(0), court)
    first = court.claim({0: liar})[0]
    court.audit_and_play()
    assert court.convicted(first)
    court.merge()
    court.seal(1)
    honest = court.run(0, 1)
    assert honest.carried is None, "what was excluded is not carried"
    *_, (_, final, _) = liar.states()
    own = carry_of(court.job, final)
    claim = court.claim({0: replace(honest, start=[*honest.start[:4], *own, *honest.start[6:]])}, r=1)[0]
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    court.merge(r=1)
    court.rounds(2)
    return game


# -- rows --------------------------------------------------------------------------------------------------------------

ROW = 17
LONG_ROWS, LONG = 64, 49_153
"""A context of 49,152 tokens and the one after it: 193 leaves, which no transaction holds."""


def nobody_has_it(court: Court) -> str:
    """The requester published a root and not the data: the job is void."""
    demands = court.contracts.demands
    court.send(demands.demand_row(court.job_id, ROW), "verifier")
    assert court.refused(demands.void_for_row(court.job_id, ROW), "verifier") == "TooEarly"
    court.advance(court.params.windows.answer_seconds + 1)
    court.send(demands.void_for_row(court.job_id, ROW), "verifier")
    court.settle_void("verifier")
    return "row"


def acts(court: Court, job: Any) -> Iterator[tuple[str, Call]]:
    """What the accomplice's program sends until the row is posted: it is killed and started again at every act."""
    # Nobody was first in all the time for turns.
    court.advance(court.params.windows.answer_seconds // 2)
    while True:
        answers = DemandResponder(court.contracts, court.store, court.address("accomplice"))
        found = list(answers.due(court.ledger(), lambda _: cast(Job, job), court.now()))
        if not found:
            return
        yield from found


def posted(court: Court, row: int, lost: int) -> str:
    """The row is there, who asked has lost its bond, the job goes on."""
    demand = court.contracts.demands.demand(row_demand_id(court.job_id, row))
    assert demand is not None
    assert demand.status.name == "ANSWERED"
    assert court.contracts.vault.lock_of(row_demand_id(court.job_id, row)) is None
    assert court.wealth("mallory") - WALLET == -lost
    assert court.contracts.market.job(court.job_id).status.name == "ACTIVE"
    return "bond lost"


def somebody_has_it(court: Court) -> str:
    """Who demanded it in spite pays who posts it."""
    demands = court.contracts.demands
    bond = demands.row_bond_of(court.job_id, ROW)
    court.send(demands.demand_row(court.job_id, ROW), "mallory")
    for _, call in acts(court, court.job):
        court.send(call, "accomplice")
    assert court.wealth("accomplice") - WALLET == bond * 60 // 100
    assert court.refused(demands.demand_row(court.job_id, ROWS), "mallory") == "NoSuchRow"
    return posted(court, ROW, bond)


def long_row(meddle: Callable[[Court, int, Call, Any], int] = lambda *_: 0) -> Story:
    """A row that everybody holds, of a length that no transaction carries: it is posted in parts."""

    def story(court: Court) -> str:
        data = np.random.default_rng(1).integers(0, 50_000, (LONG_ROWS, LONG), dtype=np.int32)
        court.submit(
            dataset_root=Digest(tensor_root(data)), dataset_rows=LONG_ROWS, row_length=LONG,
            answer_seconds=answer_floor(LONG, Seconds(12)),
        )  # fmt: skip
        demands, row = court.contracts.demands, 3
        bond = demands.row_bond_of(court.job_id, row)
        court.send(demands.demand_row(court.job_id, row), "mallory")
        job, begun = SimpleNamespace(params=court.params, dataset=data), court.now()
        sent, taken = [], 0
        for key, call in acts(court, job):
            assert len(call.data) < 128 * 1024 - 1024, "nodes pass it on"
            if key.startswith("answer"):
                taken += meddle(court, row, call, job)
            court.send(call, "accomplice")
            sent.append(key.partition("/")[0])
        assert sent == ["commit", *["answer"] * 4]
        assert court.now() - begun <= court.params.windows.answer_seconds
        gained = court.wealth("accomplice") - WALLET
        assert 0 <= bond * 60 // 100 - gained - taken < 10, "60 % of the bond, each share rounded down"
        return posted(court, row, bond - taken)

    return story


def copied(court: Court, row: int, call: Call, job: Any) -> int:
    """Who asked sees the part in the mempool, and sends it first: it has committed to nothing."""
    assert court.refused(call, "mallory") == "NotCommitted"
    return 0


def one_leaf_ahead(court: Court, row: int, call: Call, job: Any) -> int:
    """Who asked posts a single leaf before each part, so that the part should not fit any more."""
    demands = court.contracts.demands
    demand = demands.demand(row_demand_id(court.job_id, row))
    assert demand is not None
    tree, rows = row_answer(job.params, job.dataset.reshape(-1).data, row)
    leaf = demands.answer_row(court.job_id, row, tree, demand.next, rows[demand.next : demand.next + 1])
    if demand.next + 1 == len(rows):
        return 0  # the last leaf is a part of its own: who posts that has answered
    before = court.wealth("mallory")
    court.send(demands.commit([digest_of(court.address("mallory"), leaf.data)]), "mallory")
    court.send(leaf, "mallory")
    return court.wealth("mallory") - before
