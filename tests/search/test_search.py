"""Plays a few histories, and every saved find: with its fix no rule breaks, without it one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from lockstep.protocol import transition
from lockstep.protocol.jobs import ClaimStatus, JobStatus
from lockstep.protocol.market import availability, vault
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.market.state import Draft
from lockstep.protocol.types import Address
from tests.search import engine
from tests.search.carrying import CarryClaim
from tests.search.engine import Played, play
from tests.search.fixes import FIXES, reverted
from tests.search.rules import Violation
from tests.search.scene import ACCOUNTS, COLD, HEIRS, STRANGER, setting_of
from tests.search.shrink import CORPUS, replay, shrink, told
from tests.support.params import amended

HISTORIES = 80
CARRYING, MOST_CARRYING = 40, 200
WAYS = (
    "one slot", "carries", "carries, honest", "withheld", "of a wrong carry", "behind a wrong carry",
    "unpaid behind a conviction", "ANSWERED, honest", "ANSWERED, false", "MISSING, honest", "MISSING, false",
    "no carry stands",
)  # fmt: skip
"""Features that histories of carrying slots must have had."""
FINDS = sorted(CORPUS.glob("*.json"))


@pytest.mark.slow
def test_no_coalition_hurts_anybody() -> None:
    calls, done, refused = 0, Counter[str](), Counter[str]()
    for seed in range(HISTORIES):
        played = play(setting_of(seed))
        assert played.violation is None, told(played)
        calls += played.calls
        if played.scene is None:
            continue
        keys = {*COLD.values(), *HEIRS.values()}
        for _, call, rule in played.scene.trail:
            if call.sender in keys:
                done[call.function] += not rule
            elif rule in ("NotOwner", "Unauthorized") and call.contract == "StakeVault":
                refused[call.function] += 1
    assert calls > 100 * HISTORIES
    owners = {
        "requestUnbondFor", "withdrawUnbondedFor", "withdrawFor", "setDelegateFor", "proposeOwner", "acceptOwner",
    }  # fmt: skip
    assert {verb for verb in owners if done[verb]} == owners, "every verb of an owner was done"
    stolen = {"requestUnbond", "setOwner", "setDelegate", *owners}
    assert {verb for verb in stolen if refused[verb]} == stolen, "and refused to everybody else"


@pytest.mark.parametrize("slots", [1, 3])
def test_slots_carry_where_nothing_is_wrong(slots: int) -> None:
    setting = setting_of(0, carries=True)
    params = amended(setting.params, slots=slots, min_slots=slots, rounds=5, carry_period=3, max_lead=4)
    honest = frozenset(ACCOUNTS) - {STRANGER}
    played = play(replace(setting, params=params, honest=honest, restless=False, owned=frozenset()), [])
    assert played.violation is None, told(played)
    assert played.scene is not None
    claims = [c for c in played.scene.state.claims.values() if not c.is_merge]
    assert {c.status for c in claims} == {ClaimStatus.FINAL}, "everybody is paid"
    owners = {(c.round, c.slot): c.worker for c in claims}
    assert len(owners) == 5 * slots
    for c in claims:
        comes_back = owners.get((c.round - 1, c.slot)) == c.worker
        assert c.carries == (comes_back and c.round % 3 != 0), "zero where the period begins, or another owned the slot"
    assert any(c.carries for c in claims)


@pytest.mark.slow
def test_carries_are_hurt_in_every_way() -> None:
    seen = Counter[str]()
    for seed in range(MOST_CARRYING):
        if seed >= CARRYING and all(seen[what] for what in WAYS):
            break
        played = play(setting_of(seed, carries=True))
        assert played.violation is None, told(played)
        assert played.scene is not None
        s, setting, known = played.scene.state, played.scene.setting, played.known
        assert known is not None
        seen["one slot"] += setting.params.role.slots == 1
        for id_, c in s.claims.items():
            made = known.held.get(id_)
            if not isinstance(made, CarryClaim) or not c.claimed_at:
                continue
            mine = c.worker in setting.honest
            seen["carries, honest" if mine else "carries"] += c.carries
            seen["withheld"] += id_ in known.withheld
            seen["of a wrong carry"] += made.started != made.carry
            seen["behind a wrong carry"] += known.wrong_behind(id_) is not None
            fell = made.source is not None and s.claims[made.source].status == ClaimStatus.CONVICTED
            seen["unpaid behind a conviction"] += fell and c.status == ClaimStatus.VOID
        for demand in s.demands.values():
            if demand.row == availability.CARRY and demand.beacon:
                seen[f"{demand.status.name}, {'honest' if demand.asker in setting.honest else 'false'}"] += 1
        for _, call, rule in played.scene.trail:
            seen["no carry stands"] += (call.function, rule) == ("reveal", "NoCarry")
    assert min(seen[what] for what in WAYS) > 0, seen


def _pays_the_sender(d: Draft, sender: Address) -> int:
    return vault._pay_out(d, sender, sender)


def _unbonds_to_the_sender(d: Draft, sender: Address) -> None:
    with mock.patch.object(vault, "_payee", lambda d, account: account):
        vault._pay_out_unbonded(d, sender)


def _unbonds_at_once(d: Draft, sender: Address, account: Address, amount: int) -> None:
    vault.request_unbond_for(d, sender, account, amount)
    d.unbonding[account] = replace(d.unbonding[account], available_at=d.block.time)


def _takes(d: Draft, sender: Address, account: Address) -> None:
    vault._own(d, account, sender)


def _names_again(d: Draft, sender: Address, owner: Address) -> None:
    vault._own(d, sender, owner)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "instead", "told_as"),
    [
        ("_only_owner", lambda *_: None, "not its owner"),
        ("_payee", lambda d, account: account, "not its owner"),
        ("StakeVault.withdraw", _pays_the_sender, "pays the key of"),
        ("StakeVault.withdrawUnbonded", _unbonds_to_the_sender, "withdrawUnbonded of"),
        ("StakeVault.requestUnbondFor", _unbonds_at_once, "before its delay is over"),
        ("StakeVault.acceptOwner", _takes, "is taken from its owner by acceptOwner"),
        ("StakeVault.setOwner", _names_again, "is taken from its owner by setOwner"),
    ],
    ids=[
        "anybody commands",
        "no owner counts",
        "the key is paid",
        "the key is paid its stake",
        "nothing waits",
        "anybody accepts",
        "an owner is named twice",
    ],
)
def test_a_vault_without_owners_or_delay_is_noticed(name: str, instead: Callable[..., Any], told_as: str) -> None:
    found = []
    contract, _, verb = name.partition(".")
    table = mock.patch.dict(transition.VERBS, {(contract, verb): instead})
    with table if verb else mock.patch.object(vault, name, instead):
        for seed in range(HISTORIES):
            violation = play(setting_of(seed)).violation
            assert violation is None or str(violation).startswith(("(h) ", "(i) ")), violation
            if violation is not None and told_as in str(violation):
                found.append(seed)
                break
    assert found, "no history shows it"


def test_every_fix_has_a_find() -> None:
    assert {path.name.partition("-")[0] for path in FINDS} == set(FIXES)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", FINDS, ids=lambda path: path.stem)
def test_a_find_hurts_without_its_fix_alone(path: Path) -> None:
    hurt = replay(path, with_fix=False)
    assert isinstance(hurt.violation, Violation)
    assert told(hurt).endswith(str(hurt.violation))
    assert replay(path, with_fix=True).violation is None


def test_a_find_is_made_small() -> None:
    with reverted("M3") as machine:
        played = play(setting_of(13, carries=False), machine=machine)
    assert played.violation is not None
    small = shrink(played, "M3")
    assert small.violation is not None
    assert small.violation.kind == played.violation.kind
    assert len(small.script) < len(played.script)


def test_a_claim_of_a_base_that_was_cut_away_is_left_out() -> None:
    """Without the reveals of its first round, a history has another base in the second than its claims."""
    whole, left_out = play(setting_of(4, carries=False)), []
    cut = [replace(beat, before=_later(beat.before), after=_later(beat.after)) for beat in whole.script]
    is_unheard_of = engine._is_unheard_of

    def heard(*given: Any) -> bool:
        left_out.append(is_unheard_of(*given))
        return left_out[-1]

    with mock.patch.object(engine, "_is_unheard_of", heard):
        played = play(setting_of(4, carries=False), cut)
    assert any(left_out), "its claims are none of the base that stands"
    assert played.violation is None
    assert played.scene is not None
    assert played.scene.state.jobs[played.scene.job].status == JobStatus.DONE, "it goes on to its end"


def _later(calls: list[MarketCall]) -> list[MarketCall]:
    """Returns the calls without the reveals of round 0."""
    return [call for call in calls if call.function != "reveal" or call.arguments[1:2] != (0,)]


def trail(played: Played) -> list[object]:
    """Returns all acts with their times."""
    assert played.scene is not None
    return [(block.number, block.time, call, error) for block, call, error in played.scene.trail]


@pytest.mark.parametrize("carries", [False, True])
def test_a_seed_is_a_history(carries: bool) -> None:
    first, again = play(setting_of(7, carries=carries)), play(setting_of(7, carries=carries))
    assert first.script == again.script
    assert trail(first) == trail(again)
