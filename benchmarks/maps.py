"""Maps of a training step against eager PyTorch: what AdamW, GELU, residuals and LayerNorm's scales cost.

    python benchmarks/maps.py             a table
    python benchmarks/maps.py --json      one line of JSON on stdout

Both sides run turn by turn in one process, on the same numbers; times are medians. Bytes are those that one pass has to
move: every operand read once, every result written once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from measure import in_turn, wait_asleep

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from lockstep.numerics import paths  # noqa: E402
from lockstep.numerics.arrays import Array, StepContext  # noqa: E402
from lockstep.numerics.builder import Expression, ProgramBuilder  # noqa: E402
from lockstep.protocol.programs.program import F32, Program  # noqa: E402

CONTEXT = StepContext(bytes(32), 0, 0, 1)
PARAMETERS = 12_293_120
ROWS, WIDTH = 2048, 384
RATE, BETA1, BETA2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01


@dataclass(frozen=True)
class Case:
    """One computation, as a Program of maps and in eager PyTorch."""

    name: str
    program: Program
    state: list[Array | None]
    eager: Callable[[], object]
    words: int
    """Read and written by one pass."""


@dataclass(frozen=True)
class Result:
    """Milliseconds of one case."""

    name: str
    ms: float
    torch_ms: float
    ratio: float
    gigabytes_per_second: float


def adamw(rng: np.random.Generator) -> Case:
    """m', v', p' of one flat parameter tensor; PyTorch's is its fused kernel."""
    n = PARAMETERS
    b = ProgramBuilder([(F32, n)] * 4)
    p, m, v, g = (b.input(k) for k in range(4))

    def moment(beta: float, square: bool) -> Callable[..., int]:
        def instrs(e: Expression, old: int, grad: int) -> int:
            new = e.fmul(grad, grad) if square else grad
            return e.fadd(e.fmul(old, e.f32(beta)), e.fmul(new, e.f32(1 - beta)))

        return instrs

    def step(e: Expression, x: int, first: int, second: int) -> int:
        root = e.fadd(e.fsqrt(e.fmul(second, e.f32(1 / (1 - BETA2)))), e.f32(EPS))
        kept = e.fmul(x, e.f32(1 - RATE * DECAY))
        return e.fsub(kept, e.fmul(e.f32(RATE / (1 - BETA1)), e.fdiv(first, root)))

    m1 = b.map((n,), [m, g], moment(BETA1, square=False))
    v1 = b.map((n,), [v, g], moment(BETA2, square=True))
    program = b.finish([b.map((n,), [p, m1, v1], step), m1, v1])
    state: list[Array | None] = [rng.standard_normal(n).astype(np.float32) * 0.02 for _ in range(4)]
    state[2] = np.square(state[3])
    parameter = torch.nn.Parameter(torch.from_numpy(state[0].copy()))  # type: ignore[union-attr]
    parameter.grad = torch.from_numpy(state[3].copy())  # type: ignore[union-attr]
    optimizer = torch.optim.AdamW([parameter], lr=RATE, betas=(BETA1, BETA2), eps=EPS, weight_decay=DECAY, fused=True)
    return Case("adamw", program, state, optimizer.step, 7 * n)


def gelu(rng: np.random.Generator) -> Case:
    """The tanh form of 2048 x 1536 activations, with the tanh kept for the backward pass; PyTorch keeps its input."""
    n = ROWS * 4 * WIDTH
    b = ProgramBuilder([(F32, n)])
    x = b.input(0)

    def inner(e: Expression, v: int) -> int:
        cubic = e.fmul(e.fmul(v, v), e.f32(0.044715))
        return e.ftanh(e.fmul(e.fmul(v, e.f32(0.7978845608)), e.fadd(cubic, e.f32(1.0))))

    t = b.map((n,), [x], inner)
    y = b.map((n,), [x, t], lambda e, v, w: (h := e.fmul(v, e.f32(0.5)), e.ffma(h, w, h))[1])
    given = rng.standard_normal(n).astype(np.float32)
    tensor = torch.from_numpy(given.copy())
    return Case("gelu", b.finish([y, t]), [given], lambda: torch.nn.functional.gelu(tensor, approximate="tanh"), 3 * n)


def residual(rng: np.random.Generator) -> Case:
    """x + y of 2048 x 384 activations."""
    n = ROWS * WIDTH
    b = ProgramBuilder([(F32, n)] * 2)
    program = b.finish([b.map((n,), [b.input(0), b.input(1)], lambda e, x, y: e.fadd(x, y))])
    state: list[Array | None] = [rng.standard_normal(n).astype(np.float32) for _ in range(2)]
    x, y = (torch.from_numpy(array) for array in state)
    return Case("residual", program, state, lambda: x + y, 3 * n)


def scales(rng: np.random.Generator) -> Case:
    """(x - mean) * rstd * gain of 2048 x 384 activations, one mean and rstd per row, one gain per column."""
    b = ProgramBuilder([(F32, ROWS * WIDTH), (F32, ROWS), (F32, ROWS), (F32, WIDTH)])
    shape = (ROWS, WIDTH)
    x, gain = b.input(0).reshape(*shape), b.input(3).expand(*shape)
    mean, scale = (b.input(k).unsqueeze(1).expand(*shape) for k in (1, 2))
    centred = b.map(shape, [x, mean], lambda e, v, w: e.fsub(v, w))
    normal = b.map(shape, [centred, scale], lambda e, v, w: e.fmul(v, w))
    program = b.finish([b.map(shape, [normal, gain], lambda e, v, w: e.fmul(v, w))])
    state: list[Array | None] = [rng.standard_normal(n).astype(np.float32) for n in (ROWS * WIDTH, ROWS, ROWS, WIDTH)]
    a, m, s, g = (torch.from_numpy(array) for array in state)
    rows, m, s = a.reshape(shape), m[:, None], s[:, None]
    return Case("scales", program, state, lambda: (rows - m) * s * g, 2 * ROWS * WIDTH)


CASES = (adamw, gelu, residual, scales)


def measure(case: Case, threads: int, fused: str, runs: int) -> Result:
    """One case, ours and theirs."""
    executable = paths.compile(case.program, threads=threads, fused=fused)
    times = in_turn(runs, lambda: executable.run(case.state, CONTEXT), case.eager, cold=2)
    ms, torch_ms = (1e3 * statistics.median(found) for found in times)
    return Result(
        case.name, round(ms, 3), round(torch_ms, 3), round(ms / torch_ms, 3), round(4e-6 * case.words / ms, 1)
    )


def main() -> int:
    """Times every case; prints a table, or one line of JSON."""
    wait_asleep()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--runs", type=int, default=21, help="measured calls of each (default 21)")
    parser.add_argument("--threads", type=int, default=1, help="of both sides (default 1)")
    parser.add_argument("--fused", default="require", help="require (default), or off for the interpreter")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rng = np.random.default_rng(0)
    results = [measure(make(rng), arguments.threads, arguments.fused, arguments.runs) for make in CASES]
    if arguments.json:
        settings = {"threads": arguments.threads, "fused": arguments.fused}
        print(json.dumps({"data": {"results": [asdict(r) for r in results], **settings}}))
        return 0
    print(f"{'':12}{'ms':>10}{'torch ms':>10}{'ratio':>8}{'GB/s':>8}")
    for r in results:
        print(f"{r.name:12}{r.ms:10.3f}{r.torch_ms:10.3f}{r.ratio:8.3f}{r.gigabytes_per_second:8.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
