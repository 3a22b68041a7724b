"""Demands on a real chain with a real store: who holds the data answers, what nobody has does not count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.chain.outbox import Outbox
from lockstep.execution.jobs import Job
from lockstep.market.demands import DemandResponder
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.market.availability import payload_demand_id, row_demand_id
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import Address, JobId, Seconds, Wei
from lockstep.storage.dataset import load_manifest
from lockstep.storage.directory import DirectoryStore
from tests.support import broken, toyjob

from .market import NOWHERE, Market, Worker, wait_for

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


def test_owner_answers_for_its_payload_and_whoever_has_the_data_for_a_row(market: Market) -> None:
    owner, asker, third = market.workers
    claims = market.claim([market.run(slot) for slot in range(toyjob.SLOTS)])
    demands, vault = market.contracts.demands, market.contracts.vault
    free = vault.free(Address(asker.account.address))
    asker.outbox.send(demands.unavailable(market.job_id, 0, 0, 5), "unavailable")
    asker.outbox.send(demands.demand_row(market.job_id, 7), "row")
    market.devnet.mine(2)

    row_bond = demands.row_bond_of(market.job_id, 7)
    market.devnet.advance(Seconds(ANSWER // 2))
    assert send_all(market, third, third.outbox) == ["commit"], "the row; the payload is another's"
    assert send_all(market, third, third.outbox) == ["answer"], "once the commitment is mined"
    assert vault.credits(Address(third.account.address)) == Wei(row_bond * 60 // 100)
    assert send_all(market, owner, owner.outbox) == ["answer"], "the payload; the row is posted"
    assert vault.credits(Address(owner.account.address)) == 0, "its gas, which costs nothing here, and no prize"
    assert vault.free(Address(asker.account.address)) == free - row_bond, "the payload's bond is back"
    assert demands.demand(payload_demand_id(claims[0], 0)).status == Status.ANSWERED  # type: ignore[union-attr]
    assert demands.demand(row_demand_id(market.job_id, 7)).status == Status.ANSWERED  # type: ignore[union-attr]
    assert demands.missing(claims[0]) is False
    assert send_all(market, owner, owner.outbox) == [], "nothing is left to do"


def test_asker_voids_a_job_whose_row_nobody_posts(market: Market) -> None:
    asker = market.workers[1]
    free = market.contracts.vault.free(Address(asker.account.address))
    asker.outbox.send(market.contracts.demands.demand_row(market.job_id, 0), "row")
    market.devnet.advance(Seconds(ANSWER + 1))
    assert send_all(market, asker, asker.outbox) == ["settle"]
    job = market.contracts.market.job(market.job_id)
    assert (job.status, job.prover) == (JobStatus.VOID, asker.account.address)
    assert market.contracts.vault.free(Address(asker.account.address)) == free, "the bond is back"


def test_verifier_demands_a_payload_that_is_lost_and_the_merge_goes_on_without_it(market: Market) -> None:
    verifier = market.verifier()
    claims = market.claim([market.run(slot) for slot in range(toyjob.SLOTS)], payload_cids={0: NOWHERE})
    demanded = wait_for(verifier, "demanded")
    assert (demanded["claim"], demanded["slot"]) == (claims[0].hex(), 0)
    market.devnet.advance(Seconds(ANSWER + 1))
    wait_for(verifier, "settled")
    assert market.contracts.demands.missing(claims[0]) is True
    market.devnet.advance(Seconds(900))
    bodies = market.ledger().jobs[market.job_id].rounds[0].bodies
    market.requester.send(market.contracts.market.freeze(market.job_id, 0, bodies), "freeze")
    assert market.contracts.market.round(market.job_id, 0).mask == 0b110
    assert market.contracts.vault.lock_of(payload_demand_id(claims[0], 0)) is None, "the bond is back"


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


def test_command_voids_a_job_that_could_not_be_defended_and_no_other(market: Market) -> None:
    params = broken.publish(market.store)
    market.requester.send(market.contracts.token.mint(Address(market.requester.address), params.escrow * 2), "more")
    market.requester.send(market.contracts.market.create(params, 1, params.escrow), "careless")
    (job,) = [found for found in market.ledger().jobs if found != market.job_id]
    home = market.home("prover")
    key = ["--home", str(home), "--password-file", str(home / "password"), "--json"]
    sound = market.lockstep("verifier", "void", market.job_id.hex(), *market.arguments(), *key)
    assert sound.returncode == 10, sound.stdout
    assert market.contracts.market.job(market.job_id).status == JobStatus.ACTIVE
    ended = market.lockstep("verifier", "void", job.hex(), *market.arguments(), *key)
    assert ended.returncode == 0, ended.stdout
    assert json.loads(ended.stdout)["data"] == {
        "job": job.hex(), "rule": "instruction_count", "subject": "op", "index": 1
    }  # fmt: skip
    stored = market.contracts.market.job(job)
    assert (stored.status, stored.prover) == (JobStatus.VOID, market.address("prover"))
