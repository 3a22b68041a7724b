"""Float32.sol in an EVM against the integer reference in C++: vectors by the million, a reduced format in full.

    python -m tests.primitives.on_chain --vectors 1000000        structured and random vectors, every operation
    python -m tests.primitives.on_chain --reduced                every operand, pair and triple of reduced formats
    python -m tests.primitives.on_chain --reduced --ops fadd,ffma

A reduced format is the binary32 words whose fraction is zero but for its highest and its lowest bits: few significant
places, as in a small format, and an odd last place, without which no sum or product of few bits would ever be rounded.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

import numpy as np

from benchmarks.float32 import WITHOUT_LIBRARY, Evm, evm
from lockstep.numerics.scalar import ARITY, Opcode
from tests.primitives.battery import Mismatch, Reference, build
from tests.support.scalar_vectors import Words, vectors

OPS = tuple(op for op in Opcode if op not in WITHOUT_LIBRARY and not Opcode.IADD <= op <= Opcode.IMAX)
"""The operations that Float32.sol has a function for."""

AT_ONCE = 1_000_000
FRACTION_BITS = 23


@dataclass(frozen=True)
class Format:
    """The words with both signs, the exponents given, and a fraction of some highest and some lowest bits."""

    exponents: tuple[int, ...]
    """Biased: 0 has the zeros and the subnormals, 255 the infinities and the NaNs."""
    highest: int
    lowest: int
    """How many bits of the fraction may be set at either end."""

    @property
    def words(self) -> Words:
        """Every word of the format, once: uint32[2 * exponents * 2^(highest + lowest)]."""
        signs = np.arange(2, dtype=np.uint32) << 31
        exponents = np.array(self.exponents, np.uint32) << FRACTION_BITS
        high = np.arange(1 << self.highest, dtype=np.uint32) << (FRACTION_BITS - self.highest)
        low = np.arange(1 << self.lowest, dtype=np.uint32)
        grid = np.ix_(signs, exponents, high, low)
        return np.ravel(grid[0] | grid[1] | grid[2] | grid[3])


ALL = tuple(range(256))
# Distances of sums of two to a third: 0 to 2, 22 to 26 and 46 to 50 places; and both ends of the range.
CHOSEN = (0, 1, 2, 24, 25, 52, 78, 102, 103, 104, 126, 127, 128, 150, 151, 152, 175, 200, 253, 254, 255)

REDUCED = {1: Format(ALL, 8, 4), 2: Format(ALL, 2, 1), 3: Format(CHOSEN, 2, 1)}
"""By the operation's number of operands: 2^21 words, 2^12 words (2^24 pairs), 336 words (37.9 million triples)."""

SAMPLE = {1: Format(ALL, 2, 1), 2: Format(CHOSEN, 1, 1), 3: Format((0, 1, 103, 127, 128, 151, 254, 255), 1, 0)}
"""The same, small enough for every run of the tests."""


@dataclass(frozen=True)
class Task:
    """A share of one operation's cases."""

    op: Opcode
    start: int
    count: int
    format: Format | None
    """None: `count` vectors of seed `start`. Else: the combinations of the format's words from number `start` on."""

    @property
    def operands(self) -> tuple[Words, Words, Words]:
        """(a, b, c), each uint32[count]; what the operation does not read is zero."""
        if self.format is None:
            return vectors(self.op, self.count, self.start)
        words = self.format.words
        numbers = np.arange(self.start, self.start + self.count)
        read = [words[numbers // len(words) ** i % len(words)] for i in range(ARITY[self.op])]
        a, b, c = [*read, *[np.zeros(self.count, np.uint32)] * (3 - len(read))]
        return a, b, c


def vector_tasks(op: Opcode, count: int) -> list[Task]:
    """At least `count` vectors, in tasks of one seed each."""
    each = min(count, AT_ONCE)
    return [Task(op, seed, each, None) for seed in range(1, 1 + -(-count // each))]


def format_tasks(op: Opcode, formats: dict[int, Format]) -> list[Task]:
    """Every combination of the words of the format for this operation, each once."""
    own = formats[ARITY[op]]
    cases = len(own.words) ** ARITY[op]
    return [Task(op, start, min(AT_ONCE, cases - start), own) for start in range(0, cases, AT_ONCE)]


def compare(chain: Evm, reference: Reference, task: Task) -> list[Mismatch]:
    """The first three cases in which Solidity gives another word than the reference."""
    a, b, c = task.operands
    got, due = chain.results(task.op, a, b, c), reference.apply(task.op, a, b, c)
    return [
        Mismatch(task.op, "Solidity", *(int(w[i]) for w in (a, b, c, got, due))) for i in np.flatnonzero(got != due)[:3]
    ]


@dataclass(frozen=True)
class Outcome:
    """Of one operation."""

    op: Opcode
    cases: int
    mismatches: tuple[Mismatch, ...]
    seconds: float
    """Of computing, added up over the processes."""


def run(chains: Sequence[Evm], reference: Reference, tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Every operation of the tasks, in order; the chains work side by side."""
    idle: Queue[Evm] = Queue()
    for chain in chains:
        idle.put(chain)

    def timed(task: Task) -> tuple[list[Mismatch], float]:
        chain, begin = idle.get(), time.perf_counter()
        try:
            return compare(chain, reference, task), time.perf_counter() - begin
        finally:
            idle.put(chain)

    with ThreadPoolExecutor(len(chains)) as pool:
        results = pool.map(timed, tasks)
        for op in dict.fromkeys(task.op for task in tasks):
            own = [task for task in tasks if task.op is op]
            found, seconds = zip(*(next(results) for _ in own), strict=True)
            yield Outcome(op, sum(task.count for task in own), tuple(m for part in found for m in part), sum(seconds))


def main() -> int:
    """Runs what is asked for; prints one line per operation; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=0, help="vectors per operation")
    parser.add_argument("--reduced", action="store_true", help="all operands, pairs or triples of the reduced formats")
    parser.add_argument("--ops", default="", help="some operations, by name, with commas between")
    parser.add_argument("--jobs", type=int, default=2, help="EVMs at a time (default 2)")
    arguments = parser.parse_args()
    chosen = [Opcode[name.strip().upper()] for name in arguments.ops.split(",")] if arguments.ops else list(OPS)
    parts = [
        ("vectors", [t for op in chosen for t in vector_tasks(op, arguments.vectors)] if arguments.vectors else []),
        ("reduced", [t for op in chosen for t in format_tasks(op, REDUCED)] if arguments.reduced else []),
    ]
    wrong, begin = 0, time.perf_counter()
    with ExitStack() as stack:
        reference = Reference(build(Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        chains = [stack.enter_context(evm()) for _ in range(arguments.jobs)]
        for kind, tasks in parts:
            for outcome in run(chains, reference, tasks):
                wrong += len(outcome.mismatches)
                print(f"{outcome.op.name:8}{outcome.cases:>14,} {kind:10}{outcome.seconds:9.1f} s  ", end="")
                print("; ".join(map(str, outcome.mismatches)) or "equal", flush=True)
    print(f"{wrong} mismatches, {time.perf_counter() - begin:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
