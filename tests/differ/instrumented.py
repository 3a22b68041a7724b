"""Runs the generators on special builds of the kernels: with defects, under sanitizers, with coverage."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.differ import builds
from tests.differ.counts import counts_of
from tests.differ.explained import EXPLAINED, Reached, reached
from tests.differ.hunt import OUT, Failure, Hunt, hunt
from tests.differ.planted import DEFECTS, HEADERS, VARIABLE, Defect, changes
from tests.differ.small import LIMITS

LOOPED = {"strips": 12, "alike": 12, "nearly": 24}
"""Cases of a covered run whose loops are compiled."""
CASES = 3000
"""Most cases in which a planted defect is searched for."""
CUDA = "sdk/lockstep/numerics/cuda"
COUNTED = (
    *sorted(
        f"plan/{path.stem}"
        for path in (builds.ROOT / builds.KERNELS / "plan").glob("*.cpp")
        if path.stem != "soundness"
    ),
    "strips_run",
    "loops",
    "scatter",
    "multiply",
)
"""Sources whose lines and branches a covered run lists."""


def first_failure(defect: Defect, kernels: Path, cases: int = CASES, jobs: int = 1) -> Failure | None:
    """Returns the first case that fails with this defect in the kernels; None if none of so many does."""
    environment = {VARIABLE: str(DEFECTS.index(defect) + 1)}
    found = hunt(
        list(defect.kinds), cases=cases, jobs=jobs, most_failures=1, kernels=kernels, environment=environment,
        options=("--quick",),
    )  # fmt: skip
    return found.failures[0] if found.failures else None


def first_on_device(change: builds.Change, cases: int = CASES, jobs: int = 1) -> Failure | None:
    """Returns the first case that fails on an emulated device with this change in its kernels."""
    header = OUT / "headers" / change.file
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(change.apply((builds.ROOT / CUDA / change.file).read_text()))
    options = ("--device", "emulated", "--header", str(header))
    found = hunt(["layers"], cases=cases, jobs=jobs, most_failures=1, options=options)
    return found.failures[0] if found.failures else None


def planted(names: list[str], cases: int, jobs: int) -> int:
    """Prints a table of the defects with the seconds until each is found; returns 1 if one is not."""
    chosen = [d for d in DEFECTS if not names or any(name in d.name for name in names)]
    kernels = builds.build("planted", changes())
    print(f"{'seconds':>8}  {'found by':<16}  {'file':<22}  defect", flush=True)
    missed = 0
    for defect in chosen:
        failure = first_failure(defect, kernels, cases, jobs)
        missed += failure is None
        after = f"{failure.after:8.1f}" if failure else "       -"
        print(f"{after}  {failure.name if failure else 'NOT FOUND':<16}  {defect.file:<22}  {defect.name}", flush=True)
    for name, change in HEADERS:
        if names and not any(wanted in name for wanted in names):
            continue
        failure = first_on_device(change, cases, jobs)
        missed += failure is None
        after = f"{failure.after:8.1f}" if failure else "       -"
        print(f"{after}  {failure.name if failure else 'NOT FOUND':<16}  {change.file:<22}  {name}", flush=True)
    print(f"{missed} not found")
    return int(missed > 0)


def sanitized(kinds: list[str], cases: int | None, seconds: float | None, jobs: int) -> int:
    """Runs the generators on kernels with checked memory accesses; returns 1 if one access is wrong."""
    kernels = builds.build("sanitized", options=("-DLOCKSTEP_LOOK=sanitized",))
    # The sanitizer looks up the functions that throw exceptions when it is loaded.
    runtimes = [
        subprocess.run(
            [os.environ.get("CXX", "g++"), f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        # The sanitizer's own allocator fills memory.
        "LD_PRELOAD": " ".join(runtimes), "MALLOC_PERTURB_": "0",
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
    """Runs the generators on kernels with small limits."""
    kernels = builds.build("small", LIMITS)
    return hunt(kinds, cases=cases, seconds=seconds, jobs=jobs, kernels=kernels, first=first, told=tell)


def tell(failure: Failure) -> None:
    """Prints a failure at once."""
    print(f"{failure.after:8.1f} s  {failure.name}: {failure.said}", flush=True)


def covered(kinds: list[str], cases: int | None, seconds: float | None, jobs: int) -> int:
    """Prints the lines and branches of the planner's sources that the generators never reach.

    Half of the cases run on the usual kernels, half with small limits, and a few with compiled loops.
    """
    notes: dict[str, list[Path]] = {name: [] for name in COUNTED}
    for name, changes_ in (("covered", []), ("covered-small", LIMITS)):
        kernels = builds.build(name, changes_, options=("-DLOCKSTEP_LOOK=covered",))
        for path in kernels.parent.rglob("*.gcda"):
            path.unlink()
        found = hunt(
            kinds, cases=cases and cases // 2, seconds=seconds and seconds / 2, jobs=jobs, kernels=kernels,
            options=("--quick", "--few"), told=tell,
        )  # fmt: skip
        print(f"{name}: {sum(found.cases.values())} cases, {len(found.failures)} failures", flush=True)
        for kind, count in LOOPED.items():
            found = hunt([kind], cases=count, jobs=jobs, kernels=kernels, options=("--compiled",), told=tell)
            said = f"{found.cases[kind]} cases of {kind}, {len(found.failures)} failures"
            print(f"{name}, compiled loops: {said}", flush=True)
        for source in COUNTED:
            notes[source] += kernels.parent.rglob(f"kernels/{source}.cpp.gcno")
    total = Reached()
    for name, paths in notes.items():
        counts = counts_of(paths, f"kernels/{name}.cpp")
        own, told = reached(counts, f"{name}.cpp")
        total += own
        print(f"{name + '.cpp':<24} lines {_share(counts.lines.values())}  {own}")
        print("".join(f"    {line}\n" for line in told), end="")
    print(f"{'together':<24} {total}")
    for reason in EXPLAINED:
        print(f"    {reason.branches} of {reason.file}, {reason.text}: {reason.why}")
    return 0


def _share(counts: Iterable[int]) -> str:
    found = list(counts)
    ran = sum(count > 0 for count in found)
    return f"{ran}/{len(found)} ({100 * ran / max(1, len(found)):.1f} %)"
