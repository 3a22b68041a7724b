"""Random Programs of products, maps, folds along rows and what uses them: the bits of the separate ops."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Tensor, row_major
from lockstep.numerics.trace import tensor_root
from lockstep.protocol.programs.program import F32, Alias, Program, Tag
from tests.unit.numerics.comparison import CONTEXT, PATHS, normal, strange, words

WORDS = 20_000
"""Of each state tensor."""
ENTRIES = 3


class Maker:
    """One Program around tensors [*batch, rows, columns]."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.b = ProgramBuilder([(F32, WORDS)] * ENTRIES)
        pick = self.rng.choice
        self.batch: tuple[int, ...] = pick(((1,), (2,), (3,), (2, 2), (1, 4), (2, 1, 3)))
        self.rows, self.columns = pick((1, 2, 3, 5, 17, 33, 70, 270)), pick((2, 3, 5, 16, 33, 50))
        self.K = pick((1, 2, 5, 17))
        self.wide: list[Tensor] = []
        self.row: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def leaf(self, shape: tuple[int, ...], repeats: float = 0.15) -> Tensor:
        """A view of the state: axes in any order, some of them repeated or backwards."""
        order = list(range(len(shape)))
        if self.rng.random() < 0.3:
            self.rng.shuffle(order)
        strides, step, offset = [0] * len(shape), 1, self.rng.randrange(40)
        for axis in reversed(order):
            if self.rng.random() < repeats:
                continue
            strides[axis] = step
            if self.rng.random() < 0.05:
                offset += step * (shape[axis] - 1)
                strides[axis] = -step
            step *= shape[axis] + (self.rng.random() < 0.1)
        reach = offset + sum(max(s, 0) * (e - 1) for s, e in zip(strides, shape, strict=True))
        if reach >= WORDS:
            return self.leaf(shape, min(1.0, repeats + 0.2))
        return Tensor(F32, shape, Tag.STATE, self.rng.randrange(ENTRIES), offset, tuple(strides))

    def add(self, tensor: Tensor) -> Tensor:
        self.outputs.append(tensor)
        return tensor

    # --- members ----------------------------------------------------------------------------------------------------

    def product(self) -> None:
        q = self.leaf((*self.batch, self.rows, 1, self.K), repeats=0.03)
        batch = tuple(e if self.rng.random() < 0.8 else 1 for e in self.batch)  # heads that share their keys
        k = self.leaf((*batch, 1, self.columns, self.K), repeats=0.03).expand(*self.batch, 1, self.columns, self.K)
        self.wide.append(self.add(self.b.dot(*((q, k) if self.rng.random() < 0.8 else (k, q)))))

    def forms(self) -> tuple[int, ...]:
        """Extents of a wide op: the same elements under different axes."""
        whole = (*self.batch, self.rows, self.columns)
        flat = int(np.prod(self.batch)) * self.rows
        return self.rng.choice(
            (whole, whole, whole, (flat, self.columns), (1, *whole), (*self.batch, self.rows, 1, self.columns))
        )

    def iota(self, shape: tuple[int, ...]) -> Tensor:
        strides = tuple(self.rng.choice((0, 0, 1, -1, 3)) for _ in shape)
        return Tensor(1, shape, Tag.IOTA, 0, self.rng.randint(-9, 9), strides)

    def operand(self, shape: tuple[int, ...]) -> Tensor:
        roll = self.rng.random()
        if roll < 0.6 and self.wide:
            wide = self.rng.choice(self.wide[-4:])
            return wide.reshape(*shape)
        if roll < 0.8 and self.row:
            row = self.rng.choice(self.row[-4:])
            return row.reshape(*shape[:-1], 1).expand(*shape)
        if roll < 0.9:
            return self.leaf(shape)
        return self.iota(shape)

    def wide_map(self) -> None:
        shape = self.forms()
        operands = [self.operand(shape) for _ in range(self.rng.randint(1, 3))]
        made = self.b.map(shape, operands, self.expression, dtype=F32)
        self.wide.append(self.add(made))

    def expression(self, e: Expression, *registers: int) -> None:
        own = list(registers)
        for _ in range(self.rng.randint(1, 4)):
            x, y = self.rng.choice(own), self.rng.choice(own)
            own.append(
                self.rng.choice(
                    (
                        e.fadd,
                        e.fsub,
                        e.fmul,
                        e.fmax,
                        e.fmin,
                        lambda x, y: e.fexp(x),
                        lambda x, y: e.select(e.flt(x, y), x, y),
                    )
                )(x, y)
            )
        e.fadd(own[-1], registers[0])

    def mask(self) -> None:
        """Where a condition on positions forbids, one value: in each row another number of columns, or none, or all."""
        shape = (*self.batch, self.rows, self.columns)
        i, j = self.b.iota(shape, len(shape) - 2), self.b.iota(shape, len(shape) - 1)
        lengths = (
            self.iota(shape) if self.rng.random() < 0.3 else self.b.word(shape, self.rng.randint(-2, self.columns))
        )
        value = self.rng.choice((float("-inf"), -1e9, 0.0, 3.0, float("nan")))
        kind = self.rng.randrange(6)

        def select(e: Expression, s: int, i: int, j: int, n: int) -> None:
            condition = (
                lambda: e.ile(j, i),
                lambda: e.ilt(j, n),
                lambda: e.iand(e.ile(j, i), e.ilt(i, e.iadd(j, e.i32(7)))),
                lambda: e.ilt(j, e.iadd(i, n)),
                lambda: e.ieq(e.iand(j, e.i32(3)), e.i32(1)),
                lambda: e.ilt(e.isub(i, n), j),
            )[kind]()
            if self.rng.random() < 0.8:
                e.select(condition, s, e.f32(value))
            else:
                e.select(condition, e.f32(value), s)

        wide = self.rng.choice(self.wide[-3:]).reshape(*shape)
        self.wide.append(self.add(self.b.map(shape, [wide, i, j, lengths], select, dtype=F32)))

    def softmax(self) -> None:
        shape = (*self.batch, self.rows, self.columns)
        s = self.wide[-1].reshape(*shape)
        top = self.b.max(s).unsqueeze(len(shape) - 1)
        p = self.b.map(shape, [s, top], lambda e, x, m: e.fexp(e.fsub(x, m)))
        total = self.b.sum(p)
        self.row += [self.add(total)]
        self.wide.append(self.add(p))
        if self.rng.random() < 0.5:
            self.wide.append(
                self.add(self.b.map(shape, [p, total.unsqueeze(len(shape) - 1)], lambda e, x, t: e.fdiv(x, t)))
            )

    def fold(self) -> None:
        shape = (*self.batch, self.rows, self.columns)
        x = self.rng.choice(self.wide[-4:]).reshape(*shape)
        which = self.rng.randrange(4)
        if which == 3:
            y = self.leaf(shape) if self.rng.random() < 0.3 else self.rng.choice(self.wide).reshape(*shape)
            self.row.append(self.add(self.b.dot(x, y)))
        else:
            self.row.append(self.add((self.b.max, self.b.min, self.b.sum)[which](x)))

    def row_map(self) -> None:
        if not self.row:
            return self.fold()
        shape = (*self.batch, self.rows)
        operands = [self.rng.choice(self.row).reshape(*shape) for _ in range(self.rng.randint(1, 2))]
        if self.rng.random() < 0.4:
            operands.insert(self.rng.randrange(2), self.leaf(shape))
        self.row.append(self.add(self.b.map(shape, operands, self.expression, dtype=F32)))
        return None

    # --- what uses them ---------------------------------------------------------------------------------------------

    def by_rows(self) -> None:
        D = self.rng.choice((1, 2, 7, 20))
        x = self.rng.choice(self.wide[-3:]).reshape(*self.batch, self.rows, 1, self.columns)
        batch = tuple(e if self.rng.random() < 0.8 else 1 for e in self.batch)
        v = self.leaf((*batch, 1, D, self.columns)).expand(*self.batch, 1, D, self.columns)
        if self.rng.random() < 0.3:
            n = len(self.batch)
            order = (*range(n), n + 1, n, n + 2)  # the rows innermost
            x, v = x.permute(*order), v.permute(*order)
        self.add(self.b.dot(*((x, v) if self.rng.random() < 0.7 else (v, x))))

    def by_columns(self) -> None:
        D, n = self.rng.choice((1, 2, 7, 20)), len(self.batch)
        x = self.rng.choice(self.wide[-3:]).reshape(*self.batch, self.rows, self.columns)
        if self.batch[-1] > 1 and self.rng.random() < 0.3:  # over the heads, too
            outer = (*self.batch[:-1], 1, self.columns, self.batch[-1] * self.rows)
            strides = (*row_major((*self.batch, self.rows, self.columns))[: n - 1], 0, 1, self.columns)
            x = Tensor(F32, outer, x.tag, x.index, 0, strides)
            v = self.leaf((*self.batch[:-1], D, 1, self.batch[-1] * self.rows))
        else:
            x = x.permute(*range(n), n + 1, n).unsqueeze(n + 1)
            v = self.leaf((*self.batch, 1, D, self.rows))
        self.add(self.b.dot(x, v))

    def apart(self) -> None:
        """An op that no group can take in."""
        which = self.rng.randrange(5)
        n = len(self.batch)
        x = self.rng.choice(self.wide).reshape(*self.batch, self.rows, self.columns)
        if which == 0:
            self.add(self.b.sum(x.permute(*range(n), n + 1, n)))
        elif which == 1 and self.row:
            rows = [self.rng.choice(self.row) for _ in range(2)]
            size = int(np.prod(rows[0].shape))
            r = [t.reshape(size).slice(0, 0, size, 2) for t in rows]
            self.add(self.b.map(r[0].shape, r, lambda e, x, y: e.fadd(x, y)))
        elif which == 2:
            self.add(
                self.b.map(
                    (*self.batch, self.columns, self.rows), [x.permute(*range(n), n + 1, n)], lambda e, v: e.fneg(v)
                )
            )
        elif which == 3:
            y = self.rng.choice(self.wide).reshape(*self.batch, self.columns, self.rows)
            self.add(self.b.map(y.shape, [y, self.leaf(y.shape)], lambda e, v, w: e.fmul(v, w)))
        else:
            y = self.rng.choice(self.wide).reshape(*self.batch, 1, self.rows, self.columns)
            self.add(self.b.dot(x.unsqueeze(n + 1), y))

    def program(self) -> Program:
        self.product()
        if self.rng.random() < 0.6:
            self.mask()
        if self.rng.random() < 0.7:
            self.softmax()
        steps: list[tuple[Callable[[], None], int]] = [
            (self.wide_map, 4), (self.fold, 3), (self.row_map, 2), (self.by_rows, 3), (self.by_columns, 3),
            (self.product, 1), (self.mask, 1), (self.softmax, 1), (self.apart, 1),
        ]  # fmt: skip
        for _ in range(self.rng.randint(2, 14)):
            self.rng.choices([s for s, _ in steps], [weight for _, weight in steps])[0]()
        leave = self.rng.choice((0.1, 0.3, 0.9))
        kept = [t for t in self.outputs[:-2] if self.rng.random() < leave]
        return self.b.finish([*kept, *self.outputs[-2:]])


def graph(seed: int) -> tuple[Program, list[Array | None]]:
    """A Program and a state for it."""
    program = Maker(seed).program()
    rng = np.random.default_rng(seed)
    data = (normal, normal, strange, lambda rng, n: normal(rng, n) * np.float32(1e18))[seed % 4]
    state: list[Array | None] = [data(rng, WORDS) for _ in range(ENTRIES)]
    return program, state + [None] * (len(program.inputs) - ENTRIES)


def check_program(
    program: Program, state: list[Array | None], rng: np.random.Generator, name: str, fused: str = "off"
) -> None:
    """Asserts that plain runs, sweeps and single ops give the bits of the ops, run one by one on the plainest path."""
    state = state + [None] * (len(program.inputs) - len(state))
    due = paths.compile(program, path="scalar", threads=1, fused="off").run(state, CONTEXT, keep=True)
    roots = tuple(tensor_root(array) for array in due if array is not None)
    for path in {PATHS[0], PATHS[-1]}:
        for threads in (1, 3):
            executable = paths.compile(program, path=path, threads=threads, fused=fused)
            for _ in range(2):  # the second time in memory that is used already
                final = executable.run(state, CONTEXT)
                for k, alias in enumerate(program.outputs):
                    if alias.kind == Alias.OP_KIND:
                        label = f"{name}: op {alias.index} on {path} with {threads} threads"
                        np.testing.assert_array_equal(words(final[k]), words(due[alias.index]), err_msg=label)
                # What a step leaves out is shown, and is there by itself.
                label = f"{name} on {path} with {threads} threads"
                assert executable.roots(state, CONTEXT) == roots, f"roots, {label}"
                some = frozenset(rng.choice(len(due), min(len(due), int(rng.integers(1, 10))), replace=False).tolist())
                for op, array in executable.outputs(state, CONTEXT, None, some).items():
                    np.testing.assert_array_equal(words(array), words(due[op]), err_msg=f"op {op} by itself, {label}")


def check(seed: int, fused: str = "off") -> None:
    check_program(*graph(seed), np.random.default_rng(seed), f"seed {seed}", fused)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 300, 30))
def test_random_graphs_give_the_bits_of_their_ops(first: int) -> None:
    for seed in range(first, first + 30):
        check(seed)


@pytest.mark.slow
def test_many_random_graphs_and_compiled_ones() -> None:
    for seed in range(1000, 6000):
        check(seed)
    for seed in range(6000, 6040):
        check(seed, fused="require")
