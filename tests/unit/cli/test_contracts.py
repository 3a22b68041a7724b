"""`lockstep contracts`: what it costs, what it refuses, what it deploys and verifies."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.chain.devnet import Devnet, die_with_parent, find_anvil
from lockstep.chain.keys import KEYSTORE, load_account
from tests.support.waiting import PATIENCE

from .conftest import Lockstep


@pytest.mark.parametrize("fees", ["optimism", "arbitrum", "mainnet"])
def test_a_dry_run_prices_deployment_job_and_game_offline(lockstep: Lockstep, fees: str) -> None:
    data = lockstep("contracts", "deploy", "--dry-run", "--fees", fees, "--json").data
    totals = {row["what"]: row for row in data["totals"]}
    assert list(totals) == ["deployment", "job", "game", "game_most"]
    assert (data["cover"] > 1) == (fees != "mainnet")
    for row in (*data["contracts"], *data["totals"]):
        assert int(row["fee"]) == int(row["execution_fee"]) + int(row["data_fee"]) > 0
    assert sum(int(row["gas"]) for row in data["contracts"]) == totals["deployment"]["gas"]


def test_a_dry_run_in_words_has_money_where_a_coin_has_a_price(lockstep: Lockstep) -> None:
    ended = lockstep("contracts", "deploy", "--dry-run", "--fees", "mainnet", "--base-fee", "1", "--coin-price", "3000")
    assert (ended.code, ended.err) == (0, "")
    found = re.search(r"deployment +11 +([\d,]+) +[\d,]+ +(0\.\d+) ETH +([\d.]+)", ended.out)
    assert found is not None, ended.out
    gas, coins, money = (float(part.replace(",", "")) for part in found.groups())
    assert (coins, money) == (pytest.approx(gas * 1e-9, rel=1e-3), pytest.approx(gas * 3e-6, abs=0.01))
    for row in ("game", "game_most"):
        assert re.search(rf"^{row} +\d+ ", ended.out, re.MULTILINE), row
    assert "measured on Anvil" in ended.out
    assert "game_most: the bound of 2.6 M gas" in ended.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dry-run", "--fees", "optimist"), "fee profile 'optimist' is unknown"),
        (("--fees", "optimism"), "a fee profile applies to a dry run only"),
        (("--dry-run", "--base-fee", "1"), "fee options need a fee profile"),
        (("--dry-run", "--fees", "mainnet", "--base-fee", "0"), "the base fee is 0"),
        (("--dry-run", "--fees", "mainnet", "--base-fee", "inf"), "base_fee is inf"),
        (("--token", "0x" + "11" * 20, "--test-token"), "--token and --test-token are both given"),
    ],
)
def test_what_makes_no_sense_is_refused(lockstep: Lockstep, options: tuple[str, ...], message: str) -> None:
    ended = lockstep("contracts", "deploy", *options, "--json")
    assert ended.code == 2
    assert message in ended.error["message"]


@pytest.mark.chain
def test_a_deployment_above_the_bound_is_refused_before_anything_is_sent(lockstep: Lockstep, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    keys = ("--home", tmp_path / "home", "--password-file", tmp_path / "password")
    assert lockstep("key", "new", *keys, "--backup", tmp_path / "backup.json").code == 0
    account, file = load_account(tmp_path / "home" / KEYSTORE, "secret"), tmp_path / "market.json"
    with Devnet(tmp_path / "anvil", block_seconds=0) as chain:
        chain._request("anvil_setBalance", [account.address, hex(10**20)])
        chain._request("anvil_setNextBlockBaseFeePerGas", [hex(50 * 10**9)])
        chain.mine(1)
        before = chain.w3.eth.block_number
        command = ("contracts", "deploy", "--rpc", chain.url, "--deployment", file, *keys, "--json")
        dear = lockstep(*command, "--max-fee", "5 gwei")
        assert (dear.code, dear.error["code"]) == (75, "try_later.fee")
        assert dear.error["message"] == "the base fee is 50 gwei per unit of gas, above the bound of 5 gwei"
        assert "--max-fee" in dear.error["hint"]
        assert (chain.w3.eth.block_number, chain.w3.eth.get_transaction_count(account.address)) == (before, 0)
        assert not file.exists()
        paid = lockstep(*command, "--max-fee", "200 gwei")
        assert (paid.code, paid.data["resumed"]) == (0, False), "nothing of it had been sent"
        assert json.loads(file.read_text())["market"] == paid.data["market"]


@pytest.mark.chain
@pytest.mark.slow
def test_a_market_is_deployed_verified_and_shown(lockstep: Lockstep, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret")
    keys = ("--home", tmp_path / "home", "--password-file", tmp_path / "password")
    assert lockstep("key", "new", *keys, "--backup", tmp_path / "backup.json").code == 0
    with Devnet(tmp_path / "anvil", block_seconds=0) as chain:
        at = ("--rpc", chain.url, "--deployment", tmp_path / "market.json")
        dry = lockstep("contracts", "deploy", "--rpc", chain.url, "--dry-run", "--json").data
        assert {row["what"]: row["gas"] for row in dry["contracts"]}["JobMarket"] > 4_000_000
        assert chain.w3.eth.block_number == 0, "nothing is sent"

        poor = lockstep("contracts", "deploy", *at, *keys, "--json")
        assert (poor.code, poor.error["code"]) == (6, "funds")
        account = load_account(tmp_path / "home" / KEYSTORE, "secret")
        chain._request("anvil_setBalance", [account.address, hex(10**20)])
        wrong = lockstep("contracts", "deploy", *at, *keys, "--unbond", "1d", "--json")
        assert (wrong.code, "has unbond_seconds" in wrong.error["message"]) == (2, True)
        made = lockstep("contracts", "deploy", *at, *keys, "--json").data

        again = lockstep("contracts", "deploy", *at, *keys, "--json")
        assert (again.code, "exists" in again.error["message"]) == (2, True)
        verified = lockstep("contracts", "verify", *at, "--input", tmp_path / "inputs", "--json").data
        assert (len(verified["contracts"]), verified["unbond_seconds"], verified["test_token"]) == (
            len(dry["contracts"]),
            14 * 86_400,
            True,
        )
        shown = lockstep("contracts", "addresses", "--deployment", tmp_path / "market.json", "--json").data
        assert shown["market"] == made["market"]
        listed = json.loads((tmp_path / "inputs/contracts.json").read_text())
        assert listed["JobMarket"]["address"] == made["market"]

        code = chain.w3.eth.get_code(made["arbiter"])
        chain._request("anvil_setCode", [made["arbiter"], "0x" + (bytes([code[0] ^ 1]) + code[1:]).hex()])
        lied = lockstep("contracts", "verify", *at, "--json")
        assert (lied.code, lied.error["code"]) == (10, "mismatch")
        assert "Arbiter" in lied.error["message"]


@pytest.fixture
def arbitrum(tmp_path: Path) -> Iterator[str]:
    """A chain with the id of Arbitrum One."""
    command = [str(find_anvil()), "--port", "0", "--chain-id", "42161"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    try:
        while not (found := re.search(r"Listening on (\S+)", (tmp_path / "log").read_text())):
            assert process.poll() is None
        yield f"http://{found[1]}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@pytest.mark.chain
def test_a_chain_whose_blocks_are_another_chains_is_refused_by_name(lockstep: Lockstep, arbitrum: str) -> None:
    ended = lockstep("contracts", "deploy", "--rpc", arbitrum, "--dry-run", "--json")
    assert (ended.code, ended.error["code"]) == (5, "chain.foreign_blocks")
    assert "Arbitrum One" in ended.error["message"]
