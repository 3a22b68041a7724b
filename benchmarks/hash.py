"""Hashing a state: GB/s of the Merkle trees against hashlib, and the share of a training step that it takes.

    python benchmarks/hash.py             tables
    python benchmarks/hash.py --json      one line of JSON on stdout

The state is that of a GPT of 12.3 M parameters under AdamW: parameters, two moments, the round's anchor, a clock. A
step leaves the anchor as it is, so its root is remembered. `serial` hashes S_t on the step's threads and then goes on;
`overlapped` is what workers and verifiers do: one more thread hashes S_t while step t+1 runs. Both sides of a figure
run turn by turn in one process; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256

import numpy as np
from measure import Training, in_turn, wait_asleep

from lockstep.execution.jobs import BackgroundTask
from lockstep.numerics.trace import layout_root
from lockstep.protocol import _hash
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import StateRoot
from lockstep.training.job import Batch, build_programs
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.models.gpt import next_token_loss
from lockstep.training.strategies import diloco

MODEL = GPTConfig(vocabulary=4096, context=256, layers=6, heads=6, width=384)
BATCH = Batch(rows=8, row_length=257)
PATHS = ("portable", "sha-ni", "avx512", "sha2")
THREADS = (1, 2)


@dataclass(frozen=True)
class TreeTime:
    """The Merkle root of one tensor."""

    what: str
    path: str
    threads: int
    megabytes: float
    gb_per_s: float
    hashlib_gb_per_s: float
    ratio: float
    """Our time / hashlib.sha256's on the same bytes, one thread."""


@dataclass(frozen=True)
class StepShare:
    """A step with its state's root, beside the step alone."""

    what: str
    """"serial" or "overlapped"."""
    threads: int
    step_ms: float
    """The step alone."""
    hashed_megabytes: float
    """Size of the part of the state that the step changed."""
    hash_ms: float
    """The time that the root adds."""
    share: float
    """hash_ms / step_ms: the median of the turns' own."""
    ratio: float
    """(step + root) / step."""


def time_trees(words: int, runs: int) -> list[TreeTime]:
    """Every path and thread count on one tensor of that many words."""
    data = np.random.default_rng(0).integers(0, 1 << 32, words, dtype=np.uint32).view(np.uint8)
    kinds = [(path, threads) for path in PATHS if _has(path) for threads in THREADS]

    def tree(path: str, threads: int) -> Callable[[], object]:
        return lambda: _hash.tree_root(data, path, threads)

    base, *found = in_turn(runs, lambda: sha256(data), *(tree(*kind) for kind in kinds))
    theirs = statistics.median(base)
    return [
        TreeTime(
            "tree", path, threads, round(data.nbytes / 1e6, 1), round(data.nbytes / 1e9 / statistics.median(t), 3),
            round(data.nbytes / 1e9 / theirs, 3), round(statistics.median(t) / theirs, 3),
        )
        for (path, threads), t in zip(kinds, found, strict=True)
    ]  # fmt: skip


def _has(path: str) -> bool:
    try:
        _hash.tree_root(b"", path)
    except ValueError:
        return False
    return True


class Hashed(Training):
    """A model in training whose every state is hashed."""

    def __init__(self, program: Program, threads: int) -> None:
        super().__init__(program, MODEL.vocabulary, threads)
        self.root()

    def overlapped(self) -> None:
        """A step, and beside it the root of the state before it."""
        before = list(self.state)
        with BackgroundTask[StateRoot]() as beside:
            beside.begin(lambda: layout_root(self.program.output_layout, before))
            self.step()

    @property
    def changed_bytes(self) -> int:
        """Bytes of the state that a step computes anew."""
        before = list(self.state)
        self.step()
        return sum(a.nbytes for a, b in zip(self.state, before, strict=True) if a is not None and a is not b)


def time_shares(program: Program, threads: int, runs: int) -> list[StepShare]:
    """Serial and overlapped."""
    training = Hashed(program, threads)
    megabytes = round(training.changed_bytes / 1e6, 1)
    # A root is remembered while its tensors live, so each of the three leaves the next a state that nobody has hashed.
    hashing, alone, overlapped = in_turn(runs, training.root, training.step, training.overlapped)
    step = statistics.median(alone)
    serial = statistics.median(h / s for h, s in zip(hashing, alone, strict=True))
    beside = statistics.median(o / s - 1 for o, s in zip(overlapped, alone, strict=True))
    return [
        StepShare(
            what, threads, round(1e3 * step, 1), megabytes, round(1e3 * step * share, 1), round(share, 4),
            round(1 + share, 4),
        )
        for what, share in (("serial", serial), ("overlapped", beside))
    ]  # fmt: skip


def main() -> int:
    """Times trees and steps; prints tables, or one line of JSON."""
    wait_asleep()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line of JSON on stdout")
    parser.add_argument("--runs", type=int, default=15, help="turns of each figure (default 15)")
    arguments = parser.parse_args()
    programs = build_programs(GPT(MODEL), next_token_loss, diloco.DiLoCo(), batch=BATCH, rounds=6, slots=3)
    trees = time_trees(programs.layout.size, arguments.runs)
    shares = [share for threads in THREADS for share in time_shares(programs.step, threads, arguments.runs)]
    if arguments.json:
        results = [asdict(r) for r in (*trees, *shares)]
        print(json.dumps({"data": {"results": results, "parameters": programs.layout.size, "sha256": _hash.isa()}}))
        return 0
    print(f"one tensor of {trees[0].megabytes} MB")
    print(f"{'path':>10}{'threads':>9}{'GB/s':>8}{'hashlib':>9}{'ratio':>8}")
    for tree in trees:
        print(f"{tree.path:>10}{tree.threads:9}{tree.gb_per_s:8.2f}{tree.hashlib_gb_per_s:9.2f}{tree.ratio:8.3f}")
    print(f"S_t of {programs.layout.size:,} parameters after every step ({_hash.isa()})")
    print(f"{'':>10}{'threads':>9}{'step ms':>9}{'MB':>7}{'hash ms':>9}{'share':>8}")
    for s in shares:
        print(f"{s.what:>10}{s.threads:9}{s.step_ms:9.1f}{s.hashed_megabytes:7.1f}{s.hash_ms:9.1f}{s.share:8.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
