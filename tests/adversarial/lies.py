"""Runs that lie: a step of one's own in the place of the honest one, shown under the honest Program's name.

A lie is a function of the honest step. Whatever comes after follows from what it returns, so the liar can defend itself
down to the leaf. `edits` puts other words into an op's output, `by_program` computes a step by another Program, and
`starts` begins from another state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lockstep.execution.jobs import ClaimRun, State
from lockstep.numerics.arrays import to_bytes
from lockstep.numerics.scalar import Opcode as Code
from lockstep.numerics.trace import StepTrace, materialise, tensor_root
from lockstep.protocol.programs.program import Alias, Const, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import TensorRoot

Array = np.ndarray
Lie = Callable[["Lying", int, StepTrace], StepTrace | None]
"""(run, t, the honest step from the liar's state) -> what the liar shows; None: the honest step."""
Change = Callable[[Array, Any], Array]
"""(an op's output in a step, that honest step) -> the liar's output."""
OpName = str | Callable[[Program], int]
"""An op: the first of that name, or one that is looked for."""


@dataclass(frozen=True)
class Lying(ClaimRun):
    """A claim's computation with a lie in it."""

    lie: Lie | None = None

    def advance(self, t: int, state: State) -> State:
        """The tensors of S_t as the liar has them."""
        return list(next_of(self.materialise(t, state)))

    def materialise(self, t: int, state: State) -> StepTrace:
        """What the liar shows of transition t."""
        honest = super().materialise(t, state)
        assert self.lie is not None, "a lying run has a lie"
        return self.lie(self, t, honest) or honest


def lying(honest: ClaimRun, lie: Lie) -> Lying:
    """A slot's run with a lie in it."""
    return Lying(honest.job, honest.slot, honest.round, honest.seed, honest.start, honest.carried, lie)


@dataclass(frozen=True)
class Given:
    """Outputs that are there (`trace.OpOutputs`)."""

    outputs: tuple[Array, ...]

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        return tuple(tensor_root(array) for array in self.outputs)

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        return {op: self.outputs[op] for op in ops}


@dataclass(frozen=True)
class Written(StepTrace):
    """A step whose new state is written down: its entries need not be those that the Program names."""

    next: tuple[Array | None, ...] = ()

    @property
    def entries(self) -> tuple[TensorRoot | None, ...]:
        return tuple(None if array is None else tensor_root(array) for array in self.next)


def written(step: StepTrace, outputs: Sequence[Array], after: Sequence[Array | None]) -> Written:
    """The step with these outputs and this new state."""
    return Written(step.program, step.before, Given(tuple(outputs)), step.context, step.rows, next=tuple(after))


def outputs_of(step: StepTrace) -> tuple[Array, ...]:
    """The outputs of all ops, in order."""
    made = step.made.arrays(frozenset(range(len(step.program.ops))))
    return tuple(made[op] for op in range(len(step.program.ops)))


def next_of(step: StepTrace) -> tuple[Array | None, ...]:
    """The tensors of S_t."""
    if isinstance(step, Written):
        return step.next
    named = frozenset(a.index for a in step.program.outputs if a.kind == Alias.OP_KIND)
    made = step.made.arrays(named)
    sources = {Alias.OP_KIND: made, Alias.STATE_KIND: step.before}
    return tuple(sources[a.kind][a.index] if a.kind in sources else None for a in step.program.outputs)  # type: ignore[index]


@dataclass(frozen=True)
class Shown(Written):
    """The honest Program over a forged one's tensors."""

    forged: StepTrace | None = None
    behind: Mapping[int, int] = field(default_factory=dict)
    """op -> the forged Program's op whose partials are shown for it."""

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """One level of a fold: as the forged Program adds it up."""
        if self.forged is not None and op in self.behind:
            return self.forged.partials(self.behind[op], element, group)
        return super().partials(op, element, group)


def shown(honest: StepTrace, forged: StepTrace, behind: Mapping[int, int]) -> Shown:
    """The forged step under the honest Program's name; op -> the op of it that is shown."""
    made = outputs_of(forged)
    return Shown(
        honest.program, honest.before, Given(tuple(made[behind[op]] for op in range(len(behind)))), honest.context,
        honest.rows, next=next_of(forged), forged=forged, behind=behind,
    )  # fmt: skip


def by_program(program: Callable[[Program], Program], shows: Callable[[int], int] = lambda op: op) -> Lie:
    """A lie that runs another Program; `shows(op)` is the op of it that is shown as op of the honest one."""

    def lie(run: Lying, t: int, honest: StepTrace) -> StepTrace:
        made = program(honest.program)
        forged = materialise(run.job.executable(made), honest.before, honest.context, honest.rows)
        return shown(honest, forged, {op: shows(op) for op in range(len(honest.program.ops))})

    return lie


def at(t: int | Iterable[int], lie: Lie) -> Lie:
    """The lie at some transitions alone."""
    times = (t,) if isinstance(t, int) else tuple(t)
    return lambda run, now, honest: lie(run, now, honest) if now in times else None


def changed(step: StepTrace, outputs: Mapping[int, Array]) -> StepTrace:
    """The step with other outputs of some ops, and the state's entries that name them; nothing else follows."""
    made = tuple(outputs.get(op, old) for op, old in enumerate(outputs_of(step)))
    after = tuple(
        made[alias.index].reshape(old.shape) if old is not None and alias.kind == Alias.OP_KIND else old
        for alias, old in zip(step.program.outputs, next_of(step), strict=True)
    )
    return written(step, made, after)


def edits(t: int | Iterable[int], changes: Mapping[OpName, Change], *, follows: bool = False) -> Lie:
    """Some ops' outputs are others; `follows`: what reads the one op that is changed is computed from that."""

    def lie(run: Lying, now: int, step: StepTrace) -> StepTrace:
        places = {named(step.program, op): change for op, change in changes.items()}
        made = changed(step, {op: change(step.output(op).array, step) for op, change in places.items()})
        return recomputed(run, made, *places) if follows else made

    return at(t, lie)


def word(element: int, change: Callable[[int], int]) -> Change:
    """One word of a tensor is another."""
    return lambda array, _: with_word(array, element, change(int(words(array)[element])))


def scaled(by: object) -> Change:
    """A tensor multiplied, element by element."""
    return lambda array, _: array * np.asarray(by, np.float32)


def starts(run: ClaimRun, changes: Mapping[int, Callable[[Array], Array | None]]) -> ClaimRun:
    """The run from another S_0: some of its entries are others."""
    start = list(run.start)
    for k, change in changes.items():
        old = start[k]
        start[k] = None if old is None else change(old)
    return replace(run, start=start)


def words(array: Array) -> Array:
    """A copy's flat 32-bit words, to be written to."""
    return np.ascontiguousarray(array).copy().reshape(-1).view(np.uint32)


def with_word(array: Array, element: int, word: int) -> Array:
    """The tensor with one other word."""
    changed_words = words(array)
    changed_words[element] = word & 0xFFFFFFFF
    return changed_words.view(array.dtype).reshape(array.shape)


def named(program: Program, op: OpName) -> int:
    """The first op of that name, or the one that is looked for."""
    if not isinstance(op, str):
        return op(program)
    return next(i for i in range(len(program.ops)) if program.name_of(i) == op)


def with_op(program: Program, index: int, op: Op) -> Program:
    """The Program with one other op."""
    return replace(program, ops=(*program.ops[:index], op, *program.ops[index + 1 :]))


def recomputed(run: Lying, made: StepTrace, at_op: int) -> StepTrace:
    """The step with everything behind op `at_op` computed from its output as it stands in `made`."""
    program, claimed = made.program, made.output(at_op).array
    const = len(program.consts)
    consts = (*program.consts, Const(program.ops[at_op].header, to_bytes(claimed)))
    strides = row_major(program.ops[at_op].extents)
    copy = Op(
        Kind.MAP, program.ops[at_op].dtype, program.ops[at_op].extents, (View(Tag.CONST, const, 0, strides),),
        instrs=(Instr(Code.MOV),), cumulative=program.ops[at_op].cumulative,
    )  # fmt: skip
    forged = replace(with_op(program, at_op, copy), consts=consts)
    step = materialise(run.job.executable(forged), made.before, made.context, made.rows)
    return written(made, outputs_of(step), next_of(step))


def row_major(extents: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor in row-major order."""
    strides, step = [], 1
    for extent in reversed(extents):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
