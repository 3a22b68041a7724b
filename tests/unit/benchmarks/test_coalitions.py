"""The best reply of a coalition of seats and witnesses: honest work, once failed rounds are judged."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from benchmarks.coalitions import Coalition, Way, WitnessList, coalitions
from lockstep import economics
from lockstep.economics import AuditPlan
from lockstep.presets import MAINNET

AUDIT = AuditPlan(64, MAINNET.witnesses, 501)
STAKE = MAINNET.slot_stake / MAINNET.slot_price


@pytest.mark.parametrize("slots", [3, 8, 16, 32, 64])
@pytest.mark.parametrize("steps", [20, 500])
def test_no_coalition_up_to_a_third_earns_more_than_by_honest_work(slots: int, steps: int) -> None:
    terms = MAINNET.audited(slots, steps)
    audit = AuditPlan(slots, terms.witnesses, steps + 1)
    for min_slots in (1, max(1, slots // 4), slots - 1):
        for one in coalitions(audit, terms.slot_stake / terms.slot_price, min_slots, gas=0.0, work=1.0):
            way, gain = one.best
            assert way is Way.WORK, f"{one.seats} of {slots} seats, {one.audit.cartel:.0%} of the witnesses: {gain}"


@pytest.mark.parametrize(("seats", "min_slots"), [(2, 63), (23, 32)])
def test_a_liar_that_may_fail_the_round_unjudged_earns_more_than_honest_work(seats: int, min_slots: int) -> None:
    """Two seats whose payloads are needed, or a third of the receipts."""
    one = Coalition(seats, replace(AUDIT, cartel=economics.CARTEL), STAKE, min_slots)
    honest = one.expected(Way.WORK, judged=False)
    assert one.expected(Way.ESCAPE, judged=False) > honest > one.expected(Way.ESCAPE, judged=True)


def test_failing_a_round_that_is_judged_is_worse_than_lying_to_its_end() -> None:
    for one in coalitions(AUDIT, STAKE, AUDIT.slots - 1, gas=0.0):
        if one.fails(judged=True):
            assert one.expected(Way.ESCAPE, judged=True) < one.expected(Way.LIE, judged=True)
        else:
            assert one.expected(Way.ESCAPE, judged=True) == one.expected(Way.LIE, judged=True)


def test_half_of_the_others_voices_exclude_nobody() -> None:
    assert not Coalition(32, AUDIT, STAKE, 16).fails(judged=True)
    assert Coalition(33, AUDIT, STAKE, 16).fails(judged=True)
    assert Coalition(22, AUDIT, STAKE, 16).fails(judged=False)
    assert not Coalition(21, AUDIT, STAKE, 16).fails(judged=False)


@pytest.mark.parametrize("seats", [2, 23])
def test_what_is_computed_is_what_the_contracts_draw_gives(seats: int) -> None:
    one = Coalition(seats, replace(AUDIT, cartel=economics.CARTEL), STAKE, AUDIT.slots - 1)
    enrolled, rounds = WitnessList(one.audit, seed=1), 1_000
    seen = [enrolled.seen(str(i), seats) for i in range(rounds)]
    chances = economics.seen_lies(one.audit, seats)
    mean = sum(x * chance for x, chance in enumerate(chances))
    deviation = sqrt(sum((x - mean) ** 2 * chance for x, chance in enumerate(chances)) / rounds)
    assert sum(seen) / rounds == pytest.approx(mean, abs=4 * deviation)
    for way in Way:
        exact, error = one.expected(way, judged=True), 4 * deviation * (1 + one.caught) + 1e-9
        assert one.drawn(way, seen, judged=True) == pytest.approx(exact, abs=seats * error)
