"""One key in three homes, one after the other, as processes on a real chain: one of them works at a time."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.protocol.jobs import JobStatus
from tests.e2e.test_worker import ALONE, Market, Process, arguments, homes_of, ledger_of, reveals
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture
def market(tmp_path: Path) -> Iterator[Market]:
    market = Market.build(tmp_path)
    yield market
    market.close()


def twin_of(home: Path, name: str) -> Path:
    """A second home with the same staking key and a node key of its own: another machine."""
    twin = home.with_name(name)
    twin.mkdir(mode=0o700)
    for file in ("keystore.json", "password"):
        shutil.copy(home / file, twin / file)
    return twin


def up(market: Market, home: Path, listen: int, *more: str) -> Process:
    process = market.start(home.name, arguments(market, home, "--listen-seconds", str(listen), *more))
    process.wait_for("ready")
    return process


def guard(market: Market, home: Path, act: str, file: Path) -> Process:
    where = ["--rpc", market.devnet.url, "--deployment", str(market.folder / "deployment.json"), "--home", str(home)]
    process = market.start(f"guard-{act}", ["worker", "guard", act, str(file), *where, "--json"])
    process.popen.wait(PATIENCE)
    return process


def test_a_key_works_in_one_home_at_a_time_and_moves_with_what_it_promised(market: Market, tmp_path: Path) -> None:
    (home,) = homes_of(market, "w0")
    first = up(market, home, 0)
    job = market.submit(**ALONE)
    first.wait_for("joined")
    # A second machine hears the first at work, and leaves.
    copy = up(market, twin_of(home, "w0-copy"), 600)
    assert copy.wait_for("listening")["reasons"], "a fresh home must listen"
    assert copy.popen.wait(PATIENCE) == 8, copy.log.read_text()[-2000:]
    assert "another home uses the key" in copy.log.read_text()
    assert not copy.named("joined"), "it never sent anything"

    # The key moves to another machine with what it promised.
    first.wait_for("revealed")
    export = tmp_path / "export.json"
    assert guard(market, home, "export", export).popen.returncode == 8, "not from a home at work"
    first.popen.send_signal(signal.SIGKILL)
    first.popen.wait()
    assert guard(market, home, "export", export).popen.returncode == 0
    promised = json.loads(export.read_text())["promises"]
    assert len(promised) >= 1, "what was committed was promised"
    assert {e.trace_root.hex() for e in reveals(market)} <= {p["trace_root"].removeprefix("0x") for p in promised}
    twin = twin_of(home, "w0-twin")
    done = guard(market, twin, "import", export)
    assert json.loads(done.out.read_text())["data"]["changed"] == len(promised)
    second = up(market, twin, 3, "--once")
    assert second.wait_for("listening")["reasons"], "an imported home listens"
    assert second.popen.wait(PATIENCE) == 0, second.log.read_text()[-2000:]
    assert market.contracts.market.job(job.id).status == JobStatus.DONE, "it finished the first one's job"
    assert len({(e.round, e.slot) for e in reveals(market)}) == len(reveals(market)) == 2, "nothing is claimed twice"

    # The first home comes back, and leaves once another one has listened and registered while both are idle.
    back = up(market, home, 5)
    assert "another home was the last to register for this account" in back.wait_for("listening")["reasons"]
    me = back.named("ready")[0]["address"]
    before = ledger_of(market).registrations[me]
    wait(lambda: ledger_of(market).registrations[me] > before, "registration")
    other = up(market, twin, 4)
    assert back.popen.wait(PATIENCE) == 8, "the fence: another home has registered for the account"
    assert other.popen.poll() is None
    assert other.stop() == 0
    assert not back.named("joined")
