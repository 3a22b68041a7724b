"""tools/device-check: its stages fit their time, one that fails ends no other, and all run on the emulated device."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, which writes to a folder of the test's."""
    monkeypatch.setenv("OUT", str(tmp_path))
    spec = importlib.util.spec_from_file_location("device_check", ROOT / "tools/device_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "device_check", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["device-check", "--emulated"])
    return module


def results(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_the_stages_fit_ten_minutes(check: ModuleType) -> None:
    assert sum(stage.limit for stage in check.STAGES) <= 600
    assert len({stage.name for stage in check.STAGES}) == len(check.STAGES)


def test_a_stage_that_fails_or_hangs_ends_no_other(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails, hangs, runs = (
        ("-c", "raise SystemExit('the sum is another')"), ("-c", "import time; time.sleep(3600)"), ("-c", "pass"),
    )  # fmt: skip
    stages = [check.DeviceStage("a", 300, fails), check.DeviceStage("b", 200, runs), check.DeviceStage("c", 1, hangs)]
    monkeypatch.setattr(check, "STAGES", stages)
    monkeypatch.setattr(check, "prepare", dict)
    monkeypatch.setattr(check, "missing", lambda environment: ["torch: no module"])
    monkeypatch.setattr(sys, "argv", ["device-check"])
    assert check.main() == 1
    said = capsys.readouterr().out
    assert "missing: torch: no module" in said
    assert "the sum is another" in said
    assert [(row["stage"], row["exit"]) for row in results(tmp_path)] == [("a", 1), ("b", 0), ("c", None)]


def test_a_stage_of_the_device_that_measures_nothing_is_not_right(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = check.DeviceStage("a", 1, (), ("-c", "pass", "--lines", "results.jsonl"))
    monkeypatch.setattr(check, "STAGES", [stage])
    assert check.main() == 1
    assert results(tmp_path)[0]["exit"] == check.NOTHING


def test_a_budget_skips_what_it_has_no_time_for(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ("-c", "pass")
    monkeypatch.setattr(check, "STAGES", [check.DeviceStage("a", 10**9, runs), check.DeviceStage("b", 600, runs)])
    monkeypatch.setattr(check, "prepare", dict)
    monkeypatch.setattr(check, "missing", lambda environment: [])
    monkeypatch.setattr(sys, "argv", ["device-check", "--budget", "1000000"])
    assert check.main() == 0
    assert "skipped        a: " in capsys.readouterr().out
    assert [row["stage"] for row in results(tmp_path)] == ["b"]


@pytest.mark.slow
@pytest.mark.chain
@pytest.mark.timeout(1800)
def test_every_stage_runs_on_the_emulated_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    command = [str(ROOT / "tools/device-check"), "--emulated", "--budget", "1500"]
    monkeypatch.setenv("PYTHON", sys.executable)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = results(tmp_path)
    assert [row["stage"] for row in rows if row["what"] == "stage"] == [
        "selftest", "roots", "profile", "random Programs", "market", "kernels",
    ]  # fmt: skip
    assert {row["what"] for row in rows} >= {"selftest", "roots", "profile", "kernels"}
