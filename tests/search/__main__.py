"""python -m tests.search [--histories N] [--seed S] [--processes P] [--fixes H1,...] [--carries] [--keep]

Plays N histories with every fix in place, then each fix reverted until its hurt is found again. One line of JSON:
histories, calls, violations, reverted: {fix: histories until found}, seconds.
Fixes have the marks of docs/threat-model.md, broken rules of carries those of tests/search/fixes.py. One history of
four is of a job whose slots carry; with --carries all are.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import cpu_count

from tests.search.engine import play
from tests.search.fixes import FIXES, reverted
from tests.search.scene import setting_of
from tests.search.shrink import save, shrink, told

CHUNK = 50
LIMIT = 20_000
"""Histories after which a reverted fix counts as not found."""


def chunk(fix: str | None, first: int, last: int, carries: bool | None) -> tuple[int, int, list[int]]:
    """(histories, calls, seeds that break a rule) of some seeds; with a fix reverted it ends at the first."""
    calls, found = 0, []
    for seed in range(first, last):
        with reverted(fix) as machine:
            played = play(setting_of(seed, carries=carries), machine=machine)
        calls += played.calls
        if played.violation is not None:
            found.append(seed)
            if fix is not None:
                return seed - first + 1, calls, found
    return last - first, calls, found


def main() -> int:
    """Runs the search; returns 1 if a rule broke with every fix in place, or a reverted fix was not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.search", description=__doc__)
    parser.add_argument("--histories", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=cpu_count())
    parser.add_argument("--fixes", default=",".join(FIXES))
    parser.add_argument("--keep", action="store_true", help="shrink what a reverted fix gives, and keep it")
    parser.add_argument("--carries", action="store_const", const=True, help="play jobs whose slots carry alone")
    asked = parser.parse_args()
    begun = time.monotonic()
    with ProcessPoolExecutor(asked.processes) as pool:
        starts = list(range(asked.seed, asked.seed + asked.histories, CHUNK))
        ends = [min(start + CHUNK, asked.seed + asked.histories) for start in starts]
        parts = list(pool.map(chunk, repeat(None), starts, ends, repeat(asked.carries)))
        named = [fix for fix in asked.fixes.split(",") if fix]
        # Seeds of a reverted fix are tried in order, so that the count is meaningful.
        found = pool.map(first_of, named, repeat(asked.seed), repeat(asked.keep), repeat(asked.carries))
        until = dict(zip(named, found, strict=True))
    broken = [seed for _, _, seeds in parts for seed in seeds]
    for seed in broken[:3]:
        played = shrink(play(setting_of(seed, carries=asked.carries)), None)
        print(told(played), file=sys.stderr)
    print(json.dumps({
        "histories": sum(n for n, _, _ in parts), "calls": sum(n for _, n, _ in parts), "violations": len(broken),
        "reverted": until, "seconds": round(time.monotonic() - begun),
    }))  # fmt: skip
    return int(bool(broken) or None in until.values())


def first_of(fix: str, seed: int, keep: bool, carries: bool | None) -> int | None:
    """Returns the number of histories until the reverted fix breaks a rule; None if more than LIMIT."""
    for start in range(seed, seed + LIMIT, CHUNK):
        histories, _, found = chunk(fix, start, start + CHUNK, carries)
        if not found:
            continue
        if keep:
            with reverted(fix) as machine:
                setting = setting_of(found[0], carries=carries)
                played = play(setting, machine=machine)
            save(shrink(played, fix), fix)
        return start - seed + histories
    return None


if __name__ == "__main__":
    sys.exit(main())
