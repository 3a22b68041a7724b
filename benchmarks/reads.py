"""Commands that read, on a market of a day: seconds and processor seconds of `--help`, `train list`, `worker status`.

    python benchmarks/reads.py                      a table
    python benchmarks/reads.py --json               one line of JSON on stdout
    python benchmarks/reads.py --beside TREE        another checkout's commands by turns with these, and the ratio

The market is Anvil's, 86,400 blocks old: jobs of forty rounds, each with three workers' claims, their receipts and a
merge. Each command is a process of its own, as a shell starts it; figures are medians. The worker has its copy of the
chain's events, as one that works there; the reads are also timed without it. Every tree has a cache of its own, which
the first, untimed run fills.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from lockstep.chain.devnet import Devnet, key_of  # noqa: E402
from lockstep.chain.events import Event, EventReader  # noqa: E402
from lockstep.chain.keys import KEYSTORE, create_account  # noqa: E402
from lockstep.chain.logcache import FILE_NAME, LogCache  # noqa: E402
from lockstep.market.ledger import Watcher  # noqa: E402
from lockstep.protocol.jobs import Phase  # noqa: E402
from lockstep.protocol.market import ids  # noqa: E402
from tests.support.world import World  # noqa: E402

BLOCKS = 86_400
"""A day of blocks of one second."""
ROUNDS = 40
START = "import sys; from lockstep.cli.main import main; main(sys.argv[1:])"


def market(devnet: Devnet, jobs: int) -> World:
    """Plays jobs to their ends, and lets the rest of the day pass."""
    world = World.start(devnet, slots=3, min_slots=2, rounds=ROUNDS)
    contracts, me = world.contracts.market, world.address("requester")
    for number in range(1, jobs + 1):
        if number > 1:
            world.job = ids.job_id(devnet.w3.eth.chain_id, contracts.address, me, number, world.params)
            world.send(contracts.create(world.params, number, world.params.escrow), "requester")
        for r in range(ROUNDS):
            world.to(Phase.FINAL, r)
            devnet.mine(BLOCKS // (jobs * ROUNDS) - 40)
        world.send(contracts.finish(world.job), "requester")
        print(f"job {number} of {jobs}: block {world.head}", file=sys.stderr)
    devnet.mine(max(1, BLOCKS - world.head))
    return world


def home_of(world: World, home: Path, *, copied: bool) -> Path:
    """Makes the home of a worker; `copied`: with its copy of the chain's events."""
    home.mkdir()
    create_account(home / KEYSTORE, "password", key_of(world.devnet.seed, "worker-0"), work=2)
    if copied:
        cache = LogCache(home / FILE_NAME, world.devnet.w3, world.contracts.addresses)
        Watcher(EventReader(world.devnet.w3, world.contracts.addresses, cache=cache)).poll()
        cache.close()
    return home


def timed(tree: Path, cache: Path, *command: str) -> tuple[float, float]:
    """Runs a command of a checkout; returns its seconds, and those of the processor."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    around = {**kept, "PYTHONPATH": os.pathsep.join((str(tree / "sdk"), str(tree))), "LOCKSTEP_CACHE": str(cache)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-c", START, *command], env=around, cwd=tree, capture_output=True, text=True
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != 0:
        raise RuntimeError(f"lockstep {' '.join(command)}: {ended.stderr[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Opens the market, runs the commands by turns, and prints their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--beside", type=Path, help="another checkout of the project")
    given = parser.parse_args()
    trees = [ROOT, *([given.beside.resolve()] if given.beside else [])]
    with tempfile.TemporaryDirectory() as folder, Devnet(Path(folder) / "chain", block_seconds=0) as devnet:
        world = market(devnet, given.jobs)
        deployment = Path(folder) / "deployment.json"
        world.contracts.addresses.save(deployment)
        where = ("--rpc", devnet.url, "--deployment", str(deployment))
        store = ("--storage", f"dir://{folder}/blocks")
        homes = {
            copied: str(home_of(world, Path(folder) / f"home-{copied}", copied=copied)) for copied in (True, False)
        }
        caches = {tree: Path(folder) / f"cache-{number}" for number, tree in enumerate(trees)}
        commands = {
            "--help": ("--help",),
            "train --help": ("train", "--help"),
            "train list": ("train", "list", *where, *store),
            "train status": ("train", "status", world.job.hex(), *where, *store, "--home", homes[True]),
            "worker status": ("worker", "status", *where, "--home", homes[True]),
            "worker status, no copy": ("worker", "status", *where, "--home", homes[False]),
            "worker earnings": ("worker", "earnings", *where, "--home", homes[True]),
        }
        found: dict[str, list[list[tuple[float, float]]]] = {name: [[] for _ in trees] for name in commands}
        for run in range(given.runs + 1):
            for name, command in commands.items():
                for tree, times in zip(trees, found[name], strict=True):
                    taken = timed(tree, caches[tree], *command)
                    if run:
                        times.append(taken)
        figures = {
            name: [[round(statistics.median(t[i] for t in times), 3) for i in (0, 1)] for times in sides]
            for name, sides in found.items()
        }
        told = {"blocks": world.head, "jobs": given.jobs, "events": sum(1 for _ in _events(world)), "seconds": figures}
    if given.json:
        print(json.dumps(told))
        return
    print(f"{told['jobs']} jobs, {told['events']} events in {told['blocks']} blocks; seconds (of the processor)")
    for name, sides in figures.items():
        print(f"  {name:<24}" + "   ".join(f"{seconds:6.2f} ({busy:.2f})" for seconds, busy in sides))


def _events(world: World) -> Iterator[Event]:
    reader = EventReader(world.devnet.w3, world.contracts.addresses)
    cursor = reader.start()
    while (batch := reader.poll(cursor)).cursor != cursor:
        cursor = batch.cursor
        yield from batch.events


if __name__ == "__main__":
    main()
