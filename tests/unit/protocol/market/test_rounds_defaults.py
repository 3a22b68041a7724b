"""Every wait has a default: wherever everything stands, it ends and stakes come home when nobody acts any more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.market.types import DutyStatus, Keeper, Status
from lockstep.protocol.types import Address
from tests.support.market.history import History
from tests.support.market.twin import ACCOUNTS

CRANKS = ("seal", "freeze", "finalize", "release")
"""What anyone may call on a round."""
LOOK = 361
"""Seconds between two looks: every window and every clock is shorter."""


def cranks(history: History) -> Iterator[MarketCall]:
    """What anyone may call, on everything that is there."""
    s = history.state
    for job, r in s.rounds:
        for verb in CRANKS:
            bodies = (history.wanderer.bodies(s, job, r),) if verb == "freeze" else ()
            yield MarketCall("JobMarket", verb, ACCOUNTS["poor"], (job, r, *bodies))
    for id_, game in s.games.items():
        yield MarketCall("DisputeGame", "resolve", ACCOUNTS["poor"], (id_, game.standing))
    for id_, demand in s.demands.items():
        if demand.status == Status.OPEN:
            yield MarketCall("Availability", "settle", ACCOUNTS["poor"], (id_,))
            yield MarketCall("Availability", "voidForRow", ACCOUNTS["poor"], (demand.subject, demand.row))
    for (audit, i), duty in s.duties.items():
        if duty.status != DutyStatus.CLOSED:
            yield MarketCall("Witnesses", "settle", ACCOUNTS["poor"], (audit, i))


def look(history: History) -> None:
    """Somebody who only calls what anyone may call, a window later."""
    history.later(LOOK, 2)
    for call in list(cranks(history)):
        history.sends(call)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("length", [20, 50, 100, 200])
@pytest.mark.parametrize("seed", range(12))
def test_whatever_everybody_leaves_ends_with_nothing_held(seed: int, length: int) -> None:
    history = History.of(10_000 + 100 * length + seed).play(length)
    for _ in range(30):
        look(history)
    for job, stored in history.state.jobs.items():
        assert stored.settled == stored.started, f"round {stored.settled} sticks"
        if stored.status == JobStatus.ACTIVE:
            history.sends(MarketCall("JobMarket", "cancel", Address(stored.requester), (job,)))
        history.sends(MarketCall("JobMarket", "finish", ACCOUNTS["poor"], (job,)))
    look(history)
    s = history.state
    assert {lock.keeper for lock in s.locks.values()} <= {Keeper.WITNESSES}, "a stake or a bond is locked for ever"
    for stored in s.jobs.values():
        assert stored.status == JobStatus.DONE
        assert stored.escrow == stored.paid + stored.refunded, "to the wei"
    assert s.total_escrow == 0, "escrow is left"
    assert not any(s.defending.values())
