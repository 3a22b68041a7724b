"""`lockstep doctor`: what it says, and when it exits with 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.execution.box import handle
from lockstep.execution.box.confinement import Allowance
from lockstep.numerics import cuda, devices
from lockstep.protocol.errors import DoctorError
from tests.unit.cli.conftest import Lockstep


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "SIZES", (16,))
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
def test_the_processor_and_the_emulated_device_are_tested_and_measured(lockstep: Lockstep) -> None:
    for device in ("cpu", "emulated"):
        told = lockstep("doctor", "--device", device, "--json")
        assert told.code == 0
        (found,) = told.data["devices"]
        assert (found["device"], found["passed"]) == (device, True)
        assert found["gflops"] > 0
        assert found["memory_bytes"] > 0
    assert told.data["kernels"]["files"] >= 1, "of the product that was timed"
    assert told.data["kernels"]["kept"]
    assert told.data["auto"]["why"]
    text = lockstep("doctor", "--device", "cpu").out
    assert "ok      cpu" in text
    assert "--device auto selects" in text


def test_a_cache_that_is_open_to_others_is_named(lockstep: Lockstep, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    told = lockstep("doctor", "--device", "cpu", "--json")
    assert told.code == 0, "it costs time alone"
    assert (told.data["box"]["starts"], told.data["box"]["message"]) == (True, "")
    assert not told.data["kernels"]["kept"]
    assert "open to others" in told.data["kernels"]["message"]
    assert "chmod 700" in told.data["kernels"]["message"]


def test_what_a_kernel_lacks_of_the_confinement_is_told_and_that_it_starts_none_is_3(
    lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[str] | DoctorError] = [["Landlock is old"], ["Landlock is old"], DoctorError("no: denied", "")]

    class Opened:
        def __init__(self, limits: Allowance) -> None:
            lacks = found.pop(0)
            if isinstance(lacks, DoctorError):
                raise lacks
            self.lacking = lacks

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(handle, "Box", Opened)
    told = lockstep("doctor", "--device", "cpu", "--json")
    assert (told.code, told.data["box"]["lacking"]) == (0, ["Landlock is old"])
    assert "Programs run sandboxed: Landlock is old" in lockstep("doctor", "--device", "cpu").out
    told = lockstep("doctor", "--device", "cpu", "--json")
    assert (told.code, told.data["box"]["message"]) == (3, "no: denied")


def test_a_device_that_fails_the_self_test_is_3(lockstep: Lockstep, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(label: str) -> object:
        raise DoctorError(
            f"self-test of {label}: fma rounds once: got 0x00000000, expected 0x28800000", hint="do not sign"
        )

    monkeypatch.setattr(cuda, "count_devices", lambda: 1)
    monkeypatch.setattr(cuda, "open_device", opened)
    told = lockstep("doctor", "--json")
    assert told.code == 3
    assert [(d["device"], d["passed"]) for d in told.data["devices"]] == [("cpu", True), ("cuda:0", False)]
    assert "fma rounds once" in told.data["devices"][1]["message"]
    assert told.data["auto"]["device"] == "cpu"
    assert "FAILED  cuda:0" in lockstep("doctor").out
