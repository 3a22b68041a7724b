"""A job of one slot: nobody works beside it, and every lie in it is convicted as in any other job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from lockstep.node.player import Side
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import MERGE_SLOT
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named
from tests.adversarial.test_wrong_carry import FIRST_MOMENT, SECOND_MOMENT, with_moments

ALONE: Mapping[str, object] = {"slots": 1, "rounds": 2, "max_lead": 2, "max_fail": 1}


def test_one_slot_is_trained_merged_and_paid(court: Court) -> None:
    court.reset(**ALONE)
    for r in range(2):
        if r:
            court.seal(r)
        claims = court.claim(r=r)
        court.merge(r=r)
    assert court.audits() == {}
    game = court.open_at(claims[0], 1, "mallory")
    assert court.play(game, court.defender(game)) == Verdict.REJECTED, "mallory has nothing to point at"
    court.settle()
    gained = court.balance({"mallory": court.params.prices.bond})
    assert gained["worker-0"] >= 2 * (court.params.role.slot_price + court.params.merge.price)


def in_the_slot(court: Court) -> Ended:
    """The first moment begins at one: the round of its only worker fails, and the next one is honest."""
    honest = court.run(0)
    liar = with_moments(honest, honest.start[FIRST_MOMENT] + np.float32(1), honest.start[SECOND_MOMENT])
    (claim,) = court.claim({0: liar})
    (game,) = court.audit_and_play()
    assert court.convicted(claim)
    court.wait(Phase.FREEZING)
    court.send(court.contracts.market.freeze(court.job_id, 0, []), "requester")
    assert court.phase() == Phase.FAILED
    court.seal(1)
    court.claim(r=1)
    court.merge(r=1)
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(1, named(honest.program(1), "m"), 0, rule="op"))


def in_the_merge(court: Court) -> Ended:
    """It begins with twice the state: the only worker merges again in the liar's stead."""
    court.reset(**ALONE, aggregator=court.address("mallory"))
    court.claim()
    wrong = court.merge(lie=lambda run: replace(run, start=_doubled(run.start)))
    ((claim, found),) = court.audits().items()
    assert claim == wrong
    game = court.open(claim, found)
    seat = court.seat(game, Side.CHALLENGER, found.held, "verifier")
    court.play(game, court.defender(game), seat.turn)
    assert court.convicted(claim)
    again = court.merge()
    assert court.record(again).slot == MERGE_SLOT
    court.seal(1)
    court.claim(r=1)
    court.merge(r=1)
    court.settle()
    court.balance({"mallory": court.params.merge.stake + court.params.round_pay})
    return ended(court, game, Where(1, 0, rule="op"))


def _doubled(state: list) -> list:
    return [None if tensor is None else tensor * 2 for tensor in state]


CHEAT = Cheat("lie in a job of one slot", "fraud", {"in the slot": in_the_slot, "in the merge": in_the_merge}, ALONE)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_lie_in_a_job_of_one_slot_is_convicted_and_its_work_is_done_again(court: Court, form: str) -> None:
    run(court, CHEAT, form)
