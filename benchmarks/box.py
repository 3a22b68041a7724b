"""A training step in a confined child beside the same step here: processor time, by turns.

    python benchmarks/box.py              a table
    python benchmarks/box.py --json       one line of JSON on stdout

Both include S_t, the hash of the state after the step. Processor time is that of the process and, of a step in a
box, of its child. A ratio is the median of the turns' own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import OneProgram, Training
from step import MODELS

from lockstep.execution.box.confinement import Allowance
from lockstep.execution.box.executable import BoxedExecutable
from lockstep.execution.box.handle import Box
from lockstep.protocol.programs.program import Program
from lockstep.storage.containers import encode_program
from lockstep.storage.directory import DirectoryStore
from lockstep.training.job import build_programs
from lockstep.training.strategies import diloco

SECONDS = 3600.0


@dataclass(frozen=True)
class BoxCost:
    """One model's step; milliseconds of processor time."""

    model: str
    threads: int
    state_megabytes: float
    here_ms: float
    boxed_ms: float
    ratio: float


@contextmanager
def boxed(program: Program, threads: int) -> Iterator[tuple[Box, BoxedExecutable, Path]]:
    """A child that has planned a Program."""
    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        cid = store.put(encode_program(program, store.put))
        own = Path(folder, "own")
        own.mkdir(mode=0o700)
        with Box(Allowance(8 << 30, 8 << 30), store, own) as box:
            box.call("decode", seconds=SECONDS, cid=cid, threads=threads)
            yield box, BoxedExecutable(program, threads, box=OneProgram(box, SECONDS)), own


def processor_ms(box: Box | None = None) -> float:
    """Processor time of this process, and of a child, so far."""
    own = os.times()
    ticks = 0.0 if box is None else sum(map(_ticks, _family(box._process.pid)))
    return 1000 * (own.user + own.system) + 1000 * ticks / os.sysconf("SC_CLK_TCK")


def _family(process: int) -> list[int]:
    children = [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return [process, *(pid for child in children for pid in _family(child))]


def _ticks(process: int) -> int:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def cost(name: str, threads: int, runs: int, steps: int) -> BoxCost:
    """One model, here and in a box."""
    case = MODELS[name]
    program = build_programs(case.model, case.loss, diloco.DiLoCo(), batch=case.batch, rounds=6, slots=3).step
    here = Training(program, case.most, threads)
    with boxed(program, threads) as (box, executable, own):
        there = Training(program, case.most, threads)
        there.executable = executable
        taken: dict[str, list[float]] = {"here": [], "there": []}
        for training in (here, there):
            for _ in range(3):
                training.step_and_root()
        # Both run compiled loops from here on, where they have any.
        while here.executable._fusion._found and not (here.executable.compiled and any(own.glob("*.so"))):
            time.sleep(0.2)
            here.step_and_root()
            there.step_and_root()
        for training in (here, there):
            training.step_and_root()
        assert here.root() == there.root(), "the same bits"
        for _ in range(runs):
            taken["here"].append(_timed(here.step_and_root, steps, None))
            taken["there"].append(_timed(there.step_and_root, steps, box))
    held = sum(a.nbytes for a in here.state if a is not None) / 1e6
    ratios = [b / a for a, b in zip(taken["here"], taken["there"], strict=True)]
    return BoxCost(
        name, threads, round(held, 1), round(statistics.median(taken["here"]), 2),
        round(statistics.median(taken["there"]), 2), round(statistics.median(ratios), 4),
    )  # fmt: skip


def _timed(step: Callable[[], None], steps: int, box: Box | None) -> float:
    began = processor_ms(box)
    for _ in range(steps):
        step()
    return (processor_ms(box) - began) / steps


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--models", default="demo,gpt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=9)
    arguments = parser.parse_args()
    found = []
    for name in arguments.models.split(","):
        steps = 30 if name == "demo" else 1
        found.append(cost(name, arguments.threads, arguments.runs, steps))
        if not arguments.json:
            c = found[-1]
            print(f"{c.model:8} {c.state_megabytes:8.1f} MB  {c.here_ms:9.2f} ms here  {c.boxed_ms:9.2f} ms  {c.ratio}")
    if arguments.json:
        print(json.dumps([asdict(c) for c in found]))


if __name__ == "__main__":
    main()
