"""A finished run has the same numbers on every page and command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from coordinator.api import create_app
from coordinator.context import ApiContext
from coordinator.db import Database
from coordinator.indexer import Indexer
from coordinator.nonces import Nonces
from coordinator.published import PublishedMarket
from lockstep.base.amounts import tokens
from lockstep.protocol.jobs import Phase
from lockstep.storage.directory import DirectoryStore
from tests.support.world import World

from .conftest import Lockstep, home_of, toy_market

ABSENT = 2
"""Slot whose worker commits in round 1 and does not reveal."""


@dataclass
class Finished:
    """A market with a job of three rounds that is done, a client of its coordinator, and its workers' homes."""

    world: World
    folder: Path
    pages: TestClient
    homes: list[Path]

    @property
    def job(self) -> str:
        """The job's id as the API has it."""
        return "0x" + self.world.job.hex()

    def of(self, lockstep: Lockstep, *command: str) -> Any:
        """What a command says as JSON."""
        where = ("--rpc", self.world.devnet.url, "--deployment", str(self.folder / "deployment.json"), "--json")
        return lockstep(*command, *where).data

    def api(self, path: str) -> Any:
        """The answer of a route of the API."""
        found = self.pages.get(f"/api/v1/{path}")
        assert found.status_code == 200, found.text
        return found.json()

    def text(self, path: str) -> str:
        """What a page shows."""
        found = self.pages.get(path)
        assert found.status_code == 200, found.text
        return " ".join(re.sub(r"<[^>]*>", " ", found.text).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    folder = tmp_path_factory.mktemp("market")
    world = toy_market(folder)
    market, job, present = world.contracts.market, world.job, [s for s in range(3) if s != ABSENT]
    world.to(Phase.FINAL, 0)
    world.to(Phase.REVEALING, 1)
    for slot in present:
        world.send(market.reveal(job, 1, slot, world.opened(world.claim_id(slot, 1))), f"worker-{slot}")
    world.pass_to(market.round(job, 1).reveal_ends)
    for slot in present:
        world.send(market.attest(job, 1, [world.receipt(slot, 1, sum(1 << s for s in present))]), f"worker-{slot}")
    world.pass_to(market.round(job, 1).attest_ends)
    world.send(market.freeze(job, 1, [world.held[world.claim_id(slot, 1)].body for slot in present]), "requester")
    world.to(Phase.FINAL, 1)
    world.to(Phase.FINAL, 2)
    world.send(market.finish(job), "requester")
    homes = [home_of(world, folder / f"home-{i}", f"worker-{i}") for i in range(3)]
    database = Database(f"sqlite:///{folder / 'index.sqlite'}")
    database.migrate()
    Indexer(database, world.devnet.w3, world.contracts.addresses).catch_up()
    nonces = Nonces(folder / "nonces.sqlite")
    context = ApiContext(
        database, nonces, DirectoryStore(folder / "blocks"), world.address("aggregator"), max_blob_bytes=1 << 20,
        published=PublishedMarket(world.contracts.addresses), signed_for=lambda *_: False, notify=lambda _: None,
    )  # fmt: skip
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        yield Finished(world, folder, client, homes)
    nonces.close()
    database.close()
    world.devnet.stop()


def test_a_finished_run_has_the_same_numbers_on_every_page_and_command(lockstep: Lockstep, finished: Finished) -> None:
    stored = finished.world.contracts.market.job(finished.world.job)
    store = ("--storage", f"dir://{finished.folder}/blocks")
    status = finished.of(lockstep, "train", "status", finished.job, "--home", str(finished.homes[0]), *store)
    (listed,) = finished.of(lockstep, "train", "list", *store)
    run, economy, (row,) = (
        finished.api(f"jobs/{finished.job}/run"),
        finished.api("economy"),
        finished.api("runs")["items"],
    )
    for name in ("escrow", "paid", "refunded"):
        due = str(getattr(stored, name))
        assert [status[name], listed[name], run[name], row[name]] == [due] * 4, name
    assert (economy["totals"]["paid"], economy["totals"]["refunded"]) == (str(stored.paid), str(stored.refunded))
    assert economy["totals"]["escrowed"] == str(stored.escrow)
    assert status["settled"] == listed["settled"] == run["rounds_by_state"]["final"] == stored.settled == 3
    assert run["claims_by_state"] == {"final": 8, "absent": 1}
    paid = tokens(stored.paid)
    for page in (f"/runs/{finished.job}", "/", "/economy"):
        assert paid in finished.text(page), page


def test_a_worker_has_the_same_numbers_on_its_page_and_its_commands(lockstep: Lockstep, finished: Finished) -> None:
    for slot, home in enumerate(finished.homes):
        me, told = finished.world.address(f"worker-{slot}"), partial(finished.of, lockstep, "worker")
        earned, state = told("earnings", "--home", str(home)), told("status", "--home", str(home))
        account, page = finished.api(f"accounts/{me}"), finished.text(f"/accounts/{me}")
        rounds = 2 if slot == ABSENT else 3
        assert earned["earned"] == account["paid"] == account["money"]["slots"]
        assert earned["slashed"] == account["slashed"] == account["money"]["slashed"]
        assert len(earned["paid"]) == rounds
        assert (int(earned["slashed"]) > 0) == (slot == ABSENT)
        for name in ("free", "locked", "credits", "unbonding"):
            assert state[name] == account[name], name
        for amount in (earned["earned"], state["free"]):
            assert tokens(amount) in page, (tokens(amount), page)
