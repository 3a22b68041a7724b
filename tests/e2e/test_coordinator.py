"""A coordinator as a process: a whole job on Anvil, killed at will, its index thrown away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import psutil
import pytest

from lockstep.protocol.jobs import JobStatus, Phase

from .market import Market, merged_checkpoint, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def test_a_job_is_sealed_merged_paid_and_finished(market: Market) -> None:
    job = market.submit(rounds=2, max_lead=2)
    coordinator = market.coordinator()
    url = coordinator.wait_for("ready")["url"]
    base = job.genesis
    for r in range(2):
        market.play_round(job, r, base)
        market.wait_phase(job, r, Phase.LEAD)
        wait(lambda r=r: len(coordinator.named("merged")) == r + 1, 10, "event merged")
        base = merged_checkpoint(market, job, coordinator.named("merged")[r])
    market.devnet.advance(job.params.challenge_seconds)
    coordinator.wait_for("done")
    books = market.contracts.market.job(job.id)
    assert books.status == JobStatus.DONE
    assert books.escrow == books.paid + books.refunded
    assert books.paid == 2 * job.params.round_pay

    api = httpx2.get(f"{url}/api/v1/jobs/0x{job.id.hex()}").json()
    assert (api["state"], api["paid"]) == ("done", str(books.paid))
    rounds = httpx2.get(f"{url}/api/v1/jobs/0x{job.id.hex()}/rounds").json()
    assert [r["state"] for r in rounds] == ["final", "final"]
    assert {c["state"] for r in rounds for c in r["claims"]} == {"final"}
    assert httpx2.get(f"{url}/readyz").status_code == 200

    children = psutil.Process(coordinator.popen.pid).children(recursive=True)
    assert len(children) == 2
    assert coordinator.stop() == 0
    assert [c for c in children if c.is_running()] == []
