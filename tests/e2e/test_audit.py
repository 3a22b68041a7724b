"""`train audit` finds what was tampered with: files, provenance, and a lie that nobody challenged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_local import User
from tests.support.waiting import PATIENCE, wait

pytestmark = [pytest.mark.slow, pytest.mark.chain]


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    folder = tmp_path_factory.mktemp("audit")
    (folder / "work").mkdir()
    user = User(folder / "work", folder / "local")
    yield user
    user.start("local", "down").wait(PATIENCE)


@pytest.fixture(scope="module")
def model(user: User) -> Path:
    """Two rounds of three slots, one of them a liar's whom nobody challenged: the verifier stands still."""
    up = user.run("local", "up", "--workers", "2")
    auditor = next(m for m in up["members"] if m["role"] == "verifier")
    os.kill(auditor["pid"], signal.SIGSTOP)
    arguments = ["one-ulp", "0", "worker", "up", "--max-stake", "all", "--network", "local"]
    log = (user.folder / "liar.log").open("w")
    liar = subprocess.Popen(
        [sys.executable, "-m", "lockstep.demo.cheats", *arguments], cwd=user.folder, env=user.environment,
        stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip
    try:
        user.run("train", "init", "--example")
        job_file = user.folder / "job.toml"
        text = job_file.read_text().replace("rounds = 6", "rounds = 2").replace("min_slots = 1", "min_slots = 3")
        job_file.write_text(text)
        job = user.run("train", "run", "job.toml", "--budget", "60")["job"]
        wait(lambda: bool(user.run("train", "status", job)["started"] == 2), "the last round", every=1)
        wait(lambda: _merged(user, job) == 2, "the last merge", every=1)
        user.run("local", "forward", "70s")
        wait(lambda: bool(user.run("train", "status", job)["status"] == "done"), "the end of the job", every=1)
        user.run("train", "pull", job, "--out", "model")
    finally:
        liar.kill()
        liar.wait()
        log.close()
    return user.folder / "model"


def test_a_lie_that_nobody_challenged_is_found_by_whoever_audits(user: User, model: Path) -> None:
    process = user.start("train", "audit", "model", "--json")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 10, out
    report = json.loads(out)["data"]
    assert not report["ok"]
    found = {f["check"]: f for f in report["findings"]}
    assert [found[name]["verdict"] for name in ("origin", "merge", "files", "merges")] == ["ok"] * 4
    wrong = [f for f in report["findings"] if f["verdict"] == "differs"]
    assert [f["check"] for f in wrong] == ["claims"]
    assert "first differs at step" in wrong[0]["detail"]


def test_what_was_not_tampered_with_passes_as_far_as_it_is_looked_at(user: User, model: Path) -> None:
    report = user.run("train", "audit", "model", "--claims", "0")
    assert report["ok"]
    assert [f["check"] for f in report["findings"]] == ["origin", "merge", "files", "merges", "claims"]


def weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def config(folder: Path) -> None:
    _json(folder / "config.json", lambda said: {**said, "heads": 2})


def round_of(folder: Path) -> None:
    _json(folder / "provenance.json", lambda said: {**said, "round": 0})


def roots(folder: Path) -> None:
    _json(folder / "provenance.json", lambda said: {**said, "shared_root": said["outer_root"]})


def spec(folder: Path) -> None:
    _json(folder / "provenance.json", lambda said: {**said, "spec": "00" * 32})


def market(folder: Path) -> None:
    _json(folder / "provenance.json", lambda said: {**said, "market": "0x" + "11" * 20})


@pytest.mark.parametrize(
    ("tamper", "check"),
    [
        (weights, "files"),
        (config, "files"),
        (round_of, "merge"),
        (roots, "merge"),
        (spec, "origin"),
        (market, "origin"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_tampering_is_found_by_its_check(
    user: User, model: Path, tamper: Callable[[Path], None], check: str
) -> None:
    folder = user.folder / f"tampered-{tamper.__name__}"
    shutil.copytree(model, folder)
    tamper(folder)
    process = user.start("train", "audit", folder.name, "--claims", "0", "--json")
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 10, out
    findings = json.loads(out)["data"]["findings"]
    assert (findings[-1]["check"], findings[-1]["verdict"]) == (check, "differs")


def _merged(user: User, job: str) -> int:
    """How many merges stand, by the losses after them."""
    process = user.start("train", "metrics", job, "--json")
    out, _ = process.communicate(timeout=PATIENCE)
    time.sleep(0.5)
    return len(json.loads(out)["data"]["losses"]) - 1 if process.returncode == 0 else 0


def _json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
