"""A job that could not be defended, as a careless requester opens it: refused by processes, and voided by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.chain.outbox import Outbox
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.market.ids import job_id
from lockstep.protocol.types import Address
from tests.support import broken
from tests.support.waiting import wait

from .byhand import Market

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path, workers=0)
    yield market
    market.close()


def test_a_program_that_could_not_be_defended_is_refused_by_worker_and_coordinator(market: Market) -> None:
    coordinator = market.coordinator()
    params = broken.publish(market.store, aggregator=Address(market.devnet.account("coordinator").address))
    requester = market.devnet.account("requester")
    outbox = Outbox(market.folder / "careless.sqlite", market.devnet.w3, requester)
    outbox.submit(
        market.contracts.token.approve(market.contracts.vault.address, params.escrow + params.deposit), "approve"
    )
    outbox.wait("approve")
    outbox.send(market.contracts.market.create(params, 99, params.escrow), "create")
    outbox.close()
    addresses = market.contracts.addresses
    job = job_id(addresses.chain_id, addresses.market, Address(requester.address), 99, params)

    market.fund("refuser")
    worker = market.serve("refuser", ["worker", "up", "--job", job.hex()])
    refused = worker.wait_for("refused")
    assert (refused["job"], refused["code"]) == (job.hex(), "program_invalid")
    assert "step: op 1 (map scale tokens" in refused["message"]
    assert "33 instructions" in refused["message"]
    wait(lambda: "a job is refused" in coordinator.log.read_text(), "refusal by the coordinator")
    assert "33 instructions" in coordinator.log.read_text()
    voided = worker.wait_for("voided")
    assert (voided["job"], voided["rule"]) == (job.hex(), "instruction_count")
    wait(lambda: market.contracts.market.job(job).status == JobStatus.VOID, "the proof on chain")
    assert worker.stop() == 0, "a job that is refused is no failure"
    assert not worker.named("joined")
    assert market.contracts.market.job(job).started == 0, "nobody works for it"
