"""Markets of real processes on bad days: whatever happens when, the job settles and no honest stake falls."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lockstep.chain.events import Event
from lockstep.demo import report
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import ClaimStatus, JobStatus
from lockstep.protocol.market.types import BURN
from lockstep.protocol.types import Address
from tests.faults.field import LIAR, Field
from tests.faults.schedule import Kind, draw

SEEDS = range(20)
HONEST_NAMES = ("coordinator", "verifier", "worker-0", "worker-1", "worker-2")


def test_twenty_schedules_hold_everything_that_can_happen() -> None:
    schedules = [draw(seed) for seed in SEEDS]
    kinds = Counter(fault.kind for s in schedules for fault in s.faults)
    assert set(kinds) == set(Kind)
    killed = {fault.whom for s in schedules for fault in s.faults if fault.kind is Kind.KILL}
    assert {"coordinator", "verifier", "storage", "worker-0"} <= killed
    assert {s.games for s in schedules} == {0, 1, 4, 16}
    assert {s.block_seconds for s in schedules} == {1, 12}
    assert {s.skew for s in schedules} >= {-30, 30}
    for of in ("log_limit", "liar"):
        assert {getattr(s, of) for s in schedules} == {True, False}
    assert draw(3) == draw(3)


@pytest.mark.slow
@pytest.mark.chain
@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_job_settles_and_no_honest_stake_falls(seed: int, tmp_path: Path) -> None:
    schedule = draw(seed)
    with Field(tmp_path, schedule) as field:
        field.prepare()
        field.run()
        # What is paid back now is withdrawn: events and balances are read of one block.
        field.devnet.stop_mining()
        events, world = field.events(), field.world
        contracts, vault = world.contracts, world.contracts.vault
        accounts = {name: Address(world.account(name).address) for name in HONEST_NAMES}
        liar = accounts.pop(LIAR) if schedule.liar else None
        books = contracts.market.job(field.job.id)
        told = {
            "seed": seed, "told": field.told, "games": len(field.opened),
            "verdicts": sorted(Verdict(e.args["verdict"]).name for e in events if e.name == "Resolved"),
            "dropped": sum(p.dropped for p in field.proxies.values()),
            "refused": sum(p.refused for p in field.proxies.values()),
        }  # fmt: skip
        print(json.dumps(told))

        assert books.status == JobStatus.DONE
        assert books.escrow == books.paid + books.refunded
        assert report.adds_up(report.money(events))
        everybody = {*_named(events), *accounts.values(), BURN}
        held = sum(report.stake_of(vault, events, a) - _left(events, a) + vault.credits(a) for a in everybody)
        assert contracts.token.balance_of(vault.address) == held + vault.total_escrow(), "what the vault holds it owes"
        for name, account in accounts.items():
            assert report.stake_of(vault, events, account) == report.deposited(events, account), f"{name}'s stake"
        assert not [e for e in events if e.name == "Slashed" and e.args["account"] != liar]
        joined = {e.args["worker"] for e in events if e.name == "Joined"}
        late = {name for name, account in accounts.items() if name.startswith("worker") and account not in joined}
        assert not late, "what passes keeps nobody out"
        mallory = field.attacker.challenger.address if field.attacker is not None else None
        for game in (e for e in events if e.name == "Opened" and e.args["challenger"] == mallory):
            end = next(e for e in events if e.name == "Resolved" and e.args["game"] == game.args["game"])
            assert end.args["verdict"] != Verdict.FRAUD
            assert end.args["winner"] != mallory, "nobody earns by a false challenge"
        if liar is not None and (tmp_path / LIAR / "lie").exists():
            claim = bytes.fromhex((tmp_path / LIAR / "lie").read_text())
            if any(e.name == "Revealed" and e.args.get("claim") == claim for e in events):
                assert contracts.market.claim(claim).status == ClaimStatus.CONVICTED, "faults hide no lie"  # type: ignore[arg-type]
        if schedule.log_limit:
            assert told["refused"], "somebody asked for more than the node gives, and went on"
        for log in field.group.logs.glob("*.log"):
            traces = [line for line in log.read_text(errors="replace").splitlines() if "Traceback" in line]
            assert not traces, log.name


def _named(events: list[Event]) -> set[Address]:
    """Accounts that have had anything in the vault."""
    return {Address(e.args["account"]) for e in events if "account" in e.args and e.contract == "StakeVault"}


def _left(events: list[Event], account: Address) -> int:
    """What an account has taken out of its stake."""
    return sum(e.args["amount"] for e in events if e.name == "Unbonded" and e.args["account"] == account)
