"""Fuzzes every decoder of bytes from outside, and says in a table what that reached.

    python -m tests.fuzz --seconds 60 [NAME ..]               exit status 1 at a crash, or below 95 % of the branches
    python -m tests.fuzz --planted --seconds 60 [NAME ..]     one defect in each decoder; exit status 1 if one is missed

Corpora stay in out/fuzz, and the next run goes on from them; a crash's input stays in out/fuzz/crashes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzz.loading import ROOT
from tests.fuzz.targets import TARGETS

LEAST = 0.95
"""Of each decoder's branches."""
FOLDER = ROOT / "out/fuzz"


@dataclass(frozen=True)
class Fuzzed:
    """What one run showed."""

    name: str
    executions: int
    seconds: float
    crash: str
    """The last lines of what came out; "" if nothing did."""


def fuzz(name: str, corpus: Path, *options: str, planted: bool = False) -> Fuzzed:
    """Run one decoder's fuzzer with these options of libFuzzer."""
    crashes = FOLDER / ("planted" if planted else "crashes") / name.replace(" ", "-")
    for folder in (corpus, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "tests.fuzz.child", name, str(corpus), f"-artifact_prefix={crashes}/", "-timeout=30",
        "-rss_limit_mb=4096", *(["--planted"] if planted else []), *options,
    ]  # fmt: skip
    # A measurement of the caller's coverage is not for this process, whose code is instrumented by another.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    environment = kept | {"LOCKSTEP_LISTEN_SECONDS": "0", "LOCKSTEP_CACHE": str(ROOT / "out/loops")}
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace")
    said = done.stdout + done.stderr
    counts = re.findall(r"stat::number_of_executed_units:\s*(\d+)|^#(\d+)\s", said, re.MULTILINE)
    executions = max((int(a or b) for a, b in counts), default=0)
    # What ends the process before or beside the fuzzer says nothing of the decoder.
    if done.returncode and "Uncaught Python exception" not in said and "SUMMARY: libFuzzer" not in said:
        raise RuntimeError(f"{name}: {said[-2000:]}")
    crash = "" if done.returncode == 0 else _told(said)
    return Fuzzed(name, executions, time.monotonic() - began, crash)


def _told(said: str) -> str:
    """The traceback of what came out, or else the end of what was said."""
    _, found, after = said.partition("Uncaught Python exception: ===")
    lines = after.split("\n==")[0].strip().splitlines() if found else said.strip().splitlines()[-12:]
    return "\n".join(lines) or "it ended without a word"


def branches(name: str, corpus: Path) -> tuple[int, int, list[str]]:
    """(reached, all, missing) of the decoder's branches."""
    command = [sys.executable, "-m", "tests.fuzz.branches", name, str(corpus)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    counts = json.loads(done.stdout.splitlines()[-1])
    return counts["reached"], counts["all"], counts["missing"]


def table_of_runs(names: list[str], seconds: int, jobs: int) -> bool:
    """Fuzz each; whether nothing came out of any and enough was reached."""
    print(f"{'decoder':<14}{'executions':>12}{'branches':>12}{'%':>7}  crashes", flush=True)

    def one(name: str) -> bool:
        corpus = FOLDER / "corpus" / name.replace(" ", "-")
        run = fuzz(name, corpus, f"-max_total_time={seconds}")
        reached, total, missing = branches(name, corpus) if not run.crash else (0, 0, [])
        share = reached / total if total else 1.0
        count = f"{reached}/{total}"
        print(f"{name:<14}{run.executions:>12,}{count:>12}{100 * share:>7.1f}  {1 if run.crash else 0}", flush=True)
        if run.crash:
            print(run.crash, file=sys.stderr, flush=True)
        elif share < LEAST:
            print(f"{name}: not reached: {', '.join(missing)}", file=sys.stderr, flush=True)
        return not run.crash and share >= LEAST

    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(one, names)))


def table_of_defects(names: list[str], seconds: int, jobs: int) -> bool:
    """Plant each decoder's defect and fuzz it from the seeds; whether every one is found in time."""
    print(f"{'decoder':<14}{'seconds':>8}{'executions':>12}  found by       defect", flush=True)

    def one(name: str) -> bool:
        with TemporaryDirectory() as folder:
            run = fuzz(name, Path(folder), f"-max_total_time={seconds}", "-seed=1", planted=True)
        change = TARGETS[name].planted
        defect = " ".join(change.before.split())[:70] + "  ->  " + (" ".join(change.after.split())[:60] or "(nothing)")
        by = run.crash.splitlines()[0].split(":")[0][:14] if run.crash else "NOT FOUND"
        print(f"{name:<14}{run.seconds:>8.1f}{run.executions:>12,}  {by:<14} {defect}", flush=True)
        return bool(run.crash)

    with ThreadPoolExecutor(jobs) as pool:
        return all(list(pool.map(one, names)))


def main() -> int:
    """Parse, run, say."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--planted", action="store_true")
    given = parser.parse_args()
    names = given.names or list(TARGETS)
    table = table_of_defects if given.planted else table_of_runs
    return 0 if table(names, given.seconds, given.jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
