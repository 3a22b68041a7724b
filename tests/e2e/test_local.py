"""The market that stays up: made once, found by every command, ended and continued, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import lockstep
from lockstep.chain.rpc import connect
from lockstep.runtime.guard import lock
from tests.e2e.test_demo import assert_convicted
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@dataclass(frozen=True)
class User:
    """Somebody with a terminal in an empty folder."""

    folder: Path
    local: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "LOCKSTEP_LOCAL": str(self.local), "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "lockstep.cli.main", *arguments], cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *arguments: str, code: int = 0) -> Any:
        """Data, or the error, of a command with --json."""
        process = self.start(*arguments, "--json")
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == code, out + err
        said = json.loads(out)
        return said["data"] if code == 0 else said["error"]


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    (tmp_path / "work").mkdir()
    user = User(tmp_path / "work", tmp_path / "local")
    yield user
    user.start("local", "down").wait(PATIENCE)


def test_a_market_is_found_used_ended_and_continued(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user.run("local", "status", code=7)["hint"]
    assert user.run("local", "down")["was_up"] is False
    up = user.run("local", "up", "--workers", "2")
    assert [m["role"] for m in up["members"]] == ["coordinator", "verifier", "worker", "worker"]
    assert user.run("local", "up")["members"] == up["members"], "it is up already"

    # Three commands from nothing to a job, a fourth to its model.
    user.run("train", "init", "--example")
    job_file = user.folder / "job.toml"
    job_file.write_text(job_file.read_text().replace("rounds = 6", "rounds = 1").replace("slots = 3", "slots = 2"))
    job = user.run("train", "run", "job.toml", "--budget", "60")["job"]
    watched = user.start("train", "watch", job)
    assert watched.wait(PATIENCE) == 0
    assert (user.folder / user.run("train", "pull", job, "--out", "model")["model_path"]).exists()
    assert user.run("worker", "status")["wallet"] == str(1000 * 10**18), "the user's own worker has its own home"

    monkeypatch.setenv("LOCKSTEP_LOCAL", str(user.local))
    assert lockstep.connect("local").job(bytes.fromhex(job)).status()["status"] == "done"  # type: ignore[arg-type]

    begun, before = time.monotonic(), _time(up["rpc"])
    assert user.run("local", "down")["was_up"] is True
    assert "local up" in user.run("train", "status", job, "--network", "local", code=2)["hint"], "nothing is there"
    assert [p for p in map(_process, (m["pid"] for m in up["members"])) if p is not None] == []
    time.sleep(12)
    again = user.run("local", "up")
    passed = _time(again["rpc"]) - before
    assert passed <= time.monotonic() - begun - 12 + 3, "no deadline passes while it is down"
    assert [m["address"] for m in again["members"]] == [m["address"] for m in up["members"]]
    assert (again["rpc"], again["coordinator"]) == (up["rpc"], up["coordinator"]), "it is where it was"
    assert user.run("train", "status", job)["status"] == "done"
    later = user.run("local", "forward", "1h")["time"]
    assert later - before >= 3600


def test_whoever_is_killed_is_started_again_and_a_killed_market_comes_back(user: User) -> None:
    up = user.run("local", "up", "--workers", "1")
    worker = next(m for m in up["members"] if m["role"] == "worker")
    psutil.Process(worker["pid"]).kill()

    def revived() -> bool:
        found = next(m for m in user.run("local", "status")["members"] if m["role"] == "worker")
        return found["pid"] != worker["pid"] and found["restarts"] == 1 and _process(found["pid"]) is not None

    wait(revived, "a new worker", every=1)
    holder = lock.holder(user.local)
    assert holder is not None
    children = psutil.Process(holder.pid).children()
    os.kill(holder.pid, signal.SIGKILL)
    psutil.wait_procs(children, timeout=PATIENCE)
    assert user.run("local", "status", code=7)["hint"], "nothing answers for it"
    again = user.run("local", "up")
    assert [m["address"] for m in again["members"]] == [m["address"] for m in up["members"]]
    assert user.run("worker", "status")["wallet"] == str(1000 * 10**18)


def test_a_market_that_was_killed_again_and_again_in_the_making_is_made_anew(user: User) -> None:
    for seconds in (0.3, 1.0, 2.0, 4.0):
        making = user.start("local", "up", "--workers", "1")
        wait(lambda: lock.holder(user.local) is not None, "a supervisor", every=0.02)
        time.sleep(seconds)
        holder = lock.holder(user.local)
        assert holder is not None, f"it goes on with what the last one left, {seconds} s long"
        children = psutil.Process(holder.pid).children()
        os.kill(holder.pid, signal.SIGKILL)
        psutil.wait_procs(children, timeout=PATIENCE)
        making.kill()
        making.wait()
    assert len(user.run("local", "up", "--workers", "1")["members"]) == 3
    assert user.run("worker", "status")["wallet"] == str(1000 * 10**18)


def _time(rpc: str) -> int:
    """The chain's time."""
    return int(connect(rpc).eth.get_block("latest")["timestamp"])


def _process(pid: int) -> psutil.Process | None:
    try:
        found = psutil.Process(pid)
        return None if found.status() == psutil.STATUS_ZOMBIE else found
    except psutil.NoSuchProcess:
        return None


def test_the_demos_market_goes_on_and_holds_what_the_demo_told(user: User) -> None:
    """`demo --keep`: its game, its model and its replays are there for every other command, until `local down`."""
    process = user.start("demo", "--keep", "--no-browser", "--json")
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, out + err[-2000:]
    told = json.loads(out)["data"]
    assert_convicted(told)
    [game] = told["games"]

    assert user.run("dispute", "list")["games"] == [], "it is over"
    [listed] = user.run("dispute", "list", "--all")["games"]
    shown = user.run("dispute", "show", listed["game"])
    assert shown["verdict"] == game["verdict"] == "fraud"
    assert (shown["element"], shown["contract_bits"]) == (game["element"], game["contract_bits"])
    assert shown["claimed_bits"] == game["claimed_bits"] != game["contract_bits"]
    assert told["job"] in json.dumps(user.run("train", "list"))

    assert Path(user.folder, user.run("train", "pull", told["job"], "--out", "model")["model_path"]).exists()
    audited = user.run("train", "audit", "model", "--claims", "2")
    assert audited["ok"]
    assert {found["verdict"] for found in audited["findings"]} <= {"ok", "note"}
    sentence = ("--prompt", "The ", "--tokens", "16")
    assert user.run("train", "load", "model", *sentence) == user.run("train", "load", told["job"], *sentence)

    assert user.run("local", "status")["members"]
    assert user.run("local", "down")["was_up"] is True
