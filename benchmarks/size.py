"""Models of real size: what tracing them takes, and a step of those that fit this machine beside PyTorch's.

    python benchmarks/size.py             a table
    python benchmarks/size.py --json      one line of JSON on stdout
    python benchmarks/size.py --products int8

Each model is built without weights and its three Programs are traced and validated in a process of its own, whose time
and peak memory are reported. The models of 124 million parameters then train: forward, backward, clipping to norm 1 and
AdamW in float32. Ours includes S_t, the hash of the whole state after every step, and holds what a worker holds beside
it: the base and the outer momentum. Theirs is eager PyTorch with the faster of its foreach and fused AdamW. Each
side is a process of its own that is told to take a step by turns with the other; figures are medians, the ratio is the
median of the turns' own, and a side's memory is its process's peak over what it held before it made anything.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# Run from a checkout: tests import this module by its full name.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import nn

from benchmarks.measure import Training, ratio, resident, wait_asleep
from lockstep.execution import footprint
from lockstep.execution.jobs import JobPrograms
from lockstep.numerics.arrays import Array
from lockstep.numerics.validate import check_programs
from lockstep.protocol.programs.program import Program
from lockstep.storage.payload import BLOCK
from lockstep.tracing.arithmetic import PRODUCTS, Arithmetic
from lockstep.training.job import Batch, build_programs
from lockstep.training.models import Llama, LlamaConfig, next_token_loss
from lockstep.training.parameters import without_weights
from lockstep.training.strategies import diloco

GB = 1e9
MIB = 1 << 20
SLOTS = 4
SPEC = diloco.DiLoCo(payload="int8-block")
MAX_RATIO = 0.95
MAX_MEMORY_RATIO = 1.15
MAX_TRACE_SECONDS, MAX_TRACE_GB = 120, 4


@dataclass(frozen=True)
class Model:
    """One row of the benchmark."""

    build: Callable[[], nn.Module]
    vocabulary: int
    batch: Batch
    trained: bool
    """True: this machine takes steps of the model."""


def gpt2() -> nn.Module:
    """GPT-2 124M of `transformers`, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False))


def llama_3(layers: int, width: int, hidden: int, tied: bool) -> nn.Module:
    """A Llama 3 of `transformers`: 128,256 tokens, heads of width / 32, 8 of them for keys and values."""
    from transformers import LlamaConfig as Config
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM(
        Config(
            vocab_size=128_256, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
            num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131_072, rms_norm_eps=1e-5,
            rope_theta=500_000.0, tie_word_embeddings=tied, use_cache=False,
        )
    )  # fmt: skip


ROWS = Batch(rows=4, row_length=1025)
MODELS = {
    "GPT-2 124M": Model(gpt2, 50_257, ROWS, True),
    "Llama 124M": Model(
        lambda: Llama(LlamaConfig(32_000, 1024, layers=12, heads=12, kv_heads=4, width=768, hidden=2048)),
        32_000, ROWS, True,
    ),
    "Llama 1.2B": Model(lambda: llama_3(16, 2048, 8192, True), 128_256, ROWS, False),
    "Llama 8B": Model(lambda: llama_3(32, 4096, 14_336, False), 128_256, ROWS, False),
}  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """The time and memory of tracing a model, and the figures of its Programs."""

    parameters: int
    ops: int
    """Ops of the step."""
    elements: int
    """Elements of all ops of the step together."""
    shards: int
    trace_seconds: float
    """Time for all three Programs, their roots and their validation."""
    trace_gb: float
    """Peak of the whole process, torch's libraries included."""
    worker_gb: float
    """Memory that a worker of such a job is quoted."""
    payload_gb: float
    """Size of a slot's payload in a round: a byte an element and a scale a block."""


@dataclass(frozen=True)
class Size:
    """A model at one number of threads; figures of a step are None where this machine takes none."""

    model: str
    products: str
    """The arithmetic of our side's matrix products."""
    parameters: int
    tokens: int
    """Tokens of one step."""
    ops: int
    elements: int
    shards: int
    trace_seconds: float
    trace_gb: float
    worker_gb: float
    payload_gb: float
    threads: int | None = None
    step_seconds: float | None = None
    """The step and its state's hash."""
    eager_seconds: float | None = None
    ratio: float | None = None
    gb: float | None = None
    eager_gb: float | None = None
    memory_ratio: float | None = None
    """Without the base and the momentum, which eager training does not hold, over theirs."""


# -- in children


@dataclass(frozen=True)
class Terms:
    """The parameters of a job by which its Programs are validated and quoted."""

    shared_depth: int
    payload_depth: int
    slots: int
    row_length: int
    carry: int = 0


def trace_model(name: str, path: Path, products: str) -> Traced:
    """Traces and validates the Programs; leaves the step's at `path`."""
    model, begin = MODELS[name], time.perf_counter()
    with without_weights():
        built = model.build()
    arithmetic = Arithmetic(products)
    programs = build_programs(
        built, next_token_loss, SPEC, batch=model.batch, rounds=10, slots=SLOTS, arithmetic=arithmetic
    )
    terms = Terms(programs.sections.shared_depth, programs.sections.payload_depth, SLOTS, model.batch.row_length)
    check_programs(programs.step, programs.encode, programs.merge, terms)
    need = footprint.worker(JobPrograms(programs.step, programs.encode, programs.merge), SLOTS)
    payload = sum(h.elements + 4 * (h.elements // BLOCK) for h in programs.encode.output_layout if h is not None)
    for program in (programs.step, programs.encode, programs.merge):
        assert len(program.root) == 32, "a root is a digest"
    seconds, peak = time.perf_counter() - begin, resident("VmHWM") * MIB
    path.write_bytes(pickle.dumps(programs.step))
    step = programs.step
    return Traced(
        programs.layout.used, len(step.ops), step.ops[-1].cumulative, len(programs.layout.sizes), round(seconds, 1),
        round(peak / GB, 2), round(need.total / GB, 2), round(payload / GB, 3),
    )  # fmt: skip


class Worker(Training):
    """Ours, with what a worker holds beside its state."""

    def __init__(self, program: Program, vocabulary: int, threads: int) -> None:
        super().__init__(program, vocabulary, threads)
        base = self.state[0]
        assert base is not None, "the state begins with the parameters"
        self.state[2], self.base = base, base
        self.momentum: Array = np.full(base.shape, 1e-3, np.float32)


class Eager:
    """The same step as people write it in PyTorch."""

    def __init__(self, name: str, kind: str) -> None:
        model = MODELS[name]
        self.model, batch = model.build(), model.batch
        self.parameters = list(self.model.parameters())
        self.rows = torch.randint(0, model.vocabulary, (batch.rows, batch.row_length))
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, weight_decay=0.1, **{kind: True})

    def step(self) -> None:
        """Forward, backward, clipping, AdamW."""
        self.optimizer.zero_grad()
        next_token_loss(self.model, self.rows).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()


def serve(side: str, name: str, threads: int, path: Path) -> None:
    """Takes a step for each line of stdin; answers with its seconds and the process's growth at most, in bytes."""
    torch.set_num_threads(threads)
    torch.ones(64, 64) @ torch.ones(64, 64)  # torch's own pools
    before = resident()
    if side == "ours":
        program: Program = pickle.loads(path.read_bytes())
        step = Worker(program, MODELS[name].vocabulary, threads).step_and_root
    else:
        step = Eager(name, side).step
    for _ in sys.stdin:
        begin = time.perf_counter()
        step()
        print(json.dumps([time.perf_counter() - begin, (resident("VmHWM") - before) * MIB]), flush=True)


# -- in the parent


class SteppingChild:
    """A child that takes steps when it is told to."""

    def __init__(self, *arguments: object) -> None:
        self.child = subprocess.Popen(
            [sys.executable, __file__, "--serve", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.peak = 0.0

    def step(self) -> float:
        """Seconds of one step."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("step\n")
        self.child.stdin.flush()
        answer = self.child.stdout.readline()
        if not answer:
            raise ChildProcessError(f"{self.child.args} ended with {self.child.wait()}")
        seconds, self.peak = json.loads(answer)
        return float(seconds)

    def __enter__(self) -> SteppingChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.communicate()


def faster_adamw(name: str, threads: int, path: Path) -> str:
    """ "foreach" or "fused": the second of two steps of each, by turns."""
    with SteppingChild("foreach", name, threads, path) as foreach, SteppingChild("fused", name, threads, path) as fused:
        times = [(foreach.step(), fused.step()) for _ in range(2)]
    return "foreach" if times[1][0] < times[1][1] else "fused"


def time_steps(name: str, parameters: int, threads: int, runs: int, path: Path) -> dict[str, Any]:
    """The figures of a step: ours beside eager PyTorch, the first turn left out."""
    with (
        SteppingChild("ours", name, threads, path) as ours,
        SteppingChild(faster_adamw(name, threads, path), name, threads, path) as theirs,
    ):
        turns = [(ours.step(), theirs.step()) for _ in range(runs + 1)][1:]
    mine, beside = ([turn[k] for turn in turns] for k in (0, 1))
    held = 2 * 4 * parameters
    return {
        "threads": threads,
        "step_seconds": round(float(np.median(mine)), 3),
        "eager_seconds": round(float(np.median(beside)), 3),
        "ratio": ratio(mine, beside),
        "gb": round(ours.peak / GB, 2),
        "eager_gb": round(theirs.peak / GB, 2),
        "memory_ratio": round((ours.peak - held) / theirs.peak, 3),
    }


def measure(name: str, threads: list[int], runs: int, products: str = "float32") -> list[Size]:
    """A model's rows: one for each number of threads, or one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pickle"
        child = [sys.executable, __file__, "--trace", name, str(path), products]
        traced = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True).stdout)
        tokens = MODELS[name].batch.rows * (MODELS[name].batch.row_length - 1)
        if not MODELS[name].trained:
            return [Size(model=name, products=products, tokens=tokens, **traced)]
        return [
            Size(
                model=name,
                products=products,
                tokens=tokens,
                **traced,
                **time_steps(name, traced["parameters"], n, runs, path),
            )
            for n in threads
        ]


def check(row: Size) -> list[str]:
    """The bounds that a row does not keep."""
    broken = []
    if row.trace_seconds > MAX_TRACE_SECONDS and row.parameters < 2e9:
        broken.append(f"traced in {row.trace_seconds} s, {MAX_TRACE_SECONDS} are allowed")
    if row.trace_gb > MAX_TRACE_GB:
        broken.append(f"traced in {row.trace_gb} GB, {MAX_TRACE_GB} are allowed")
    if row.ratio is not None and row.ratio > MAX_RATIO:
        broken.append(f"{row.ratio} of eager's time, {MAX_RATIO} is allowed")
    if row.memory_ratio is not None and row.memory_ratio > MAX_MEMORY_RATIO:
        broken.append(f"{row.memory_ratio} of eager's memory, {MAX_MEMORY_RATIO} is allowed")
    return [f"{row.model}, {row.threads} threads: {what}" for what in broken]


def main() -> int:
    """Measures; prints a table, or one line of JSON. Exits 1 if a bound is not kept."""
    wait_asleep()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--runs", type=int, default=5, help="measured turns of each figure (default 5)")
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)} (default all)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default 1,2)")
    parser.add_argument("--products", choices=PRODUCTS, default="float32", help="of our side (default float32)")
    parser.add_argument("--trace", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trace:
        print(json.dumps(asdict(trace_model(arguments.trace[0], Path(arguments.trace[1]), arguments.trace[2]))))
        return 0
    if arguments.serve:
        side, name, threads, path = arguments.serve
        serve(side, name, int(threads), Path(path))
        return 0
    results: list[Size] = []
    for name in arguments.models.split(","):
        results += measure(name, [int(n) for n in arguments.threads.split(",")], arguments.runs, arguments.products)
        print(f"{name}: {results[-1]}", file=sys.stderr)
    broken = [what for row in results for what in check(row)]
    for what in broken:
        print(what, file=sys.stderr)
    if arguments.json:
        print(json.dumps({"data": {"results": [asdict(r) for r in results], "broken": broken}}))
        return bool(broken)
    print(
        f"{'model':>11}{'parameters':>15}{'ops':>6}{'trace s':>9}{'GB':>6}{'worker GB':>11}{'payload':>9}"
        f"{'threads':>9}{'step s':>8}{'eager s':>9}{'ratio':>7}{'GB':>6}{'eager':>7}{'ratio':>7}"
    )
    for r in results:
        print(
            f"{r.model:>11}{r.parameters:15,}{r.ops:6}{r.trace_seconds:9.1f}{r.trace_gb:6.2f}{r.worker_gb:11.1f}{r.payload_gb:9.3f}",
            end="",
        )
        steps = (r.threads, r.step_seconds, r.eager_seconds, r.ratio, r.gb, r.eager_gb, r.memory_ratio)
        print("".join(f"{'-' if x is None else x:>{w}}" for x, w in zip(steps, (9, 8, 9, 7, 6, 7, 7), strict=True)))
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
