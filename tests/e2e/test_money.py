"""A worker's money by commands alone: stake, earn, drain, unstake, withdraw; what hostile jobs can move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Seconds, Wei
from tests.e2e.test_worker import ALONE, WALLET, Market, homes_of, up
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

TOKEN = 10**18


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def run(market: Market, home: Path, verb: str, *more: str, code: int = 0) -> Any:
    """What `lockstep worker VERB --json` prints: its data, or its error."""
    where = ["--home", str(home)]
    if verb != "drain":
        where += ["--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json")]
        where += ["--password-file", str(home / "password")]
    process = market.start(verb, ["worker", verb, *more, *where, "--json"])
    assert process.popen.wait(PATIENCE) == code, process.log.read_text() + process.out.read_text()
    said = json.loads(process.out.read_text())
    return said["data"] if code == 0 else said["error"]


def wallet_of(market: Market, home: Path) -> int:
    return int(run(market, home, "status")["wallet"])


def test_a_worker_ends_with_its_wallet_and_its_earnings_by_commands_alone(market: Market) -> None:
    (home,) = homes_of(market, "w0")
    assert run(market, home, "stake", "100")["staked"] == str(100 * TOKEN)
    worker = up(market, home, "--max-stake", "100")
    job = market.submit(**ALONE)
    assert run(market, home, "stake", "1", code=8)["code"] == "guard_refused.locked", "its home is in use"
    wait(lambda: market.contracts.market.job(job.id).status == JobStatus.DONE, "end of the job")
    run(market, home, "drain")
    assert worker.popen.wait(PATIENCE) == 0, "drained, and not killed"
    assert run(market, home, "drain")["running"] is False
    earned = int(run(market, home, "earnings")["earned"])
    assert earned > 0

    assert run(market, home, "unstake", "101", code=6)["code"] == "funds"
    asked = run(market, home, "unstake", "all")
    assert asked["unbonding"] == str(100 * TOKEN)
    later = run(market, home, "withdraw", code=75) if int(asked["holdings"]["credits"]) == 0 else None
    assert later is None or "unbond until" in later["message"]
    market.devnet.advance(Seconds(3601))
    run(market, home, "withdraw")
    held = run(market, home, "status")
    assert held["wallet"] == str(WALLET + earned), "its wallet and its earnings, to the wei"
    assert (held["free"], held["unbonding"], held["credits"], held["locked"]) == ("0", "0", "0", "0")
    assert run(market, home, "withdraw", code=6)["code"] == "funds", "there is nothing more"


def test_hostile_jobs_together_move_no_more_than_max_stake(market: Market) -> None:
    (home,) = homes_of(market, "w0")
    worker = up(market, home, "--max-stake", "70")
    # Three at once, each of which would lock far more than is allowed.
    jobs = [
        market.submit(nonce=n, **{**ALONE, "rounds": 4, "max_lead": 4, "slot_stake": Wei(30 * TOKEN)}) for n in range(3)
    ]
    wait(lambda: len(worker.named("refused")) >= 1, "refusal")
    worker.wait_for("joined")
    wait(lambda: len(worker.named("revealed")) >= 1, "reveal")
    assert {e["code"] for e in worker.named("refused")} == {"policy"}
    assert all("--max-stake" in e["message"] for e in worker.named("refused"))
    assert wallet_of(market, home) >= WALLET - 70 * TOKEN
    why = run(market, home, "why")
    refused = [j for j in why["jobs"] if j["code"] == "policy"]
    assert refused, why
    assert all(j["next"] for j in refused), "and when it is looked at again"
    assert len(jobs) == 3
    # A kill between the deposit and what follows does not make it deposit again.
    worker.popen.kill()
    worker.popen.wait()
    again = up(market, home, "--max-stake", "70")
    wait(lambda: len(again.named("refused")) >= 1, "refusal")
    assert wallet_of(market, home) >= WALLET - 70 * TOKEN
    again.leave()
