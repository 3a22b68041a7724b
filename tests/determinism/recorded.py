"""What this machine computes, recorded for another one to repeat: there, neither torch nor the reference is needed.

    python -m tests.determinism.recorded write FILE    the programs below, as the widest path here computes them
    python -m tests.determinism.recorded check FILE    the same on every path, at one and two threads

The second one ends with 1 if a word differs.
Recorded are the programs that the tests of the kernels compare with the reference, graphs at random, and a few steps of
each model and arithmetic.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.protocol.programs.program import Alias, Program
from tests.determinism.training_run import MODELS, PATHS, THREADS, train
from tests.unit.numerics import comparison
from tests.unit.numerics.comparison import CONTEXT, words

TESTS = tuple(f"tests/unit/numerics/{name}.py" for name in ("test_executor", "test_quants", "test_fusion"))
GRAPHS = 60
STEPS = 3

Case = tuple[str, Program, list[Array | None], Array | None, list[Array | None]]
"""A name, a Program, its state and dataset, and the outputs of all of its ops."""
Run = tuple[str, Program, int, str]
"""A name, the Program of a step, how often it is repeated from S_0, and the root of the last state."""


@dataclass
class ComparisonRecorder:
    """A plugin of pytest: tests that would compare a Program with the reference have it recorded."""

    cases: list[Case] = field(default_factory=list)
    _running: str = ""

    def pytest_configure(self) -> None:
        """Before any test imports the comparison."""
        comparison.compare = self._note  # type: ignore[assignment]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Other tests are not run."""
        items[:] = [
            item for item in items if isinstance(item, pytest.Function) and "compare" in item.function.__code__.co_names
        ]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Names the cases that follow."""
        self._running = item.name

    def _note(self, program: Program, state: Sequence[Array | None], dataset: Array | None = None, **_: object) -> None:
        self.cases.append(case(self._running, program, state, dataset))


def case(name: str, program: Program, state: Sequence[Array | None], dataset: Array | None = None) -> Case:
    """What this machine's widest path makes of it."""
    outputs = paths.compile(program, threads=1, fused="off").run(state, CONTEXT, dataset, keep=True)
    return name, program, list(state), dataset, list(outputs)


def random_graphs() -> Iterator[Case]:
    """Those of the first seeds."""
    from tests.unit.numerics.test_fusion_random import graph

    for seed in range(GRAPHS):
        yield case(f"graph {seed}", *graph(seed))


def steps() -> Iterator[Run]:
    """Every model in every arithmetic."""
    for model, products in product(MODELS, ("float32", "int8")):
        program = MODELS[model](products)
        yield f"{model} in {products}", program, STEPS, train(program, STEPS, "auto", 1, "off")


def differences(recorded: Case, path: str) -> Iterator[str]:
    """Of one path: every op by itself on one thread, then the outputs on two threads, in memory that is used again."""
    name, program, state, dataset, due = recorded
    kept = paths.compile(program, path=path, threads=1, fused="off").run(state, CONTEXT, dataset, keep=True)
    for i, array in enumerate(kept):
        if not np.array_equal(words(array), words(due[i])):
            yield f"{name}: op {i} ({program.name_of(i)}) on {path}"
    final = paths.compile(program, path=path, threads=2, fused="off").run(state, CONTEXT, dataset)
    for k, alias in enumerate(program.outputs):
        if alias.kind == Alias.OP_KIND and not np.array_equal(words(final[k]), words(due[alias.index])):
            yield f"{name}: output {k} on {path} with two threads"


def check(cases: Sequence[Case], runs: Sequence[Run]) -> int:
    """Prints a line for each path and each model; the number of differences."""
    wrong = 0
    for path in PATHS:
        begin = time.monotonic()
        found = [difference for recorded in cases for difference in differences(recorded, path)]
        wrong += len(found)
        print(*found[:20], sep="\n", end="\n" if found else "")
        print(f"{path:8}{len(cases)} programs, {len(found)} differences, {time.monotonic() - begin:.0f} s", flush=True)
    for name, program, count, due in runs:
        begin = time.monotonic()
        ways = list(product(PATHS, THREADS))
        others = [way for way in ways if train(program, count, *way, "off") != due]
        wrong += len(others)
        took = time.monotonic() - begin
        print(f"{count} steps of {name}, {len(ways)} ways: {others or 'no difference'}, {took:.0f} s", flush=True)
    return wrong


def main() -> int:
    """Writes a recording or repeats it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("write", "check"))
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.verb == "check":
        return int(check(*pickle.loads(arguments.file.read_bytes())) > 0)
    recorder = ComparisonRecorder()
    status = pytest.main(["-q", "-m", "not slow", *TESTS], plugins=[recorder])
    if status == 0:
        arguments.file.write_bytes(pickle.dumps(([*recorder.cases, *random_graphs()], [*steps()])))
    return status


if __name__ == "__main__":
    sys.exit(main())
