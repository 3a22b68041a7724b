"""Receipts go through the coordinator, a round's in one transaction; without its goodwill they go all the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain.events import Event, EventReader
from lockstep.execution.jobs import Job
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market.receipts import own_way
from lockstep.protocol.types import Address, Seconds
from tests.support.waiting import wait

from .byhand import Market, Process

pytestmark = [pytest.mark.slow, pytest.mark.chain]

RECEIPTS = "/api/v1/receipts"
EVERYBODY = [0, 1, 2]


class Swallower(ThreadingHTTPServer):
    """A coordinator that thanks for everything and does nothing."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Thanks)
        self.got: list[tuple[str, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def receipts(self) -> list[int]:
        """Whose receipts it was given."""
        return sorted(fields["who"] for path, fields in self.got if path == RECEIPTS)


class Thanks(BaseHTTPRequestHandler):
    server: Swallower

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, json.loads(body)))
        self.send_response(202)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def swallower() -> Iterator[Swallower]:
    server = Swallower()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    """Nobody works by hand."""
    market = Market.build(tmp_path, workers=0)
    yield market
    market.close()


def up(market: Market, name: str, url: str) -> Process:
    """`lockstep worker up` with a coordinator."""
    return market.serve(name, ["worker", "up", "--coordinator", url])


def attested(market: Market, job: Job, r: int) -> list[tuple[Address, Seconds, list[int]]]:
    """(sender, time, speakers) of every transaction with receipts for a round, in order."""
    reader = EventReader(market.devnet.w3, market.contracts.addresses)
    events = [e for e in reader.poll(reader.start()).events if e.name == "Attested" and e.args["job"] == job.id]
    batches: dict[bytes, list[Event]] = {}
    for e in events:
        if e.round == r:
            batches.setdefault(e.transaction, []).append(e)
    w3 = market.devnet.w3
    return [
        (Address(w3.eth.get_transaction(tx)["from"]), said[0].time, sorted(e.who for e in said))  # type: ignore[arg-type]
        for tx, said in batches.items()
    ]


def test_one_transaction_carries_the_receipts_of_a_round(market: Market) -> None:
    # Who waited for its own turn would wait for five minutes.
    job = market.submit(rounds=2, max_lead=2, attest_seconds=Seconds(600))
    coordinator = market.coordinator()
    me = Address(market.devnet.account("coordinator").address)
    names = ["w0", "w1", "w2"]
    market.fund(*names)
    workers = [up(market, name, coordinator.wait_for("ready")["url"]) for name in names]
    for r in range(2):
        market.wait_phase(job, r, Phase.LEAD)
        ((sender, _, speakers),) = attested(market, job, r)
        assert (sender, speakers) == (me, EVERYBODY)
        assert market.contracts.market.round(job.id, r).mask == 0b111
    assert [w.leave() for w in workers] == [0, 0, 0], "their stakes are locked still"
    assert coordinator.stop() == 0


def test_a_coordinator_that_swallows_receipts_delays_a_round_by_half_a_window(market: Market) -> None:
    """.. though one of the owners is killed after it has handed its receipt over."""
    job = market.submit(rounds=1, max_lead=1, attest_seconds=Seconds(40))
    market.coordinator()
    names = ["w0", "w1", "w2"]
    market.fund(*names)
    with swallower() as thief:
        workers = [up(market, name, thief.url) for name in names]
        wait(lambda: thief.receipts() == EVERYBODY, "receipts handed over")
        assert attested(market, job, 0) == []
        workers[0].kill()
        workers[0] = up(market, names[0], thief.url)
        market.wait_phase(job, 0, Phase.LEAD)
        assert set(thief.receipts()) == set(EVERYBODY)
    stored, sent = market.contracts.market.round(job.id, 0), attested(market, job, 0)
    owners = {Address(market.devnet.account(name).address) for name in names}
    assert {sender for sender, _, _ in sent} == owners, "each for itself"
    assert sorted(who for _, _, speakers in sent for who in speakers) == EVERYBODY
    assert all(own_way(stored.attest_ends, job.params.role.attest_seconds, time) for _, time, _ in sent)
    assert stored.mask == 0b111
    assert stored.merged_at > 0
