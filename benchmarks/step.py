"""A reproducible training step against eager PyTorch, and the matrix products under it, at one thread.

    python benchmarks/step.py             tables
    python benchmarks/step.py --json      one line of JSON on stdout

The two run turn by turn in one process, so that a busy machine slows both; times are medians. The step is the demo's:
forward, backward, clipping and AdamW of a GPT. Hashing is S_t of the state that the step leaves.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from lockstep.numerics import _native, executor  # noqa: E402
from lockstep.numerics.builder import ProgramBuilder  # noqa: E402
from lockstep.numerics.executor import Array, Context  # noqa: E402
from lockstep.numerics.trace import layout_root  # noqa: E402
from lockstep.protocol import _hash  # noqa: E402
from lockstep.protocol.program import F32, Program  # noqa: E402
from lockstep.training.demo import BATCH, MODEL  # noqa: E402
from lockstep.training.job import Batch, build_programs  # noqa: E402
from lockstep.training.models import GPT, GPTConfig  # noqa: E402
from lockstep.training.models.gpt import next_token_loss  # noqa: E402
from lockstep.training.strategies import diloco  # noqa: E402

SEED = bytes(32)
SHAPES = [
    (1024, 128, 384), (1024, 128, 512), (1024, 512, 128), (128, 1024, 512), (1024, 384, 1536), (1024, 1536, 384),
    (512, 3072, 768),
]  # fmt: skip
"""(M, K, N): the demo's products and a larger model's."""


@dataclass(frozen=True)
class StepTime:
    """Milliseconds of one training step."""

    path: str
    ops: int
    parameters: int
    tokens: int
    step_ms: float
    eager_ms: float
    ratio: float
    """step / eager."""
    hash_ms: float
    """The state root."""


@dataclass(frozen=True)
class ProductTime:
    """One matrix product, both operands contiguous along k."""

    m: int
    k: int
    n: int
    ms: float
    torch_ms: float
    ratio: float
    gflops: float


def alternately(runs: int, *functions: Callable[[], object]) -> list[float]:
    """Median milliseconds of each function, called in turn."""
    times: list[list[float]] = [[] for _ in functions]
    for run in range(runs + 2):
        for function, found in zip(functions, times, strict=True):
            begin = time.perf_counter()
            function()
            if run >= 2:  # the first two find memory and caches cold
                found.append(1e3 * (time.perf_counter() - begin))
    return [statistics.median(found) for found in times]


class Eager:
    """The same step in eager PyTorch, as people write it."""

    def __init__(self, model: GPT, batch: Batch) -> None:
        self.model = model
        self.rows = torch.randint(0, model.config.vocabulary, (batch.rows, batch.row_length))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self) -> None:
        """Forward, backward, clipping, AdamW."""
        self.optimizer.zero_grad()
        next_token_loss(self.model, self.rows).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


class Reproducible:
    """The step as a Program, state after state."""

    def __init__(self, program: Program, vocabulary: int, path: str) -> None:
        self.program = program
        self.executable = executor.compile(program, threads=1, path=path)
        rng = np.random.default_rng(0)
        length = next(op.extents[1] for op in program.ops if op.kind.name == "DRAW")
        self.dataset = rng.integers(0, vocabulary, (1000, length)).astype(np.int32)
        self.state: list[Array | None] = [
            None if h is None else np.zeros(h.shape, executor.DTYPES[h.dtype]) for h in program.inputs
        ]
        weights = self.state[0]
        assert weights is not None, "the state begins with the parameters"
        self.state[0] = (rng.standard_normal(weights.shape) * 0.02).astype(np.float32)

    def step(self) -> None:
        """S_{t-1} to S_t."""
        self.state = list(self.executable.run(self.state, Context(SEED, 0, 0, 1), self.dataset))

    def step_and_root(self) -> None:
        """The same, hashed."""
        self.step()
        layout_root(self.program.output_layout, self.state)


def time_step(config: GPTConfig, batch: Batch, path: str, runs: int) -> StepTime:
    """One model's step on one path."""
    model = GPT(config)
    programs = build_programs(model, next_token_loss, diloco.Spec(), batch=batch, rounds=6, slots=3)
    ours, hashed = (Reproducible(programs.step, config.vocabulary, path) for _ in range(2))
    eager = Eager(model, batch)
    step, whole, base = alternately(runs, ours.step, hashed.step_and_root, eager.step)
    return StepTime(
        path=path,
        ops=len(programs.step.ops),
        parameters=programs.layout.size,
        tokens=batch.rows * (batch.row_length - 1) * batch.accumulation,
        step_ms=round(step, 2),
        eager_ms=round(base, 2),
        ratio=round(step / base, 3),
        hash_ms=round(whole - step, 2),
    )


def time_product(m: int, k: int, n: int, path: str, runs: int) -> ProductTime:
    """out[m, n] = sum_k a[m, k] b[n, k]."""
    b = ProgramBuilder([(F32, m * k), (F32, n * k)])
    product = b.dot(b.input(0).reshape(m, k).unsqueeze(1), b.input(1).reshape(n, k))
    executable = executor.compile(b.finish([product]), threads=1, path=path)
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal(size).astype(np.float32) for size in (m * k, n * k))
    left, right = torch.from_numpy(x).reshape(m, k), torch.from_numpy(y).reshape(n, k)
    context = Context(SEED, 0, 0, 1)
    ms, base = alternately(runs, lambda: executable.run([x, y], context), lambda: left @ right.T)
    return ProductTime(m, k, n, round(ms, 3), round(base, 3), round(ms / base, 3), round(2e-6 * m * n * k / ms, 1))


def main() -> int:
    """Times the step and the products; prints tables, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--runs", type=int, default=15, help="measured calls of each (default 15)")
    parser.add_argument("--path", default="auto", help="kernel path: auto, avx512, avx2, scalar")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = _native.best_isa() if arguments.path == "auto" else arguments.path
    step = time_step(MODEL, BATCH, path, arguments.runs)
    products = [time_product(*shape, path, arguments.runs) for shape in SHAPES]
    mean = statistics.geometric_mean([p.ratio for p in products])
    if arguments.json:
        result = {"step": asdict(step), "products": [asdict(p) for p in products], "products_ratio": round(mean, 3)}
        print(json.dumps({**result, "sha256": _hash.isa()}))
        return 0
    print(f"step of {step.parameters:,} parameters on {step.tokens} tokens, {step.ops} ops, {path}, one thread")
    print(f"  {step.step_ms:8.2f} ms   eager PyTorch {step.eager_ms:8.2f} ms   ratio {step.ratio:.3f}")
    print(f"  {step.hash_ms:8.2f} ms   to hash the state ({_hash.isa()})")
    print(f"{'m':>6}{'k':>6}{'n':>6}{'ms':>10}{'torch ms':>10}{'ratio':>8}{'GFLOP/s':>9}")
    for p in products:
        print(f"{p.m:6}{p.k:6}{p.n:6}{p.ms:10.3f}{p.torch_ms:10.3f}{p.ratio:8.3f}{p.gflops:9.1f}")
    print(f"geometric mean of the ratios: {mean:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
