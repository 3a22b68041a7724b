"""`device.Cuda` and the real bindings over a driver without a device (tests/native/libcuda.c)."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lockstep.numerics.cuda import generate
from lockstep.numerics.cuda.emulator import build
from tests.unit.numerics.test_cuda import products

BODY = """
import threading
import numpy as np
from lockstep.numerics import executor
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.device import Cuda
from lockstep.numerics.trace import layout_root
from tests.unit.numerics.comparison import CONTEXT, normal
from tests.unit.numerics.test_cuda import filled, products

program = products()
device = Cuda()
executable = CudaExecutable(program, device=device)
state = filled(program, normal)
due = executor.compile(program, fused="off").run(state, CONTEXT)

def check():
    resident = executable.step(executable.upload(state), CONTEXT)
    assert executable.root(resident) == layout_root(program.output_layout, due)
    found.append(device.name)

found = []
check()
thread = threading.Thread(target=check)  # a worker's own
thread.start()
thread.join()
assert sum(executable.profile(state, CONTEXT)) > 0
print(found)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One in which the driver is ours, and knows the kernels of `products`."""
    for module in ("cuda", "cuda.bindings", "nvidia", "nvidia.cu13"):
        if find_spec(module) is None:
            pytest.skip(f"no package {module}: pip install 'lockstep-compute[cuda]'")
    folder = tmp_path_factory.mktemp("driver")
    source = Path(__file__).parents[2] / "native/libcuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(folder / "libcuda.so.1"), "-ldl"], check=True)
    library = build(generate.generate(products()).source, folder)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "EMULATED_LIBRARY": str(library)}


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_the_driver_is_called_as_it_wants(environment: dict[str, str]) -> None:
    done = run(BODY, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['no device 7', 'no device 7']"


def test_a_driver_without_a_device_is_a_usage_error(environment: dict[str, str]) -> None:
    code = "from lockstep.numerics.cuda.device import Cuda; Cuda()"
    done = run(code, {**environment, "NO_DEVICE": "1"})
    assert "UsageError: no CUDA device: the CUDA driver says CUDA_ERROR_NO_DEVICE" in done.stderr
