"""Runs one case on every execution path and compares the bits with the slow executor's.

A way is a kernel path, a number of threads and a form: an ordinary step, a step into the caller's memory, a sweep over
every op, a step that keeps every op, or some ops alone. Each runs twice, and in between another state runs through the
same memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.numerics import paths, portable, reference
from lockstep.numerics.arrays import Array, to_array
from lockstep.numerics.built import kernels
from lockstep.numerics.cuda import generate
from lockstep.numerics.executor import Executable
from lockstep.numerics.reference import Operands, Rows
from lockstep.protocol.programs.program import Alias, Tag
from tests.differ.case import CONTEXT, Case

THREADS = (1, 2, 3, 4)
FORMS = ("run", "write", "sweep", "keep", "some")
SMALL = 1 << 18
"""Most work of a case that runs on all ways; larger ones run on a sample."""
PLAIN = 4
"""One in so many cases also runs every op by itself, as for a Program that takes too long to plan."""
COMPUTED = 16
"""One in so many cases is compared with numpy and Python's integers; the others with the kernels' own words."""
SAMPLED = 300
"""Number of terms that Python's integers compute of a case."""

PATTERN = 0xDEADBEEF
MARGIN = 64
"""Guard words around the caller's memory."""
_WRONG = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.POINTER(ctypes.POINTER(ctypes.c_uint32)),
                          *[ctypes.c_void_p] * 3)(lambda _i, _s, out, *_: out[0].__setitem__(0, PATTERN))  # fmt: skip
WRONG_AT = ctypes.cast(_WRONG, ctypes.c_void_p).value or 0
"""Address of a loop function that writes one wrong word."""

Words = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(frozen=True)
class Difference:
    """The first word that differs from the slow executor's."""

    way: str
    op: int
    element: int
    found: int
    due: int

    def __str__(self) -> str:
        return f"{self.way}: op {self.op}, element {self.element} is {self.found:#010x}, not {self.due:#010x}"


def words(array: Array) -> Words:
    """Returns an array's words, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32)


def due_words(case: Case, *, native: bool = False) -> list[Words]:
    """Returns every op's words as computed by numpy; with `native` by the kernels, on their first path and op by op, in
    a tenth of the time.
    """
    arguments = case.program.header, list(case.program.descriptors), _consts(case)
    if native:
        executor, path = kernels.Executor(*arguments, plain=True), kernels.paths()[0]
    else:
        executor, path = portable.Executor(*arguments), "auto"
    arrays = executor.run(list(case.state), CONTEXT.seed, *CONTEXT.words, case.dataset, True, 1, path)
    return [words(array) for array in arrays if array is not None]


def _consts(case: Case) -> list[Array]:
    return [to_array(c.header, c.data).reshape(-1) for c in case.program.consts]


def others(case: Case) -> list[Array | None]:
    """Returns another state of the same shapes, which occupies the memory first."""
    rng = np.random.default_rng(1)
    found: list[Array | None] = []
    for array in case.state:
        if array is None or array.dtype == np.int32:
            found.append(array)
        else:
            found.append((rng.standard_normal(array.shape) * 1e3).astype(np.float32).reshape(array.shape))
    return found


def ways_of(case: Case, seed: int, all_ways: bool | None = None) -> list[tuple[str, int, str]]:
    """Returns (path, threads, form) triples, those likeliest to differ first."""
    names, rng = kernels.paths(), np.random.default_rng(seed)
    found = [(path, threads, form) for form in FORMS for threads in THREADS for path in reversed(names)]
    if all_ways is None:
        all_ways = case.work <= SMALL
    if not all_ways:
        first = [(names[-1], 1, "run"), (names[-1], 3, "run"), (names[0], 1, "run"), (names[-1], 2, "sweep")]
        rest = [way for way in found if way not in first]
        found = first + [rest[i] for i in rng.choice(len(rest), 8, replace=False)]
    return found


def differences(
    case: Case, seed: int, ways: Sequence[tuple[str, int, str]] | None = None, *, compiled: bool = False,
    native: bool = False,
) -> Iterator[Difference]:  # fmt: skip
    """Yields each way's first difference.

    With `compiled`, loops run compiled code, which belongs to one path. With `native`, most cases (all but one in
    `COMPUTED`) are compared with the kernels' own words, op by op.
    """
    native = native and seed % COMPUTED != 0
    due = due_words(case, native=native)
    if not native:
        yield from against_reference(case, due, seed)
    other = others(case)
    rng = np.random.default_rng(seed)
    n = len(case.program.ops)
    executor = kernels.Executor(case.program.header, list(case.program.descriptors), _consts(case))
    made: dict[tuple[str, int], Executable] = {}
    # A plan that fails its own check is a defect of the planner, even if a fallback runs.
    if reason := getattr(executor, "plain", ""):
        yield Difference(f"planned, {reason}", 0, 0, 0, 0)
    chosen = ways_of(case, seed) if ways is None else ways
    if not compiled and seed % PLAIN == 0:
        plain = kernels.Executor(case.program.header, list(case.program.descriptors), _consts(case), plain=True)
        found = _ran(plain, case, list(case.state), *chosen[0][:2], "keep", [], due)
        if (difference := _compared(found, due, "plain")) is not None:
            yield difference
    for path, threads, form in chosen:
        if compiled:
            if (path, threads) not in made:
                made[path, threads] = paths.compile(case.program, path=path, threads=threads, fused="require")
            executor = made[path, threads]._executor
        some = sorted({int(i) for i in rng.integers(0, n, min(n, 3))})
        label = f"{path}, {threads} threads, {form}{', compiled' if compiled else ''}"
        for time in ("first", "again"):
            found = _ran(executor, case, list(case.state), path, threads, form, some, due)
            if (difference := _compared(found, due, f"{label}, {time}")) is not None:
                yield difference
                break
            if time == "first":
                _ran(executor, case, other, path, threads, form, some, None)
        if compiled and (beside := next((p for p in kernels.paths() if p != path), path)) != path:
            found = _ran(executor, case, list(case.state), beside, threads, form, some, due)
            if (difference := _compared(found, due, f"{label}, on {beside}")) is not None:
                yield difference
    for (path, _), executable in made.items():
        for loop in range(len(executable._executor.loops())):
            if executable._executor.attach(loop, WRONG_AT, path):
                yield Difference(f"{path}, loop {loop}, code that gives another word is taken for its own", 0, 0, 0, 0)


def _ran(
    executor: Any, case: Case, state: list[Array | None], path: str, threads: int, form: str, some: list[int],
    due: list[Words] | None,
) -> dict[int, Words]:  # fmt: skip
    """Returns the words of one run by op; for a sweep only those that differ from `due`."""
    arguments = (state, CONTEXT.seed, *CONTEXT.words, case.dataset)
    if form == "sweep":
        shown: dict[int, Words] = {}

        def visit(op: int, data: memoryview) -> None:
            if due is not None:
                own = np.frombuffer(data, np.uint32)
                if not np.array_equal(own, due[op]):
                    shown[op] = own.copy()

        executor.sweep(*arguments, threads, path, visit)
        return shown
    named = {alias.index for alias in case.program.outputs if alias.kind == Alias.OP_KIND}
    if form == "write":
        return written(executor, arguments, threads, path, {op: case.program.ops[op].header.elements for op in named})
    if form == "some":
        arrays = executor.some(*arguments, threads, path, some)
    else:
        arrays = executor.run(*arguments, form == "keep", threads, path)
    found = {op: words(array) for op, array in enumerate(arrays) if array is not None}
    if due is not None:
        expected = {"keep": set(range(len(due))), "some": set(some), "run": named}[form]
        assert found.keys() == expected, f"{form} gives ops {sorted(found)}, not {sorted(expected)}"
    return found


def written(
    executor: Any, arguments: tuple[Any, ...], threads: int, path: str, lengths: dict[int, int]
) -> dict[int, Words]:
    """Returns the words that a run writes to memory of exactly their length.

    Raises AssertionError for a write beyond it.
    """
    around = {op: np.full(length + 2 * MARGIN, PATTERN, np.uint32) for op, length in lengths.items()}
    within = {op: memory[MARGIN:-MARGIN] for op, memory in around.items()}
    arrays = executor.run(*arguments, False, threads, path, into=within)
    assert all(array is None for array in arrays), "nothing lies elsewhere"
    for op, memory in around.items():
        assert np.all(memory[:MARGIN] == PATTERN), f"op {op} is written before its memory"
        assert np.all(memory[-MARGIN:] == PATTERN), f"op {op} is written behind its memory"
    return within


def _compared(found: dict[int, Words], due: list[Words], label: str) -> Difference | None:
    for op, own in found.items():
        if not np.array_equal(own, due[op]):
            at = int(np.flatnonzero(own != due[op])[0])
            return Difference(label, op, at, int(own[at]), int(due[op][at]))
    return None


def against_reference(case: Case, due: list[Words], seed: int) -> Iterator[Difference]:
    """Compares sampled elements of the slow executor with the specification in Python's integers."""
    rng = np.random.default_rng(seed)
    sources: dict[Tag, list[Words | None]] = {
        Tag.OP: list(due),
        Tag.STATE: [None if a is None else words(a) for a in case.state],
        Tag.CONST: [words(a) for a in _consts(case)],
    }
    rows = None
    if (dataset := case.dataset) is not None:
        rows = Rows(len(dataset), lambda row, column: int(dataset[row, column]) & 0xFFFFFFFF)

    def word(tag: Tag, index: int, at: int) -> int:
        source = sources[tag][index]
        assert source is not None, "a Program reads what is there"
        return int(source[at])

    operands = Operands(word, CONTEXT.seed, CONTEXT.words, rows)
    left = SAMPLED
    for op in rng.permutation(len(due)).tolist():
        cost = max(1, case.program.ops[op].k_terms)
        if cost > left:
            continue
        left -= cost
        at = int(rng.integers(0, len(due[op])))
        if (own := reference.element(case.program.ops[op], at, operands)) != due[op][at]:
            yield Difference("reference", op, at, int(due[op][at]), own)


def on_device(case: Case, seed: int, device: str) -> Difference | None:
    """Runs the case on a CUDA device, "emulated" or "cuda:0": normally, or as if a single block kept it busy, so that
    products are split as in large models.
    """
    due, own = due_words(case), (generate.BUSY_BLOCKS, generate.FEW_TILES)
    try:
        generate.BUSY_BLOCKS, generate.FEW_TILES = (own, (1, 1), (2, 1))[seed % 3]
        run = paths.compile(case.program, path=device)
    finally:
        generate.BUSY_BLOCKS, generate.FEW_TILES = own
    for time in ("first", "again"):
        found = run.run(case.state, CONTEXT, case.dataset)
        shown = {
            alias.index: words(np.asarray(found[k]))
            for k, alias in enumerate(case.program.outputs)
            if alias.kind == Alias.OP_KIND
        }
        if (difference := _compared(shown, due, f"{device}, {time}")) is not None:
            return difference
    return None
