"""Hostile Programs at the limits, drawn one after the other against a worker's box: what its parent suffers.

    python benchmarks/hostile.py                   a thousand; a table of what became of them
    python benchmarks/hostile.py --draws 40 --json

Each is decoded, planned and run in a child of 512 MiB that has two seconds for each order. Half are drawn at the limits
of memory, time, planning and compilation (tests/support/hostile.py), half by the generators that look for differences
(tests/differ). The parent's memory and the longest time in which another of its threads did not run are its own,
while a child has an order: drawing and storing a Program does not count.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measure import OneProgram  # noqa: E402
from lockstep.execution.box.confinement import Allowance  # noqa: E402
from lockstep.execution.box.executable import BoxedExecutable  # noqa: E402
from lockstep.execution.box.handle import Box  # noqa: E402
from lockstep.numerics.arrays import Array, StepContext  # noqa: E402
from lockstep.protocol.errors import Crashed, LockstepError  # noqa: E402
from lockstep.protocol.programs.program import Program  # noqa: E402
from lockstep.storage.containers import encode_program, load_program  # noqa: E402
from lockstep.storage.directory import DirectoryStore  # noqa: E402
from tests.differ import kinds  # noqa: E402
from tests.support import hostile, toyjob  # noqa: E402

SECONDS = 2.0
"""A child's time for one order."""
MEMORY = 512 << 20
CONTEXT = StepContext(bytes(32), 0, 0, 1)
LOOK_SECONDS = 0.005
"""Between two looks of the thread that watches."""
WALKED = ("anything", "changed", "nearly", "unruled")
"""Kinds of tests/differ."""


@dataclass
class Suffered:
    """The ends of the Programs, and the cost to the process that had them run."""

    draws: int = 0
    children: int = 0
    """Started, one after the other."""
    outcomes: dict[str, int] = field(default_factory=dict)
    grown_bytes: int = 0
    """The most memory of its own that the parent held, above what it had at first."""
    silence_seconds: float = 0.0
    """The longest time in which a thread of the parent that wanted to run did not."""


def drawn(seed: int) -> tuple[str, Program, tuple[Array | None, ...], Array | None]:
    """(kind, Program, state, dataset) of a seed; a seed whose Program breaks a rule gives the next one's."""
    while True:
        rng = random.Random(f"hostile {seed}")
        try:
            if rng.random() < 0.5:
                return "limits", hostile.step_with(hostile.drawn(rng), toyjob.step_program()), *toy()
            case = kinds.made(f"{rng.choice(WALKED)}:{seed}")
            if case is not None:
                return "differ", case.program, case.state, case.dataset
        except LockstepError:
            pass
        seed += 1_000_003


def toy() -> tuple[tuple[Array | None, ...], Array]:
    """The toy job's first state and its rows."""
    with tempfile.TemporaryDirectory() as folder:
        job = toyjob.load(DirectoryStore(Path(folder)))
        return tuple(job.programs.slot_state(job.params.sections, job.genesis, 0)), job.dataset


def suffer(seeds: range) -> Suffered:
    """Has the Programs of some seeds run in children."""
    found, outcomes, box = Suffered(), Counter[str](), None
    with tempfile.TemporaryDirectory() as folder:
        store, own = DirectoryStore(Path(folder, "blocks")), Path(folder, "own")
        own.mkdir(mode=0o700)
        try:
            for seed in seeds:
                kind, program, state, dataset = drawn(seed)
                cid = store.put(encode_program(program, store.put))
                if box is None or not box.alive:
                    box = Box(Allowance(MEMORY, 1 << 31), store, own)
                    found.children += 1
                with watched(found):
                    became = what_became(box, store, cid, program, state, dataset)
                outcomes[f"{kind}: {became}"] += 1
                found.draws += 1
                if not box.alive:
                    box.close()
        finally:
            if box is not None:
                box.close()
    found.outcomes = dict(sorted(outcomes.items()))
    return found


def what_became(
    box: Box, store: DirectoryStore, cid: str, program: Program, state: tuple[Array | None, ...], dataset: Array | None
) -> str:
    """Has a child run a Program; returns the end of it in words. The parent decodes it, too, once the child has."""
    try:
        box.call("decode", seconds=SECONDS, cid=cid, threads=1)
        load_program(store, cid)
        BoxedExecutable(program, 1, box=OneProgram(box, SECONDS)).roots(state, CONTEXT, dataset)
    except Crashed as error:
        why = error.message
        return "late" if "not done" in why else "memory" if "memory" in why else f"died ({why.rpartition(': ')[2]})"
    except LockstepError as error:
        return f"refused ({error.code})"
    return "computed"


@contextmanager
def watched(found: Suffered) -> Iterator[None]:
    """Watches this process from a thread of its own."""
    done, first = threading.Event(), own_bytes()

    def watch() -> None:
        last = time.monotonic()
        while not done.wait(LOOK_SECONDS):
            now = time.monotonic()
            found.silence_seconds = max(found.silence_seconds, round(now - last - LOOK_SECONDS, 4))
            found.grown_bytes = max(found.grown_bytes, own_bytes() - first)
            last = time.monotonic()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def own_bytes() -> int:
    """Memory of this process's own, files left out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    found = suffer(range(arguments.first, arguments.first + arguments.draws))
    if arguments.json:
        print(json.dumps(asdict(found)))
        return
    for outcome, count in found.outcomes.items():
        print(f"{count:6}  {outcome}")
    grown = found.grown_bytes / 1e6
    print(f"{found.draws} Programs, {found.children} children; the parent grew by {grown:.1f} MB, ", end="")
    print(f"and its longest silence was {1000 * found.silence_seconds:.0f} ms")


if __name__ == "__main__":
    main()
