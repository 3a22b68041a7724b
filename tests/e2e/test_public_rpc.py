"""A market of real processes behind public RPC endpoints: limits, an outage, a lie, a chain that takes blocks back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.chain.contracts import Contracts
from lockstep.chain.events import EventReader
from lockstep.chain.outbox import Outbox
from lockstep.chain.rpc import connect
from lockstep.node.ledger import Watcher
from lockstep.protocol.dispute import moves
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Address, Seconds, Wei
from tests.e2e.test_worker import (
    WITHOUT_AGGREGATOR,
    Market,
    Process,
    arguments,
    events_of,
    homes_of,
    wait,
)
from tests.support.rpc_proxy import PUBLIC_LOG_BLOCKS, RpcProxy

pytestmark = [pytest.mark.slow, pytest.mark.chain]

KEY = "deadbeefcafe0123"
BUSY = 0.05
"""Of all requests: answered with 429."""
OUTAGE_SECONDS = 12.0
REORG_BLOCKS = 3
LONG = {**WITHOUT_AGGREGATOR, "train_seconds": Seconds(90), "reveal_seconds": Seconds(90), "merge_seconds": Seconds(60)}
"""Windows longer than an outbox waits before it sends again what a node has lost (STUCK_SECONDS)."""


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


@pytest.fixture
def proxy(market: Market) -> Iterator[RpcProxy]:
    """A public endpoint with a key in its path."""
    with RpcProxy.public(market.devnet.url, busy=BUSY, seed=7, path=f"/v3/{KEY}") as made:
        yield made


def begin(market: Market, kind: str, home: Path, url: str, *more: str, lie: tuple[str, int] | None = None) -> Process:
    """A worker or a verifier that knows the endpoints of `url` alone, by its environment."""
    words = arguments(market, home, *more)
    at = words.index("--rpc")
    del words[at : at + 2]
    words[0] = kind
    process = market.start(home.name, words, {"LOCKSTEP_RPC": url}, lie)
    process.wait_for("ready", 120)
    return process


def texts(market: Market) -> str:
    return "".join(p.out.read_text() + p.log.read_text() for p in market.processes)


def test_a_reader_and_an_outbox_work_behind_a_public_endpoint(market: Market, proxy: RpcProxy) -> None:
    w3, truth = connect(proxy.url, 31337), Watcher(EventReader(market.devnet.w3, market.contracts.addresses))
    account = market.devnet.account("sender")
    contracts = Contracts.at(w3, market.contracts.addresses)
    market.fund("sender")
    outbox = Outbox(market.folder / "sender.sqlite", w3, account)
    proxy.busy = 0.2
    for i in range(5):
        assert outbox.send(contracts.token.approve(contracts.vault.address, Wei(i)), f"approve/{i}").succeeded
        assert outbox.send(contracts.vault.deposit(Wei(i)), f"deposit/{i}").succeeded
    market.devnet.mine(20)
    watcher = Watcher(EventReader(w3, market.contracts.addresses))
    assert watcher.poll() == truth.poll()
    assert max(proxy.ranges) <= PUBLIC_LOG_BLOCKS
    assert account.address in {e.account for e in events_of(market, "Deposited")}
    outbox.close()


def test_a_market_behind_public_endpoints_outlives_an_outage_and_settles(market: Market, proxy: RpcProxy) -> None:
    names = ("w0", "w1", "w2")
    homes = homes_of(market, *names, "v")
    workers = [begin(market, "worker", home, proxy.url, "--once") for home in homes[:3]]
    verifier = begin(market, "verifier", homes[3], proxy.url)
    job = market.submit(rounds=2, max_lead=1, **LONG)
    wait(lambda: bool(events_of(market, "Committed")), 120, "commitment")
    proxy.down = True
    time.sleep(OUTAGE_SECONDS)
    assert all(p.popen.poll() is None for p in (*workers, verifier)), "no outage ends a process"
    proxy.down = False
    assert [w.popen.wait(300) for w in workers] == [0, 0, 0]
    books = market.contracts.market.job(job.id)
    assert books.status == JobStatus.DONE
    assert not events_of(market, "Slashed")
    wait(lambda: len(verifier.named("audited")) >= 6, 120, "audits")
    assert {e["verdict"] for e in verifier.named("audited")} == {"match"}
    assert verifier.stop(120) == 0
    for process in (*workers, verifier):
        assert process.named("unreachable"), "the outage was told"
        assert len(process.named("reachable")) == len(process.named("unreachable"))
    assert max(proxy.ranges) <= PUBLIC_LOG_BLOCKS
    assert KEY not in texts(market), "the key is told nowhere"


def test_a_second_provider_that_lies_delays_and_is_not_believed(market: Market, proxy: RpcProxy) -> None:
    homes = homes_of(market, "w0", "w1", "w2")
    with RpcProxy.public(market.devnet.url) as second:
        workers = [begin(market, "worker", h, proxy.url, "--once", "--rpc-check", second.url) for h in homes]
        second.drops_logs = True
        job = market.submit(rounds=1, max_lead=1, join_seconds=Seconds(120), **WITHOUT_AGGREGATOR)
        for worker in workers:
            wait(lambda w=worker: "two RPC providers differ" in w.log.read_text(), 60, "a word of it")  # type: ignore[misc]
        time.sleep(5)
        assert not events_of(market, "Joined"), "nothing is done while they differ"
        assert all(worker.popen.poll() is None for worker in workers)
        second.drops_logs = False
        assert [worker.popen.wait(200) for worker in workers] == [0, 0, 0]
    assert market.contracts.market.job(job.id).status == JobStatus.DONE
    assert "a bug" not in texts(market)
    assert KEY not in texts(market)


def test_an_idle_hour_costs_few_requests(market: Market, proxy: RpcProxy) -> None:
    """Two minutes of a chain with 12-second blocks in which nothing happens."""
    worker_home, verifier_home = homes_of(market, "w0", "v")
    proxy.busy = 0.0
    begin(market, "worker", worker_home, proxy.url)
    with RpcProxy.public(market.devnet.url) as other:
        begin(market, "verifier", verifier_home, other.url)
        market.devnet._request("evm_setIntervalMining", [12])
        time.sleep(40)
        for each in (proxy, other):
            each.requests.clear()
        time.sleep(120)
        hours = {name: 30 * each.requests.total() for name, each in (("worker", proxy), ("verifier", other))}
        print("requests of an idle hour with 12-second blocks:", hours, dict(proxy.requests), dict(other.requests))
        assert max(hours.values()) <= 3_600


@pytest.mark.parametrize("event", ["Committed", "Revealed", "Merged"])
def test_a_job_settles_though_the_chain_takes_three_blocks_back(market: Market, event: str) -> None:
    homes = homes_of(market, "w0", "w1", "w2")
    workers = [begin(market, "worker", home, market.devnet.url, "--once") for home in homes]
    job = market.submit(rounds=1, max_lead=1, **LONG)
    wait(lambda: any(e.contract == "JobMarket" for e in events_of(market, event)), 120, event, every=0.05)
    took = {e.transaction for e in events_of(market, event)}
    market.devnet._request("anvil_reorg", [REORG_BLOCKS, []])
    assert not took & {e.transaction for e in events_of(market, event)}, "it was taken back"
    assert [worker.popen.wait(240) for worker in workers] == [0, 0, 0]
    books = market.contracts.market.job(job.id)
    assert books.status == JobStatus.DONE
    assert books.escrow == books.paid + books.refunded
    assert not events_of(market, "Slashed"), "nobody is fined for what the chain took back"
    assert events_of(market, event), "it was done again"


@pytest.mark.parametrize("event", ["Opened", "Defended"])
def test_a_game_ends_rightly_though_the_chain_takes_three_blocks_back(market: Market, event: str) -> None:
    homes = homes_of(market, "w0", "w1", "w2", "v")
    liar = begin(market, "worker", homes[0], market.devnet.url, lie=("one-ulp", 1))
    others = [begin(market, "worker", home, market.devnet.url) for home in homes[1:3]]
    verifier = begin(market, "verifier", homes[3], market.devnet.url)
    market.submit(rounds=4, max_lead=4, **{**LONG, "challenge_seconds": Seconds(300)})
    wait(lambda: bool(events_of(market, event)), 240, event, every=0.05)
    market.devnet._request("anvil_reorg", [REORG_BLOCKS, []])
    assert not events_of(market, event), "the move was taken back"
    wait(lambda: bool(events_of(market, "Resolved")), 240, "verdict")
    resolved = events_of(market, "Resolved")[0]
    assert moves.Verdict(resolved.verdict) == moves.Verdict.FRAUD
    assert resolved.winner == Address(market.devnet.account("v").address)
    wait(lambda: bool(verifier.named("won")), 60, "the verifier's word")
    for process in (liar, *others):
        assert process.leave() == 0
