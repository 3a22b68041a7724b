"""One Program on every path and thread count, element by element against reference.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lockstep.numerics import paths, reference
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.built import kernels
from lockstep.numerics.trace import materialise, tensor_root
from lockstep.protocol.programs.program import CODES, Alias, Kind, Op, Program
from tests.differ.ways import written

PATHS = tuple(kernels.paths())
CONTEXT = StepContext(bytes(range(32)), round=3, slot=1, t=7)

STRANGE = np.array(
    [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7F800000, 0xFF800000, 0x80000000, 0, 1, 0x80000001,
     0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF], dtype=np.uint32,
).view(np.float32)  # fmt: skip
"""NaNs quiet and signalling, infinities, zeros, subnormals, the largest and the least normal."""


def normal(rng: np.random.Generator, n: int) -> Array:
    return rng.standard_normal(n).astype(np.float32)


def strange(rng: np.random.Generator, n: int) -> Array:
    """Normal numbers with about one in seven replaced."""
    x = normal(rng, n)
    at = rng.integers(0, n, max(1, n // 7))
    x[at] = rng.choice(STRANGE, len(at))
    return x


def words(array: Array | None) -> Array:
    assert array is not None
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32)


def compare(
    program: Program,
    state: Sequence[Array | None],
    dataset: Array | None = None,
    *,
    budget: int = 400,
    threads: Sequence[int] = (1, 3),
) -> None:
    """Asserts equal bits on all paths and thread counts, kept or not, and against the reference for about `budget`
    elements of each op (a fold's K terms count, and those of a quant's group)."""
    slow = paths.compile(program, path=PATHS[0], threads=1)
    every = slow.run(state, CONTEXT, dataset, keep=True)
    roots = tuple(tensor_root(array) for array in every if array is not None)
    rng = np.random.default_rng(0)
    for path in PATHS:
        for count in threads:
            executable = paths.compile(program, path=path, threads=count)
            kept = executable.run(state, CONTEXT, dataset, keep=True)
            for i, (got, due) in enumerate(zip(kept, every, strict=True)):
                label = f"op {i} ({program.name_of(i)}) on {path} with {count} threads"
                np.testing.assert_array_equal(words(got), words(due), err_msg=label)
            final = executable.run(state, CONTEXT, dataset)
            for k, alias in enumerate(program.outputs):
                if alias.kind == Alias.OP_KIND:
                    label = f"output {k} on {path} with {count} threads, memory reused"
                    np.testing.assert_array_equal(words(final[k]), words(every[alias.index]), err_msg=label)
            named = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
            lengths = {op: program.ops[op].header.elements for op in named}
            arguments = executable._arguments(state, CONTEXT, dataset)
            for op, array in written(executable._executor, arguments, count, path, lengths).items():
                label = f"op {op} ({program.name_of(op)}) in other memory on {path} with {count} threads"
                np.testing.assert_array_equal(array, words(every[op]), err_msg=label)
            assert executable.roots(state, CONTEXT, dataset) == roots, f"roots on {path} with {count} threads"
            some = frozenset(rng.choice(len(every), min(3, len(every)), replace=False).tolist())
            made = executable.outputs(state, CONTEXT, dataset, some)
            assert made.keys() == some, "what was asked for"
            for op, array in made.items():
                label = f"op {op} ({program.name_of(op)}) by itself on {path} with {count} threads"
                np.testing.assert_array_equal(words(array), words(every[op]), err_msg=label)
    step = materialise(slow, state, CONTEXT, dataset)
    step.hold(frozenset(range(len(every))))
    operands = step.operands()
    for i, op in enumerate(program.ops):
        output = words(every[i])
        for at in _sample(op, budget, rng):
            due = reference.element(op, at, operands)
            assert output[at] == due, f"op {i} ({program.name_of(i)}), element {at}: {output[at]:#x}, not {due:#x}"


def _sample(op: Op, budget: int, rng: np.random.Generator) -> Sequence[int]:
    group = min(CODES * op.p0, op.k_extents[0]) if op.kind == Kind.QUANT else 1
    n, cost = op.header.elements, max(group, op.k_terms)
    if n * cost <= budget:
        return range(n)
    return sorted({0, n - 1, *rng.integers(0, n, max(2, budget // cost)).tolist()})
