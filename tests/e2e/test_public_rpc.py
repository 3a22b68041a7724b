"""A market of real processes behind public RPC endpoints: limits, an outage, a lie, a chain that takes blocks back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import lockstep
from lockstep.chain.events import EventReader
from lockstep.protocol.dispute import moves
from lockstep.protocol.errors import Unreachable
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Address, Seconds
from tests.e2e.test_worker import (
    WATCHED,
    WITHOUT_AGGREGATOR,
    Market,
    Process,
    arguments,
    events_of,
    homes_of,
)
from tests.support import toyjob
from tests.support.rpc_proxy import PUBLIC_LOG_BLOCKS, PUBLIC_TRANSACTION_BYTES, RpcProxy
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]

KEY = "deadbeefcafe0123"
BUSY = 0.05
"""Of all requests: answered with 429."""
OUTAGE_SECONDS = 600
"""Of chain time."""
OUTAGE_BLOCK_SECONDS = 12
"""Between two blocks of the outage, which come each second: ten minutes pass in fifty."""
REORG_BLOCKS = 3
PATIENT = replace(
    toyjob.TOY_TERMS, join_seconds=Seconds(120), train_seconds=Seconds(900), reveal_seconds=Seconds(900),
    attest_seconds=Seconds(900), merge_seconds=Seconds(900), challenge_seconds=Seconds(1750),
    clock_seconds=Seconds(900), max_lead=1,
)  # fmt: skip
"""Windows and clocks that ten minutes do not use up, though most of them. What is left of revealing and attesting can
pass before anybody challenges."""


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
    process.wait_for("ready")
    return process


def texts(market: Market) -> str:
    return "".join(p.out.read_text() + p.log.read_text() for p in market.processes)


def game_moves(market: Market) -> list[object]:
    """Every event of every game."""
    reader = EventReader(market.devnet.w3, market.contracts.addresses)
    return [e for e in reader.poll(reader.start()).events if e.contract == "DisputeGame"]


def test_every_role_outlives_ten_minutes_without_its_provider_and_no_move_is_missed(
    market: Market, proxy: RpcProxy
) -> None:
    """Requester, coordinator, three workers of which one lies, a verifier: the provider goes while a move is due, ten
    minutes of chain time pass, and a second provider lies when it comes back."""
    homes = homes_of(market, "c", "w0", "w1", "w2", "v", "r")
    with RpcProxy.public(market.devnet.url) as second:
        checked = ("--rpc-check", second.url)
        coordinator = begin(market, "coordinator", homes[0], proxy.url, "--port", "0", *checked)
        near = ("--coordinator", coordinator.named("ready")[0]["url"], *checked)
        liar = begin(market, "worker", homes[1], proxy.url, *near, lie=("skipped-step", 1))
        workers = [begin(market, "worker", home, proxy.url, "--once", *near) for home in homes[2:4]]
        verifier = begin(market, "verifier", homes[4], proxy.url, "--volunteer", *near)
        everybody = (coordinator, liar, *workers, verifier)
        net = lockstep.connect(
            rpc=proxy.url, storage=market.store.url, deployment=market.folder / "deployment.json",
            account=market.devnet.account("r"), home=homes[5],
        )  # fmt: skip
        aggregator = Address(market.devnet.account("c").address)
        quote = net.quote(toyjob.training_job(rounds=1, terms=PATIENT, aggregator=aggregator))
        handle = net.submit(quote, budget=quote.debit)
        wait(lambda: bool(events_of(market, "Opened")), "a challenge", every=0.05)

        proxy.down, left = True, market.now()
        market.devnet._request("anvil_setBlockTimestampInterval", [OUTAGE_BLOCK_SECONDS])
        made = len(game_moves(market))
        wait(lambda: market.now() - left >= OUTAGE_SECONDS, "ten minutes", every=1)
        assert all(p.popen.poll() is None for p in everybody), "no outage ends a process"
        assert len(game_moves(market)) <= made + 1, "but for what was on its way nothing happens"
        assert not events_of(market, "Resolved"), "a move is due, and its clock runs"
        with pytest.raises(Unreachable) as gone:
            handle.status()
        assert KEY not in gone.value.message + gone.value.hint, "the requester is told, without the key"
        market.devnet._request("anvil_removeBlockTimestampInterval", [])
        market.devnet.resume()

        second.drops_logs = True
        proxy.down = False
        wait(lambda: any("two RPC providers differ" in p.log.read_text() for p in everybody), "a word of it")
        time.sleep(5)
        assert not events_of(market, "Resolved")
        second.drops_logs = False

        wait(lambda: bool(events_of(market, "Resolved")), "verdict")
        resolved = [moves.Verdict(e.verdict) for e in events_of(market, "Resolved")]
        assert set(resolved) == {moves.Verdict.FRAUD}, "nobody lost by the clock"
        wait(lambda: bool(events_of(market, "Merged")), "merge")
        merged = {e.claim.hex() for e in events_of(market, "Merged")}
        wait(lambda: merged <= {e["claim"] for e in verifier.named("audited")}, "the audit of the merge")
        market.devnet.advance(Seconds(PATIENT.challenge_seconds + 1))
        assert [w.popen.wait(PATIENCE) for w in workers] == [0, 0]
        events = [e.name for e in handle.watch()]
        assert events[-1] == "JobDone", "the requester watches it behind the same endpoint"
        assert verifier.stop() == 0
        assert liar.leave() == 0
        assert coordinator.leave() == 0
    books = market.contracts.market.job(handle.id)
    assert (books.status, books.failed) == (JobStatus.DONE, 0)
    assert books.escrow == books.paid + books.refunded
    account = Address(market.devnet.account("w0").address)
    assert {e.account for e in events_of(market, "Slashed")} == {account}, "the liar alone"
    for process in (coordinator, *workers, verifier):
        assert process.named("unreachable"), "the outage was told"
        assert len(process.named("reachable")) == len(process.named("unreachable"))
    assert max(proxy.ranges) <= PUBLIC_LOG_BLOCKS
    assert max(proxy.transactions) <= PUBLIC_TRANSACTION_BYTES
    assert proxy.oversized == []
    print("largest transaction:", max(proxy.transactions), "bytes; requests:", proxy.requests.total())
    assert "a bug" not in texts(market)
    assert "Traceback" not in texts(market)
    assert KEY not in texts(market), "the key is told nowhere"


def test_an_idle_hour_costs_few_requests(market: Market) -> None:
    """A minute of a chain with 12-second blocks in which nothing happens."""
    roles = ("worker", "verifier", "coordinator")
    with ExitStack() as stack:
        proxies = {role: stack.enter_context(RpcProxy.public(market.devnet.url)) for role in roles}
        for role, home in zip(roles, homes_of(market, *roles), strict=True):
            begin(market, role, home, proxies[role].url, *(("--port", "0") if role == "coordinator" else ()))
        market.devnet._request("evm_setIntervalMining", [12])
        time.sleep(24)
        for each in proxies.values():
            each.requests.clear()
        time.sleep(60)
        hours = {role: 60 * each.requests.total() for role, each in proxies.items()}
        print(
            "requests of an idle hour with 12-second blocks:", hours, {r: dict(p.requests) for r, p in proxies.items()}
        )
        assert max(hours.values()) <= 3_600


def test_a_job_settles_though_the_chain_takes_three_blocks_back_after_each_act(market: Market) -> None:
    homes = homes_of(market, "w0", "w1", "w2")
    workers = [begin(market, "worker", home, market.devnet.url, "--once") for home in homes]
    job = market.submit(rounds=1, max_lead=1, **WITHOUT_AGGREGATOR)
    for event in ("Committed", "Revealed", "Merged"):
        wait(lambda e=event: any(x.contract == "JobMarket" for x in events_of(market, e)), event, every=0.05)  # type: ignore[misc]
        took = {e.transaction for e in events_of(market, event)}
        market.devnet._request("anvil_reorg", [REORG_BLOCKS, []])
        assert not took & {e.transaction for e in events_of(market, event)}, f"{event} was taken back"
    assert [worker.popen.wait(PATIENCE) for worker in workers] == [0, 0, 0]
    books = market.contracts.market.job(job.id)
    assert books.status == JobStatus.DONE
    assert books.escrow == books.paid + books.refunded
    assert not events_of(market, "Slashed"), "nobody is fined for what the chain took back"
    for event in ("Committed", "Revealed", "Merged"):
        assert events_of(market, event), f"{event} was done again"


def test_a_game_ends_rightly_though_the_chain_takes_three_blocks_back_after_each_move(market: Market) -> None:
    homes = homes_of(market, "w0", "w1", "w2", "v")
    liar = begin(market, "worker", homes[0], market.devnet.url, lie=("one-ulp", 1))
    others = [begin(market, "worker", home, market.devnet.url) for home in homes[1:3]]
    verifier = begin(market, "verifier", homes[3], market.devnet.url)
    market.submit(rounds=4, max_lead=4, **WATCHED)
    for event in ("Opened", "Defended"):
        wait(lambda e=event: bool(events_of(market, e)), event, every=0.05)  # type: ignore[misc]
        market.devnet._request("anvil_reorg", [REORG_BLOCKS, []])
        assert not events_of(market, event), f"{event} was taken back"
    wait(lambda: bool(events_of(market, "Resolved")), "verdict")
    resolved = events_of(market, "Resolved")[0]
    assert moves.Verdict(resolved.verdict) == moves.Verdict.FRAUD
    assert resolved.winner == Address(market.devnet.account("v").address)
    wait(lambda: bool(verifier.named("won")), "the verifier's word")
    for process in (liar, *others):
        assert process.leave() == 0
