"""Carry withheld: a payload is published, the carry beside it is not, so that the slot's next claim is hard to replay.

It stops nobody: whoever needs the carry replays the claims that it comes from, and convicts the first of them that is
wrong, however long ago it was revealed. Whoever was drawn to look demands it; an owner that does not answer is left out
of the merge, and convicted a defender's clock later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.execution import jobs
from lockstep.execution.jobs import CarryIn, ClaimRun, carry_of
from lockstep.node.demands import COURTESY_SECONDS, Answers, Asks
from lockstep.node.player import Side
from lockstep.node.replay import PublicData, WrongSource, audit
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market.availability import payload_answer, payload_demand_id
from lockstep.protocol.market.types import Status
from lockstep.protocol.programs.defects import ProgramParts
from lockstep.protocol.types import ClaimId, Seconds
from lockstep.storage.payload import load_carry, load_payload, store_payload
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import NOWHERE, Court, Where
from tests.adversarial.lies import named
from worker.progress import Material

LIAR = 0
FIRST_MOMENT = 4
CARRYING: Mapping[str, object] = {"carry": 1, "rounds": 3, "max_lead": 4}
TWO_ROUNDS: Mapping[str, object] = {**CARRYING, "rounds": 2}


def withholding(court: Court, m: Material) -> Material:
    """The material with its payload stored beside a carry that nobody has."""
    tensors = load_payload(court.store, m.payload_cid, court.job.payload_layout, carries=True)
    return replace(m, payload_cid=store_payload(court.store, tensors, court.job.wire_format, NOWHERE))


def withheld(court: Court, r: int, lies: Mapping[int, ClaimRun] | None = None) -> list[ClaimId]:
    """A round of claims in which the liar publishes its payload alone."""
    return court.claim(lies, r=r, change={LIAR: lambda m: withholding(court, m)})


def unanswered(court: Court) -> Ended:
    """The carry is demanded of the claim that starts from it; nobody shows it."""
    market, demands, me = court.contracts.market, court.contracts.demands, court.address("verifier")
    withheld(court, 0)
    court.merge(r=0)
    court.seal(1)
    claims = court.claim(r=1)
    assert market.claim(claims[LIAR]).carries
    _, demand = Asks(court.contracts, me).carry(court.job_id, 1, LIAR, claims[LIAR])
    court.send(demand, "verifier")
    asked = payload_demand_id(claims[LIAR], 0)
    due = Answers(court.contracts, court.store, court.address("worker-0")).due
    assert not list(due(court.ledger(), lambda _: court.job, court.now())), "nobody has it"
    assert court.refused(demands.carry_unavailable(court.job_id, 0, LIAR, 0), "verifier") == "NoCarry", (
        "it began at zero"
    )
    court.wait(Phase.FREEZING, r=1)
    court.advance(court.params.windows.answer_seconds + 1)
    assert court.refused(demands.settle(asked), "mallory") == "TooEarly", "the owner has a defender's clock more"
    court.merge(r=1)
    assert market.round(court.job_id, 1).mask == 0b110
    court.seal(2)
    assert court.run(LIAR, 2).carried is None, "what was left out is not carried"
    court.claim(r=2)
    court.advance(court.params.windows.clock_seconds)
    court.send(demands.settle(asked), "mallory")
    assert court.convicted(claims[LIAR])
    court.settle()
    stake = court.params.role.slot_stake
    gained = court.balance({"worker-0": stake})
    assert [e.round for e in court.events("Paid") if e.slot == LIAR] == [0, 2], "the rounds of which all was there"
    assert gained["verifier"] == stake * 30 // 100, "who demanded wins as a challenger does"
    return Ended("timeout", Where(rule="slot 0"), Where(rule="slot 0"))


def wrong_source(court: Court) -> Ended:
    """A false claim whose carry nobody has; it is found from the claim after it, when its own window would be over."""
    market, honest = court.contracts.market, court.run(LIAR)
    start = list(honest.start)
    start[FIRST_MOMENT] = np.full_like(honest.start[FIRST_MOMENT], 0.25)
    liar = replace(honest, start=start)
    first = withheld(court, 0, {LIAR: liar})
    court.merge(r=0)
    court.seal(1)
    *_, (_, final, _) = liar.states()
    ledger = court.ledger().jobs[court.job_id]
    base = PublicData(court.job, court.store).base(ledger, ledger.rounds[1])
    carried = CarryIn(court.record(first[LIAR]).body, carry_of(court.job, final))
    later = court.claim({LIAR: jobs.slot_run(court.job, base, ledger.rounds[1].seed, 1, LIAR, carried)}, r=1)
    court.merge(r=1)
    window, merged = court.params.windows.challenge_seconds, market.round(court.job_id, 0).merged_at
    court.advance(merged + window + 1 - court.now())
    assert market.window_open(first[LIAR]), "until the claims that stand on it are final"
    assert court.refused(market.finalize(court.job_id, 0), "requester") == "TooEarly"
    public, ledger = PublicData(court.job, court.store), court.ledger().jobs[court.job_id]
    with pytest.raises(WrongSource) as source:
        public.run_of(ledger, ledger.rounds[1], court.record(later[LIAR]))
    record = source.value.record
    assert record.id == first[LIAR], "the claim to challenge"
    found = audit(public.run_of(ledger, ledger.rounds[0], record), record, court.store)
    game = court.open(record.id, found)
    court.play(game, court.defender(game), court.seat(game, Side.CHALLENGER, found.held, "verifier").turn)
    assert court.convicted(first[LIAR])
    court.settle()
    assert market.claim(later[LIAR]).status == ClaimStatus.VOID, "unpaid, and its stake is back"
    court.balance({"worker-0": court.params.role.slot_stake})
    assert not [e for e in court.events("Paid") if e.slot == LIAR], "of neither round"
    return ended(court, game, Where(1, named(honest.program(1), "m"), 0, rule="op"))


CHEATS = (
    Cheat("carry withheld", "timeout", {"demanded, and nobody shows it": unanswered}, CARRYING),
    Cheat("wrong claim behind a withheld carry", "fraud", {"found from the next claim": wrong_source}, TWO_ROUNDS),
)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Court]:
    running = Court.in_memory(tmp_path)
    yield running
    running.stop()


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_withheld_carry_hides_no_lie(court: Court, cheat: Cheat) -> None:
    for form in cheat.forms:
        run(court, cheat, form)


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_a_withheld_carry_hides_no_lie_on_the_chain_in_memory(memory: Court, cheat: Cheat) -> None:
    for form in cheat.forms:
        run(memory, cheat, form)


def test_a_withheld_carry_stops_nobody(memory: Court) -> None:
    """Three rounds of which the liar publishes payloads alone: every claim is replayed, accepted and paid."""
    memory.reset(**CARRYING)
    for r in range(3):
        withheld(memory, r)
        memory.merge(r=r)
        if r < 2:
            memory.seal(r + 1)
    found = memory.audits(wrong_only=False)
    assert len(found) == 3 * 3 + 3
    assert all(audit.matches for audit in found.values())
    memory.settle()
    paid = [(e.round, e.slot) for e in memory.events("Paid") if e.slot < 3]
    assert sorted(paid) == [(r, slot) for r in range(3) for slot in range(3)]
    memory.balance()


def test_who_shows_its_carry_late_keeps_its_stake_and_is_left_out(memory: Court) -> None:
    memory.reset(**TWO_ROUNDS)
    memory.claim()
    memory.merge()
    memory.seal(1)
    claims, market = memory.claim(r=1), memory.contracts.market
    _, demand = Asks(memory.contracts, memory.address("mallory")).carry(memory.job_id, 1, 1, claims[1])
    memory.send(demand, "mallory")
    memory.wait(Phase.FREEZING, r=1)
    memory.advance(memory.params.windows.answer_seconds + 1)
    memory.merge(r=1)
    assert market.claim(claims[1]).status == ClaimStatus.EXCLUDED
    assert market.round(memory.job_id, 1).open_games == 1, "the round is not final while the demand is open"
    due = Answers(memory.contracts, memory.store, memory.address("worker-1")).due
    ((_, answer),) = due(memory.ledger(), lambda _: memory.job, memory.now())
    memory.send(answer, "worker-1")
    assert market.round(memory.job_id, 1).open_games == 0
    memory.settle()
    assert market.claim(claims[1]).status == ClaimStatus.FINAL
    assert [e.round for e in memory.events("Paid") if e.slot == 1] == [0]


def test_a_demand_that_nobody_ends_holds_up_no_round(memory: Court) -> None:
    memory.reset(**TWO_ROUNDS)
    memory.claim()
    memory.merge()
    memory.seal(1)
    claims, market = memory.claim(r=1), memory.contracts.market
    # Owner and asker are one: the carry is not shown, and the demand is left open.
    _, demand = Asks(memory.contracts, memory.address("mallory")).carry(memory.job_id, 1, LIAR, claims[LIAR])
    memory.send(demand, "mallory")
    memory.wait(Phase.FREEZING, r=1)
    memory.advance(memory.params.windows.answer_seconds + 1)
    memory.merge(r=1)
    memory.advance(memory.params.windows.clock_seconds + COURTESY_SECONDS)
    assert market.round(memory.job_id, 1).open_games == 1
    due = Answers(memory.contracts, memory.store, memory.address("worker-1")).due
    stored = memory.contracts.demands.demand(payload_demand_id(claims[LIAR], 0))
    assert stored is not None
    asker_s = Seconds(stored.deadline + COURTESY_SECONDS)
    assert not list(due(memory.ledger(), lambda _: memory.job, asker_s)), "its asker has time to end it"
    ((_, end),) = due(memory.ledger(), lambda _: memory.job, memory.now())
    memory.send(end, "worker-1")
    assert market.claim(claims[LIAR]).status == ClaimStatus.CONVICTED
    assert market.round(memory.job_id, 1).open_games == 0
    assert not list(due(memory.ledger(), lambda _: memory.job, memory.now()))
    memory.settle()
    assert [e.slot for e in memory.events("Paid") if e.round == 1 and e.slot < 3] == [1, 2]


def test_who_demands_a_carry_that_is_there_pays_for_the_answer(memory: Court) -> None:
    memory.reset(**TWO_ROUNDS)
    memory.claim()
    memory.merge()
    memory.seal(1)
    claims = memory.claim(r=1)
    demands, job = memory.contracts.demands, memory.job
    _, demand = Asks(memory.contracts, memory.address("mallory")).carry(memory.job_id, 1, 1, claims[1])
    bond = memory.contracts.market.bond_of(memory.job_id)
    memory.send(demand, "mallory")
    memory.devnet.mine(2)
    asked = payload_demand_id(claims[1], 0)
    stored, seed = demands.demand(asked), demands.seed_of(asked)
    assert stored is not None
    assert seed is not None
    ledger, program = memory.ledger().jobs[memory.job_id], job.programs.encode
    record = ledger.rounds[0].claims[1]
    assert record.payload_cid is not None
    tensors = iter(
        (
            *load_payload(memory.store, record.payload_cid, job.payload_layout, carries=True),
            *load_carry(memory.store, record.payload_cid, job.payload_layout, job.carry_layout),
        )
    )
    held = {k: memoryview(next(tensors).tobytes()) for k, h in enumerate(program.output_layout) if h is not None}
    code = ProgramParts.of(program).code
    ofpayload = payload_answer(stored.wanted, seed, program, held.__getitem__)
    refused = memory.refused(demands.answer(asked, record.body, code, ofpayload), "worker-1")
    assert refused in ("AnswerWrong", "ProofInvalid"), "a payload's leaves are no carry's"
    now = ledger.rounds[1].claims[1].body
    ofcarry = payload_answer(stored.wanted, seed, program, held.__getitem__, carry=True)
    assert memory.refused(demands.answer(asked, now, code, ofcarry), "worker-1") == "CommitmentMismatch"
    due = Answers(memory.contracts, memory.store, memory.address("worker-1")).due
    ((_, answer),) = due(memory.ledger(), lambda _: job, memory.now())
    memory.send(answer, "worker-1")
    answered = demands.demand(asked)
    assert answered is not None
    assert answered.status == Status.ANSWERED
    assert memory.contracts.vault.credits(memory.address("worker-1")) == bond * 60 // 100
    memory.merge(r=1)
    assert memory.contracts.market.round(memory.job_id, 1).mask == 0b111
