"""Every scalar operation of every kernel path against the integer reference in C++.

    python -m tests.primitives.battery --vectors 10000000              structured and random vectors, every operation
    python -m tests.primitives.battery --exhaustive                    all 2^32 words, every operation of one operand
    python -m tests.primitives.battery --vectors 100000 --ops ffma     ... of some operations

The kernels are those of the built extension, as a map runs them. `reference.cpp` is compiled with integer instructions
alone; it is tested against scalar.py, the specification.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np

from lockstep.numerics import _native, polynomials
from lockstep.numerics.scalar import ARITY, Opcode
from tests.support.scalar_vectors import Words, vectors

SOURCE = Path(__file__).with_name("reference.cpp")
KERNEL_SOURCES = Path(__file__).resolve().parents[2] / "sdk/lockstep/numerics/kernels"
TABLE = (
    "LOG2_E", "LN2_HI", "LN2_LO", "ROUND_TO_INTEGER", "EXP_LOWEST", "EXP_HIGHEST", "EXP", "SQRT_HALF", "LOG",
    "TANH_SMALL", "TANH",
)  # fmt: skip
"""Names of polynomials.py in the order of reference.cpp's Table."""

MUTANTS = range(1, 18)
UNARY = tuple(op for op in Opcode if ARITY[op] == 1)
ALL_WORDS = 1 << 32
VECTORS_AT_ONCE = 1_000_000
WORDS_AT_ONCE = 1 << 20
WORDS_PER_TASK = 1 << 26


class Reference:
    """reference.cpp, compiled."""

    def __init__(self, library: Path) -> None:
        """Of a library that `build` made."""
        self._library = ctypes.CDLL(str(library))
        table = np.array(np.hstack([getattr(polynomials, name) for name in TABLE]), dtype=np.uint32)
        self._library.set_table(_pointer(table))

    def apply(self, op: Opcode, a: Words, b: Words, c: Words) -> Words:
        """op(a, b, c) element by element."""
        out = np.empty_like(a)
        operands = [_pointer(np.ascontiguousarray(w)) for w in (a, b, c)]
        self._library.apply_reference(int(op), *operands, _pointer(out), ctypes.c_size_t(len(a)))
        return out

    def apply_from(self, op: Opcode, first: int, n: int) -> Words:
        """op of the n words from `first` on; op reads one."""
        out = np.empty(n, np.uint32)
        self._library.apply_reference_from(int(op), ctypes.c_uint32(first), _pointer(out), ctypes.c_size_t(n))
        return out


class Kernels:
    """apply_op.hpp of the portable path, compiled by itself."""

    def __init__(self, library: Path) -> None:
        """Of a library that `build_kernels` made."""
        self._library = ctypes.CDLL(str(library))

    def apply(self, op: Opcode, a: Words, b: Words, c: Words) -> Words:
        """op(a, b, c) element by element."""
        out = np.empty_like(a)
        self._library.apply_kernels(int(op), *map(_pointer, (a, b, c, out)), ctypes.c_size_t(len(a)))
        return out


def _pointer(words: Words) -> ctypes.c_void_p:
    return ctypes.c_void_p(words.ctypes.data)


def build(folder: Path, mutant: int = 0) -> Path:
    """Compile reference.cpp into `folder`, with one wrong line if `mutant` is not 0; without float instructions."""
    flags = ["-O3", "-mgeneral-regs-only", f"-DMUTANT={mutant}"]
    return _compiled(SOURCE, folder / f"reference-{mutant}.so", flags)


KERNELS = """
#include "apply_op.hpp"
using lockstep::f32::Word;
extern "C" bool apply_kernels(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n) {
    return lockstep::apply_op(op, a, b, c, out, n);
}
"""


def build_kernels(folder: Path, old: str, new: str) -> Path:
    """Compile the portable apply_op.hpp into `folder`, over an f32.hpp with `new` in the one place of `old`."""
    source = KERNEL_SOURCES.joinpath("f32.hpp").read_text()
    if old and source.count(old) != 1:
        raise ValueError(f"f32.hpp has {source.count(old)} times {old!r}")
    (folder / "f32.hpp").write_text(source.replace(old, new) if old else source)
    (folder / "apply_op.hpp").write_bytes(KERNEL_SOURCES.joinpath("apply_op.hpp").read_bytes())
    (folder / "kernels.cpp").write_text(KERNELS)
    # CMakeLists.txt's, but for the time that it takes.
    flags = ["-O1", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math"]
    return _compiled(folder / "kernels.cpp", folder / "kernels.so", flags)


def _compiled(source: Path, library: Path, flags: Sequence[str]) -> Path:
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", *flags, "-fPIC", "-shared", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True)
class Task:
    """A share of the work about one operation."""

    op: Opcode
    start: int
    """Of all words: the first one. Of vectors: their seed."""
    count: int
    exhaustive: bool


@dataclass(frozen=True)
class Mismatch:
    """What a kernel path gave instead of the reference's word."""

    op: Opcode
    path: str
    a: int
    b: int
    c: int
    got: int
    due: int

    def __str__(self) -> str:
        words = f"{self.a:08x}, {self.b:08x}, {self.c:08x}"
        return f"{self.op.name}({words}) on {self.path} gives {self.got:08x}, not {self.due:08x}"


def compare(reference: Reference, task: Task, kernels: Iterable[ModuleType] = (_native,)) -> list[Mismatch]:
    """The first mismatches of each path of some kernels."""
    found = []
    ways = [(module, path) for module in kernels for path in module.paths()]
    for a, b, c, due in _cases(reference, task):
        for module, path in ways:
            got = module.apply_op(task.op, a, b, c, path)
            found += [
                Mismatch(task.op, path, *(int(w[i]) for w in (a, b, c, got, due)))
                for i in np.flatnonzero(got != due)[:3]
            ]
    return found[:10]


def _cases(reference: Reference, task: Task) -> Iterator[tuple[Words, Words, Words, Words]]:
    """(a, b, c, result) in portions."""
    if not task.exhaustive:
        a, b, c = vectors(task.op, task.count, task.start)
        yield a, b, c, reference.apply(task.op, a, b, c)
        return
    zeros = np.zeros(min(WORDS_AT_ONCE, task.count), np.uint32)
    for first in range(task.start, task.start + task.count, len(zeros)):
        a = np.arange(first, first + len(zeros), dtype=np.uint32)
        yield a, zeros, zeros, reference.apply_from(task.op, first, len(zeros))


def vector_tasks(op: Opcode, count: int) -> list[Task]:
    """At least `count` vectors, in tasks of one seed each."""
    each = min(count, VECTORS_AT_ONCE)
    return [Task(op, seed, each, False) for seed in range(1, 1 + -(-count // each))]


def word_tasks(op: Opcode, start: int = 0, count: int = ALL_WORDS) -> list[Task]:
    """All words from `start` on."""
    each = min(count, WORDS_PER_TASK)
    return [Task(op, first, each, True) for first in range(start, start + count, each)]


@dataclass(frozen=True)
class Outcome:
    """Of one operation."""

    op: Opcode
    cases: int
    mismatches: tuple[Mismatch, ...]
    seconds: float
    """Of computing, added up over the processes."""


def run(library: Path, tasks: Sequence[Task], jobs: int) -> Iterator[Outcome]:
    """Every operation of the tasks, in order, on `jobs` processes."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork"), initializer=_open, initargs=(library,)) as pool:
        results = pool.map(_timed, tasks)
        for op in dict.fromkeys(task.op for task in tasks):
            own = [task for task in tasks if task.op is op]
            found, seconds = zip(*(next(results) for _ in own), strict=True)
            yield Outcome(op, sum(task.count for task in own), tuple(m for part in found for m in part), sum(seconds))


_reference: Reference | None = None


def _open(library: Path) -> None:
    global _reference
    _reference = Reference(library)


def _timed(task: Task) -> tuple[list[Mismatch], float]:
    assert _reference is not None, "a worker opens the library first"
    begin = time.perf_counter()
    return compare(_reference, task), time.perf_counter() - begin


def main() -> int:
    """Runs what is asked for; prints one line per operation; 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=0, help="vectors per operation")
    parser.add_argument("--exhaustive", action="store_true", help="all 2^32 words of every operation of one operand")
    parser.add_argument("--ops", default="", help="some operations, by name, with commas between")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    arguments = parser.parse_args()
    chosen = [Opcode[name.strip().upper()] for name in arguments.ops.split(",")] if arguments.ops else list(Opcode)
    tasks = [t for op in chosen for t in vector_tasks(op, arguments.vectors)] if arguments.vectors else []
    parts = [tasks, [t for op in chosen if op in UNARY for t in word_tasks(op)] if arguments.exhaustive else []]
    wrong, begin = 0, time.perf_counter()
    print(f"paths: {', '.join(_native.paths())}; extension: {_native.__file__}")
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        for part in filter(None, parts):
            for outcome in run(library, part, arguments.jobs):
                wrong += len(outcome.mismatches)
                cases, kind = outcome.cases, "all words" if part[0].exhaustive else "vectors"
                print(f"{outcome.op.name:8}{cases:>14,} {kind:10}{outcome.seconds:9.1f} s  ", end="")
                print("; ".join(map(str, outcome.mismatches)) or "equal", flush=True)
    print(f"{wrong} mismatches, {time.perf_counter() - begin:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
