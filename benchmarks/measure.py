"""Shared by the benchmarks: calls in turn, medians, a model in training as a worker holds it, memory of a process."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lockstep.execution.box.handle import Box
from lockstep.execution.box.loading import JobBox
from lockstep.numerics import arrays, paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.trace import layout_root
from lockstep.protocol.programs.program import Kind, Program
from lockstep.protocol.types import StateRoot

SEED = bytes(32)


def wait_asleep() -> None:
    """Starts the script again with threads that sleep while they wait, unless OMP_WAIT_POLICY says how they should.

    Two OpenMP runtimes share this process, torch's and ours; each one's idle threads would spin for some 15 ms on the
    cores that the other one is timed on.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_WAIT_POLICY": "passive"})


def in_turn(runs: int, *functions: Callable[[], object], cold: int = 1) -> list[list[float]]:
    """Seconds of each call of each function, called by turns, so that a busy machine slows all; the first `cold` turns,
    which find memory and caches cold, are left out."""
    times: list[list[float]] = [[] for _ in functions]
    for run in range(runs + cold):
        for function, found in zip(functions, times, strict=True):
            begin = time.perf_counter()
            function()
            if run >= cold:
                found.append(time.perf_counter() - begin)
    return times


def milliseconds(times: list[float]) -> float:
    """The median."""
    return round(1e3 * statistics.median(times), 2)


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The median of the turns' own ratios."""
    return round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3)


class Training:
    """A model in training: the step's Program, its state in read-only arrays, rows of a random dataset."""

    def __init__(self, program: Program, vocabulary: int, threads: int, path: str = "auto") -> None:
        self.program, self.threads = program, threads
        self.executable = paths.compile(program, threads=threads, path=path)
        rng = np.random.default_rng(0)
        length = next(op.extents[1] for op in program.ops if op.kind == Kind.DRAW)
        self.dataset = rng.integers(0, vocabulary, (1000, length)).astype(np.int32)
        self.state: list[Array | None] = [
            None if h is None else np.zeros(h.shape, arrays.DTYPES[h.dtype]) for h in program.inputs
        ]
        weights = self.state[0]
        assert weights is not None, "the state begins with the parameters"
        self.state[0] = (rng.standard_normal(weights.shape, dtype=np.float32) * 0.02).astype(np.float32)
        for array in self.state:
            if array is not None:
                array.flags.writeable = False

    def step(self) -> None:
        """S_{t-1} to S_t."""
        self.state = list(self.executable.run(self.state, StepContext(SEED, 0, 0, 1), self.dataset))

    def root(self) -> StateRoot:
        """S_t, by the step's threads."""
        return layout_root(self.program.output_layout, self.state, self.threads)

    def step_and_root(self) -> None:
        """One after the other."""
        self.step()
        self.root()


class OneProgram(JobBox):
    """A child that has a Program, or several, and no job."""

    def __init__(self, child: Box, seconds: float) -> None:
        """`seconds`: its time for one order."""
        super().__init__(None, None, None, 1, "auto", None)  # type: ignore[arg-type]
        self._child, self._seconds = child, seconds

    @property
    def _step_seconds(self) -> float:
        return self._seconds

    def _at_work(self) -> Box:
        return self._child


def resident(field: str = "VmRSS") -> float:
    """Megabytes of this process: "VmRSS" now, "VmHWM" at most so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/self/status has no {field}: memory is measured on Linux")
