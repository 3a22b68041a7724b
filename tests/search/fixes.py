"""The fixes of docs/threat-model.md, each reverted: what the search must find again.

A fix stands where docs/threat-model.md's last table says; here its function, limit or program's part is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from lockstep.protocol import transition
from lockstep.protocol.dispute import game
from lockstep.protocol.jobs import NO_CLAIM, NO_STATE, ClaimStatus, JobStatus, Phase, Round
from lockstep.protocol.market import job_rules, rounds, vault, verdicts, views
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.state import Draft
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from tests.search import honest
from tests.search.honest import Machine

Reversal = Callable[[ExitStack], Machine]


def _patched(stack: ExitStack, target: Any, name: str, value: Any) -> None:
    stack.enter_context(mock.patch.object(target, name, value))


def h1(stack: ExitStack) -> Machine:
    """Work that a convicted merge voided is paid by nobody."""
    rewind = verdicts._rewind

    def unpaid(d: Draft, p: Any, c: Any, j: Any, ro: Round) -> int:
        started = j.started
        rewind(d, p, c, j, ro)
        fees = 0
        for k in range(c.round + 1, started):
            later = d.rounds.edit((c.job, k))
            later.due = False
            fees += later.witnesses * p.role.witness_fee
        return fees

    _patched(stack, verdicts, "_rewind", unpaid)
    return Machine()


def h2(stack: ExitStack) -> Machine:
    """A worker forgets its claims with the job."""
    return Machine(forgets=True)


def h3(stack: ExitStack) -> Machine:
    """A clock knows nothing of an owner's other games, which it plays in the order of their opening."""
    budget = game.budget

    def alone(claim: game.DisputedClaim, *, defender: bool) -> Seconds:
        return budget(claim, defender=False) if defender else budget(claim, defender=defender)

    _patched(stack, game, "budget", alone)
    return Machine(in_line=True)


def h4(stack: ExitStack) -> Machine:
    """A minute is a clock on every chain."""
    _patched(stack, ChainTimes, "clock_floor", property(lambda self: job_rules.MIN_CLOCK))
    return Machine()


def h5(stack: ExitStack) -> Machine:
    """A merge's stake has no ceiling, and workers do not look at it."""
    _patched(stack, job_rules, "MERGE_SLOTS", 1 << 40)
    _patched(stack, honest, "STAKE_THAT_A_WORKER_HAS", 1 << 88)
    return Machine()


def h6(stack: ExitStack) -> Machine:
    """An answer's window does not grow with the row."""
    _patched(stack, job_rules, "answer_floor", lambda row_length, inclusion: Seconds(0))
    return Machine()


def m1(stack: ExitStack) -> Machine:
    """`finish` takes a void job's name away, and its claims live again."""

    def is_void(s: Any, id_: Any, c: Any) -> bool:
        if c.status >= ClaimStatus.ABSENT:
            return bool(c.status == ClaimStatus.VOID)
        ro = s.rounds[c.job, c.round]
        standing = ro.merge_claim == id_ if c.is_merge else ro.attempt == c.attempt
        void_round = ro.phase == Phase.VOID and not c.open_games
        return not standing or void_round or s.jobs[c.job].status == JobStatus.VOID

    _patched(stack, views, "is_void", is_void)
    return Machine()


def m2(stack: ExitStack) -> Machine:
    """A step may be as long as a window, and games add to a clock without end."""
    _patched(stack, job_rules, "CLOCK_STEPS", 0)
    _patched(stack, game, "MAX_EXTRA", 1 << 31)
    return Machine()


def m3(stack: ExitStack) -> Machine:
    """A seat is left at any time of the window."""

    def leave(d: Draft, sender: Address, job: JobId, r: int, slot: int) -> None:
        _, ro = rounds.in_phase(d, job, r, Phase.JOINING)
        claim, _ = rounds.own_claim(d, sender, job, r, ro, slot)
        del d.claims[claim]
        ro.joined -= 1
        d.emit("JobMarket", "Left", job, r, slot, sender)
        vault.unlock(d, d.at.market, claim)

    stack.enter_context(mock.patch.dict(transition.VERBS, {("JobMarket", "leave"): leave}))
    return Machine()


def m4(stack: ExitStack) -> Machine:
    """A seat is paid as work is."""

    def end(d: Draft, claim: Any, c: Any, price: Wei) -> int:
        if not rounds._holds_stake(c.status):
            return 0
        if price:
            return rounds._pay(d, claim, c, ClaimStatus.VOID, price)
        rounds.give_back(d, claim, c, ClaimStatus.VOID)
        return 0

    def worth(p: Any, ro: Round) -> int:
        claimed = ro.joined if ro.merge_in == NO_STATE else ro.revealed
        return int(claimed * p.role.slot_price + (0 if ro.merge_claim == NO_CLAIM else p.merge.price))

    _patched(stack, rounds, "_end", end)
    _patched(stack, rounds, "worth", worth)
    return Machine()


FIXES: dict[str, Reversal] = {
    "H1": h1, "H2": h2, "H3": h3, "H4": h4, "H5": h5, "H6": h6, "M1": m1, "M2": m2, "M3": m3, "M4": m4,
}  # fmt: skip


@contextmanager
def reverted(fix: str | None) -> Iterator[Machine]:
    """The market, and what honest parties compute with, before a fix; None: as they are."""
    with ExitStack() as stack:
        yield FIXES[fix](stack) if fix is not None else Machine()
