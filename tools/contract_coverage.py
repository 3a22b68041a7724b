"""Lines and branches of contracts/ that forge's tests and the recorded chains run through.

python tools/contract_coverage.py    a table by file, and what nothing reaches (recordings: `make recordings` first)

Fails below the floor, at a gap that tools/coverage_gaps.json does not explain, and at an explanation of what is
reached. An explained gap counts as a gap in every share. forge counts an `if` without `else` as one branch, its body;
that it is passed by shows in the lines after it.
"""

import argparse
import json
import os
import subprocess
import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "out/coverage.lcov"
EXPLAINED = ROOT / "tools/coverage_gaps.json"
FLOOR = 95.0
"""Percent, of lines and of branches over all contracts."""

LEFT_OUT = ("contracts/test/",)
OF_GAS = "go_the_short_way"
"""Tests of gas: coverage is taken without the optimizer, where they say nothing."""


@dataclass
class File:
    """The lines, branches and functions of one source, with the number of times each was reached."""

    lines: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    branches: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    functions: dict[int, str] = field(default_factory=dict)
    """By the line at which they begin."""


@dataclass(frozen=True)
class Gap:
    """A line, or a branch at a line, that nothing reaches; named so that other lines may move."""

    function: str
    what: str
    code: str


def run_forge(recordings: Path) -> None:
    """forge coverage into REPORT. Exits with forge's words when a test fails."""
    (forge,) = (ROOT / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
    home = ROOT / "out/home"
    home.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "HOME": str(home),
        "LOCKSTEP_RECORDINGS": recordings.relative_to(ROOT).as_posix(),
        "FOUNDRY_PROFILE": "slow",
        # One test reads every recording: it spends more gas than a block has.
        "FOUNDRY_GAS_LIMIT": str(2**64 - 1),
    }
    command = [forge, "coverage", "--report", "lcov", "--report-file", REPORT, "--no-match-test", OF_GAS]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"forge coverage failed:\n{run.stdout[-4000:]}{run.stderr[-4000:]}")


def read(report: Path) -> dict[str, File]:
    """The sources under contracts/ of an lcov report."""
    found: dict[str, File] = defaultdict(File)
    own = File()
    for line in report.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "SF":
            own = found[value] if value.startswith("contracts/") and not value.startswith(LEFT_OUT) else File()
        elif key == "FN":
            number, name = value.split(",")
            own.functions[int(number)] = name
        elif key == "DA":
            number, count = value.split(",")[:2]
            own.lines[int(number)] += int(count)
        elif key == "BRDA":
            number, block, branch, taken = value.split(",")
            own.branches[int(number), f"{block}.{branch}"] += 0 if taken == "-" else int(taken)
    return dict(found)


def gaps_of(own: File, source: list[str]) -> list[tuple[int, Gap]]:
    """(line, gap) of whatever of a file nothing reaches."""
    starts = sorted(own.functions)
    lines = [(at, "line") for at, count in own.lines.items() if not count]
    branches = [(at, "branch") for (at, _), count in own.branches.items() if not count]
    found = []
    for at, what in sorted(lines + branches):
        begun = bisect_right(starts, at)
        found.append((at, Gap(own.functions[starts[begun - 1]] if begun else "", what, source[at - 1].strip())))
    return found


def explanations() -> dict[Gap, str]:
    """The reason of each gap that has one."""
    entries = json.loads(EXPLAINED.read_text())
    return {Gap(e["function"], e["what"], e["code"]): e["reason"] for e in entries}


def percent(parts: list[int]) -> float:
    """Returns the percentage of the parts that were reached; 100 if there are none."""
    return 100 * sum(count > 0 for count in parts) / len(parts) if parts else 100.0


def main() -> None:
    """Prints the table and the gaps; exits 1 with what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path, default=ROOT / "out/recordings")
    arguments = parser.parse_args()
    if not (arguments.recordings / "list").exists():
        sys.exit("no recordings: run `make recordings`")

    run_forge(arguments.recordings)
    files = dict(sorted(read(REPORT).items()))
    print(f"{'':44}{'lines':>16}{'branches':>16}")
    for name, own in files.items():
        print(f"{name:44}{_share([*own.lines.values()])}{_share([*own.branches.values()])}")
    lines = [count for own in files.values() for count in own.lines.values()]
    branches = [count for own in files.values() for count in own.branches.values()]
    print(f"{'all':44}{_share(lines)}{_share(branches)}")

    gaps = [(name, *gap) for name, own in files.items() for gap in gaps_of(own, (ROOT / name).read_text().splitlines())]
    reasons = explanations()
    for name, at, gap in gaps:
        print(f"\n{name}:{at}: {gap.what} in {gap.function}\n    {gap.code}\n  {reasons.get(gap, 'UNEXPLAINED')}")
    problems = [f"{name}:{at} is not reached, nor explained" for name, at, gap in gaps if gap not in reasons]
    problems += [f"explains nothing: {gap.code} in {gap.function}" for gap in set(reasons) - {gap for *_, gap in gaps}]
    for what, counts in (("lines", lines), ("branches", branches)):
        if percent(counts) < FLOOR:
            problems.append(f"{percent(counts):.2f} % of {what} where {FLOOR} % are wanted")
    if problems:
        sys.exit("\n" + "\n".join(problems))


def _share(counts: list[int]) -> str:
    return f"{sum(c > 0 for c in counts):>5}/{len(counts):<4}{percent(counts):5.1f} %"


if __name__ == "__main__":
    main()
