"""Runs random Programs on every execution path, and compares their bits with the slow executor's.

    python -m tests.differ [--cases N | --seconds S] [--kinds layers,nets] [--few]         exit status 1 if any differs
    python -m tests.differ replay KIND:SEED | FILE [--device emulated|cuda:0]              one case, on all ways
    python -m tests.differ shrink KIND:SEED | FILE                                         the smallest that fails so
    python -m tests.differ planted [NAME ..] [--cases N]                                   defects, until each is found
    python -m tests.differ sanitized [--cases N | --seconds S]                             under ASAN and UBSAN
    python -m tests.differ small [--cases N | --seconds S]                                 with small limits of size
    python -m tests.differ covered [--cases N | --seconds S]                               lines, branches never reached

Seed N of a kind is the same case in every run. What fails is made smaller and kept in out/differ.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.differ.hunt import ENVIRONMENT, OUT, ROOT, Failure, Hunt, hunt
from tests.differ.kinds import KINDS

WHAT = ("run", "replay", "shrink", "planted", "sanitized", "small", "covered")
SHRUNK = 5
"""Number of failures that are shrunk; further ones are only named."""


def summary(found: Hunt) -> None:
    """Prints the number of cases of each kind."""
    counts = ", ".join(f"{count} of {kind}" for kind, count in sorted(found.cases.items()))
    total = sum(found.cases.values())
    rate = 60 * total / max(found.seconds, 1e-9)
    print(f"{total} cases ({counts}) in {found.seconds:.0f} s, {rate:.0f} a minute; {len(found.failures)} differ")
    print(f"--first {found.after} goes on")


def shrink_all(failures: list[Failure], kernels: Path | None) -> None:
    """Shrinks the first failures, each in a process of its own."""
    OUT.mkdir(parents=True, exist_ok=True)
    for failure in failures[:SHRUNK]:
        command = [sys.executable, "-m", "tests.differ", "shrink", failure.name]
        command += ["--kernels", str(kernels)] if kernels is not None else []
        subprocess.run(command, cwd=ROOT, check=False)


def main() -> int:
    """Parses the arguments, runs, and prints the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.differ")
    parser.add_argument(
        "what",
        nargs="?",
        default="run",
        choices=WHAT,
    )
    parser.add_argument("names", nargs="*", help="cases or files; defects")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--cases", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kernels", type=Path, help="another build of the extension")
    parser.add_argument("--device", default="", help="on a CUDA device: emulated or cuda:N")
    parser.add_argument("--few", action="store_true", help="four ways of each case, numpy on one in sixteen")
    given = parser.parse_args()
    if given.what in ("replay", "shrink"):
        if given.kernels is not None:
            from tests.differ.worker import use_kernels

            use_kernels(given.kernels)
        return _one_by_one(given.what, given.names, given.device)
    if given.cases is None and given.seconds is None and given.what != "planted":
        given.seconds = 60.0
    from tests.differ import instrumented

    if given.what == "run":
        options = (*(("--device", given.device) if given.device else ()), *(("--few",) if given.few else ()))
        found = hunt(
            given.kinds.split(","), cases=given.cases, seconds=given.seconds, jobs=given.jobs, kernels=given.kernels,
            options=options, first=given.first, told=instrumented.tell,
        )  # fmt: skip
        summary(found)
        if not given.device:
            shrink_all(found.failures, given.kernels)
        return int(bool(found.failures))
    if given.what == "planted":
        return instrumented.planted(given.names, given.cases or instrumented.CASES, given.jobs)
    if given.what == "sanitized":
        return instrumented.sanitized(given.kinds.split(","), given.cases, given.seconds, given.jobs)
    if given.what == "small":
        found = instrumented.small(given.kinds.split(","), given.cases, given.seconds, given.jobs, given.first)
        summary(found)
        return int(bool(found.failures))
    return instrumented.covered(given.kinds.split(","), given.cases, given.seconds, given.jobs)


def _one_by_one(what: str, names: list[str], device: str) -> int:
    import os

    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.execve(sys.executable, [sys.executable, "-m", "tests.differ", *sys.argv[1:]], os.environ | ENVIRONMENT)
    from tests.differ import replay, shrink

    good = True
    for name in names:
        if what == "replay":
            good &= replay.replay(name, device)
        else:
            case, path = replay.smallest(name)
            print(f"{shrink.described(case)}\n{path}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
