"""The CUDA path on a device: the processor's roots, and its speed beside PyTorch's on the same device.

    python benchmarks/gpu.py             tables
    python benchmarks/gpu.py --json      one line of JSON on stdout
    python benchmarks/gpu.py --emulate    the roots alone, of a small model on the emulated device

First a GPT is trained for some steps on the processor and on the device, and every state root is compared. Then its
kernels are made with an empty cache of compiled code and with a full one, and the same step is timed against eager
PyTorch: float32 with TF32 off, and bfloat16 autocast, both with fused AdamW. Last come the products under it against
torch.matmul in float32. The sides run turn by turn; times are medians of synchronised runs. (The file is not called
cuda.py: a script's folder comes first, and `cuda` is what torch would import from it.)
Without a device nothing is measured: {"data": {"results": [], "skipped": why}}.

A machine with a device may have a torch that does not trace: `--trace FILE` writes the step's Program elsewhere, and
`--program FILE` reads it there.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from lockstep.numerics import arrays, paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.builder import ProgramBuilder, Tensor
from lockstep.numerics.cuda import CudaExecutable, open_device
from lockstep.numerics.cuda.device import Device
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.trace import layout_root
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import F32, Program
from lockstep.training.job import Batch, build_programs
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.models.gpt import next_token_loss
from lockstep.training.strategies import diloco

MODEL = GPTConfig(vocabulary=4096, context=256, layers=6, heads=6, width=384)
BATCH = Batch(rows=8, row_length=257)
SMALL_MODEL = GPTConfig(vocabulary=64, context=16, layers=2, heads=2, width=80)
SMALL_BATCH = Batch(rows=4, row_length=17)
SEED = bytes(32)
PRODUCTS = [
    (2048, 384, 1152),
    (2048, 384, 1536),
    (2048, 1536, 384),
    (384, 2048, 1536),
    (2048, 384, 4096),
    (4096, 4096, 4096),
]
"""(M, K, N) of x[m, k] w[n, k]: the model's, and one that fills a device."""


@dataclass(frozen=True)
class Roots:
    """A run compared root by root."""

    steps: int
    equal: int
    """Steps with the processor's root; the run stops at the first other one."""
    last: str
    what: str = "roots"


@dataclass(frozen=True)
class Time:
    """A step or a product beside torch's."""

    what: str
    against: str
    ms: float
    theirs_ms: float
    ratio: float
    """Our time / theirs."""
    rate: float
    """Tokens per second of a step, TFLOP/s of a product: ours."""


@dataclass(frozen=True)
class Start:
    """The time that a process takes for a step's kernels, before they are in the cache and after."""

    cold_seconds: float
    warm_seconds: float
    kernels: int
    what: str = "kernels"


def training_step(config: GPTConfig, batch: Batch) -> Program:
    """The Program of a step of training: forward, backward, clipping, AdamW."""
    return build_programs(GPT(config), next_token_loss, diloco.Spec(), batch=batch, rounds=6, slots=3).step


def beginning(program: Program, config: GPTConfig, batch: Batch) -> tuple[list[Array | None], Array]:
    """Small parameters, zero moments; a dataset."""
    rng = np.random.default_rng(0)
    state: list[Array | None] = [
        None if h is None else np.zeros(h.shape, arrays.DTYPES[h.dtype]) for h in program.inputs
    ]
    for k in (0, 2):  # the parameters and the round's anchor
        header = program.inputs[k]
        assert header is not None, "the state begins with parameters, then the anchor"
        state[k] = (np.random.default_rng(1).standard_normal(header.shape) * 0.02).astype(np.float32)
    dataset = rng.integers(0, config.vocabulary, (1000, batch.row_length)).astype(np.int32)
    dataset.flags.writeable = False
    return state, dataset


def compare_roots(device: Device, program: Program, config: GPTConfig, batch: Batch, steps: int, threads: int) -> Roots:
    """Trains on both until a root differs."""
    state, dataset = beginning(program, config, batch)
    processor, ours = paths.compile(program, threads=threads), CudaExecutable(program, device=device)
    resident = ours.upload(state)
    root = ""
    for t in range(1, steps + 1):
        context = StepContext(SEED, 0, 0, t)
        state = list(processor.run(state, context, dataset))
        resident = ours.step(resident, context, dataset)
        root = layout_root(program.output_layout, state).hex()
        if ours.root(resident).hex() != root:
            return Roots(steps, t - 1, root)
    return Roots(steps, steps, root)


def alternately(runs: int, *functions: Callable[[], object]) -> list[float]:
    """Median milliseconds of each function, called in turn; each returns when its work is done."""
    times: list[list[float]] = [[] for _ in functions]
    for run in range(runs + 3):
        for function, found in zip(functions, times, strict=True):
            begin = time.perf_counter()
            function()
            if run >= 3:  # the first ones find memory and caches cold
                found.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(found) for found in times]


class Eager:
    """The same step in eager PyTorch on the device, as people write it."""

    def __init__(self, config: GPTConfig, batch: Batch, dtype: torch.dtype) -> None:
        self.model = GPT(config).cuda()
        self.rows = torch.randint(0, config.vocabulary, (batch.rows, batch.row_length), device="cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.dtype = dtype

    def step(self) -> None:
        """Forward, backward, clipping, AdamW; done when it returns."""
        self.optimizer.zero_grad()
        with nullcontext() if self.dtype == torch.float32 else torch.autocast("cuda", self.dtype):
            loss = next_token_loss(self.model, self.rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        torch.cuda.synchronize()


def time_steps(device: Device, program: Program, config: GPTConfig, batch: Batch, runs: int) -> Iterator[Time]:
    """The step against float32 and bfloat16, and the step with its root against float32."""
    state, dataset = beginning(program, config, batch)
    executable = CudaExecutable(program, device=device)
    resident = executable.upload(state)

    def step() -> None:
        nonlocal resident
        resident = executable.step(resident, StepContext(SEED, 0, 0, 1), dataset)
        device.wait()

    def step_and_root() -> None:
        step()
        executable.root(resident)

    full, half = (Eager(config, batch, dtype).step for dtype in (torch.float32, torch.bfloat16))
    ours, hashed, theirs, theirs_half = alternately(runs, step, step_and_root, full, half)
    tokens = batch.rows * (batch.row_length - 1) * batch.accumulation
    pairs = [
        ("step", "torch float32", ours, theirs), ("step", "torch bfloat16", ours, theirs_half),
        ("step and root", "torch float32", hashed, theirs),
    ]  # fmt: skip
    for what, against, ms, base in pairs:
        yield Time(what, against, round(ms, 3), round(base, 3), round(ms / base, 3), round(1e3 * tokens / ms))


def time_product(device: Device, m: int, k: int, n: int, runs: int) -> Time:
    """Operands contiguous along k on both sides; a launch of several products, so that launching is not measured."""
    repeats = 8
    b = ProgramBuilder([(F32, m * k), *[(F32, n * k)] * repeats])
    x = b.input(0).reshape(m, 1, k)
    dots: list[Tensor | None] = [b.dot(x, b.input(1 + j).reshape(n, k)) for j in range(repeats)]
    program = b.finish(dots)
    rng = np.random.default_rng(0)
    state = [None if h is None else rng.standard_normal(h.elements, np.float32) for h in program.inputs]
    executable = CudaExecutable(program, device=device)
    resident = executable.upload(state)
    left, *rights = (torch.from_numpy(array).cuda() for array in state if array is not None)

    def ours() -> None:
        executable.step(resident, StepContext(SEED, 0, 0, 1))
        device.wait()

    def theirs() -> None:
        for right in rights:
            left.view(m, k) @ right.view(n, k).T
        torch.cuda.synchronize()

    ms, base = (found / repeats for found in alternately(runs, ours, theirs))
    rate = round(2e-9 * m * n * k / ms, 2)
    return Time(f"product {m} x {k} x {n}", "torch float32", round(ms, 4), round(base, 4), round(ms / base, 3), rate)


def time_kernels(device: Device, program: Program) -> Start:
    """Twice from source to a loaded module, beginning with an empty cache."""
    source = generate(program).source
    seconds = []
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, LOCKSTEP_CACHE=f"{folder}/cache"):
        for _ in range(2):
            begin = time.perf_counter()
            device.load(source)
            seconds.append(round(time.perf_counter() - begin, 3))
    return Start(*seconds, source.count("LOCKSTEP_EXPORT("))


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the object under "data"."""
    threads = arguments.threads or os.cpu_count() or 1
    if arguments.emulate:
        small = training_step(SMALL_MODEL, SMALL_BATCH)
        emulated = compare_roots(Emulator(), small, SMALL_MODEL, SMALL_BATCH, min(arguments.steps, 5), threads)
        return {"results": [asdict(emulated), asdict(time_kernels(Emulator(), small))], "device": "emulated"}
    try:
        device = open_device()
    except UsageError as error:
        return {"results": [], "skipped": str(error)}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    given = arguments.program
    program = pickle.loads(given.read_bytes()) if given else training_step(MODEL, BATCH)
    results: list[object] = [asdict(compare_roots(device, program, MODEL, BATCH, arguments.steps, threads))]
    results.append(asdict(time_kernels(device, program)))
    results += map(asdict, time_steps(device, program, MODEL, BATCH, arguments.runs))
    results += [asdict(time_product(device, *shape, arguments.runs)) for shape in PRODUCTS]
    return {"results": results, "device": device.name}


def main() -> int:
    """Measures, prints; exit status 1 if a root differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--emulate", action="store_true", help="compare roots on the emulated device, measure nothing")
    parser.add_argument("--steps", type=int, default=100, help="steps whose roots are compared (default 100)")
    parser.add_argument("--runs", type=int, default=30, help="measured calls of each side (default 30)")
    parser.add_argument("--threads", type=int, default=0, help="of the processor (default: all)")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the step's Program, and stop")
    parser.add_argument("--program", type=Path, metavar="FILE", help="what --trace wrote; your own: it is a pickle")
    arguments = parser.parse_args()
    if arguments.trace:
        arguments.trace.write_bytes(pickle.dumps(training_step(MODEL, BATCH)))
        return 0
    data = measure(arguments)
    results = data["results"]
    assert isinstance(results, list), "measure() gives a list"
    if arguments.json:
        print(json.dumps({"data": data}))
    else:
        print(data.get("skipped", data.get("device")))
        for row in results:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
    return int(any(row["what"] == "roots" and row["equal"] != row["steps"] for row in results))


if __name__ == "__main__":
    sys.exit(main())
