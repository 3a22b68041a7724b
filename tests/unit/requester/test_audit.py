"""An audit finds what was tampered with: files, provenance, and a lie that nobody challenged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lockstep.client import JobHandle
from tests.adversarial.claims import demo_lie
from tests.adversarial.court import Court
from tests.support import toyjob

PARAMETERS = ({"name": "weight", "offset": 0, "shape": [2, 4]},)


@dataclass(frozen=True)
class Trained:
    """A job of two rounds in the first of which slot 1 lied, whom nobody challenged; its model, downloaded."""

    handle: JobHandle
    model: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    court = Court.in_memory(tmp_path_factory.mktemp("audit"))
    job = toyjob.training_job(model={"model": "toy"}, parameters=PARAMETERS, rounds=2, min_slots=3)
    handle = court.hire(job)
    court.store = handle.net.store  # type: ignore[assignment]
    court.seal()
    court.claim({1: demo_lie("one-ulp", court.run(1))[1]})
    court.merge()
    court.rounds(1)
    court.settle()
    handle.download(court.folder / "model")
    yield Trained(handle, court.folder / "model")
    court.stop()


def test_a_lie_that_nobody_challenged_is_found_by_whoever_audits(trained: Trained) -> None:
    report = trained.handle.audit(trained.model)
    assert not report.ok
    found = {f.check: f for f in report.findings}
    assert [found[name].verdict for name in ("origin", "merge", "files", "merges")] == ["ok"] * 4
    wrong = [f for f in report.findings if f.verdict == "differs"]
    assert [f.check for f in wrong] == ["claims"]
    assert "first differs at step" in wrong[0].detail


def test_what_was_not_tampered_with_passes_as_far_as_it_is_looked_at(trained: Trained) -> None:
    report = trained.handle.audit(trained.model, claims=0)
    assert report.ok
    assert [f.check for f in report.findings] == ["origin", "merge", "files", "merges", "claims"]


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
    trained: Trained, tmp_path: Path, tamper: Callable[[Path], None], check: str
) -> None:
    folder = tmp_path / "tampered"
    shutil.copytree(trained.model, folder)
    tamper(folder)
    last = trained.handle.audit(folder, claims=0).findings[-1]
    assert (last.check, last.verdict) == (check, "differs")


def _json(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
