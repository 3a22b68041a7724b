"""A coordinator as a process: a whole job on Anvil, killed at will, its index thrown away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from sqlalchemy import MetaData, text

from coordinator.db import Database
from lockstep.chain.events import Event, EventReader
from lockstep.execution.jobs import Job
from lockstep.market.turns import SLACK_SHARE
from lockstep.protocol.jobs import JobStatus, Phase
from lockstep.protocol.market.availability import row_demand_id
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import Address, Seconds
from tests.support.waiting import PATIENCE, wait

from .byhand import Market, Process, merged_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def test_a_job_is_sealed_merged_paid_and_finished_and_its_demanded_rows_are_posted(market: Market) -> None:
    job = market.submit(rounds=2, max_lead=2, attest_seconds=600)
    coordinator = market.coordinator()
    url = coordinator.wait_for("ready")["url"]
    base = job.genesis
    for r in range(2):
        market.play_round(job, r, base)
        market.wait_phase(job, r, Phase.LEAD)
        wait(lambda r=r: len(coordinator.named("merged")) == r + 1, "event merged")
        base = merged_checkpoint(market, job, coordinator.named("merged")[r])
    rows_are_posted(market, job, coordinator)
    market.devnet.advance(job.params.windows.challenge_seconds)
    coordinator.wait_for("done")
    books = market.contracts.market.job(job.id)
    assert books.status == JobStatus.DONE
    assert books.escrow == books.paid + books.refunded
    assert books.paid == 2 * job.params.round_pay

    api = httpx2.get(f"{url}/api/v1/jobs/0x{job.id.hex()}").json()
    assert (api["state"], api["paid"]) == ("done", str(books.paid))
    rounds = httpx2.get(f"{url}/api/v1/jobs/0x{job.id.hex()}/rounds").json()["items"]
    assert [r["state"] for r in rounds] == ["final", "final"]
    assert {c["state"] for r in rounds for c in r["claims"]} == {"final"}
    assert httpx2.get(f"{url}/readyz").status_code == 200

    blob, path = b"four legs good", "/api/v1/blobs"
    worker = market.workers[0]
    headers = worker.node.sign_request(worker.account.address, "POST", path, blob, now=market.now())
    assert httpx2.post(url + path, content=blob).status_code == 401
    assert httpx2.post(url + path, content=blob, headers=headers).status_code == 201
    assert httpx2.post(url + path, content=blob, headers=headers).status_code == 409
    stale = worker.node.sign_request(worker.account.address, "POST", path, blob, now=Seconds(market.now() - 600))
    assert httpx2.post(url + path, content=blob, headers=stale).status_code == 401

    children = psutil.Process(coordinator.popen.pid).children(recursive=True)
    assert len(children) == 2
    assert coordinator.stop() == 0
    assert [c for c in children if c.is_running()] == []


def rows_are_posted(market: Market, job: Job, coordinator: Process) -> None:
    """Two rows of the dataset are demanded one after the other; the coordinator, which holds the data, posts each."""
    demands, vault = market.contracts.demands, market.contracts.vault
    asker = market.workers[0]
    # Half of what the window has to spare is for those who take turns; after it whoever has the row posts it.
    turns = Seconds(int(SLACK_SHARE * job.params.windows.answer_seconds))
    asker.send(demands.demand_row(job.id, 3), "row")
    market.devnet.advance(turns)
    answered = coordinator.wait_for("answered")
    demand = demands.demand(row_demand_id(job.id, 3))
    assert answered["demand"] == row_demand_id(job.id, 3).hex()
    assert demand is not None
    assert demand.status == Status.ANSWERED
    bond = demands.row_bond_of(job.id, 3)
    assert vault.credits(Address(market.devnet.account("coordinator").address)) == bond * 60 // 100
    market.devnet.mine(3)
    asker.send(demands.demand_row(job.id, 4), "another row")
    market.devnet.advance(turns)
    wait(lambda: len(coordinator.named("answered")) == 2, "each row is answered once")
    assert market.contracts.market.job(job.id).status == JobStatus.ACTIVE


def test_killed_at_every_act_and_its_index_deleted_it_goes_on(index: str, market: Market) -> None:
    job = market.submit(rounds=1, max_lead=1)
    coordinator = market.coordinator()
    home = market.folder / "coordinator"
    for worker in market.workers:
        if worker.slot == 0:
            worker.send(market.contracts.market.start_round(job.id, 0), "start")
        worker.join(job, 0)

    # Killed while it seals.
    _kill(coordinator)
    coordinator = market.coordinator()
    market.wait_phase(job, 0, Phase.TRAINING)
    for worker in market.workers:
        worker.commit(job, 0, job.genesis)
    for worker in market.workers[:-1]:
        worker.reveal(job, 0)

    # Killed among the reveals, and all that it knew is deleted.
    _kill(coordinator)
    _forget(index)
    market.workers[-1].reveal(job, 0)
    coordinator = market.coordinator()
    for phase in (Phase.FREEZING, Phase.MERGING):
        # Killed between attest, freeze and merge, as close to each as one can see from outside.
        market.wait_phase(job, 0, *[p for p in Phase if phase <= p <= Phase.LEAD])
        _kill(coordinator)
        coordinator = market.coordinator()
    market.wait_phase(job, 0, Phase.LEAD)
    url = f"{coordinator.wait_for('ready')['url']}/api/v1/jobs/0x{job.id.hex()}/rounds"
    wait(lambda: [r["state"] for r in httpx2.get(url).json()["items"]] == ["lead"], "round indexed as lead")

    # Deleted once more, and indexed by command.
    assert coordinator.stop() == 0
    before = _rows(index)
    _forget(index)
    done = market.start("reindex", ["coordinator", "reindex", "--rpc", market.devnet.url, "--home", str(home),
                                    "--deployment", str(market.folder / "deployment.json"), "--json"])  # fmt: skip
    assert done.popen.wait(PATIENCE) == 0, done.log.read_text()
    assert done.envelope["ok"] is True
    assert _rows(index) == before

    coordinator = market.coordinator()
    market.devnet.advance(job.params.windows.challenge_seconds)
    coordinator.wait_for("done")
    books = market.contracts.market.job(job.id)
    assert (books.status, books.paid) == (JobStatus.DONE, job.params.round_pay)
    merges = [e for e in _events(market) if e.name == "Merged"]
    assert len(merges) == 1, "one merge, whatever was killed"


def test_a_lying_aggregator_is_convicted_where_it_said_and_the_job_goes_on(market: Market) -> None:
    job = market.submit(rounds=1, max_lead=1, attest_seconds=600)
    coordinator = market.coordinator(("lying-aggregator", 0))
    url = coordinator.wait_for("ready")["url"] + "/api/v1"
    market.serve("verifier", ["verifier", "up"])
    market.play_round(job, 0, job.genesis)
    coordinator.wait_for("merged")
    expected = coordinator.wait_for("lie")["expectation"]
    wait(lambda: _closed(url) is not None, "verdict")
    game = _closed(url)
    assert game is not None
    found = {k: game[k] for k in ("verdict", "wrong", "position", "step")}
    assert found == {"verdict": "fraud", "wrong": "op", "position": expected["op_index"], "step": 1}
    assert coordinator.named("defending"), "a liar defends itself"
    claim = httpx2.get(f"{url}/claims/{game['claim']}").json()
    assert (claim["state"], claim["slashed"]) == ("convicted", str(job.params.merge.stake))

    # The next in turn merges from the same mergeIn; the barred aggregator still turns the crank.
    market.merge_by_turn(job, 0)
    market.devnet.advance(job.params.windows.challenge_seconds)
    coordinator.wait_for("done")
    books = market.contracts.market.job(job.id)
    assert (books.status, books.paid) == (JobStatus.DONE, job.params.round_pay)
    assert coordinator.stop() == 0


def _closed(url: str) -> dict[str, Any] | None:
    games = httpx2.get(f"{url}/games").json()["items"]
    return next((g for g in games if g["verdict"]), None)


def _kill(coordinator: Process) -> None:
    """SIGKILL to the parent; its children end by themselves."""
    _gone, alive = psutil.wait_procs(coordinator.kill(), timeout=PATIENCE)
    assert alive == []


def _rows(index: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything in the index that comes from the chain."""
    tables = ("events", "jobs", "rounds", "claims", "games", "nodes")
    with closing(Database(index)) as database, database.engine.connect() as connection:
        return {t: sorted(map(tuple, connection.execute(text(f"SELECT * FROM {t}"))), key=repr) for t in tables}


def _forget(index: str) -> None:
    """Delete the tables of the index."""
    with closing(Database(index)) as database:
        found = MetaData()
        found.reflect(database.engine)
        found.drop_all(database.engine)


def _events(market: Market) -> tuple[Event, ...]:
    reader = EventReader(market.devnet.w3, market.contracts.addresses)
    return reader.poll(reader.start()).events
