"""Matrix products as Programs against torch.matmul: every storage order, at 1 and 2 threads.

    python benchmarks/gemm.py             a table
    python benchmarks/gemm.py --json      one line of JSON on stdout
    python benchmarks/gemm.py --products int8    products of codes against torch._int_mm, which scales nothing

The layouts name how the operands lie: NN a[m, k] b[k, n]; NT a[m, k] b[n, k]; TN a[k, m] b[k, n]. torch gets the same
storage as a view (b.T, a.T). A Program's fold reads operands that are contiguous along k in the committed form, so the
other orders go through a transposing map, which the executor reads through.

The two sides run turn by turn in one process, so that a busy machine slows both; times and the ratios of
neighbouring calls are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from measure import in_turn, ratio, wait_asleep

from lockstep.numerics import _native, paths
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.builder import ProgramBuilder, Quantised, Tensor
from lockstep.protocol.programs.program import CODES, F32, I32, MAX_GROUP_WORDS, Program


@dataclass(frozen=True)
class Shape:
    """out[b, m, n] = sum_k a[b, m, k] b[b, k, n]."""

    name: str
    m: int
    k: int
    n: int
    batch: int = 1

    @property
    def gflop(self) -> float:
        """Multiplications and additions, in thousands of millions."""
        return 2e-9 * self.batch * self.m * self.k * self.n


SHAPES = [
    # GPT, 6 layers, d 384, 8 x 256 tokens, vocabulary 4096
    Shape("qkv", 2048, 384, 1152),
    Shape("attention out", 2048, 384, 384),
    Shape("mlp up", 2048, 384, 1536),
    Shape("mlp down", 2048, 1536, 384),
    Shape("vocabulary", 2048, 384, 4096),
    Shape("vocabulary dX", 2048, 4096, 384),
    Shape("Q K^T", 256, 64, 256, batch=48),
    Shape("P V", 256, 256, 64, batch=48),
    Shape("attention out dW", 384, 2048, 384),
    Shape("mlp up dW", 384, 2048, 1536),
    Shape("mlp down dW", 1536, 2048, 384),
    Shape("vocabulary dW", 4096, 2048, 384),
    # GPT-2 small, 1024 tokens
    Shape("GPT-2 qkv", 1024, 768, 2304),
    Shape("GPT-2 up", 1024, 768, 3072),
    Shape("GPT-2 down", 1024, 3072, 768),
    Shape("GPT-2 Q K^T", 1024, 64, 1024, batch=12),
    Shape("GPT-2 P V", 1024, 1024, 64, batch=12),
    # multiples of nothing
    Shape("ragged", 1000, 333, 777),
    Shape("ragged, long k", 509, 1021, 251),
    Shape("ragged, batched", 197, 61, 197, batch=24),
]
LAYOUTS = ("NN", "NT", "TN")
SECONDS = 0.5
"""The longest time of one side of one measurement, at half of a core's 100 GFLOP/s."""


@dataclass(frozen=True)
class ProductTime:
    """One product, one layout, one number of threads."""

    shape: str
    batch: int
    m: int
    k: int
    n: int
    layout: str
    threads: int
    ms: float
    torch_ms: float
    ratio: float
    """The median over the pairs of neighbouring calls."""
    gflops: float


def storage(shape: Shape, layout: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """The extents of a and b as they lie in memory."""
    m, k, n = shape.m, shape.k, shape.n
    rows, columns = ((k, m) if layout[0] == "T" else (m, k)), ((n, k) if layout[1] == "T" else (k, n))
    return (shape.batch, *rows), (shape.batch, *columns)


def product(shape: Shape, layout: str) -> Program:
    """The dot over natural storage: an operand that is not contiguous along k is copied by a map first."""
    a_extents, b_extents = storage(shape, layout)
    p = ProgramBuilder([(F32, int(np.prod(a_extents))), (F32, int(np.prod(b_extents)))])

    def transposed(x: Tensor) -> Tensor:
        return p.map((x.shape[0], x.shape[2], x.shape[1]), [x.permute(0, 2, 1)])

    a, b = p.input(0).reshape(*a_extents), p.input(1).reshape(*b_extents)
    a = transposed(a) if layout[0] == "T" else a
    b = b if layout[1] == "T" else transposed(b)
    return p.finish([p.dot(a.unsqueeze(2), b.unsqueeze(1))])


def time_codes(shape: Shape, threads: int, path: str, runs: int) -> ProductTime:
    """A qdot with its scales, and torch's exact sums of the same codes; ArithmeticError if ours are others."""
    torch.set_num_threads(threads)
    words = min(MAX_GROUP_WORDS, 1 << max(0, (shape.k // CODES).bit_length() - 1))
    groups = -(-shape.k // (CODES * words))
    rng = np.random.default_rng(0)
    a, b = (
        np.pad(
            rng.integers(-127, 128, (shape.batch, rows, shape.k)).astype(np.int8),
            ((0, 0), (0, 0), (0, CODES * words * groups - shape.k)),
        )
        for rows in (shape.m, shape.n)
    )
    scales = [np.full((shape.batch, rows, groups), 2.0**-6, np.float32) for rows in (shape.m, shape.n)]
    state = [*(x.reshape(-1).view(np.int32) for x in (a, b)), *(x.reshape(-1) for x in scales)]
    p = ProgramBuilder([(I32 if x.dtype == np.int32 else F32, x.size) for x in state])
    sides = []
    for j, rows in enumerate((shape.m, shape.n)):
        codes, factors = p.input(j), p.input(2 + j)
        extents = shape.batch, rows, groups
        sides.append(Quantised(codes.reshape(*extents[:2], groups * words), factors.reshape(*extents), words))
    program = p.finish([p.qdot(sides[0].unsqueeze(2), sides[1].unsqueeze(1))])
    executable = paths.compile(program, threads=threads, path=path)
    context = StepContext(bytes(32), 0, 0, 1)
    lefts, rights = (torch.from_numpy(np.ascontiguousarray(x[:, :, : shape.k])) for x in (a, b))

    def ours() -> Any:
        return executable.run(state, context)[0]

    def theirs() -> list[torch.Tensor]:
        return [torch._int_mm(left, right.T) for left, right in zip(lefts, rights, strict=True)]

    found = torch.from_numpy(np.array(ours())).reshape(shape.batch, shape.m, shape.n)
    if not torch.allclose(found, torch.stack(theirs()).float() * 2.0**-12, rtol=1e-5, atol=1e-2):
        raise ArithmeticError(f"{shape.name}: not the same product of codes")
    turns = min(runs, max(7, int(SECONDS * 50 * threads / shape.gflop)))
    times, torch_times = in_turn(turns, ours, theirs, cold=2)
    ms, torch_ms = 1e3 * statistics.median(times), 1e3 * statistics.median(torch_times)
    return ProductTime(
        shape.name, shape.batch, shape.m, shape.k, shape.n, "NT", threads,
        round(ms, 3), round(torch_ms, 3), ratio(times, torch_times), round(1e3 * shape.gflop / ms, 1),
    )  # fmt: skip


def time_product(shape: Shape, layout: str, threads: int, path: str, runs: int) -> ProductTime:
    """Both sides on the same numbers; ArithmeticError if they are not the same product."""
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(extents).astype(np.float32) for extents in storage(shape, layout))
    state = [a.reshape(-1), b.reshape(-1)]
    left, right = torch.from_numpy(a), torch.from_numpy(b)
    left = left.mT if layout[0] == "T" else left
    right = right.mT if layout[1] == "T" else right
    if shape.batch == 1:
        left, right = left[0], right[0]
    executable = paths.compile(product(shape, layout), threads=threads, path=path)
    context = StepContext(bytes(32), 0, 0, 1)

    def ours() -> Any:
        return executable.run(state, context)[0]

    found = torch.from_numpy(np.array(ours())).reshape(shape.batch, shape.m, shape.n)
    if not torch.allclose(found, torch.matmul(left, right), rtol=1e-3, atol=1e-3):
        raise ArithmeticError(f"{shape.name} {layout}: not the same product")
    turns = min(runs, max(7, int(SECONDS * 50 * threads / shape.gflop)))
    times, torch_times = in_turn(turns, ours, lambda: torch.matmul(left, right), cold=2)
    ms, torch_ms = 1e3 * statistics.median(times), 1e3 * statistics.median(torch_times)
    return ProductTime(
        shape.name, shape.batch, shape.m, shape.k, shape.n, layout, threads,
        round(ms, 3), round(torch_ms, 3), ratio(times, torch_times), round(1e3 * shape.gflop / ms, 1),
    )  # fmt: skip


def measure(arguments: argparse.Namespace, path: str) -> Iterator[ProductTime]:
    """Every shape that was asked for in every layout at every number of threads."""
    for threads in arguments.threads:
        for shape in SHAPES:
            if arguments.products == "int8":
                if arguments.only in f"{shape.name} NT":
                    yield time_codes(shape, threads, path, arguments.runs)
                continue
            for layout in LAYOUTS:
                if arguments.only in f"{shape.name} {layout}":
                    yield time_product(shape, layout, threads, path, arguments.runs)


def main() -> int:
    """Times the products; prints a table, or one line of JSON."""
    wait_asleep()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--runs", type=int, default=31, help="measured calls of each side at most (default 31)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default 1 2)")
    parser.add_argument("--only", default="", help="products whose name and layout contain this")
    parser.add_argument("--products", choices=("float32", "int8"), default="float32", help="what is multiplied")
    parser.add_argument("--path", default="auto", help="kernel path: auto, or one that lockstep replay --path has")
    arguments = parser.parse_args()
    path = _native.best_isa() if arguments.path == "auto" else arguments.path
    if not arguments.json:
        print(
            f"{'':18}{'batch':>6}{'m':>6}{'k':>6}{'n':>6}{'':>4}{'threads':>8}{'ms':>9}{'torch':>9}{'ratio':>7}{'GFLOP/s':>9}"
        )
    results = []
    for r in measure(arguments, path):
        results.append(r)
        if not arguments.json:
            print(
                f"{r.shape:18}{r.batch:6}{r.m:6}{r.k:6}{r.n:6}{r.layout:>4}{r.threads:8}{r.ms:9.2f}{r.torch_ms:9.2f}{r.ratio:7.3f}{r.gflops:9.1f}",
                flush=True,
            )
    ratios = [r.ratio for r in results]
    if not ratios:
        parser.error(f"no product is called {arguments.only!r}")
    geomean, worst = statistics.geometric_mean(ratios), max(ratios)
    if arguments.json:
        data = {"results": [asdict(r) for r in results], "geomean": round(geomean, 3), "worst": worst, "path": path}
        print(json.dumps({"data": data}))
    else:
        print(f"geometric mean of the ratios: {geomean:.3f}, worst {worst:.3f} ({path})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
