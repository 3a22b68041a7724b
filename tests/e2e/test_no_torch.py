"""Workers and a verifier finish a round without torch: each process says itself what it had imported."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.types import Seconds
from tests.support.waiting import wait

from .market import Market, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.chain]

WITNESS = """
import atexit, json, os, sys

def tell():
    maps = "/proc/self/maps"
    lines = open(maps).readlines() if os.path.exists(maps) else []
    mapped = sorted({line.split()[-1] for line in lines if "torch" in line})
    with open(os.path.join(os.environ["WITNESS"], f"{os.getpid()}.json"), "w") as file:
        json.dump({"argv": sys.argv, "modules": sorted(sys.modules), "mapped": mapped}, file)

atexit.register(tell)
"""
"""Python runs a sitecustomize.py that it finds on its path at every start; this one speaks at the end."""


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Market]:
    running = Market.start(tmp_path_factory.mktemp("no-torch"), rounds=1, min_slots=3)
    yield running
    running.stop()


def test_a_round_is_trained_merged_audited_and_paid_without_torch(market: Market) -> None:
    folder = market.folder / "witness"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITNESS)
    env = {"PYTHONPATH": str(folder), "WITNESS": str(folder)}
    verifier = market.verifier(env=env)
    workers, alone = [], ["--listen-seconds", "0"]
    for name in ("w0", "w1", "w2"):
        home = market.home(name)
        key = ["--home", str(home), "--password-file", str(home / "password")]
        workers.append(
            market.group.start(name, ["worker", "up", "--max-stake", "all", *market.arguments(), *key, *alone], env)
        )

    wait(lambda: len(verifier.named("audited")) == 4, "three claims and a merge are audited")
    assert {e["verdict"] for e in verifier.named("audited")} == {"match"}
    (merged,) = [e for e in market.events() if e.name == "Merged"]
    market.devnet.advance(Seconds(market.params.windows.challenge_seconds + 1))
    for worker in workers:
        wait_for(worker, "done", job=market.job_id.hex())
    books = market.contracts.market.job(market.job_id)
    assert (books.status, books.paid) == (JobStatus.DONE, market.params.round_pay)
    assert merged.args["worker"] in {market.address(n) for n in ("w0", "w1", "w2")}, "a worker ran the merge"
    assert [p.stop() for p in (*workers, verifier)] == [0, 0, 0, 0]

    for process in (*workers, verifier):
        witness = json.loads((folder / f"{process.popen.pid}.json").read_text())
        assert "lockstep.numerics._native" in witness["modules"], f"{process.name} computed"
        torch = {m for m in witness["modules"] if m.partition(".")[0] in ("torch", "torchgen", "functorch")}
        assert torch == set(), process.name
        assert witness["mapped"] == [], f"{process.name}: nothing of torch is mapped either"
