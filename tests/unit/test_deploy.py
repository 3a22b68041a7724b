"""deploy/: every command exists, every variable is a setting, every metric is one that is told."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.settings import DEFAULTS as COORDINATOR
from coordinator.settings import PREFIX
from lockstep.base.settings import DEFAULTS
from lockstep.runtime.metrics import COUNTERS, GAUGES
from tests.support.commandtext import wrong
from tests.support.units import faults

DEPLOY = Path(__file__).parents[2] / "deploy"
KNOWN = {f"LOCKSTEP_{name.upper()}" for name in DEFAULTS} | {f"{PREFIX}{name.upper()}" for name in COORDINATOR}
KNOWN |= {"LOCKSTEP_CACHE", "LOCKSTEP_FUSED"}
ENDPOINTS = {"coordinator": 8700, "worker": 9464, "verifier": 9464}
TOLD = {f"lockstep_{name}_total" for name in COUNTERS} | {f"lockstep_{name}" for name in GAUGES}
"""Metrics by table; the others are found in the sources by name."""
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def told() -> set[str]:
    """Every metric that the sources name."""
    sources = [Path(m).read_text() for m in (DEPLOY.parent / "coordinator").glob("*.py")]
    text = "\n".join([*sources, (DEPLOY.parent / "sdk/lockstep/runtime/metrics.py").read_text()])
    named = {f"lockstep_{n}" for n in re.findall(r'(?:gauge\(|Family\(\s*f?")(?:"|lockstep_)([a-z_]+)"', text)}
    own = {f"lockstep_coordinator_{name}" for name in re.findall(r'^\s+\(?"?([a-z_]+)", "', text, re.M)}
    own |= {
        f"lockstep_coordinator_{name}" for name in re.findall(r'^\s+\("([a-z]+)", (?:[A-Z]\w+Row|func)\.', text, re.M)
    }
    whole = set(re.findall(r'"(lockstep_[a-z_]+)"', text))
    seconds = {f"{name}_bucket" for name in whole if name.endswith("_seconds")}
    return TOLD | named | own | whole | seconds


def test_every_image_is_pinned_and_every_service_has_a_profile_and_a_check(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        _, _, tag = service["image"].rpartition(":")
        assert re.search(r"\d+\.\d+\.\d+|\d+\.\d+-", tag), f"{name}: {service['image']}"
        assert service["profiles"], name
        assert service["healthcheck"]["test"][0] == "CMD", name
    profiles = {p for s in compose["services"].values() for p in s["profiles"]}
    assert profiles == {"core", "worker", "verifier", "observability"}


def test_every_command_exists_and_every_variable_is_a_setting(compose: dict[str, Any]) -> None:
    own = {n: s for n, s in compose["services"].items() if s["image"].startswith("lockstep-compute")}
    assert own.keys() == ENDPOINTS.keys()
    for name, service in own.items():
        assert wrong(" ".join(service["command"])) is None, service["command"]
        named = {v for v in service["environment"] if v.startswith("LOCKSTEP_")}
        assert named <= KNOWN, named - KNOWN
        check = " ".join(service["healthcheck"]["test"])
        assert f"127.0.0.1:{ENDPOINTS[name]}/readyz" in check
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), "nothing more than it needs"
    assert wrong("worker upp") is not None, "the check can fail"


def test_volumes_secrets_and_files_are_there(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./") and source != "./config":
                assert (DEPLOY / source).is_dir(), volume
            elif not source.startswith("./"):
                assert source in compose["volumes"], volume
        assert set(service.get("secrets", [])) <= compose["secrets"].keys(), name
        assert set(service.get("depends_on", {})) <= compose["services"].keys(), name
    for path in DEPLOY.rglob("*.y*ml"):
        assert yaml.safe_load(path.read_text()), path


def test_prometheus_scrapes_services_that_answer_and_every_metric_in_use_is_told(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    targets = {t for job in scraped for s in job["static_configs"] for t in s["targets"]}
    assert targets == {f"{name}:{port}" for name, port in ENDPOINTS.items()}
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    panels = json.loads((DEPLOY / "grafana/dashboards/lockstep.json").read_text())["panels"]
    used = [rule["expr"] for rule in rules] + [target["expr"] for p in panels for target in p["targets"]]
    named = {name for expression in used for name in re.findall(r"lockstep_[a-z_0-9]+", expression)}
    assert len(named) > 12
    assert named - told() == set()
    assert "lockstep_no_such_metric" not in told()


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.name)
def test_a_unit_starts_a_command_that_exists_and_is_closed_in(unit: Path) -> None:
    lines = [line.partition("=") for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    found: dict[str, list[str]] = {}
    for key, _, value in lines:
        found.setdefault(key, []).append(value)
    (started,) = found["ExecStart"]
    assert wrong(started.removeprefix("/usr/local/bin/lockstep ")) is None
    named = {pair.partition("=")[0] for value in found["Environment"] for pair in value.split()}
    assert named <= KNOWN
    assert found["RestartPreventExitStatus"] == ["2 3 4 8"]
    assert found["User"] != ["root"]
    for key in ("NoNewPrivileges", "ProtectSystem", "ProtectHome", "PrivateTmp", "SystemCallFilter"):
        assert key in found, key


@pytest.mark.parametrize("unit", UNITS, ids=lambda p: p.name)
def test_systemd_accepts_every_line_of_a_unit(unit: Path, tmp_path: Path) -> None:
    # The program is not installed there: one that is stands in its place.
    text = unit.read_text().replace("ExecStart=/usr/local/bin/lockstep", "ExecStart=/bin/sh")
    assert faults(tmp_path, unit.name, text) == []
    assert faults(tmp_path, unit.name, text.replace("Restart=on-failure", "Restart=at-times")), "the check can fail"
    assert faults(tmp_path, unit.name, unit.read_text()), "a program that is not there is told"


def test_there_are_units() -> None:
    assert {u.name for u in UNITS} == {"lockstep-coordinator.service", "lockstep-storage.service"}
