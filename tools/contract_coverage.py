"""Lines and branches of contracts/ that forge's tests and the recorded chains run through; below the floor it fails.

python tools/contract_coverage.py            a table by file (recordings: `make recordings` first)
python tools/contract_coverage.py --missing  ... and the lines and branches that nothing reaches
"""

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "out/coverage.lcov"
FLOOR = 95.0
"""Percent, of lines and of branches over all contracts."""

LEFT_OUT = ("contracts/test/",)


@dataclass
class File:
    """What one source has, and what was reached of it."""

    lines: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    branches: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))


def run_forge(recordings: Path) -> None:
    """forge coverage into REPORT. Exits with forge's words when a test fails."""
    (forge,) = (ROOT / "node_modules/@foundry-rs").glob("forge-*/bin/forge")
    home = ROOT / "out/home"
    home.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "HOME": str(home),
        "LOCKSTEP_RECORDINGS": recordings.relative_to(ROOT).as_posix(),
        # One test reads every recording: it spends more gas than a block has.
        "FOUNDRY_GAS_LIMIT": str(2**64 - 1),
    }
    command = [forge, "coverage", "--report", "lcov", "--report-file", REPORT]
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
        elif key == "DA":
            number, count = value.split(",")[:2]
            own.lines[int(number)] += int(count)
        elif key == "BRDA":
            number, block, branch, taken = value.split(",")
            own.branches[int(number), f"{block}.{branch}"] += 0 if taken == "-" else int(taken)
    return dict(found)


def percent(parts: list[int]) -> float:
    """How much of it was reached; all of nothing."""
    return 100 * sum(count > 0 for count in parts) / len(parts) if parts else 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path, default=ROOT / "out/recordings")
    parser.add_argument("--missing", action="store_true", help="list what nothing reaches")
    arguments = parser.parse_args()
    if not (arguments.recordings / "list").exists():
        sys.exit("no recordings: run `make recordings`")

    run_forge(arguments.recordings)
    files = read(REPORT)
    print(f"{'':44}{'lines':>16}{'branches':>16}")
    total = File()
    for name, own in sorted(files.items()):
        for part in (own.lines, own.branches):
            whole = total.lines if part is own.lines else total.branches
            whole.update({(name, at): count for at, count in part.items()})  # type: ignore[arg-type]
        print(f"{name:44}{_share(own.lines)}{_share(own.branches)}")
        if arguments.missing:
            source = (ROOT / name).read_text().splitlines()
            for at in sorted(at for at, count in own.lines.items() if not count):
                print(f"    line   {at:4}  {source[at - 1].strip()}")
            for at, which in sorted(key for key, count in own.branches.items() if not count):
                print(f"    branch {at:4}  {source[at - 1].strip()}  ({which})")
    print(f"{'all':44}{_share(total.lines)}{_share(total.branches)}")
    reached = percent(list(total.lines.values())), percent(list(total.branches.values()))
    if min(reached) < FLOOR:
        sys.exit(f"{reached[0]:.2f} % of lines and {reached[1]:.2f} % of branches: {FLOOR} % are wanted")


def _share(parts: dict) -> str:  # type: ignore[type-arg]
    counts = list(parts.values())
    return f"{sum(c > 0 for c in counts):>5}/{len(counts):<4}{percent(counts):5.1f} %"


if __name__ == "__main__":
    main()
