"""An account's money by commands alone: stake, earn, drain, unstake, withdraw; what a stranger's jobs can move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Address, Seconds, Wei
from tests.e2e.test_worker import ALONE, WALLET, Market, homes_of, up
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.chain]

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_stranger_s_job_moves_nothing_where_jobs_from_names_another(market: Market) -> None:
    (home,) = homes_of(market, "w0")
    friend = Address("0x" + "11" * 20)
    worker = up(market, home, "--max-stake", "all", "--jobs-from", friend)
    market.submit(**ALONE)
    refused = worker.wait_for("refused")
    assert refused["code"] == "policy"
    assert worker.stop() == 0
    assert wallet_of(market, home) == WALLET
    assert not worker.named("staked")


@pytest.mark.slow
def test_a_stake_that_was_cut_off_is_completed_and_not_sent_again(market: Market) -> None:
    (home,) = homes_of(market, "w0")
    market.devnet.stop_mining()
    where = ["--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json"), "--home", str(home)]
    process = market.start(
        "stake", ["worker", "stake", "5", *where, "--password-file", str(home / "password"), "--json"]
    )
    wait(lambda: _pending(market) == 1, "transaction in the pool")
    psutil.Process(process.popen.pid).kill()
    process.popen.wait()
    market.devnet.mine(1)
    said = run_mining(market, home, "stake", "5")
    assert (said["completed"], said["staked"]) == (True, str(5 * TOKEN))
    assert said["holdings"]["free"] == str(5 * TOKEN), "once"
    market.devnet._request("evm_setAutomine", [True])
    fresh = run(market, home, "stake", "5")
    assert (fresh["completed"], fresh["holdings"]["free"]) == (False, str(10 * TOKEN))


def address_of(market: Market, home: Path) -> str:
    return str(run(market, home, "status")["address"])


def owner(market: Market, home: Path, verb: str, *more: str, code: int = 0) -> Any:
    """What `lockstep worker owner VERB --json` prints."""
    where = ["--home", str(home), "--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json")]
    if verb != "show":
        where += ["--password-file", str(home / "password")]
    process = market.start(f"owner-{verb}", ["worker", "owner", verb, *more, *where, "--json"])
    assert process.popen.wait(PATIENCE) == code, process.log.read_text() + process.out.read_text()
    said = json.loads(process.out.read_text())
    return said["data"] if code == 0 else said["error"]


@pytest.mark.slow
def test_a_stolen_operator_key_takes_nothing_and_the_owner_gets_all(market: Market) -> None:
    """The thief has the worker's home whole: keystore, password, outbox."""
    (home, cold, thief) = homes_of(market, "w0", "cold", "thief")
    operator, its_owner, stolen_to = (address_of(market, h) for h in (home, cold, thief))
    run(market, home, "stake", "100")
    worker = up(market, home, "--max-stake", "100")
    job = market.submit(**ALONE)
    wait(lambda: market.contracts.market.job(job.id).status == JobStatus.DONE, "end of the job")
    run(market, home, "drain")
    assert worker.popen.wait(PATIENCE) == 0
    # Leaving has withdrawn what was earned; a part of the stake unbonds when the owner is named.
    run(market, home, "unstake", "30")
    assert owner(market, home, "set", its_owner)["owner"] == its_owner
    assert run(market, home, "status")["owner"] == its_owner
    vault = market.contracts.vault
    spoils = Wei(int(run(market, home, "status")["wallet"]))

    assert run(market, home, "unstake", "1", code=4)["code"] == "not_owner"
    assert owner(market, home, "set", stolen_to, code=4)["code"] == "not_owner"
    assert owner(market, home, "propose", stolen_to, code=4)["code"] == "not_owner"
    assert owner(market, home, "delegate", stolen_to, code=4)["code"] == "not_owner"
    assert owner(market, thief, "accept", "--for", operator, code=4)["code"] == "not_owner"
    assert run(market, thief, "unstake", "1", "--for", operator, code=4)["code"] == "not_owner"
    assert run(market, thief, "withdraw", "--for", operator, code=4)["code"] == "not_owner"
    market.devnet.advance(Seconds(3601))
    # The one thing that the stolen key can send: what it pushes goes to the owner. Its hot wallet is lost.
    before = wallet_of(market, cold)
    pushed = run(market, home, "withdraw", "--to", stolen_to)
    assert pushed["sent"] == str(spoils), "the wallet, and nothing of the vault"
    assert wallet_of(market, cold) == before + 30 * TOKEN

    assert run(market, cold, "unstake", "all", "--for", operator)["unbonding"] == str(70 * TOKEN)
    assert "unbond until" in run(market, cold, "withdraw", "--for", operator, code=75)["message"]
    market.devnet.advance(Seconds(3601))
    ended = run(market, cold, "withdraw", "--for", operator)
    assert (ended["withdrawn"], ended["holdings"]["owner"]) == (str(70 * TOKEN), its_owner)
    assert wallet_of(market, cold) == before + 100 * TOKEN, "all that was staked, to the wei"
    assert vault.free(Address(operator)) == 0
    assert wallet_of(market, home) == 0


@pytest.mark.slow
def test_an_owner_is_named_and_hands_on_by_commands(market: Market) -> None:
    (home, cold, heir) = homes_of(market, "w0", "cold", "heir")
    operator, its_owner, next_one = (address_of(market, h) for h in (home, cold, heir))
    assert owner(market, home, "show") == {
        "address": operator, "owner": None, "proposed_owner": None, "delegate": None,
    }  # fmt: skip
    assert "checksum" in owner(market, home, "set", its_owner.lower(), code=2)["message"]
    assert "vault" in owner(market, home, "set", market.contracts.vault.address, code=2)["message"]
    assert owner(market, home, "set", "0x12", code=2)["code"] == "usage"
    assert owner(market, cold, "accept", code=2)["hint"]
    assert owner(market, home, "propose", its_owner)["proposed_owner"] == its_owner
    assert owner(market, heir, "accept", "--for", operator, code=4)["code"] == "not_owner"
    assert owner(market, cold, "accept", "--for", operator)["owner"] == its_owner
    assert owner(market, cold, "propose", next_one, "--for", operator)["proposed_owner"] == next_one
    assert owner(market, cold, "propose", "none", "--for", operator)["proposed_owner"] is None
    owner(market, cold, "propose", next_one, "--for", operator)
    assert owner(market, heir, "accept", "--for", operator)["owner"] == next_one
    assert owner(market, heir, "delegate", its_owner, "--for", operator)["delegate"] == its_owner
    assert owner(market, home, "show")["owner"] == next_one

    # Cut off between sending and saying so: given again, it is told, and nothing is sent twice.
    market.devnet.stop_mining()
    where = ["--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json"), "--home", str(heir)]
    where += ["--password-file", str(heir / "password"), "--json"]
    process = market.start("cut", ["worker", "owner", "propose", its_owner, "--for", operator, *where])
    wait(lambda: _pending(market) == 1, "transaction in the pool")
    psutil.Process(process.popen.pid).kill()
    process.popen.wait()
    market.devnet.mine(1)
    market.devnet._request("evm_setAutomine", [True])
    again = owner(market, heir, "propose", its_owner, "--for", operator)
    assert (again["completed"], again["proposed_owner"]) == (True, its_owner)


@pytest.mark.slow
def test_money_commands_refuse_what_makes_no_sense(market: Market) -> None:
    (home,) = homes_of(market, "w0")
    assert run(market, home, "stake", "much", code=2)["code"] == "usage"
    assert run(market, home, "stake", "5000", code=6)["hint"]
    assert run(market, home, "unstake", "1", code=6)["hint"]
    assert run(market, home, "withdraw", "--to", "me", code=2)["code"] == "usage"
    assert run(market, home, "withdraw", code=6)["hint"]


def run_mining(market: Market, home: Path, verb: str, *more: str) -> Any:
    """As `run`, on a chain that mines again."""
    market.devnet._request("evm_setAutomine", [True])
    return run(market, home, verb, *more)


def _pending(market: Market) -> int:
    status: Any = market.devnet._request("txpool_status", [])
    return int(status["pending"], 16)
