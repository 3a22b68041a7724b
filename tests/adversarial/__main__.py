"""`python -m tests.adversarial --table [--json] [NAME ..]`: every cheat of the table, run on Anvil, as it ended.

A cheat whose name contains none of the NAMEs is left out. Exit code 1 if any ends otherwise than it declared.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from lockstep.runtime import logs
from tests.adversarial.cheat import Row, run
from tests.adversarial.court import Court
from tests.adversarial.table import TABLE


def rows(names: Sequence[str]) -> Iterator[Row | str]:
    """One row a form as it is done; what failed as text."""
    chosen = [cheat for cheat in TABLE if not names or any(name in cheat.name for name in names)]
    with tempfile.TemporaryDirectory(prefix="adversarial-") as folder:
        court = Court.start(Path(folder))
        try:
            for cheat in chosen:
                try:
                    yield run(court, cheat)
                except Exception as error:
                    traceback.print_exc()
                    yield f"{cheat.id}: {error}"
        finally:
            court.stop()


def line(row: Row) -> str:
    """As the table shows it."""
    same = "as declared" if row.declared == row.found else row.found
    return (
        f"{row.cheat[:40]:<40} {row.form[:34]:<34} {row.verdict:<9} {row.declared[:36]:<36} {same[:46]:<46} "
        f"{row.transactions:>5} {row.gas:>11,} {row.seconds:>7.1f}"
    )


def main(arguments: Sequence[str]) -> int:
    """Run and print; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table (the default)")
    parser.add_argument("--json", action="store_true", help="one JSON object a row instead")
    parser.add_argument("names", nargs="*", help="parts of cheats' names")
    options = parser.parse_args(arguments)
    done, failed = 0, []
    # The table alone goes to stdout.
    logs.configure(logging.WARNING)
    if not options.json:
        names = f"{'cheat':<40} {'form':<34} {'verdict':<9} {'declared':<36} {'found':<46}"
        print(f"{names} {'tx':>5} {'gas':>11} {'seconds':>7}")
    for row in rows(options.names):
        if isinstance(row, str):
            failed.append(row)
            print(f"FAILED {row}", file=sys.stderr, flush=True)
            continue
        done += 1
        print(json.dumps(asdict(row)) if options.json else line(row), flush=True)
    print(f"{done} as declared, honest balances unchanged, sums exact; {len(failed)} failed", file=sys.stderr)
    return 1 if failed or not done else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
