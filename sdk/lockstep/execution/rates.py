"""Measures this machine's rates and a Program's work; their quotient estimates the time of a step.

A step consists of products, limited by this machine's multiply-adds, and of maps and sums, limited by its memory; then
its state is hashed. Each rate is measured once, by a small Program of that kind on as many threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext
from lockstep.numerics.builder import Expression, ProgramBuilder
from lockstep.numerics.built import COMPILED
from lockstep.numerics.built import kernels as _native
from lockstep.protocol.market.prices import ceil_div
from lockstep.protocol.merkle import tensor_root
from lockstep.protocol.programs.program import F32, Program
from lockstep.protocol.types import Wei

if TYPE_CHECKING:
    from lockstep.execution.jobs import JobPrograms

PRICED_OPERATIONS = 10**15
"""Number of operations to which a price of training refers."""
SAMPLES = 5
SIDE = 768 if COMPILED else 96
"""Side of the square matrices in the timed product."""
TERMS = 1 << 22 if COMPILED else 1 << 18
"""Elements of the timed map: for compiled kernels more than the caches hold."""
_CONTEXT = StepContext(bytes(32), 0, 0, 1)


@dataclass(frozen=True)
class ProgramWork:
    """The work of one run of a Program."""

    products: float
    """Number of multiply-adds."""
    terms: float
    """Terms of the other ops: instructions and write of each element, reads of a sum."""
    hashed: int
    """Bytes of the state after it, which are hashed."""

    @property
    def operations(self) -> int:
        """Operations: two for a multiply-add, one for any other term."""
        return int(2 * self.products + self.terms)


@dataclass(frozen=True)
class Rates:
    """Work that one process on this machine does per second."""

    products: float
    """Multiply-adds per second."""
    terms: float
    hashed: float
    """Bytes hashed per second."""

    def seconds(self, work: ProgramWork) -> float:
        """Returns the seconds of a run at these rates, with hashing its state."""
        return work.products / self.products + work.terms / self.terms + work.hashed / self.hashed


def work_of(program: Program) -> ProgramWork:
    """Returns the work of one run of a Program, without running it."""
    constants = tuple(c.header.elements for c in program.consts)
    products, terms = _native.work_of_run(program.header, program.descriptors, constants)
    hashed = sum(
        4 * h.elements for h, a in zip(program.output_layout, program.outputs, strict=True) if h and a.kind == 1
    )
    return ProgramWork(products, terms, hashed)


def slot_operations(programs: JobPrograms, inner_steps: int) -> int:
    """Returns the operations of one slot of one round, the basis of price comparisons."""
    return inner_steps * work_of(programs.step).operations


def slot_price_at(price: Wei, operations: int) -> Wei:
    """Returns a slot's pay for `operations` at a price per `PRICED_OPERATIONS`, rounded up so that a worker with that
    minimum price accepts it.
    """
    return Wei(ceil_div(price * operations, PRICED_OPERATIONS))


def price_of(slot_price: Wei, operations: int) -> Wei:
    """Returns the price per `PRICED_OPERATIONS` of a slot with this pay, rounded down."""
    return Wei(slot_price * PRICED_OPERATIONS // max(1, operations))


@lru_cache
def rates(threads: int, path: str = "auto") -> Rates:
    """Measures this machine's rates, in a fraction of a second."""
    words = np.full(TERMS, 0.5, np.float32)
    side = np.full(SIDE * SIDE, 0.5, np.float32)
    products = SIDE**3 / _quickest(_run(_product(), [side, side], threads, path))
    update = _update()
    terms = work_of(update).terms / _quickest(_run(update, [words] * 4, threads, path))
    hashed = words.nbytes / _quickest(lambda: tensor_root(F32, words.shape, words.data))
    return Rates(products, terms, hashed)


def _product() -> Program:
    p = ProgramBuilder([(F32, SIDE * SIDE)] * 2)
    a, b = (p.input(k).reshape(SIDE, SIDE) for k in range(2))
    c = p.dot(a.unsqueeze(1).expand(SIDE, SIDE, SIDE), b.unsqueeze(0).expand(SIDE, SIDE, SIDE))
    return p.finish([p.map((SIDE * SIDE,), [c.reshape(SIDE * SIDE)], lambda e, x: e.fadd(x, x))])


def _update() -> Program:
    """Returns a Program for timing: one elementwise map as expensive as an optimizer's update."""
    p = ProgramBuilder([(F32, TERMS)] * 4)

    def moved(e: Expression, x: int, g: int, m: int, v: int) -> int:
        rate = e.f32(0.5)
        return e.fsub(x, e.fdiv(e.ffma(g, rate, m), e.fsqrt(e.fadd(e.ffma(g, g, v), rate))))

    return p.finish([p.map((TERMS,), [p.input(k) for k in range(4)], moved)])


def _run(program: Program, state: list[Array | None], threads: int, path: str) -> Callable[[], object]:
    executable = paths.compile(program, threads=threads, path=path)
    return lambda: executable.run(state, _CONTEXT)


def _quickest(work: Callable[[], object]) -> float:
    work()
    taken = []
    for _ in range(SAMPLES):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)
