"""Two coordinators of one market: the one that merges is killed in the middle, and nothing is lost or paid twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from lockstep.chain.events import EventReader
from lockstep.protocol.jobs import Phase
from tests.support.waiting import PATIENCE, wait

from .byhand import Market

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    market.fund("second")
    yield market
    market.close()


def test_the_aggregators_coordinator_is_killed_and_workers_and_the_other_go_on(market: Market) -> None:
    job = market.submit(rounds=1, max_lead=1, attest_seconds=600)
    first = market.coordinator()
    second = market.serve("second", ["coordinator", "up", "--port", "0"])
    urls = [process.wait_for("ready")["url"] for process in (first, second)]
    market.claim_round(job, 0, job.genesis)

    # Both index and relay.
    for number, url in enumerate(urls):
        wait(lambda url=url: _claims(url, job.id.hex()) == {"revealed"}, f"claims at {url}")
        worker, blob = market.workers[number], b"of coordinator %d" % number
        headers = worker.node.sign_request(worker.account.address, "POST", "/api/v1/blobs", blob, now=market.now())
        assert httpx2.post(f"{url}/api/v1/blobs", content=blob, headers=headers).status_code == 201

    # The aggregator's is gone before anything is frozen; the workers turn the crank.
    _, alive = psutil.wait_procs(first.kill(), timeout=PATIENCE)
    assert alive == []
    for worker in market.workers:
        worker.attest(job, 0)
    chain, worker = market.contracts.market, market.workers[0]
    market.wait_phase(job, 0, Phase.FREEZING, Phase.MERGING)
    if market.phase(job, 0) == Phase.FREEZING:
        worker.send(chain.freeze(job.id, 0, [w.claims[0][0].body for w in market.workers]), "freeze")
    # Its turn passes unused.
    market.devnet.advance(job.params.merge.turn_seconds + 1)
    market.merge_by_turn(job, 0)
    wait(lambda: _rounds(urls[1], job.id.hex()) == ["lead"], "the other has indexed the merge")

    # It comes back, finds the round merged, and brings the job to its end, once.
    market.devnet.advance(job.params.windows.challenge_seconds + 1)
    again = market.coordinator()
    again.wait_for("done")
    books = chain.job(job.id)
    assert books.paid == job.params.round_pay
    assert books.escrow == books.paid + books.refunded
    reader = EventReader(market.devnet.w3, market.contracts.addresses)
    events = reader.poll(reader.start()).events
    assert sum(e.name == "Merged" for e in events) == 1
    paid = [(e.args["job"], e.args["round"], e.args["slot"]) for e in events if e.name == "Paid"]
    assert len(paid) == len(set(paid)), "nobody is paid twice"
    url = again.wait_for("ready")["url"]
    for at in (urls[1], url):
        wait(lambda at=at: _rounds(at, job.id.hex()) == ["final"], f"the end at {at}")
    assert second.stop() == 0


def _rounds(url: str, job: str) -> list[str]:
    return [r["state"] for r in httpx2.get(f"{url}/api/v1/jobs/0x{job}/rounds").json().get("items", [])]


def _claims(url: str, job: str) -> set[str]:
    rounds = httpx2.get(f"{url}/api/v1/jobs/0x{job}/rounds").json().get("items", [])
    return {c["state"] for r in rounds for c in r["claims"]}
