"""Runs the Python tests, a shard a process, `--jobs` at a time; goes on after failures, and reports at the end.

    python -m tests.shards quick [PATH ..] [--jobs J] [--resume] [--record] [-- PYTEST ARGUMENTS]
    python -m tests.shards slow
    python -m tests.shards long            what takes minutes each
    python -m tests.shards coverage        the quick ones and every case of theirs, with branch coverage: twice the time

With `--resume` only what has not passed on this commit and these changes runs. `--record` writes what each file took to
tests/shards/seconds.json, from which the next run deals. Exit status 1 if a test failed or a process died.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.shards import recorder
from tests.shards.dealing import deal
from tests.shards.recorder import Outcome
from tests.shards.starting import start

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out/shards"
SECONDS = Path(__file__).with_name("seconds.json")
KINDS = {
    "quick": "not slow",
    "slow": "slow and not size and not faults and not words and not long and not pages",
    "long": "long",
    "coverage": "not slow or sampled",
}
"""Selections of pytest, by markers."""
NOT_PYTHON = ("contracts", "forge", "vectors")
"""Folders of tests/ that other tools run."""
SLOWEST = 10
"""Files that the report names with their seconds."""
NOTHING_SELECTED = 5
"""pytest's exit status where a shard has no test of the kind."""


@dataclass(frozen=True)
class Ended:
    """A shard that has run: how each test ended, the process's exit status, what it printed."""

    number: int
    files: list[Path]
    outcomes: list[Outcome]
    status: int
    seconds: float
    log: Path

    @property
    def counts(self) -> Counter[str]:
        """Tests by how they ended."""
        return Counter(o.outcome for o in self.outcomes)

    @property
    def died(self) -> bool:
        """The process ended otherwise than pytest does once every test has been told of."""
        return self.status not in (0, NOTHING_SELECTED) and (self.status != 1 or not self.counts["failed"])

    def __str__(self) -> str:
        said = ", ".join(f"{self.counts[k]} {k}" for k in ("passed", "failed", "skipped") if self.counts[k])
        died = f", the process ended with status {self.status}" if self.died else ""
        return f"shard {self.number:3}: {said or 'nothing to run'}{died}; {self.seconds:.0f} s"


def files_of(paths: Iterable[Path]) -> list[Path]:
    """The files with tests in some folders, from the repository's root."""
    found: set[Path] = set()
    for path in paths:
        found |= {path} if path.is_file() else set(path.rglob("test_*.py"))
    found = {path.resolve().relative_to(ROOT) for path in found}
    return sorted(path for path in found if path.parts[1] not in NOT_PYTHON)


def seconds_of(kind: str) -> dict[str, float]:
    """The seconds of each file when they were last written down."""
    recorded: dict[str, dict[str, float]] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    return recorded.get(kind, {})


def state_of_tree() -> str:
    """A hash of the commit and of what differs from it, files that git does not know included; "" outside of git."""
    said, unknown = hashlib.sha256(), ["ls-files", "-z", "--others", "--exclude-standard"]
    try:
        for command in (["rev-parse", "HEAD"], ["diff", "HEAD"], unknown):
            found = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, check=True).stdout
            said.update(found)
    except (OSError, subprocess.CalledProcessError):
        return ""
    for path in (ROOT / os.fsdecode(name) for name in found.split(b"\0") if name):
        said.update(path.read_bytes() if path.is_file() else b"")  # a link to a folder is one name to git
    return said.hexdigest()


@dataclass(frozen=True)
class Running:
    """A shard that has begun."""

    number: int
    files: list[Path]
    process: ForkServerProcess
    folder: Path
    began: float

    def ended(self) -> Ended:
        """Waits for its end."""
        self.process.join()
        outcomes = list(recorder.read(self.folder / f"{self.number:03}.jsonl"))
        seconds, log = time.monotonic() - self.began, self.folder / f"{self.number:03}.log"
        return Ended(self.number, self.files, outcomes, self.process.exitcode or 0, seconds, log)


def begin(number: int, files: list[Path], kind: str, folder: Path, more: list[str]) -> Running:
    """Starts a process of pytest."""
    log, told = folder / f"{number:03}.log", folder / f"{number:03}.jsonl"
    environment = os.environ | {recorder.OUTCOMES: str(told), recorder.PASSED: str(folder / "passed.jsonl")}
    arguments = ["-p", "tests.shards.recorder", "-m", KINDS[kind], "--continue-on-collection-errors", *more]
    if kind == "coverage":
        arguments += ["--cov", "--cov-report="]
        environment |= {"COVERAGE_FILE": str(folder / f".coverage.{number}")}
    began = time.monotonic()
    return Running(number, files, start([*arguments, *map(str, files)], ROOT, environment, log), folder, began)


def run(shards: list[list[Path]], jobs: int, kind: str, folder: Path, more: list[str]) -> Iterator[Ended]:
    """Each shard as it ends, `jobs` at a time."""
    due, running = list(enumerate(shards, start=1)), dict[Any, Running]()
    while due or running:
        while due and len(running) < jobs:
            begun = begin(*due.pop(0), kind, folder, more)
            running[begun.process.sentinel] = begun
        for sentinel in wait(list(running)):
            yield running.pop(sentinel).ended()


def failures_of(log: Path) -> str:
    """The part that pytest printed of the failures, or the last lines of a process that died."""
    text = log.read_text(errors="replace")
    _, found, after = text.partition("= FAILURES =")
    _, broken, errors = text.partition("= ERRORS =")
    return after if found else errors if broken else "\n".join(text.splitlines()[-40:])


def taken_by(ended: list[Ended], what: str = "seconds") -> Counter[str]:
    """The seconds of each file's tests, or their `processor` time."""
    taken = Counter[str]()
    for outcome in (o for shard in ended for o in shard.outcomes):
        taken[outcome.test.partition("::")[0]] += getattr(outcome, what)
    return taken


def record(kind: str, ended: list[Ended]) -> None:
    """Writes what each file took; what did not run keeps what is written."""
    recorded: dict[str, dict[str, float]] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    taken = taken_by(ended)
    kept = {k: v for k, v in recorded.get(kind, {}).items() if (ROOT / k).exists()}
    recorded[kind] = dict(sorted((kept | {k: round(v, 1) for k, v in taken.items() if v >= 1}).items()))
    SECONDS.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def main() -> int:
    """Deals, runs, says."""
    parser = argparse.ArgumentParser(prog="python -m tests.shards")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders; without one, all of tests/")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--resume", action="store_true", help="leave out what passed on this commit")
    parser.add_argument("--record", action="store_true", help="write what each file took")
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, rest = parser.parse_intermixed_args(sys.argv[1:at]), sys.argv[at + 1 :]
    folder = OUT / given.kind
    passed = _passed_before(folder, state_of_tree(), given.resume)
    shards = deal(files_of(given.paths or [ROOT / "tests"]), seconds_of(given.kind), given.jobs)
    began, ended = time.monotonic(), list[Ended]()
    for shard in run(shards, given.jobs, given.kind, folder, rest):
        ended.append(shard)
        print(f"[{len(ended)}/{len(shards)}] {shard}", flush=True)
        if shard.counts["failed"] or shard.died:
            print(failures_of(shard.log), flush=True)
    return _report(given, ended, passed, time.monotonic() - began)


def _passed_before(folder: Path, state: str, resume: bool) -> int:
    """Empties the folder of the last run's reports. To resume, one file keeps what passed on the same state of the
    tree; returns how many tests that are."""
    folder.mkdir(parents=True, exist_ok=True)
    last, lines = folder / "state", dict[str, None]()
    if resume and state and last.exists() and last.read_text() == state:
        for path in sorted(folder.glob("*.jsonl")):
            passed = (line for line in path.read_text().splitlines(keepends=True) if '"passed"' in line)
            lines |= {line: None for line in passed if line.endswith("\n")}
    for path in [*folder.glob("*.jsonl"), *folder.glob("*.log"), *folder.glob(".coverage*")]:
        path.unlink()
    (folder / "passed.jsonl").write_text("".join(lines))
    last.write_text(state)
    return len(lines)


def _report(given: argparse.Namespace, ended: list[Ended], passed: int, seconds: float) -> int:
    """The table at the end; the exit status."""
    total = sum((shard.counts for shard in ended), Counter[str]())
    red = [o for shard in ended for o in shard.outcomes if o.outcome == "failed"]
    died = [shard for shard in ended if shard.died]
    if given.kind == "coverage":
        files = [str(p) for p in (OUT / given.kind).glob(".coverage.*")]
        coverage = [sys.executable, "-m", "coverage"]
        subprocess.run([*coverage, "combine", "--quiet", *files], cwd=ROOT, check=True)
        subprocess.run([*coverage, "report"], cwd=ROOT, check=True)
    if given.record:
        record(given.kind, ended)
    print(f"\n{given.kind}: {len(ended)} shards, by the seconds they took")
    for shard in sorted(ended, key=lambda s: -s.seconds):
        print(f"  {shard}  {shard.files[0]}{f' and {len(shard.files) - 1} more' if len(shard.files) > 1 else ''}")
    taken, used = taken_by(ended), taken_by(ended, "processor")
    print(f"the slowest files, of {taken.total():.0f} s and {used.total():.0f} s of processor time")
    for file, its in taken.most_common(SLOWEST):
        print(f"  {its:5.1f} s  {used[file]:5.1f} s  {file}")
    for outcome in red:
        print(f"FAILED {outcome.test}")
    for shard in died:
        last = shard.outcomes[-1].test if shard.outcomes else "nothing"
        print(f"DIED   shard {shard.number}, status {shard.status}, after {last}: {shard.log.relative_to(ROOT)}")
    counts = [f"{total[k]} {k}" for k in ("passed", "failed", "skipped")]
    counts += [f"{passed} passed before"] * (passed > 0) + [f"{len(died)} processes died"] * bool(died)
    print(f"{', '.join(counts)}; {seconds:.0f} s")
    return 1 if red or died else 0


if __name__ == "__main__":
    sys.exit(main())
