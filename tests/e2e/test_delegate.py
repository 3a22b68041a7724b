"""`lockstep dispute defend` as a process: a worker is lost after its claim, and its delegate keeps its stake."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain import games
from lockstep.protocol.dispute.moves import GamePhase
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Address, GameId, Seconds, Wei
from tests.e2e.test_worker import ALONE, Market, Process, homes_of, ledger_of, reveals, up
from tests.support.toyjob import UNHURRIED
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

TERMS = {**ALONE, "rounds": 1, "max_lead": 1, "challenge_seconds": UNHURRIED["challenge_seconds"]}
CLOCKS = Seconds(UNHURRIED["clock_seconds"] + 60)
"""Longer than a side's clock in a game."""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def at(market: Market, home: Path) -> list[str]:
    """Where a command finds the market, and its key."""
    return [
        "--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json"), "--home", str(home),
        "--password-file", str(home / "password"),
    ]  # fmt: skip


def defend(market: Market, home: Path, account: Address) -> Process:
    return market.start("delegate", ["dispute", "defend", account, *at(market, home), "--storage", market.store.url])


def lost_after_its_claim(market: Market, home: Path, **more: Any) -> Address:
    """The account of a worker that was killed once its claim was public."""
    worker = up(market, home, "--max-stake", "all", **more)
    market.submit(**TERMS)
    wait(lambda: bool(reveals(market)), "claim")
    worker.popen.send_signal(signal.SIGKILL)
    worker.popen.wait()
    return Address(worker.named("ready")[0]["address"])


def name_delegate(market: Market, home: Path, delegate: Address) -> None:
    named = market.start("owner", ["worker", "owner", "delegate", delegate, *at(market, home), "--json"])
    assert named.popen.wait(PATIENCE) == 0, named.log.read_text()


def test_the_delegate_of_a_worker_that_is_lost_wins_its_game_and_goes_on_after_a_kill(market: Market) -> None:
    home, heir, liar = homes_of(market, "w0", "heir", "liar")
    account, delegate = lost_after_its_claim(market, home), Address(market.devnet.account("heir").address)
    refused = defend(market, heir, account)
    assert refused.popen.wait(PATIENCE) == 2, "nobody has named it"
    assert "worker owner delegate" in refused.log.read_text()
    name_delegate(market, home, delegate)
    process = defend(market, heir, account)
    assert process.wait_for("ready")["account"] == account

    vault, (claim,) = market.contracts.vault, [e.claim for e in reveals(market)]
    before = vault.credits(account)
    challenger = market.start(
        "liar", ["verifier", "up", *at(market, liar), "--storage", market.store.url], lie=("false-challenge", 1)
    )
    game = challenger.wait_for("challenged")["game"]
    process.wait_for("defending")
    process.popen.send_signal(signal.SIGKILL)
    process.popen.wait()
    again = defend(market, heir, account)
    at_leaf = GameId(bytes.fromhex(game))
    wait(
        lambda: games.read(market.contracts.game, at_leaf).phase == GamePhase.ELEMENT,
        "leaf that the liar asked for",
    )
    wait(lambda: "postLeaf" in {e["move"] for e in again.named("defending")}, "move of its own after the kill")
    assert "replaying" not in again.log.read_text(), "its home knows the claim"
    market.devnet.advance(CLOCKS)
    assert again.wait_for("resolved")["verdict"] == "rejected"
    assert [e["game"] for e in again.named("resolved")] == [game]
    challenger.wait_for("lost")
    assert ledger_of(market).locks[claim] == account, "its stake is where it was"
    assert vault.credits(account) > before, "and the liar's bond is its own"
    assert vault.credits(delegate) == 0, "the delegate has nothing of it"
    assert again.stop() == 0, "no game is open"
    assert not list((heir / "disputes").iterdir()), "nothing is kept of it"


def test_a_delegate_shows_nothing_of_a_claim_that_it_computes_otherwise(market: Market) -> None:
    home, heir, honest = homes_of(market, "w0", "heir", "honest")
    account = lost_after_its_claim(market, home, lie=("one-ulp", 1))
    name_delegate(market, home, Address(market.devnet.account("heir").address))
    process = defend(market, heir, account)
    process.wait_for("ready")
    verifier = market.start("verifier", ["verifier", "up", *at(market, honest), "--storage", market.store.url])
    verifier.wait_for("challenged")
    wait(lambda: "cannot be defended" in process.log.read_text(), "refusal in the log")
    process.popen.terminate()
    market.devnet.advance(CLOCKS)
    verifier.wait_for("won")
    assert process.popen.wait(PATIENCE) == 0, "the game is over"
    assert process.named("defending") == []
    assert json.loads(process.out.read_text().splitlines()[-1])["verdict"] == "timeout"
    assert market.contracts.market.phase(next(iter(ledger_of(market).jobs)), 0) != Phase.JOINING
    assert market.contracts.vault.free(account) >= Wei(0)
