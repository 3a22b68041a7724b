"""Seconds of the processor in which a model, a loss and a strategy become the four Programs of a job.

    python benchmarks/tracing.py                      the project's own models: a table, median and worst
    python benchmarks/tracing.py --patterns FILE.py   those of a file, too, that trace
    python benchmarks/tracing.py --profile NAME       the functions that the slowest takes its time in
    python benchmarks/tracing.py --json               one line of JSON on stdout

FILE.py has PATTERNS: by name a pair of a text and a function without arguments that returns (model, loss), whose rows
are 4 of 12 integers. The best of `--runs` counts, of which the first finds torch's caches cold.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import runpy
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.training import CASES  # noqa: E402
from lockstep.protocol.errors import LockstepError  # noqa: E402
from lockstep.training.job import Batch, build_programs  # noqa: E402
from lockstep.training.models import loss_of  # noqa: E402
from lockstep.training.strategies import diloco  # noqa: E402

Made = tuple[Any, Any, Batch]
"""(model, loss, batch)."""


def own(name: str) -> Made:
    """One of the project's models."""
    case = CASES[name]()
    return case.model, case.loss or loss_of(case.model), case.batch


def pattern(make: Callable[[], tuple[Any, Any]]) -> Made:
    """One of a file's."""
    return *make(), Batch(rows=4, row_length=12)


def traced(made: Made) -> float:
    """Seconds of the processor of one build."""
    model, loss, batch = made
    begin = time.process_time()
    build_programs(model, loss, diloco.DiLoCo(), batch=batch, rounds=1, slots=2)
    return time.process_time() - begin


def seconds(make: Callable[[], Made], runs: int) -> float | None:
    """The best of some builds; None of what is refused."""
    try:
        return round(min(traced(make()) for _ in range(runs)), 3)
    except LockstepError:
        return None


def profiled(make: Callable[[], Made]) -> None:
    """Prints where the time of one build goes."""
    traced(make())
    made, profile = make(), cProfile.Profile()
    profile.runcall(traced, made)
    pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def main() -> int:
    """Traces them; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--patterns", help="a file with PATTERNS")
    parser.add_argument("--runs", type=int, default=2, help="builds of each (default 2)")
    parser.add_argument("--profile", help="profile this one alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    makers: dict[str, dict[str, Callable[[], Made]]] = {"models": {name: partial(own, name) for name in CASES}}
    if arguments.patterns:
        found = runpy.run_path(arguments.patterns)["PATTERNS"]
        makers["patterns"] = {name: partial(pattern, make) for name, (_, make) in found.items()}
    if arguments.profile:
        profiled({name: make for kind in makers.values() for name, make in kind.items()}[arguments.profile])
        return 0
    results = {}
    for kind, each in makers.items():
        took = {name: seconds(make, arguments.runs) for name, make in each.items()}
        known = {name: value for name, value in took.items() if value is not None}
        worst = max(known, key=known.__getitem__)
        results[kind] = {
            "median": round(statistics.median(known.values()), 3),
            "worst": known[worst],
            "worst_name": worst,
            "refused": len(took) - len(known),
            "seconds": known,
        }
        if not arguments.json:
            print(*(f"{name:<28}{value:>8}" for name, value in known.items()), sep="\n")
            print(f"{kind}: median {results[kind]['median']}, worst {known[worst]} ({worst})")
    if arguments.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
