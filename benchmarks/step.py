"""A reproducible training step against PyTorch's: time, and memory.

    python benchmarks/step.py             a table
    python benchmarks/step.py --json      one line of JSON on stdout
    python benchmarks/step.py --products int8

Forward, backward, clipping to norm 1 and AdamW in float32, or with products of integers. Ours includes S_t: the hash of
the whole state after every step, on the step's own threads. Theirs is eager PyTorch with the faster of its foreach and
fused AdamW, in float32, and beside it `torch.compile`, and eager PyTorch under autocast to bfloat16. Sides run by turns
in one process, figures are medians, and a ratio is the median of the turns' own. Memory is what a process that only
trains grows by, at most, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from measure import Training, in_turn, milliseconds, ratio, resident, wait_asleep
from resnet import ResNet
from torch import nn

from lockstep.numerics import _native
from lockstep.protocol import _hash
from lockstep.protocol.programs.program import Program
from lockstep.tracing.arithmetic import PRODUCTS, Arithmetic
from lockstep.training.demo import BATCH, MODEL
from lockstep.training.job import Batch, build_programs
from lockstep.training.losses import Loss
from lockstep.training.models import CNN, GPT, CNNConfig, GPTConfig, Llama, LlamaConfig, next_token_loss
from lockstep.training.models.cnn import image_loss
from lockstep.training.strategies import diloco


@dataclass(frozen=True)
class TrainingCase:
    """A model and what it trains on: rows whose elements are below `most`."""

    model: nn.Module
    batch: Batch
    most: int
    loss: Loss = next_token_loss


def _images(kind: Callable[[CNNConfig], nn.Module], config: CNNConfig, rows: int) -> TrainingCase:
    return TrainingCase(kind(config), Batch(rows, config.row_length), config.classes, image_loss)


BIG = Batch(rows=8, row_length=257)
MODELS: dict[str, TrainingCase] = {
    "gpt": TrainingCase(GPT(GPTConfig(vocabulary=4096, context=256, layers=6, heads=6, width=384)), BIG, 4096),
    "llama": TrainingCase(
        Llama(LlamaConfig(vocabulary=4096, context=256, layers=6, heads=6, kv_heads=2, width=384, hidden=1024)),
        BIG,
        4096,
    ),
    "demo": TrainingCase(GPT(MODEL), BATCH, MODEL.vocabulary),
    "cnn": _images(CNN, CNNConfig(), 32),
    "resnet": _images(ResNet, CNNConfig(size=32, channels=3, width=32), 16),
}
"""The first two: 6 layers, width 384, 6 heads, 8 rows of 256 tokens of 4096; the third is `lockstep demo`'s. Then the
CNN of `models/cnn.py` on 32 images of 28 x 28, and ResNet-18 at half of its width on 16 of 32 x 32."""


@dataclass(frozen=True)
class StepTime:
    """One model at one number of threads; milliseconds and ratios of our time to theirs."""

    model: str
    products: str
    threads: int
    path: str
    parameters: int
    ops: int
    ms: float
    """The step and its state's hash."""
    hash_ms: float
    eager: str
    """The faster AdamW of eager PyTorch."""
    eager_ms: float
    eager_bf16_ms: float
    compiled_ms: float | None
    compiled_ratio: float | None
    megabytes: float
    eager_megabytes: float
    memory_ratio: float
    ratio: float


class Eager:
    """The same step as people write it in PyTorch."""

    def __init__(self, case: TrainingCase, *, fused: bool, compiled: bool = False, bfloat16: bool = False) -> None:
        self.bfloat16, self.loss = bfloat16, case.loss
        self.parameters = list(case.model.parameters())
        self.rows = torch.randint(0, case.most, (case.batch.rows, case.batch.row_length))
        kind = {"fused": True} if fused else {"foreach": True}
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.1, **kind)
        self.model = torch.compile(case.model) if compiled else case.model

    def step(self) -> None:
        """Forward, backward, clipping, AdamW."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            loss = self.loss(self.model, self.rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()


def time_step(name: str, program: Program, threads: int, runs: int, path: str, products: str) -> StepTime:
    """Ours beside eager PyTorch and `torch.compile`."""
    torch.set_num_threads(threads)
    case = MODELS[name]
    ours = Training(program, case.most, threads, path)
    kinds = {"foreach": Eager(case, fused=False), "fused": Eager(case, fused=True)}
    trial = in_turn(5, *(kind.step for kind in kinds.values()))
    eager = min(zip(kinds, trial, strict=True), key=lambda kind: statistics.median(kind[1]))[0]
    mine, theirs = in_turn(runs, ours.step_and_root, kinds[eager].step)
    narrow = Eager(case, fused=eager == "fused", bfloat16=True)
    (rounded,) = in_turn(max(3, runs // 4), narrow.step)
    alone, whole = in_turn(max(3, runs // 4), ours.step, ours.step_and_root)
    try:
        compiled = Eager(case, fused=True, compiled=True)
        again, beside = in_turn(max(3, runs // 4), ours.step_and_root, compiled.step)
    except (RuntimeError, OSError) as error:  # no compiler that torch can use
        print(f"torch.compile is skipped: {error}", file=sys.stderr)
        again = beside = []
    memory, eager_memory = memory_of(name, program, threads, "ours"), memory_of(name, program, threads, eager)
    return StepTime(
        model=name,
        products=products,
        threads=threads,
        path=path,
        parameters=sum(p.numel() for p in case.model.parameters()),
        ops=len(program.ops),
        ms=milliseconds(mine),
        hash_ms=round(milliseconds(whole) - milliseconds(alone), 2),
        eager=eager,
        eager_ms=milliseconds(theirs),
        eager_bf16_ms=milliseconds(rounded),
        compiled_ms=milliseconds(beside) if beside else None,
        compiled_ratio=ratio(again, beside) if beside else None,
        megabytes=memory,
        eager_megabytes=eager_memory,
        memory_ratio=round(memory / eager_memory, 3),
        ratio=ratio(mine, theirs),
    )


def memory_of(name: str, program: Program, threads: int, side: str) -> float:
    """Megabytes that a process of its own grows by in four steps."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.pickle"
        path.write_bytes(pickle.dumps(program))
        command = [sys.executable, __file__, "--memory", side, name, str(threads), str(path)]
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_memory(side: str, name: str, threads: int, path: Path) -> float:
    """In the child: the peak over what the process held before it made anything."""
    torch.set_num_threads(threads)
    torch.ones(64, 64) @ torch.ones(64, 64)  # torch's own pools
    case = MODELS[name]
    before = resident()
    if side == "ours":
        program: Program = pickle.loads(path.read_bytes())
        ours = Training(program, case.most, threads)
        step = ours.step_and_root
        held = 0.0
    else:
        step = Eager(case, fused=side == "fused").step
        held = sum(p.nbytes for p in case.model.parameters()) / (1 << 20)  # made before, and part of the training
    for _ in range(4):
        step()
    return round(resident("VmHWM") - before + held, 1)


def main() -> int:
    """Times the steps; prints a table, or one line of JSON."""
    wait_asleep()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--runs", type=int, default=30, help="measured pairs of each figure (default 30)")
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)} (default all)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default 1,2)")
    parser.add_argument("--path", default="auto", help="kernel path: auto, or one that lockstep replay --path has")
    parser.add_argument("--products", choices=PRODUCTS, default="float32", help="of our side (default float32)")
    parser.add_argument("--memory", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        side, name, threads, path = arguments.memory
        print(measure_memory(side, name, int(threads), Path(path)))
        return 0
    path = _native.best_isa() if arguments.path == "auto" else arguments.path
    results = []
    for name in arguments.models.split(","):
        case = MODELS[name]
        program = build_programs(
            case.model, case.loss, diloco.DiLoCo(), batch=case.batch, rounds=6, slots=3,
            arithmetic=Arithmetic(arguments.products),
        ).step  # fmt: skip
        for threads in map(int, arguments.threads.split(",")):
            results.append(time_step(name, program, threads, arguments.runs, path, arguments.products))
            print(f"{name}, {threads} threads: {results[-1].ratio}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"data": {"results": [asdict(r) for r in results], "sha256": _hash.isa()}}))
        return 0
    print(
        f"{'model':>6}{'threads':>8}{'ms':>9}{'hash':>7}{'eager':>9}{'ratio':>7}{'compile':>9}{'ratio':>7}{'MB':>7}{'ratio':>7}"
    )
    for r in results:
        compiled = f"{r.compiled_ms:9.1f}{r.compiled_ratio:7.3f}" if r.compiled_ms else f"{'-':>9}{'-':>7}"
        print(
            f"{r.model:>6}{r.threads:8}{r.ms:9.1f}{r.hash_ms:7.1f}{r.eager_ms:9.1f}{r.ratio:7.3f}{compiled}"
            f"{r.megabytes:7.0f}{r.memory_ratio:7.3f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
