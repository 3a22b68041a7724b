"""A market on a device: workers, a liar and a verifier compute there, and the lie is found all the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.execution.jobs import Job
from lockstep.numerics.cuda import count_devices
from lockstep.numerics.cuda.selftest import golden_program
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import ClaimStatus
from tests.e2e.test_worker import (
    WATCHED,
    WITHOUT_AGGREGATOR,
    Market,
    Process,
    arguments,
    events_of,
    homes_of,
    replayed,
    reveals,
    up,
)
from tests.support import driver, toyjob
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of compiled code: nobody has compiled anything yet."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def verifier_up(market: Market, home: Path, *more: str) -> Process:
    process = market.start(home.name, ["verifier", *arguments(market, home, *more)[1:]])
    process.wait_for("ready")
    return process


def replay(market: Market, claim: bytes, *more: str) -> dict[str, Any]:
    """What `lockstep replay` says of a claim, with its roots."""
    where = ["--rpc", market.devnet.url, "--storage", market.store.url]
    command = ["replay", claim.hex(), *where, "--deployment", str(market.folder / "deployment.json")]
    process = market.start("replay", [*command, "--roots", "--json", *more])
    assert process.popen.wait(PATIENCE) in (0, 10), process.log.read_text()
    data: dict[str, Any] = json.loads(process.out.read_text())["data"]
    return data


@pytest.mark.parametrize("device", ["emulated", pytest.param("cuda:0", marks=pytest.mark.cuda)])
def test_a_lie_is_convicted_where_worker_and_verifier_compute_on_a_device(
    device: str, market: Market, cache: Path
) -> None:
    if device != "emulated":
        try:
            count_devices()
        except UsageError as error:
            pytest.skip(str(error))
    there = ("--device", device)
    homes = homes_of(market, "w0", "w1", "w2", "verifier")
    verifier = verifier_up(market, homes[3], *there)
    liar = up(market, homes[0], *there, lie=("one-ulp", 1))
    honest = [up(market, homes[1], *there), up(market, homes[2], "--device", "cpu")]
    processes = [liar, *honest, verifier]
    named = [process.named("device")[0]["device"] for process in processes]
    assert named == [device, device, "cpu", device], "each says where it computes"
    job: Job = market.submit(rounds=4, max_lead=4, **WATCHED)

    liar.wait_for("lie")
    told = market.folder / "w0" / "lie"
    wait(told.exists, "a lie that shows")
    # A lie that rounding swallows is no lie: another place was declared.
    lie = liar.named("lie")[-1]["expectation"]
    claim = bytes.fromhex(told.read_text())
    won = verifier.wait_for("won")
    assert (won["verdict"], won["claim"]) == ("fraud", claim.hex())
    finding = next(e for e in events_of(market, "Convicted") if e.contract == "DisputeGame").finding
    assert finding["program"] == getattr(job.programs, lie["program"]).root
    assert (finding["t"], finding["position"]) == (lie["step"], lie["op_index"])
    assert (finding["element"], finding["chunk"]) == (lie["element"], lie["chunk"])
    assert finding["chunk"] > 0, "the lie is in a later chunk of a sum"
    assert liar.named("defending"), "the liar argued from the device's tensors"
    assert market.contracts.market.claim(claim).status == ClaimStatus.CONVICTED  # type: ignore[arg-type]
    liar.wait_for("slashed")
    wait(lambda: len(liar.named("joined")) > 1, "another round, joined by the liar too")
    (paced,) = liar.named("paced")
    assert (paced["trains"], paced["defends"]) == (device, device)
    compiled = "*.so" if device == "emulated" else "*.cubin"
    assert list(cache.glob(compiled)), "compiled kernels are kept"

    own = next(e for e in reveals(market) if e.claim != claim)
    assert own.trace_root == replayed(market, job, own.slot, own.round), "the device's roots are the processor's"
    on_cpu, on_device = replay(market, own.claim, "--device", "cpu"), replay(market, own.claim, *there)
    assert (on_cpu["device"], on_device["device"]) == ("cpu", device)
    assert on_cpu["verdict"] == on_device["verdict"] == "match"
    assert on_cpu["roots"] == on_device["roots"]
    wrong = replay(market, claim, *there)
    assert (wrong["verdict"], wrong["step"], wrong["op"]["index"]) == ("mismatch", lie["step"], lie["op_index"])

    another = cache.with_name("another")
    os.environ["LOCKSTEP_CACHE"] = str(another)  # `cache` puts it back
    kernels = []
    for _ in range(2):
        replay(market, own.claim, *there)
        kernels.append({path: path.stat().st_ino for path in another.glob(compiled)})
    assert kernels[0] == kernels[1] != {}, "nothing is compiled again"
    for worker in (liar, *honest):
        assert worker.leave() == 0, worker.log.read_text()


def test_a_job_of_integers_is_served_over_the_driver(market: Market) -> None:
    """`worker up --device cuda:0`: NVRTC and the real bindings over a driver without a device."""
    there = ("--device", "cuda:0")
    schedule = toyjob.schedule(integers=2)
    kernels = [driver.source(own) for own in (schedule.step, schedule.encode, schedule.merge, golden_program())]
    assert "multiply_codes<" in kernels[0], "the job has a product for tensor cores"
    environment = driver.environment(market.folder, kernels)
    homes = homes_of(market, "w0", "w1", "w2")
    workers = [market.start(home.name, arguments(market, home, *there), env=environment) for home in homes]
    for worker in workers:
        worker.wait_for("ready")
        assert worker.named("device")[0]["device"] == "cuda:0"
    job = market.submit(rounds=1, integers=2, **WITHOUT_AGGREGATOR)
    wait(lambda: len(reveals(market)) == toyjob.SLOTS, "a reveal of every slot")
    assert workers[0].named("paced")[0]["trains"] == "cuda:0"
    for event in reveals(market):
        assert event.trace_root == replayed(market, job, event.slot, event.round), "the processor's roots"
    for worker in workers:
        assert worker.leave() == 0, worker.log.read_text()
