"""The generators on other builds of the kernels: with defects, under sanitizers, with lines counted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.differ import builds
from tests.differ.hunt import OUT, Failure, Hunt, hunt
from tests.differ.planted import DEFECTS, HEADERS, VARIABLE, Defect, changes
from tests.differ.small import LIMITS

CASES = 3000
"""In which a planted defect is looked for."""
CUDA = "sdk/lockstep/numerics/cuda"
COUNTED = (
    "planner",
    "strips",
    "strips_run",
    "sweep",
    "batches",
    "quants",
    "loops",
    "scatter",
    "multiply",
    "arena",
    "recompute",
)
"""Sources whose lines and branches a covered run lists."""


def first_failure(defect: Defect, kernels: Path, cases: int = CASES, jobs: int = 1) -> Failure | None:
    """The first case that fails with this defect in the kernels; None if none of so many does."""
    environment = {VARIABLE: str(DEFECTS.index(defect) + 1)}
    found = hunt(
        list(defect.kinds), cases=cases, jobs=jobs, most_failures=1, kernels=kernels, environment=environment,
        options=("--quick",),
    )  # fmt: skip
    return found.failures[0] if found.failures else None


def first_on_device(change: builds.Change, cases: int = CASES, jobs: int = 1) -> Failure | None:
    """The first case that fails on an emulated device with this change in its kernels."""
    header = OUT / "headers" / change.file
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(change.apply((builds.ROOT / CUDA / change.file).read_text()))
    options = ("--emulated", "--header", str(header))
    found = hunt(["layers"], cases=cases, jobs=jobs, most_failures=1, options=options)
    return found.failures[0] if found.failures else None


def planted(names: list[str], cases: int, jobs: int) -> int:
    """A table of the defects with the seconds until each is found; 1 if one is not."""
    chosen = [d for d in DEFECTS if not names or any(name in d.name for name in names)]
    kernels = builds.build("planted", changes())
    print(f"{'seconds':>8}  {'found by':<16}  {'file':<14}  defect", flush=True)
    missed = 0
    for defect in chosen:
        failure = first_failure(defect, kernels, cases, jobs)
        missed += failure is None
        after = f"{failure.after:8.1f}" if failure else "       -"
        print(f"{after}  {failure.name if failure else 'NOT FOUND':<16}  {defect.file:<14}  {defect.name}", flush=True)
    for name, change in HEADERS:
        if names and not any(wanted in name for wanted in names):
            continue
        failure = first_on_device(change, cases, jobs)
        missed += failure is None
        after = f"{failure.after:8.1f}" if failure else "       -"
        print(f"{after}  {failure.name if failure else 'NOT FOUND':<16}  {change.file:<14}  {name}", flush=True)
    print(f"{missed} not found")
    return int(missed > 0)


def sanitized(kinds: list[str], cases: int | None, seconds: float | None, jobs: int) -> int:
    """Runs the generators on kernels whose every access is checked; 1 if one is wrong."""
    kernels = builds.build("sanitized", options=("-DLOCKSTEP_LOOK=sanitized",))
    runtime = subprocess.run(
        [os.environ.get("CXX", "g++"), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        # The sanitizer's own allocator fills what it gives.
        "LD_PRELOAD": runtime, "MALLOC_PERTURB_": "0",
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:max_malloc_fill_size=1073741824:malloc_fill_byte=127",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "PYCRYPTODOME_DISABLE_DEEPBIND": "1",
    }  # fmt: skip
    found = hunt(
        kinds, cases=cases, seconds=seconds, jobs=jobs, kernels=kernels, environment=environment, options=("--quick",),
        told=tell,
    )  # fmt: skip
    print(f"{sum(found.cases.values())} cases under ASAN and UBSAN, {len(found.failures)} with something wrong")
    return int(bool(found.failures))


def small(kinds: list[str], cases: int | None, seconds: float | None, jobs: int, first: int) -> Hunt:
    """Runs the generators on kernels whose limits are small."""
    kernels = builds.build("small", LIMITS)
    return hunt(kinds, cases=cases, seconds=seconds, jobs=jobs, kernels=kernels, first=first, told=tell)


def tell(failure: Failure) -> None:
    """Tells of a failure at once."""
    print(f"{failure.after:8.1f} s  {failure.name}: {failure.said}", flush=True)


def covered(kinds: list[str], cases: int | None, seconds: float | None, jobs: int) -> int:
    """Says which lines of the planner's sources the generators never reach, neither as the kernels are nor with small
    limits: half of the cases each."""
    report = OUT / "coverage"
    shutil.rmtree(report, ignore_errors=True)
    for name, changes_ in (("covered", []), ("covered-small", LIMITS)):
        kernels = builds.build(name, changes_, options=("-DLOCKSTEP_LOOK=covered",))
        for counts in kernels.parent.rglob("*.gcda"):
            counts.unlink()
        found = hunt(
            kinds, cases=cases and cases // 2, seconds=seconds and seconds / 2, jobs=jobs, kernels=kernels,
            options=("--quick",), told=tell,
        )  # fmt: skip
        print(f"{name}: {sum(found.cases.values())} cases, {len(found.failures)} failures", flush=True)
        (report / name).mkdir(parents=True)
        wanted = [p for p in kernels.parent.rglob("*.gcda") if p.name.partition(".")[0] in COUNTED]
        subprocess.run(
            ["gcov", "--json-format", "--branch-probabilities", *map(str, wanted)],
            cwd=report / name,
            capture_output=True,
            check=True,
        )
    for name in COUNTED:
        lines, branches, missing = _counts(report, f"{name}.cpp")
        print(f"{name + '.cpp':<16} lines {_share(lines)}  branches {_share(branches)}  never: {_ranges(missing)}")
    return 0


def _share(counts: list[int]) -> str:
    reached = sum(count > 0 for count in counts)
    return f"{reached}/{len(counts)} ({100 * reached / max(1, len(counts)):.1f} %)"


def _counts(report: Path, file: str) -> tuple[list[int], list[int], list[int]]:
    """Counts of a source's lines and of their branches that are no exception's, and the lines never reached."""
    lines: dict[int, int] = {}
    branches: dict[tuple[int, int], int] = {}
    for found in _reports(report):
        for entry in found["files"]:
            if Path(entry["file"]).name != file:
                continue
            for line in entry["lines"]:
                number = line["line_number"]
                lines[number] = lines.get(number, 0) + line["count"]
                for i, branch in enumerate(b for b in line["branches"] if not b["throw"]):
                    branches[number, i] = branches.get((number, i), 0) + branch["count"]
    return list(lines.values()), list(branches.values()), sorted(n for n, count in lines.items() if not count)


def _reports(report: Path) -> Iterator[dict]:
    import gzip

    for path in report.rglob("*.gcov.json.gz"):
        yield json.loads(gzip.decompress(path.read_bytes()))


def _ranges(numbers: Iterable[int]) -> str:
    found: list[str] = []
    first = last = None
    for n in [*numbers, None]:
        if last is not None and n == last + 1:
            last = n
            continue
        if first is not None:
            found.append(str(first) if first == last else f"{first}-{last}")
        first = last = n
    return " ".join(found) or "none"
