"""`device.Cuda` and the real bindings over a driver without a device (tests/native/libcuda.c)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from lockstep.numerics.cuda.selftest import golden_program
from tests.support import driver
from tests.unit.numerics import test_cuda_codes
from tests.unit.numerics.test_cuda import again, products

BODY = """
import threading
import numpy as np
from lockstep.numerics import paths
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.device import Cuda
from lockstep.numerics.trace import layout_root, tensor_root
from tests.unit.numerics.comparison import CONTEXT, normal
from tests.unit.numerics.test_cuda import filled, products

program = products()
device = Cuda()
executable = CudaExecutable(program, device=device)
state = filled(program, normal)
due = paths.compile(program, fused="off").run(state, CONTEXT)

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
kept = paths.compile(program, fused="off").run(state, CONTEXT, keep=True)
assert executable.roots(state, CONTEXT) == tuple(map(tensor_root, kept))
print(found, device.label, device.architecture, device.memory.total)
"""


TILES = """
from unittest.mock import patch
from lockstep.numerics import paths
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.device import SHARED_BYTES, Cuda
from tests.unit.numerics import test_cuda_codes as codes
from tests.unit.numerics.comparison import CONTEXT, words

program = codes.products(codes.SHAPES[:1])
state = codes.state(program)
with patch("lockstep.numerics.cuda.generate.BUSY_BLOCKS", codes.LARGE):
    executable = CudaExecutable(program, device=Cuda())
asked = max(launch.shared for own in executable._loaded._generated.launches for launch in own)
due = paths.compile(program).run(state, CONTEXT)
found = zip(executable.run(state, CONTEXT), due)
print(asked > SHARED_BYTES, all((words(a) == words(b)).all() for a, b in found if a is not None))
"""


GRAPHS = """
from lockstep.numerics.cuda import CudaExecutable
from lockstep.numerics.cuda.device import Cuda
from lockstep.numerics.cuda.emulator import Emulator
from tests.unit.numerics.comparison import CONTEXT
from tests.unit.numerics.test_cuda import again, filled, normal

program = again()
roots = []
for device in (Cuda(), Emulator()):
    executable = CudaExecutable(program, device=device)
    state = executable.upload(filled(program, normal))
    for _ in range(12):
        state = executable.step(state, CONTEXT)
    roots.append(executable.root(state))
print(roots[0] == roots[1])
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One in which the driver is ours, and knows the kernels of `products` and of codes in large tiles."""
    sources = [driver.source(own) for own in (products(), golden_program(), again())]
    with patch("lockstep.numerics.cuda.generate.BUSY_BLOCKS", test_cuda_codes.LARGE):
        sources.append(driver.source(test_cuda_codes.products(test_cuda_codes.SHAPES[:1])))
    return driver.environment(tmp_path_factory.mktemp("driver"), sources)


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[3]
    return subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def test_the_driver_is_called_as_it_wants(environment: dict[str, str]) -> None:
    done = run(BODY, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['no device 7', 'no device 7'] cuda:0 sm_90a 1073741824"


def test_a_launch_may_ask_for_more_shared_memory_than_every_device_has(environment: dict[str, str]) -> None:
    done = run(TILES, environment)
    assert done.stdout == "True True\n", done.stderr


def test_a_step_that_was_started_before_is_one_graph(environment: dict[str, str]) -> None:
    done = run(GRAPHS, {**environment, "TELL_GRAPHS": "1"})
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.count("graph\n") == 10, "of twelve steps, all but the first one in each of two sets of places"


def test_a_driver_that_makes_no_graph_starts_kernels_one_by_one(environment: dict[str, str]) -> None:
    done = run(GRAPHS, {**environment, "TELL_GRAPHS": "1", "NO_GRAPHS": "1"})
    assert done.stdout == "True\n", done.stderr
    assert "kernels are launched one by one: the CUDA driver returned CUDA_ERROR_INVALID_VALUE" in done.stderr
    assert "graph\n" not in done.stderr


def test_a_driver_without_a_device_is_a_usage_error(environment: dict[str, str]) -> None:
    code = "from lockstep.numerics.cuda.device import Cuda; Cuda()"
    done = run(code, {**environment, "NO_DEVICE": "1"})
    assert "UsageError: no CUDA device: the CUDA driver returned CUDA_ERROR_NO_DEVICE" in done.stderr


def test_another_ordinal_names_those_that_there_are(environment: dict[str, str]) -> None:
    done = run("from lockstep.numerics.cuda.device import Cuda; Cuda(1)", environment)
    assert "UsageError: no CUDA device cuda:1: this machine has cuda:0" in done.stderr


def test_a_full_device_says_how_much_a_step_takes(environment: dict[str, str]) -> None:
    done = run(BODY, {**environment, "FULL": "1"})
    assert re.search(r"DeviceFailed: a step takes [\d,]+ bytes of cuda:0, which has 1,000 free", done.stderr), (
        done.stderr
    )


def test_auto_takes_the_device_and_the_processor_where_there_is_none(environment: dict[str, str]) -> None:
    code = "from lockstep.numerics.devices import choose; print(choose('auto'))"
    done = run(code, environment)
    told = "device='cuda:0', name='no device 7', why='it is the first that passed the self-test'"
    assert done.stdout.strip() == f"Choice({told})", done.stderr
    without = run(code, {**environment, "NO_DEVICE": "1"}).stdout
    assert "device='cpu'" in without
    assert "why='no CUDA device: the CUDA driver returned CUDA_ERROR_NO_DEVICE'" in without


MACHINE_CODE = """
from lockstep.numerics.cuda import device, generate
from tests.unit.numerics.test_cuda import products

calls = []
compile_source = device.compile_source
device.compile_source = lambda *asked: calls.append(asked) or compile_source(*asked)
source = generate.generate(products()).source
code = [device.machine_code(source, architecture) for architecture in ("sm_89", "sm_89", "sm_80")]
print(len(calls), code[0] == code[1] != code[2], code[0][:4])
"""


def test_machine_code_is_kept_by_architecture(environment: dict[str, str], tmp_path: Path) -> None:
    environment = {**environment, "LOCKSTEP_CACHE": str(tmp_path / "cache")}
    first, second = run(MACHINE_CODE, environment), run(MACHINE_CODE, environment)
    assert first.stdout == "2 True b'\\x7fELF'\n", first.stderr
    assert second.stdout == "0 True b'\\x7fELF'\n", second.stderr
    cache = Path(environment["LOCKSTEP_CACHE"])
    (spoilt, *_) = cache.glob("*.cubin")
    spoilt.write_bytes(spoilt.read_bytes()[:-1])
    assert run(MACHINE_CODE, environment).stdout.startswith("1 True"), "what is damaged is compiled again"
    cache.chmod(0o777)
    try:
        assert run(MACHINE_CODE, environment).stdout.startswith("3 True"), "nothing is taken from an open cache"
    finally:
        cache.chmod(0o700)
