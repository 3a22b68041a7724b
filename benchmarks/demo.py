"""The demo's lies, strategy by strategy: each run is a whole market of processes, played to its end.

    python benchmarks/demo.py             a table
    python benchmarks/demo.py --json      one line of JSON on stdout
    python benchmarks/demo.py --out X     where what `lockstep demo --json` prints is kept; it is not run again

A run fails unless its game ends where the liar declared; a lie without a meaning for a strategy is refused.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIES = ("one-ulp", "stale-carry", "wrong-index", "tampered-residual", "lying-aggregator")
"""Those about a step, a carry, places, a residual, a merge."""
LIES_OF: dict[str, tuple[str, ...]] = {
    "sparseloco": LIES,
    "muloco": LIES,
    # It keeps no residual: what it sends is lied about in its encode.
    "diloco": (*LIES, "scaled-payload"),
    "fedavg": ("one-ulp",),
    "intellect1": ("one-ulp",),
    "sparseloco_e": ("one-ulp",),
}
OPTIONS: dict[str, tuple[str, ...]] = {"diloco": ("--carry",)}
"""The options with which a strategy carries."""


def answer_of(strategy: str, cheat: str, folder: Path) -> dict[str, Any]:
    """The answer of `lockstep demo --json`, from its file if it ended; raises RuntimeError if it ended otherwise."""
    kept = folder / f"{strategy}-{cheat}.json"
    if not kept.exists():
        command = [sys.executable, "-m", "lockstep.cli.main", "demo", "--json", "--no-browser", "--cheat", cheat]
        done = subprocess.run(
            [*command, "--strategy", strategy, *OPTIONS.get(strategy, ())], capture_output=True, text=True, check=False
        )
        told = json.loads(done.stdout) if done.stdout else {}
        if done.returncode and told.get("error", {}).get("code") != "usage":
            raise RuntimeError(f"{strategy}, {cheat}: {done.stdout}{done.stderr[-2000:]}")
        kept.write_text(done.stdout)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def row_of(strategy: str, cheat: str, answer: dict[str, Any]) -> dict[str, Any]:
    """A row of the table: the Program that convicted the liar, and what that took; or why the lie was refused."""
    row: dict[str, Any] = {"strategy": strategy, "cheat": cheat}
    if not answer["ok"]:
        return row | {"refused": answer["error"]["message"]}
    data = answer["data"]
    (game,) = data["games"]
    return row | {
        "verdict": game["verdict"],
        "program": game["program"],
        "step": game["step"],
        "transactions": game["transactions"],
        "gas": game["gas_total"],
        "seconds": data["seconds"],
        "bits_per_parameter": data["bits_per_parameter"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what has not run yet; prints a table, or one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--strategy", nargs="*", choices=list(LIES_OF), default=list(LIES_OF))
    parser.add_argument("--cheat", nargs="*", help="some of the lies")
    parser.add_argument("--out", type=Path, default=Path("out/demo"))
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for strategy in given.strategy:
        for cheat in given.cheat or LIES_OF[strategy]:
            row = row_of(strategy, cheat, answer_of(strategy, cheat, given.out))
            rows.append(row)
            if not given.json:
                cells = row.get("refused") or (
                    f"{row['verdict']}, {row['program']} {row['step']}, {row['transactions']} transactions, "
                    f"{row['gas']:,} gas, {row['seconds']} s, {row['bits_per_parameter']} bits"
                )
                print(f"{strategy:<12}{cheat:<20}{cells}", flush=True)
    if given.json:
        print(json.dumps({"data": {"results": rows}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
