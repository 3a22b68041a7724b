"""Run a target of make many times, the last runs beside busy processes, and say how each run ended.

    python tools/repeat_tests.py                       ten times `make test`, five of them beside eight busy processes
    python tools/repeat_tests.py --runs 3 --loaded 0 test-slow

Logs are in out/repeat. Exit status 1 if a run failed.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out/repeat"
BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(1_000_000))"
"""Ends by itself when the process that started it is gone."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@contextlib.contextmanager
def load(processes: int) -> Iterator[None]:
    """Keeps this many processes busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def main() -> int:
    """Runs, says."""
    parser = argparse.ArgumentParser(prog="python tools/repeat_tests.py")
    parser.add_argument("target", nargs="?", default="test", help="of make (default test)")
    parser.add_argument("--runs", type=int, default=10, help="default 10")
    parser.add_argument("--loaded", type=int, default=5, help="runs that have a load beside them (default 5)")
    parser.add_argument("--busy", type=int, default=8, help="processes of that load (default 8)")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    failed = 0
    print("run  busy processes  seconds  result", flush=True)
    for run in range(1, given.runs + 1):
        busy = given.busy if run > given.runs - given.loaded else 0
        log, start = OUT / f"{given.target}-{run:02}.log", time.monotonic()
        with load(busy), log.open("w") as file:
            status = subprocess.run(
                ["make", given.target], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                check=False,
            ).returncode  # fmt: skip
        names = sorted(set(FAILED.findall(log.read_text(errors="replace"))))
        said = "green" if status == 0 else f"status {status}: {', '.join(names) or f'see {log.relative_to(ROOT)}'}"
        print(f"{run:3}  {busy:14}  {time.monotonic() - start:7.0f}  {said}", flush=True)
        failed += status != 0
    print(f"{given.runs - failed} of {given.runs} green")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
