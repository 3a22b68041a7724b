"""Moments that survive a round, on Anvil: workers as processes, one away for a round, one killed in its steps."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.execution.jobs import Job
from lockstep.market.ledger import ClaimRecord
from lockstep.market.replay import PublicData, audit
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.types import MERGE_SLOT, Address
from tests.e2e.test_worker import WATCHED, Market, Process, arguments, events_of, homes_of, ledger_of, up
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ROUNDS, STEPS = 4, 300
TERMS = {**WATCHED, "max_lead": ROUNDS + 1, "min_slots": 1}
"""A round of two of three workers goes on."""
ACTS = {Phase.JOINING: "Joined", Phase.TRAINING: "Committed", Phase.REVEALING: "Revealed"}
"""What ends a phase before its time, once every slot has done it."""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def test_moments_are_carried_and_who_was_away_starts_from_zero(market: Market) -> None:
    homes = homes_of(market, "w0", "w1", "w2", "verifier")
    workers = [up(market, home, "--once") for home in homes[:3]]
    job = market.submit(STEPS, carry=1, rounds=ROUNDS, **TERMS)
    verifier = verifying(market, homes[3])

    def phase(r: int) -> Phase:
        return market.contracts.market.phase(job.id, r)

    def kill(i: int) -> None:
        workers[i].popen.send_signal(signal.SIGKILL)
        workers[i].popen.wait()

    # Whoever leaves while round 1 begins has no claim in it.
    wait(lambda: phase(0) == Phase.LEAD, "merge of round 0")
    kill(1)
    present = {Address(market.devnet.account(name).address) for name in ("w0", "w2")}
    wait(lambda: merged_without_who_is_away(market, job, 1, present), "merge of round 1")
    workers[1] = up(market, homes[1], "--once")
    # In round 2 another one is killed in the middle of steps that began from its carry.
    wait(lambda: phase(2) >= Phase.TRAINING, "round 2")
    wait(lambda: bool(list(homes[2].glob("work/*/progress"))), "progress of w2", every=0.01)
    kill(2)
    assert not [e for e in workers[2].named("trained") if e["round"] == 2], "killed in the middle of its round"
    workers[2] = up(market, homes[2], "--once")
    wait(lambda: phase(ROUNDS - 1) == Phase.LEAD, "merge of the last round")
    claims = revealed(market, job)
    for record in claims:
        assert wait_for_audit(verifier, record)["verdict"] == "match", "an honest verifier finds nothing"
    market.devnet.advance(TERMS["challenge_seconds"])
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0, 0]
    resumed = [e["resumed_from"] for e in workers[2].named("trained") if e["round"] == 2]
    assert resumed[0] > 0, "it went on where it was killed"

    assert market.contracts.market.job(job.id).status == JobStatus.DONE
    masks = [ledger_of(market).jobs[job.id].rounds[r].mask for r in range(ROUNDS)]
    away = {slot for slot in range(3) if not masks[1] >> slot & 1}
    assert len(away) == 1, "one slot was not accepted in round 1"
    assert [bin(mask).count("1") for mask in masks] == [3, 2, 3, 3]

    ledger, public = ledger_of(market).jobs[job.id], PublicData(job, market.store)
    for record in claims:
        run = public.run_of(ledger, ledger.rounds[record.round], record)
        assert audit(run, record, market.store).matches, f"round {record.round}, slot {record.slot}"
        fresh = record.round == 0 or (record.round == 2 and record.slot in away)
        assert (run.carried is None) == fresh, f"round {record.round}, slot {record.slot}"
        moments = run.start[4:6]
        assert all(np.any(m) for m in moments) != fresh, "zeros, or what was carried"
    last = max(claims, key=lambda c: (c.round, c.slot))
    replay = market.start("replay", ["replay", last.id.hex(), *where(market)])
    assert replay.popen.wait(PATIENCE) == 0, replay.log.read_text()
    assert replay.out.read_text().startswith("MATCH")


def merged_without_who_is_away(market: Market, job: Job, r: int, present: set[Address]) -> bool:
    """Moves the chain's clock past a window that only who is away keeps open; returns True once the round is merged."""
    at = market.contracts.market.phase(job.id, r)
    if (name := ACTS.get(at)) is not None:
        slots = {e.worker: e.slot for e in events_of(market, "Joined") if e.round == r}
        acted = {e.slot for e in events_of(market, name) if e.contract == "JobMarket" and e.round == r}
        if {slots.get(address) for address in present} <= acted:
            market.devnet.advance(TERMS["join_seconds"])
    return at == Phase.LEAD


def revealed(market: Market, job: Any) -> list[ClaimRecord]:
    rounds = ledger_of(market).jobs[job.id].rounds.values()
    found = [c for r in rounds for c in r.claims.values()]
    assert all(c.slot != MERGE_SLOT for c in found)
    return found


def where(market: Market) -> list[str]:
    deployment = str(market.folder / "deployment.json")
    return ["--rpc", market.devnet.url, "--storage", market.store.url, "--deployment", deployment]


def verifying(market: Market, home: Path) -> Process:
    process = market.start("verifier", ["verifier", *arguments(market, home)[1:]])
    process.wait_for("ready")
    return process


def wait_for_audit(verifier: Process, record: ClaimRecord) -> dict[str, Any]:
    def seen() -> list[dict[str, Any]]:
        return [e for e in verifier.named("audited") if e["claim"] == record.id.hex()]

    wait(lambda: bool(seen()), f"audit of round {record.round}, slot {record.slot}")
    return seen()[0]
