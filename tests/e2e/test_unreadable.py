"""Bytes that a stranger writes into the chain, read by real processes: they go on, and so does the index made anew."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.protocol import merkle
from lockstep.protocol.jobs import Body, JobParams, Phase, Reveal
from lockstep.protocol.market.ids import commitment
from lockstep.protocol.types import Cid, Digest, JobId, Seconds, StateRoot, TraceRoot
from tests.support import toyjob
from tests.support.waiting import PATIENCE, wait

from .test_worker import WALLET, WATCHED, Challenger, Market, Process, events_of, homes_of, up

pytestmark = [pytest.mark.slow, pytest.mark.chain]

UNREADABLE = {"trace": b"\xc3\x28" * 64, "payload": b"\xff"}
"""No UTF-8, of as many bytes as the contract takes, and of one."""


class Mallory(Challenger):
    """Owns the only slot of a job that nobody else would take, and writes into its reveal what it likes."""

    def create(self, nonce: int, params: JobParams) -> JobId:
        market = self.market.contracts.market
        self.outbox.send(market.create(params, nonce, params.escrow), f"create {nonce}")
        return JobId(events_of(self.market, "JobCreated")[-1].job)

    def reveal(self, trace_cid: bytes, payload_cid: bytes) -> bytes:
        """Claim nothing in particular, with these bytes for CIDs; returns the claim's id."""
        params = toyjob.publish(
            self.market.store, min_slots=1, rounds=1, max_lead=1, step_program=Digest(b"\5" * 32),
            join_seconds=Seconds(600),
        )  # fmt: skip
        market, send = self.market.contracts.market, self.outbox.send
        job = self.create(1, params)
        send(market.start_round(job, 0), "start")
        send(market.join(job, 0, 0), "join")
        self.market.devnet.advance(601)
        send(market.seal(job, 0), "close")
        self.market.devnet.mine(2)
        send(market.seal(job, 0), "seal")
        out = StateRoot(b"\1" * 32)
        leaves = [merkle.leaf(b"\2" * 32)] * (params.role.transitions - 1) + [merkle.leaf(merkle.node(out, out))]
        levels = merkle.levels(leaves)
        body = Body(TraceRoot(levels[-1][0]), out, out)
        proof = merkle.proof(levels, params.role.transitions - 1)
        made = Reveal(body, Digest(b"\3" * 32), tuple(proof), Cid(""), Cid(""))
        claim = market.claim_id_of(job, 0, 0)
        send(market.commit(job, 0, 0, commitment(claim, self.address, made)), "commit")
        # The contract takes bytes; the SDK would write a text's alone.
        said = ((body.trace_root, out, out), made.nonce, list(proof), trace_cid, payload_cid, made.carries)
        send(market.call("reveal", job, 0, 0, said, gas=market.reveal(job, 0, 0, made).gas), "reveal")
        assert market.phase(job, 0) != Phase.VOID
        return bytes(claim)


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def verifier_up(market: Market, home: Path) -> Process:
    command = [
        "verifier", "up", "--rpc", market.devnet.url, "--storage", market.store.url, "--home", str(home),
        "--deployment", str(market.folder / "deployment.json"), "--password-file", str(home / "password"),
    ]  # fmt: skip
    process = market.start(home.name, command)
    process.wait_for("ready")
    return process


def lives(process: Process) -> bool:
    return process.popen.poll() is None


def test_a_reveal_that_is_no_text_ends_no_process(market: Market) -> None:
    worker_home, verifier_home = homes_of(market, "w0", "verifier")
    worker, verifier = up(market, worker_home), verifier_up(market, verifier_home)
    mallory = Mallory(market, "mallory")
    token, vault = market.contracts.token, market.contracts.vault
    mallory.outbox.send(token.mint(mallory.address, WALLET), "mint")
    mallory.outbox.send(token.approve(vault.address, WALLET), "approve")

    claim = mallory.reveal(UNREADABLE["trace"], UNREADABLE["payload"])

    for process in (worker, verifier):
        wait(lambda p=process: "an event log cannot be decoded completely" in p.log.read_text(), "the unreadable log")
    for process in (worker, verifier):
        assert lives(process)
        assert process.stop() == 0, process.log.read_text()[-2000:]
    again = [up(market, worker_home), verifier_up(market, verifier_home)]
    params = toyjob.publish(market.store, **{**WATCHED, "rounds": 1, "max_lead": 1, "slots": 1})
    mallory.create(2, params)
    again[0].wait_for("revealed")
    wait(lambda: any(e["verdict"] == "match" for e in again[1].named("audited")), "the honest claim audited")
    assert all(lives(p) for p in again), "they go on"

    home = market.folder / "coordinator"
    done = market.start("reindex", ["coordinator", "reindex", "--rpc", market.devnet.url, "--home", str(home),
                                    "--deployment", str(market.folder / "deployment.json"), "--json"])  # fmt: skip
    assert done.popen.wait(PATIENCE) == 0, done.log.read_text()
    assert json.loads(done.out.read_text())["data"]["events"] > 0
    with sqlite3.connect(home / "index.sqlite") as index:
        row = index.execute("SELECT state, trace_cid, payload_cid FROM claims WHERE id=?", ("0x" + claim.hex(),))
        assert row.fetchone()[1:] == ("", "")
        assert index.execute("SELECT unreadable, unprojected FROM cursor").fetchone() == (1, 0)
