"""The CUDA path on a device: the processor's roots, and its speed beside PyTorch's on the same device.

    python benchmarks/gpu.py                 tables
    python benchmarks/gpu.py --json          one line of JSON on stdout
    python benchmarks/gpu.py --model gpt-small --products int8 --steps 20
    python benchmarks/gpu.py --stages roots profile
    python benchmarks/gpu.py --emulate       a small model on the emulated device

The stages: `selftest` is the device's. `roots` trains each model, with products of floats and with products of
integers, on the processor and on the device, and compares every state root. `kernels` makes a step's kernels with an
empty cache of compiled code and with a full one. `steps` times steps against eager PyTorch, `compiled` against compiled
PyTorch: float32 with TF32 off, TF32, and bfloat16 autocast, all with fused AdamW. `profile` times each kernel's
launches of a step by themselves, and names the slowest. `products` times products of matrices against torch.matmul
and torch._int_mm: of floats, of codes that are there, and of floats that are quantised first. The sides run turn by
turn; times are medians of synchronised runs. Without a device nothing is measured: {"data": {"results": [], "skipped":
why}}.

A machine with a device may have a torch that does not trace: `--trace FILE` writes the steps' Programs elsewhere, and
`--program FILE` reads them there. `--due FILE` has the processor's roots, where its steps would take the device's time:
they are computed and written if the file is not there. (tools/device-check does all of this. The file is not called
cuda.py: a script's folder comes first, and `cuda` is what torch would import from it.)
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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import count, islice
from math import prod
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from lockstep.numerics import arrays, paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.builder import ProgramBuilder, Quantised, Tensor
from lockstep.numerics.cuda import CudaExecutable, open_device
from lockstep.numerics.cuda.device import Device, compiler_version, machine_code
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.cuda.memory import plan
from lockstep.numerics.cuda.selftest import check_device, golden_program
from lockstep.numerics.tables import width_of
from lockstep.numerics.trace import layout_root
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import F32, I32, Program, groups_of
from lockstep.tracing.arithmetic import PRODUCTS, Arithmetic
from lockstep.training.job import Batch, build_programs
from lockstep.training.losses import Loss
from lockstep.training.models import CNN, GPT, CNNConfig, GPTConfig, Llama, LlamaConfig, image_loss, next_token_loss
from lockstep.training.strategies import diloco

STAGES = ("selftest", "roots", "kernels", "steps", "compiled", "profile", "products")


@dataclass(frozen=True)
class Workload:
    """A model and its batch."""

    build: Callable[[], nn.Module]
    vocabulary: int
    batch: Batch
    loss: Loss = next_token_loss


MODELS = {
    "gpt-small": Workload(lambda: GPT(GPTConfig(4096, 256, layers=6, heads=6, width=384)), 4096, Batch(8, 257)),
    "llama-small": Workload(
        lambda: Llama(LlamaConfig(4096, 256, layers=6, heads=6, kv_heads=2, width=384, hidden=1000)),
        4096,
        Batch(8, 257),
    ),
    "cnn-small": Workload(lambda: CNN(CNNConfig(size=28, width=24)), 10, Batch(32, 785), image_loss),
    "gpt2-124m": Workload(
        lambda: GPT(GPTConfig(50_257, 1024, layers=12, heads=12, width=768, bias=True)), 50_257, Batch(4, 1025)
    ),
    "llama-124m": Workload(
        lambda: Llama(LlamaConfig(32_000, 1024, layers=12, heads=12, kv_heads=4, width=768, hidden=2048)),
        32_000,
        Batch(4, 1025),
    ),
}
EMULATED = Workload(lambda: GPT(GPTConfig(64, 16, layers=2, heads=2, width=80)), 64, Batch(4, 17))
SEED = bytes(32)
SHAPES = [
    (2048, 384, 1152),
    (2048, 384, 1536),
    (2048, 1536, 384),
    (384, 2048, 1536),
    (2048, 384, 4096),
    (4096, 4096, 4096),
]
"""(M, K, N) of x[m, k] w[n, k]: those of gpt-small, and one that fills a device."""
REPEATS = 8
"""Products of a launch."""
FLOATS, CODES, QUANTISED = "float32", "codes", "int8"
RIVALS = {FLOATS: ("float32", "tf32"), CODES: ("int8", "bfloat16"), QUANTISED: ("float32", "bfloat16")}
"""Torch's arithmetics beside each of our products: of floats, of codes and scales, of floats to be quantised."""
SLOWEST = 24
"""Kernels that a profile names."""
PEERS = [(kind, name) for kind in ("eager", "compiled") for name in ("float32", "tf32", "bfloat16")]
"""torch's steps: how they run, and in which arithmetic."""


@dataclass(frozen=True)
class Tested:
    """The device's self-test."""

    device: str
    unit: str
    """The one of `UNITS` that multiplies codes."""
    seconds: float
    gigabytes: float
    """Free memory of the device."""
    nvrtc: str
    torch: str
    what: str = "selftest"


@dataclass(frozen=True)
class Roots:
    """A run compared root by root."""

    model: str
    products: str
    steps: int
    equal: int
    """Steps with the processor's root; the run stops at the first other one."""
    last: str
    what: str = "roots"


@dataclass(frozen=True)
class Start:
    """Kernels of a step: the time that a process takes for them before they are in the cache and after, how often they
    are launched, the device's memory."""

    model: str
    products: str
    cold_seconds: float
    warm_seconds: float
    kernels: int
    launches: int
    """Launches of one step."""
    megabytes: float
    """Memory of a step from state to state."""
    shown_megabytes: float
    """Memory to show every op's output, one after the other, as a game needs them."""
    what: str = "kernels"


@dataclass(frozen=True)
class Kernel:
    """A kernel's part of a step."""

    model: str
    products: str
    kernel: str
    launches: int
    blocks: int
    """Blocks of all launches."""
    ms: float
    """Time of its launches of one step, one after the other, without the others."""
    share: float
    """Its part of the sum over all kernels."""
    what: str = "profile"


@dataclass(frozen=True)
class Time:
    """A step or a product beside torch's."""

    what: str
    model: str
    """A model, or M x K x N of a product."""
    products: str
    against: str
    ms: float
    theirs_ms: float
    ratio: float
    """Our time / theirs."""
    rate: float
    """Tokens per second of a step, TFLOP/s of a product: ours."""


SHARED_BYTES = 227 << 10
"""Shared memory of a block of an H100, the device that kernels are compiled for ahead."""
OF_A_DEVICE = ("steps", "compiled", "products")
"""Stages that a device alone has: torch runs beside."""

Programs = Mapping[tuple[str, str], Program]
"""The step of each model in each arithmetic."""


def training_step(workload: Workload, products: str) -> Program:
    """The Program of a step of training: forward, backward, clipping, AdamW."""
    arithmetic, spec = Arithmetic(products), diloco.DiLoCo()
    return build_programs(
        workload.build(), workload.loss, spec, batch=workload.batch, rounds=6, slots=3, arithmetic=arithmetic
    ).step


def beginning(program: Program, workload: Workload) -> tuple[list[Array | None], Array]:
    """Small parameters, zero moments; a dataset."""
    rng = np.random.default_rng(0)
    state: list[Array | None] = [
        None if h is None else np.zeros(h.shape, arrays.DTYPES[h.dtype]) for h in program.inputs
    ]
    for k in (0, 2):  # the parameters and the round's anchor
        header = program.inputs[k]
        assert header is not None, "the state begins with parameters, then the anchor"
        state[k] = np.random.default_rng(1).standard_normal(header.shape, np.float32) * np.float32(0.02)
    dataset = rng.integers(0, workload.vocabulary, (1000, workload.batch.row_length)).astype(np.int32)
    dataset.flags.writeable = False
    return state, dataset


def processor_roots(program: Program, workload: Workload, threads: int) -> Iterator[str]:
    """State roots of the steps on the processor, as hex."""
    state, dataset = beginning(program, workload)
    processor = paths.compile(program, threads=threads)
    for t in count(1):
        state = list(processor.run(state, StepContext(SEED, 0, 0, t), dataset))
        yield layout_root(program.output_layout, state).hex()


def compare_roots(
    device: Device, name: str, products: str, program: Program, workload: Workload, steps: int, due: Iterable[str]
) -> Roots:
    """Trains until a root differs from the one that is due, or for so many steps, or until no more are due."""
    state, dataset = beginning(program, workload)
    ours = CudaExecutable(program, device=device)
    resident, root, t = ours.upload(state), "", 0
    for t, root in enumerate(islice(due, steps), 1):
        resident = ours.step(resident, StepContext(SEED, 0, 0, t), dataset)
        if ours.root(resident).hex() != root:
            return Roots(name, products, steps, t - 1, root)
    return Roots(name, products, t, t, root)


def time_kernels(device: Device, name: str, products: str, program: Program) -> Start:
    """Twice from source to a loaded module, beginning with an empty cache."""
    executable = CudaExecutable(program, device=device)
    generated = executable._loaded._generated
    seconds = []
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, LOCKSTEP_CACHE=f"{folder}/cache"):
        for _ in range(2):
            begin = time.perf_counter()
            device.load(generated.source)
            seconds.append(round(time.perf_counter() - begin, 3))
    launches = len(plan(program, generated.launches).launched(generated.launches))
    need = executable.need
    step, shown = round(1e-6 * need.step, 1), round(1e-6 * need.shown, 1)
    cold, warm = seconds
    return Start(name, products, cold, warm, generated.source.count("LOCKSTEP_EXPORT("), launches, step, shown)


def profile(
    device: Device, name: str, products: str, program: Program, workload: Workload, runs: int
) -> Iterator[Kernel]:
    """The slowest kernels: of each, all launches of a step as one graph."""
    state, dataset = beginning(program, workload)
    executable = CudaExecutable(program, device=device)
    resident = executable.upload(state)
    for _ in range(2):
        resident = executable.step(resident, StepContext(SEED, 0, 0, 1), dataset)
    device.wait()
    loaded, found = executable._loaded, []
    nodes = loaded._step._nodes()
    for kernel in dict.fromkeys(node.kernel for node in nodes):
        own = [node for node in nodes if node.kernel == kernel]
        start = loaded._kernels.record(own)

        def run(start: Callable[[], None] = start) -> None:
            start()
            device.wait()

        (ms,) = alternately(runs, run)
        found.append((ms, kernel, len(own), sum(node.blocks for node in own)))
    total = sum(ms for ms, *_ in found)
    for ms, kernel, launches, blocks in sorted(found, reverse=True)[:SLOWEST]:
        yield Kernel(name, products, kernel, launches, blocks, round(ms, 4), round(ms / total, 3))


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


def _tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = on


class Peer:
    """The same step in PyTorch on the device, as people write it."""

    def __init__(self, workload: Workload, arithmetic: str, compiled: bool) -> None:
        model = workload.build().cuda()
        self.parameters, self.loss = list(model.parameters()), workload.loss
        self.rows = torch.randint(
            0, workload.vocabulary, (workload.batch.rows, workload.batch.row_length), device="cuda"
        )
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, fused=True)
        self.arithmetic = arithmetic
        self.model = torch.compile(model) if compiled else model

    def step(self) -> None:
        """Forward, backward, clipping, AdamW; done when it returns."""
        _tf32(self.arithmetic == "tf32")
        self.optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if self.arithmetic == "bfloat16" else nullcontext():
            loss = self.loss(self.model, self.rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        torch.cuda.synchronize()


def peers(workload: Workload, kinds: Collection[str] = ("eager", "compiled")) -> dict[str, Callable[[], object]]:
    """torch's steps that this machine can take, by name; what it cannot take is told on stderr."""
    found: dict[str, Callable[[], object]] = {}
    for kind, arithmetic in PEERS:
        if kind not in kinds:
            continue
        name = f"torch {arithmetic}, {kind}"
        try:
            found[name] = tried(workload, arithmetic, kind == "compiled")
        except RuntimeError as error:
            if isinstance(cause(error), torch.OutOfMemoryError):
                print(f"{name} is skipped, it runs out of the device's memory: {error}", file=sys.stderr)
            elif kind == "compiled" and forbids_compiling(error):
                print(f"torch.compile is skipped: {error}", file=sys.stderr)
                break
            else:
                raise
        torch.cuda.empty_cache()  # what this step took, or failed with, is room for the next one
    return found


def tried(workload: Workload, arithmetic: str, compiled: bool) -> Callable[[], object]:
    """torch's step after a first one, which compiles."""
    step = Peer(workload, arithmetic, compiled).step
    step()
    return step


def cause(error: Exception) -> Exception:
    """The error of a backend of torch.compile, which torch wraps; any other error is its own cause."""
    inner = getattr(error, "inner_exception", None)
    return inner if isinstance(inner, Exception) else error


def forbids_compiling(error: Exception) -> bool:
    """True if the backend cannot compile here: no Triton, no C++ compiler, a device that is too old."""
    from torch._dynamo.exc import BackendCompilerFailed  # takes seconds, and most calls compile nothing
    from torch._inductor.exc import GPUTooOldForTriton, TritonMissing

    return isinstance(error, BackendCompilerFailed | GPUTooOldForTriton | TritonMissing)


def steps_of(device: Device, program: Program, workload: Workload) -> tuple[Callable[[], object], Callable[[], object]]:
    """A step, and a step with its state's root; each is done when it returns."""
    state, dataset = beginning(program, workload)
    executable = CudaExecutable(program, device=device)
    resident = executable.upload(state)

    def step() -> None:
        nonlocal resident
        resident = executable.step(resident, StepContext(SEED, 0, 0, 1), dataset)
        device.wait()

    def step_and_root() -> None:
        step()
        executable.root(resident)

    return step, step_and_root


def time_steps(
    device: Device, name: str, programs: Mapping[str, Program], workload: Workload, runs: int, kind: str
) -> Iterator[Time]:
    """Each arithmetic's step, without and with its root, against each of torch's of a kind."""
    ours = {
        (what, products): run
        for products, program in programs.items()
        for what, run in zip(("step", "step and root"), steps_of(device, program, workload), strict=True)
    }
    theirs = peers(workload, {kind})
    found = alternately(runs, *ours.values(), *theirs.values())
    tokens = workload.batch.rows * (workload.batch.row_length - 1) * workload.batch.accumulation
    for (what, products), ms in zip(ours, found, strict=False):
        for against, base in zip(theirs, found[len(ours) :], strict=True):
            yield _time(what, name, products, against, ms, base, round(1e3 * tokens / ms))


def _time(what: str, model: str, products: str, against: str, ms: float, base: float, rate: float) -> Time:
    return Time(what, model, products, against, round(ms, 4), round(base, 4), round(ms / base, 3), rate)


def product(kind: str, m: int, k: int, n: int, repeats: int) -> Program:
    """x[m, k] w[n, k] of one x and `repeats` w: of floats, of codes and scales, or of floats that are quantised."""
    width = width_of(k)
    groups = groups_of(k, width)
    rows = [m, *[n] * repeats]
    if kind == CODES:
        b = ProgramBuilder([header for r in rows for header in ((I32, r * groups * width), (F32, r * groups))])
        given = [b.input(j) for j in range(2 * len(rows))]
        operands = [
            Quantised(codes.reshape(r, groups * width), scales.reshape(r, groups), width)
            for r, codes, scales in zip(rows, given[::2], given[1::2], strict=True)
        ]
    else:
        b = ProgramBuilder([(F32, r * k) for r in rows])
        plain = [b.input(j).reshape(r, k) for j, r in enumerate(rows)]
        if kind == FLOATS:
            return b.finish([b.dot(plain[0].unsqueeze(1), w) for w in plain[1:]])
        operands = [b.quant(x, width) for x in plain]
    results: list[Tensor | None] = [b.qdot(operands[0].unsqueeze(1), w) for w in operands[1:]]
    return b.finish(results)


def operands_of(program: Program) -> list[Array | None]:
    """Normal floats, any words as codes."""
    rng = np.random.default_rng(0)
    return [
        None if h is None
        else rng.standard_normal(h.elements, np.float32) if h.dtype == F32
        else rng.integers(-(2**31), 2**31, h.elements).astype(np.int32)
        for h in program.inputs
    ]  # fmt: skip


def launch_of(device: Device, program: Program) -> Callable[[], object]:
    """A launch of a Program whose state is on the device; done when it returns."""
    executable = CudaExecutable(program, device=device)
    resident = executable.upload(operands_of(program))

    def launch() -> None:
        executable.step(resident, StepContext(SEED, 0, 0, 1))
        device.wait()

    return launch


def rival(arithmetic: str, m: int, k: int, n: int, repeats: int) -> Callable[[], object]:
    """torch's products of the same shapes, operands contiguous along k."""
    left, *rights = (rival_operand(arithmetic, r, k, "cuda") for r in (m, *[n] * repeats))
    multiply = torch._int_mm if arithmetic == "int8" else torch.matmul

    def run() -> None:
        _tf32(arithmetic == "tf32")
        for right in rights:
            multiply(left, right.T)
        torch.cuda.synchronize()

    return run


def rival_operand(arithmetic: str, rows: int, k: int, device: str) -> torch.Tensor:
    """Normal values of deviation 40, in [rows, k]; as codes they end at -127 and 127."""
    values = torch.randn(rows, k, device=device).mul(40)
    if arithmetic == "int8":
        return values.clamp(-127, 127).to(torch.int8)
    return values.to(torch.bfloat16) if arithmetic == "bfloat16" else values


def time_products(device: Device, kind: str, m: int, k: int, n: int, runs: int) -> Iterator[Time]:
    """A launch of several products on both sides, so that launching is not measured."""
    theirs = [rival(arithmetic, m, k, n, REPEATS) for arithmetic in RIVALS[kind]]
    ms, *bases = (
        found / REPEATS
        for found in alternately(runs, launch_of(device, product(kind, m, k, n, REPEATS)), *theirs)
    )  # fmt: skip
    for arithmetic, base in zip(RIVALS[kind], bases, strict=True):
        rate = round(2e-9 * prod((m, k, n)) / ms, 2)
        yield _time("product", f"{m} x {k} x {n}", kind, f"torch {arithmetic}", ms, base, rate)


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Returns the object under "data"."""
    models: dict[str, Workload]
    if arguments.emulate:
        arguments.steps, arguments.runs = min(arguments.steps, 5), min(arguments.runs, 1)
        models = {"emulated": EMULATED}
        stages = [stage for stage in arguments.stages if stage not in OF_A_DEVICE]
        small = {("emulated", products): training_step(EMULATED, products) for products in arguments.products}
        return {"results": told(arguments, run(arguments, stages, Emulator(), models, small)), "device": "emulated"}
    models = {name: MODELS[name] for name in arguments.model}
    given: Programs | None = read(arguments.program, arguments) if arguments.program else None
    if arguments.due and not arguments.due.exists():
        arguments.due.write_text(json.dumps(due_roots(models, given or traced(arguments), arguments)))
        return {"results": [], "skipped": f"the processor's roots are in {arguments.due}"}
    try:
        device = open_device()
    except UsageError as error:
        return {"results": [], "skipped": str(error)}
    lacking = set(arguments.stages) - {"selftest", "products"} and given is None
    given = traced(arguments) if lacking else given or {}
    return {"results": told(arguments, run(arguments, arguments.stages, device, models, given)), "device": device.name}


def told(arguments: argparse.Namespace, results: Iterator[object]) -> list[object]:
    """The results as objects; each is written to `--lines` as it comes."""
    found = []
    for result in results:
        found.append(asdict(result))  # type: ignore[call-overload]
        if arguments.lines:
            with arguments.lines.open("a") as file:
                file.write(json.dumps(found[-1]) + "\n")
    return found


def due_roots(models: Mapping[str, Workload], given: Programs, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The processor's roots of each model in each arithmetic."""
    return {
        f"{name} {products}": list(
            islice(processor_roots(given[name, products], workload, arguments.threads), arguments.steps)
        )
        for name, workload in models.items()
        for products in arguments.products
    }


def run(
    arguments: argparse.Namespace, stages: Collection[str], device: Device, models: Mapping[str, Workload],
    given: Programs,
) -> Iterator[object]:  # fmt: skip
    """The results of the stages, in their order."""
    kept = json.loads(arguments.due.read_text()) if arguments.due else {}
    if "selftest" in stages:
        begin = time.perf_counter()
        check_device(device)
        seconds, free = round(time.perf_counter() - begin, 3), round(1e-9 * device.memory.free, 1)
        nvrtc = "" if isinstance(device, Emulator) else compiler_version()
        yield Tested(device.name, device.unit, seconds, free, nvrtc, torch.__version__)
    for stage in stages:
        for name, workload in models.items():
            programs = {products: given[name, products] for products in arguments.products if given}
            if stage in ("steps", "compiled"):
                kind = "eager" if stage == "steps" else "compiled"
                yield from time_steps(device, name, programs, workload, arguments.runs, kind)
                torch.compiler.reset()  # or the next model is compiled as another form of this one
                continue
            for products, program in programs.items():
                about = (device, name, products, program)
                if stage == "roots":
                    due = kept.get(f"{name} {products}") or processor_roots(program, workload, arguments.threads)
                    yield compare_roots(*about, workload, arguments.steps, due)
                elif stage == "kernels":
                    yield time_kernels(*about)
                elif stage == "profile":
                    yield from profile(*about, workload, arguments.runs)
    if "products" in stages:
        for shape in SHAPES:
            for kind in RIVALS:
                yield from time_products(device, kind, *shape, arguments.runs)


def warm(arguments: argparse.Namespace) -> None:
    """Compiles everything for an architecture into the cache, without a device; raises UsageError without NVRTC."""
    steps = read(arguments.program, arguments) if arguments.program else traced(arguments)
    others = [golden_program(), *(product(kind, *shape, REPEATS) for shape in SHAPES for kind in RIVALS)]
    for program in [*steps.values(), *others]:
        machine_code(generate(program, SHARED_BYTES, tiles=False).source, arguments.warm)


def read(file: Path, arguments: argparse.Namespace) -> Programs:
    """The Programs that `--trace` wrote; raises UsageError for another file, or one that lacks what is asked for."""
    hint = "write the file anew: --trace FILE, with the same --model and --products"
    try:
        given = pickle.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint) from error
    except Exception as error:  # bytes that are no pickle raise anything, as do names that have gone since
        raise UsageError(f"{file} is not what --trace writes: {error}", hint) from error
    if not isinstance(given, dict) or not all(isinstance(program, Program) for program in given.values()):
        raise UsageError(f"{file} is of another form than --trace writes: {type(given).__name__}", hint)
    asked = [(name, products) for name in arguments.model for products in arguments.products]
    if lacking := [" ".join(key) for key in asked if key not in given]:
        raise UsageError(f"{file} has no step of {', '.join(lacking)}", hint)
    return given


def traced(arguments: argparse.Namespace) -> Programs:
    """The steps of the models in the arithmetics that are asked for."""
    return {
        (name, products): training_step(MODELS[name], products)
        for name in arguments.model
        for products in arguments.products
    }


def main(given: list[str] | None = None) -> int:
    """Measures, prints; exit status 1 if a root differs, 2 for arguments that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--model", nargs="+", choices=MODELS, help="(default: all)")
    parser.add_argument("--products", nargs="+", choices=PRODUCTS, default=[*PRODUCTS], help="of steps (default: all)")
    parser.add_argument("--steps", type=int, default=100, help="steps whose roots are compared (default 100)")
    parser.add_argument("--runs", type=int, default=30, help="measured calls of each side (default 30)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of the processor (default: all)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=[*STAGES], help="(default: all)")
    parser.add_argument("--lines", type=Path, metavar="FILE", help="append each result, as it comes, as a line of JSON")
    parser.add_argument("--warm", metavar="ARCH", help="compile the Programs into the cache, and stop")
    parser.add_argument("--due", type=Path, metavar="FILE", help="the processor's roots; written if it is not there")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--emulate", action="store_true", help="a small model on the emulated device")
    way.add_argument("--trace", type=Path, metavar="FILE", help="write the steps' Programs, and stop")
    way.add_argument("--program", type=Path, metavar="FILE", help="what --trace wrote; your own: it is a pickle")
    arguments = parser.parse_args(given)
    if arguments.emulate and arguments.model:
        parser.error("--emulate has a model of its own: leave out --model")
    arguments.model = arguments.model or [*MODELS]
    if arguments.trace:
        arguments.trace.write_bytes(pickle.dumps(traced(arguments)))
        return 0
    try:
        if arguments.warm:
            warm(arguments)
            return 0
        data = measure(arguments)
    except UsageError as error:
        parser.error(f"{error}\n{error.hint}")
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
