"""Reverts single fixes of docs/threat-model.md, and breaks single rules of carries, which the search must then find.

For a fix (H, M) of the last table in docs/threat-model.md, the old function, limit or part of a program is restored.
For a rule of carries (K), an INVARIANT of the twin, the guard is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from lockstep.protocol import transition
from lockstep.protocol.dispute import game
from lockstep.protocol.jobs import NO_CLAIM, NO_STATE, ClaimStatus, Phase, Round
from lockstep.protocol.market import availability, job_rules, rounds, settling, vault, verdicts, views
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.market.state import Draft
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, ClaimId, JobId, Seconds, Wei
from tests.search import honest
from tests.search.honest import Machine

Reversal = Callable[[ExitStack], Machine]


def _patched(stack: ExitStack, target: Any, name: str, value: Any) -> None:
    stack.enter_context(mock.patch.object(target, name, value))


def h1(stack: ExitStack) -> Machine:
    """Work that a convicted merge voided is not paid."""
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
    """A worker drops its claims when their round fails."""
    return Machine(forgets=True)


def h3(stack: ExitStack) -> Machine:
    """A clock ignores an owner's other games, which are played in order of opening."""
    budget = game.budget

    def alone(claim: game.DisputedClaim, *, defender: bool) -> Seconds:
        return budget(claim, defender=False) if defender else budget(claim, defender=defender)

    _patched(stack, game, "budget", alone)
    return Machine(in_line=True)


def h4(stack: ExitStack) -> Machine:
    """Clocks of a minute are allowed on every chain."""
    _patched(stack, ChainTimes, "clock_floor", property(lambda self: job_rules.MIN_CLOCK))
    return Machine()


def h6(stack: ExitStack) -> Machine:
    """A row's answer window does not grow with the row."""
    _patched(stack, job_rules, "answer_floor", lambda row_length, inclusion: Seconds(0))
    return Machine()


def m2(stack: ExitStack) -> Machine:
    """A step may be as long as a window, and games extend a clock without limit."""
    _patched(stack, job_rules, "CLOCK_STEPS", 0)
    _patched(stack, game, "MAX_EXTRA", 1 << 31)
    return Machine()


def m3(stack: ExitStack) -> Machine:
    """A slot may be given back at any time of the window."""

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
    """A slot without work is paid as work."""

    def end(d: Draft, claim: Any, c: Any, price: Wei) -> int:
        if not settling._holds_stake(c.status):
            return 0
        if price:
            return settling._pay(d, claim, c, ClaimStatus.VOID, price)
        settling.give_back(d, claim, c, ClaimStatus.VOID)
        return 0

    def worth(p: Any, ro: Round) -> int:
        claimed = ro.joined if ro.merge_in == NO_STATE else ro.revealed
        return int(claimed * p.role.slot_price + (0 if ro.merge_claim == NO_CLAIM else p.merge.price))

    _patched(stack, settling, "_end", end)
    _patched(stack, settling, "worth", worth)
    return Machine()


def k1(stack: ExitStack) -> Machine:
    """A round is final after its own window, whatever is based on its claims."""
    over_at = views.over_at
    _patched(stack, settling, "over_at", lambda p, started, r, round_at: over_at(p, r + 1, r, round_at))
    return Machine()


def k2(stack: ExitStack) -> Machine:
    """A conviction does not affect claims based on the convicted claim's carry."""
    carried_from = settling.carried_from

    def unblamed(d: Draft, c: Any) -> Any:
        earlier = carried_from(d, c)
        fell = earlier.status in (ClaimStatus.CONVICTED, ClaimStatus.VOID)
        return replace(earlier, status=ClaimStatus.FINAL) if fell else earlier

    _patched(stack, settling, "carried_from", unblamed)
    return Machine()


def _with_vault(stack: ExitStack, **instead: Any) -> Machine:
    """Returns a machine in which demands treat their bonds differently."""
    _patched(stack, availability, "vault", SimpleNamespace(**vars(vault) | instead))
    return Machine()


def k3(stack: ExitStack) -> Machine:
    """The account that answers a demand gets 60 % of the bond, and the rest is burned."""
    return _with_vault(stack, pay_bond=lambda d, sender, key, account, _: vault.take_bond(d, sender, key, account))


def k4(stack: ExitStack) -> Machine:
    """The bond of an unanswered demand for a carry goes to the account that did not answer."""

    def unlock(d: Draft, sender: Address, key: Any) -> None:
        demand = d.demands[key]
        if demand.beacon and demand.row == availability.CARRY:
            vault.take_bond(d, sender, key, d.claims[ClaimId(demand.subject)].worker)
        else:
            vault.unlock(d, sender, key)

    return _with_vault(stack, unlock=unlock)


def k5(stack: ExitStack) -> Machine:
    """A demand for a carry does not count as a game: no answer only excludes the claim from the merge."""
    demanded = verdicts.on_demanded
    _patched(
        stack, verdicts, "on_demanded", lambda d, sender, job, r, slot, carry: demanded(d, sender, job, r, slot, False)
    )
    _patched(stack, availability, "_is_game", lambda d, asked_for: False)
    return Machine()


def k6(stack: ExitStack) -> Machine:
    """Carries are never reset to zero."""

    def carry(d: Draft, job: JobId, r: int, slot: int, c: Any) -> None:
        if r == 0 or not views.carry_stands(d.rounds[job, r - 1], settling.carried_from(d, c), c.worker):
            raise revert("NoCarry", slot)
        c.carries = True
        d.emit("JobMarket", "Carried", job, r, slot)

    _patched(stack, rounds, "_carry", carry)
    return Machine()


def k7(stack: ExitStack) -> Machine:
    """A claim can be challenged only in its own window, whatever is based on it."""
    window_open = views.window_open

    def closes(s: Any, block: Any, id_: Any) -> bool:
        c = s.claims[id_]
        return window_open(s, block, id_) and block.time < c.claimed_at + s.params[c.job].windows.challenge_seconds

    for module in (views, verdicts):
        _patched(stack, module, "window_open", closes)
    return Machine()


def k9(stack: ExitStack) -> Machine:
    """A claim on which others may be based can be challenged until it is final."""
    window_open = views.window_open

    def stays(s: Any, block: Any, id_: Any) -> bool:
        c = s.claims[id_]
        carries = views.live(s, id_) and not c.is_merge and s.params[c.job].role.carries
        return window_open(s, block, id_) or bool(carries and s.rounds[c.job, c.round].phase != Phase.VOID)

    for module in (views, verdicts):
        _patched(stack, module, "window_open", stays)
    return Machine()


def f1(stack: ExitStack) -> Machine:
    """A failed round unlocks all stakes, pays nothing and ends all games."""
    fail = settling.fail

    def frees(d: Draft, job: JobId, r: int) -> None:
        ro, slots = d.rounds.edit((job, r)), d.params[job].role.slots  # type: ignore[union-attr]
        for slot in range(slots):
            claim, c = settling.claim_at(d, job, r, ro, slot)
            if ClaimStatus.REVEALED <= c.status <= ClaimStatus.MISSING and not c.open_games:
                settling.give_back(d, claim, c, ClaimStatus.VOID)
        fail(d, job, r)

    for module in (settling, rounds):
        _patched(stack, module, "fail", frees)
    return Machine()


def k8(stack: ExitStack) -> Machine:
    """Only its demander can end a demand for a carry."""
    _patched(stack, honest.Party, "_holds_up", lambda *_: False)
    return Machine()


FIXES: dict[str, Reversal] = {
    "H1": h1, "H2": h2, "H3": h3, "H4": h4, "H6": h6, "M2": m2, "M3": m3, "M4": m4,
    "K1": k1, "K2": k2, "K3": k3, "K4": k4, "K5": k5, "K6": k6, "K7": k7,
    "K8": k8, "K9": k9, "F1": f1,
}  # fmt: skip


@contextmanager
def reverted(fix: str | None) -> Iterator[Machine]:
    """Yields the market and the honest machine without a fix; None: with all."""
    with ExitStack() as stack:
        yield FIXES[fix](stack) if fix is not None else Machine()
