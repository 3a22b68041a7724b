"""Which device is taken, and what is said of it."""

from __future__ import annotations

import pytest

from lockstep.numerics import cuda, devices
from lockstep.numerics.cuda.device import FOLDER, Kernels
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.selftest import check_device
from lockstep.numerics.devices import Choice, choose, examine, present, speed
from lockstep.protocol.errors import DoctorError, UsageError


class Approximate(Emulator):
    """A device that flushes subnormal results."""

    label = "cuda:0"

    def load(self, source: str) -> Kernels:
        whole = source.replace('#include "kernels.cuh"', (FOLDER / "kernels.cuh").read_text())
        flushed = whole.replace("f32::raw::fma(", "0.0f * f32::raw::fma(")
        assert flushed != whole
        return super().load(flushed)


class Good(Emulator):
    """A device of another name."""

    label, name = "cuda:1", "a good device"


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two CUDA devices, the first of which computes something else."""

    def opened(label: str) -> Emulator:
        device = {"cuda:0": Approximate, "cuda:1": Good}[label]()
        check_device(device)
        return device

    monkeypatch.setattr(cuda, "count_devices", lambda: 2)
    monkeypatch.setattr(cuda, "open_device", opened)


def none() -> int:
    raise UsageError("no CUDA device: the driver sees none", hint="install one")


def test_auto_is_the_first_device_that_passes_the_self_test(two: None) -> None:
    assert choose("auto") == Choice("cuda:1", "a good device", "it is the first that passed the self-test")
    assert choose("auto").path == "cuda:1"
    with pytest.raises(DoctorError, match="self-test of cuda:0"):
        choose("cuda:0")


def test_auto_is_the_processor_where_no_device_passes_and_says_why(monkeypatch: pytest.MonkeyPatch, two: None) -> None:
    monkeypatch.setattr(cuda, "count_devices", lambda: 1)
    chosen = choose("auto")
    assert (chosen.device, chosen.path) == ("cpu", "auto")
    assert chosen.why.startswith("cuda:0: self-test of cuda:0: ")
    monkeypatch.setattr(cuda, "count_devices", none)
    assert choose("auto").why == "no CUDA device: the driver sees none"
    monkeypatch.setattr(cuda, "count_devices", lambda: 0)
    assert choose("auto").why == "no CUDA device: the driver counts none"
    assert choose("cpu").why == "it was asked for"


def test_a_device_that_was_asked_for_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(label: str) -> Emulator:
        raise UsageError(f"no CUDA device {label}", hint="nvidia-smi lists them")

    monkeypatch.setattr(cuda, "open_device", gone)
    with pytest.raises(UsageError, match="cuda:7"):
        choose("cuda:7")


def test_what_is_examined_is_tested_and_measured(two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SIZES", (16,))
    assert present() == ["cpu", "cuda:0", "cuda:1"]
    found = {name: examine(name) for name in present()}
    assert [e.passed for e in found.values()] == [True, False, True]
    assert "self-test of cuda:0" in found["cuda:0"].message
    for name in ("cpu", "cuda:1"):
        assert found[name].gflops > 0
        assert found[name].memory_bytes >= found[name].free_bytes > 0
    monkeypatch.setattr(cuda, "count_devices", none)
    assert present() == ["cpu"]


def test_speed_is_taken_from_a_product_that_takes_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    seconds = iter([0.001, 0.01, 0.25])
    monkeypatch.setattr(devices, "_seconds", lambda executable, words: sizes.append(words) or next(seconds))
    assert speed("auto") == 2 * 256**3 / 0.25
    assert sizes == [64**2, 128**2, 256**2]
