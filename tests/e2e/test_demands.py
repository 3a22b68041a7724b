"""Rows that a verifier cannot have, as a process on a real chain: one voids its job, one is posted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.chain.outbox import Outbox
from lockstep.execution.jobs import Job
from lockstep.market.demands import DemandResponder
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.market.availability import row_demand_id
from lockstep.protocol.types import Address, JobId, Seconds
from lockstep.storage.dataset import load_manifest
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob

from .market import Market, Worker, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.chain]

ANSWER = Seconds(120)


@pytest.fixture
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    made = Market.start(tmp_path_factory.mktemp("demands"), attest_seconds=Seconds(900), answer_seconds=ANSWER)
    made.seal()
    yield made
    made.stop()


def answers(market: Market, worker: Worker) -> DemandResponder:
    return DemandResponder(market.contracts, market.store, Address(worker.account.address))


def send_all(market: Market, worker: Worker, outbox: Outbox) -> list[str]:
    """Everything that is due of an account, sent; the kinds."""

    def job_of(job: JobId) -> Job | None:
        return market.job if job == market.job_id else None

    due = list(answers(market, worker).due(market.ledger(), job_of, market.now()))
    for key, call in due:
        outbox.send(call, key)
    return [key.partition("/")[0] for key, _ in due]


def hide_dataset(market: Market) -> list[tuple[Path, bytes]]:
    """Take the dataset's shards out of the store; what puts them back."""
    manifest = load_manifest(market.store, market.job.spec.dataset)
    assert isinstance(market.store, DirectoryStore)
    files = [next(market.store.home.glob(f"blocks/*/{cid}")) for cid in manifest.shards]
    kept = [(file, file.read_bytes()) for file in files]
    for file in files:
        file.unlink()
    return kept


def test_verifier_demands_a_row_that_it_cannot_have_and_voids_the_job_for_it(market: Market) -> None:
    market.claim([market.run(slot) for slot in range(toyjob.SLOTS)])
    hide_dataset(market)
    verifier = market.verifier()
    wait_for(verifier, "audited")
    assert not market.ledger().demands, "stores may be slow: it waits first"
    market.devnet.advance(Seconds(ANSWER + 1))
    demanded = wait_for(verifier, "demanded")
    assert (demanded["job"], demanded["row"]) == (market.job_id.hex(), 0)
    market.devnet.advance(Seconds(ANSWER + 1))
    wait_for(verifier, "settled")
    job = market.contracts.market.job(market.job_id)
    assert (job.status, job.prover) == (JobStatus.VOID, market.address("verifier"))
    assert market.contracts.vault.lock_of(row_demand_id(market.job_id, 0)) is None, "the bond is back"
    assert len(verifier.named("demanded")) == 1


def test_a_row_that_is_posted_is_demanded_no_more(market: Market) -> None:
    claims = market.claim([market.run(slot) for slot in range(toyjob.SLOTS)])
    kept = hide_dataset(market)
    verifier = market.verifier()
    wait_for(verifier, "audited")
    market.devnet.advance(Seconds(ANSWER + 1))
    wait_for(verifier, "demanded")
    third = market.workers[2]
    market.devnet.advance(Seconds(ANSWER // 2))
    assert send_all(market, third, third.outbox) == ["commit"], "who holds the data commits to the row"
    assert send_all(market, third, third.outbox) == ["answer"], "and posts it"
    market.devnet.advance(Seconds(60))
    market.devnet.mine(8)
    for file, data in kept:
        file.write_bytes(data)
    for claim in claims:
        wait_for(verifier, "audited", claim=claim.hex(), verdict="match")
    asked = [e for e in market.events() if e.name == "RowDemanded"]
    assert len(asked) == 1, "once for one thing"
    assert market.contracts.market.job(market.job_id).status == JobStatus.ACTIVE
