"""Carries that honest slots start from: shown late, held back, demanded in spite, and argued from in a game."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.market.turns import COURTESY_SECONDS, TURN_SECONDS
from lockstep.protocol.dispute import honest as play_of
from lockstep.protocol.errors import ChainError
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market.availability import payload_demand_id
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import ClaimId, Seconds
from lockstep.storage.payload import load_carry, load_payload
from tests.adversarial.claims import moments
from tests.adversarial.court import WALLET, Court
from tests.adversarial.table import CARRYING
from tests.adversarial.withheld import answer_of, demands_carry, due, without_carry
from tests.support import games

pytestmark = pytest.mark.slow


def test_a_withheld_carry_stops_nobody(memory: Court) -> None:
    """Three rounds of which the liar publishes payloads alone: every claim is replayed, accepted and paid."""
    CARRYING(memory)
    for r in range(3):
        if r:
            memory.seal(r)
        without_carry(memory, r)
        memory.merge(r=r)
    found = memory.audits(wrong_only=False)
    assert len(found) == 3 * 3 + 3
    assert all(audit.matches for audit in found.values())
    memory.settle()
    paid = [(e.round, e.slot) for e in memory.events("Paid") if e.slot < 3]
    assert sorted(paid) == [(r, slot) for r in range(3) for slot in range(3)]
    memory.balance()


@pytest.fixture
def demanded(memory: Court) -> ClaimId:
    """A claim of slot 1 whose carry mallory has demanded."""
    memory.reset(carry=1, rounds=2, max_lead=4)
    memory.rounds(0)
    return demands_carry(memory, 1, "mallory")


def left_out(memory: Court, claim: ClaimId) -> None:
    """Nobody has answered in the window: the claim is not merged, and the round is not final."""
    memory.wait(Phase.FREEZING, r=1)
    memory.advance(memory.params.windows.answer_seconds + 1)
    memory.merge(r=1)
    market = memory.contracts.market
    assert market.claim(claim).status == ClaimStatus.MISSING
    assert market.round(memory.job_id, 1).open_games == 1, "the round is not final while the demand is open"


def test_who_shows_its_carry_late_pays_for_its_silence_and_is_left_out(memory: Court, demanded: ClaimId) -> None:
    left_out(memory, demanded)
    market = memory.contracts.market
    (answer,) = due(memory, "worker-1")
    memory.send(answer, "worker-1")
    assert market.round(memory.job_id, 1).open_games == 0
    memory.settle()
    assert market.claim(demanded).status == ClaimStatus.FINAL
    assert [e.round for e in memory.events("Paid") if e.slot == 1] == [0]
    earned = sum(e.amount for e in memory.events("Paid") if e.account == memory.address("worker-1"))
    assert memory.wealth("worker-1") == WALLET + earned - memory.params.role.slot_price


def test_a_demand_that_nobody_ends_holds_up_no_round(memory: Court, demanded: ClaimId) -> None:
    # Owner and asker are one: the carry is not shown, and the demand is left open.
    left_out(memory, demanded)
    memory.advance(memory.params.windows.clock_seconds + COURTESY_SECONDS + 3 * int(TURN_SECONDS))
    market = memory.contracts.market
    stored = memory.contracts.demands.demand(payload_demand_id(demanded, 0))
    assert stored is not None
    assert not due(memory, "worker-0", Seconds(stored.deadline + COURTESY_SECONDS)), "its asker has time to end it"
    (end,) = due(memory, "worker-0")
    memory.send(end, "worker-0")
    assert market.claim(demanded).status == ClaimStatus.CONVICTED
    assert market.round(memory.job_id, 1).open_games == 0
    assert not due(memory, "worker-0")
    memory.settle()
    assert [e.slot for e in memory.events("Paid") if e.round == 1 and e.slot < 3] == [0, 2]


def test_who_demands_a_carry_that_is_there_pays_the_gas_of_the_answer(memory: Court, demanded: ClaimId) -> None:
    demands, job, asked = memory.contracts.demands, memory.job, payload_demand_id(demanded, 0)
    memory.devnet.mine(2)
    ledger = memory.ledger().jobs[memory.job_id]
    before, now = ledger.rounds[0].claims[1], ledger.rounds[1].claims[1]
    held = (
        *load_payload(memory.store, before.payload_cid, job.payload_layout, carries=True),
        *load_carry(memory.store, before.payload_cid, job.payload_layout, job.carry_layout),
    )
    of_payload, of_carry = answer_of(memory, asked, held), answer_of(memory, asked, held, carry=True)
    refused = memory.refused(demands.answer(asked, before.body, *of_payload), "worker-1")
    assert refused in ("AnswerWrong", "ProofInvalid"), "a payload's leaves are no carry's"
    assert memory.refused(demands.answer(asked, now.body, *of_carry), "worker-1") == "CommitmentMismatch"
    (answer,) = due(memory, "worker-1")
    memory.send(answer, "worker-1")
    answered = demands.demand(asked)
    assert answered is not None
    assert answered.status == Status.ANSWERED
    assert memory.contracts.vault.credits(memory.address("worker-1")) == 0, "gas, which costs nothing here"
    assert memory.contracts.vault.lock_of(asked) is None
    assert memory.wealth("mallory") == WALLET, "the bond is back"
    memory.merge(r=1)
    assert memory.contracts.market.round(memory.job_id, 1).mask == 0b111


@pytest.fixture
def from_zero(court: Court) -> ClaimId:
    """A claim of round 1 that starts from zeros instead of from its carry."""
    CARRYING(court)
    court.rounds(0)
    court.seal(1)
    return court.claim({0: moments(0, 0)(court.run(0, 1), court)}, r=1)[0]


def test_a_first_step_is_argued_from_the_words_of_the_claim_before_and_from_no_others(
    court: Court, from_zero: ClaimId
) -> None:
    opening = games.open_at(court.known(from_zero), court.held[from_zero], 1, 0)
    transition = opening.transition
    assert transition is not None
    for words in ((), transition.prev_proof[:2], court.run(1, 1).carried.words):  # type: ignore[union-attr]
        with pytest.raises(ChainError, match="CommitmentMismatch"):
            court.begin(replace(opening, transition=replace(transition, prev_proof=words)), "verifier")
    # The words alone make no S_0: what starts from zeros starts nowhere.
    liar = court.held[from_zero].run
    with pytest.raises(ChainError, match="ProofInvalid"):
        court.begin(replace(opening, transition=replace(transition, prev=liar.root(0, liar.start))), "verifier")


def test_a_game_that_descends_to_the_first_step_starts_from_the_carry(court: Court, from_zero: ClaimId) -> None:
    """Without the list of roots the game begins at the trace; its first step is argued from the same words."""
    (found,) = court.audits().values()
    opening = play_of.opening(court.known(from_zero), found.held, None, 0)
    assert opening is not None
    assert opening.t == 0
    game = court.begin(opening, "verifier")
    court.play(game, court.defender(game), court.challenger(game, found.held))
    assert court.convicted(from_zero)
    assert court.found(game).t == 1
