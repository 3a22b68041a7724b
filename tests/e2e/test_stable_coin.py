"""A market whose token has six decimals and no permit: a job opened by approve, trained and settled by commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.chain.outbox import Outbox
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Address, JobId, Wei
from tests.e2e.test_carry import where
from tests.e2e.test_worker import Market, homes_of, up
from tests.support.coin import SYMBOL, UNIT, deploy_coin
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.slow, pytest.mark.chain]

WALLET = 1_000 * UNIT
FILE = f"""
texts = "texts"
rounds = 1
slots = 2
min_slots = 2
batch = {{ rows = 2 }}
model = {{ layers = 1, heads = 2, width = 32, context = 16 }}
strategy = {{ inner_steps = 2 }}

[terms]
preset = "devnet"
join_seconds = 600
train_seconds = 600
reveal_seconds = 300
attest_seconds = 300
merge_seconds = 300
challenge_seconds = 300
clock_seconds = 900
answer_seconds = 600
max_lead = 1
bond = "4.5 {SYMBOL}"
"""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path, token=deploy_coin, wallet=Wei(WALLET))
    yield market
    market.close()


def said(market: Market, *arguments: str, code: int = 0) -> str:
    """Returns what a command prints."""
    ran = market.start(arguments[1], list(arguments))
    assert ran.popen.wait(PATIENCE) == code, ran.log.read_text()
    return ran.out.read_text() + ran.log.read_text()


def test_a_job_in_a_stable_coin_is_opened_by_approve_trained_and_settled(market: Market, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for i in range(3):
        (tmp_path / f"texts/{i}.txt").write_text(f"text {i}: " + "words upon words, " * 40)
    (tmp_path / "job.toml").write_text(FILE)
    token, vault = market.contracts.token, market.contracts.vault
    *homes, asker = homes_of(market, "w0", "w1", "requester")
    requester = Address(market.devnet.account("requester").address)
    key = [*where(market), "--home", str(asker), "--password-file", str(asker / "password")]
    job_file = str(tmp_path / "job.toml")

    # What an earlier job left over has to be taken back first.
    outbox = Outbox(tmp_path / "left.sqlite", market.devnet.w3, market.devnet.account("requester"))
    outbox.send(token.approve(vault.address, Wei(7)), "left over")
    outbox.close()

    quoted = said(market, "train", "quote", job_file, "--seconds", "0", *key)
    assert f"escrow 2.5 {SYMBOL}" in quoted, "two slots and a merge, at the preset's prices"
    assert f"bond 4.5 {SYMBOL}" in quoted
    assert f"budget is 2 {SYMBOL}" in said(market, "train", "run", job_file, "--budget", f"2 {SYMBOL}", *key, code=6)
    assert f"not an amount of {SYMBOL}" in said(market, "train", "run", job_file, "--budget", "9 LST", *key, code=2)
    assert token.balance_of(requester) == WALLET

    opened = said(market, "train", "run", job_file, "--budget", f"20 {SYMBOL}", *key)
    identity = JobId(bytes.fromhex(opened.split()[0]))
    job = market.contracts.market.job(identity)
    assert token.allowance(requester, vault.address) == 0, "no more was approved than the job takes"
    assert job.escrow == 5 * UNIT // 2
    debit = WALLET - token.balance_of(requester)
    assert debit < 20 * UNIT

    # A stake in other decimals would be more than anybody here holds.
    workers = [up(market, home, "--once", "--max-stake", f"100 {SYMBOL}") for home in homes]
    assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0], workers[0].log.read_text()[-2000:]
    job = market.contracts.market.job(identity)
    assert (job.status, job.paid, job.refunded) == (JobStatus.DONE, 5 * UNIT // 2, 0)
    earned = sum(int(w.named("done")[0]["earned"]) for w in workers)
    assert earned == job.paid

    chain = [each for each in where(market) if each not in ("--storage", market.store.url)]
    status = said(market, "worker", "status", *chain, "--home", str(homes[0]))
    assert f" {SYMBOL}" in status
    assert "LST" not in status
    assert said(market, "train", "withdraw", *key).strip().endswith(SYMBOL)
    assert token.balance_of(requester) == WALLET - job.paid, "the deposit is back"
    own = ["--home", str(homes[0]), "--password-file", str(homes[0] / "password")]
    assert f"1 {SYMBOL} unbonding" in said(market, "worker", "unstake", "1", "--yes", *chain, *own)
    assert vault.unbonding(Address(market.devnet.account("w0").address))[0] == UNIT
