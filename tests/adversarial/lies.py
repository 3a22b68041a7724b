"""Runs that lie: a step of one's own in the place of the honest one, shown under the honest Program's name.

A lie is a function of the honest step. Whatever comes after follows from what it returns, so the liar can defend itself
down to the leaf. `forged` computes a step by another Program; `changed` puts words into an op's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from lockstep.jobs import ClaimRun, State
from lockstep.numerics.executor import to_bytes
from lockstep.numerics.scalar import Op as Code
from lockstep.numerics.trace import StepTrace, materialise
from lockstep.protocol.program import Alias, Const, Instr, Kind, Op, Program, Tag, View
from worker.cheats import inserted

Array = np.ndarray
Lie = Callable[["Lying", int, StepTrace], StepTrace | None]
"""(run, t, the honest step from the liar's state) -> what the liar shows; None: the honest step."""


@dataclass(frozen=True)
class Lying(ClaimRun):
    """A claim's computation with a lie in it."""

    lie: Lie | None = None

    def advance(self, t: int, state: State) -> State:
        """The tensors of S_t as the liar has them."""
        return list(self.materialise(t, state).next)

    def materialise(self, t: int, state: State) -> StepTrace:
        """What the liar shows of transition t."""
        honest = super().materialise(t, state)
        assert self.lie is not None, "a lying run has a lie"
        return self.lie(self, t, honest) or honest


def lying(honest: ClaimRun, lie: Lie) -> Lying:
    """A slot's run with a lie in it."""
    return Lying(honest.job, honest.slot, honest.round, honest.seed, honest.start, honest.carried, lie)


@dataclass(frozen=True)
class Shown(StepTrace):
    """The honest Program over a forged one's tensors."""

    forged: StepTrace | None = None
    behind: Mapping[int, int] = field(default_factory=dict)
    """op -> the forged Program's op whose partials are shown for it."""

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """One level of a fold: as the forged Program adds it up."""
        if self.forged is not None and op in self.behind:
            return self.forged.partials(self.behind[op], element, group)
        return super().partials(op, element, group)


def by_program(program: Callable[[Program], Program], shows: Callable[[int], int] = lambda op: op) -> Lie:
    """A lie that runs another Program; `shows(op)` is the op of it that is shown as op of the honest one."""

    def lie(run: Lying, t: int, honest: StepTrace) -> StepTrace:
        made = program(honest.program)
        forged = materialise(run.job.executable(made), honest.before, honest.context, honest.rows)
        behind = {op: shows(op) for op in range(len(honest.program.ops))}
        outputs = tuple(forged.outputs[behind[op]] for op in behind)
        return Shown(
            honest.program, honest.before, outputs, forged.next, honest.context, honest.rows, forged=forged,
            behind=behind,
        )  # fmt: skip

    return lie


def at(t: int | Sequence[int], lie: Lie) -> Lie:
    """The lie at some transitions alone."""
    times = (t,) if isinstance(t, int) else tuple(t)
    return lambda run, now, honest: lie(run, now, honest) if now in times else None


def changed(step: StepTrace, outputs: Mapping[int, Array]) -> StepTrace:
    """The step with other outputs of some ops, and the state's entries that name them; nothing else follows."""
    made = tuple(outputs.get(op, old) for op, old in enumerate(step.outputs))
    after = tuple(
        made[alias.index].reshape(old.shape) if old is not None and alias.kind == Alias.OP_KIND else old
        for alias, old in zip(step.program.outputs, step.next, strict=True)
    )
    return StepTrace(step.program, step.before, made, after, step.context, step.rows)


def words(array: Array) -> Array:
    """A copy's flat 32-bit words, to be written to."""
    return np.ascontiguousarray(array).copy().reshape(-1).view(np.uint32)


def with_word(array: Array, element: int, word: int) -> Array:
    """The tensor with one other word."""
    changed_words = words(array)
    changed_words[element] = word & 0xFFFFFFFF
    return changed_words.view(array.dtype).reshape(array.shape)


def named(program: Program, name: str) -> int:
    """The first op of that name."""
    return next(i for i in range(len(program.ops)) if program.name_of(i) == name)


def with_op(program: Program, index: int, op: Op) -> Program:
    """The Program with one other op."""
    return replace(program, ops=(*program.ops[:index], op, *program.ops[index + 1 :]))


def tapped(program: Program, index: int, instrs: Sequence[Instr], readers: Sequence[int] | None = None) -> Program:
    """`program` with a map behind op `index` that everybody reads in its stead (`readers`: they alone)."""
    made = inserted(program, index, instrs)
    if readers is None:
        return made
    ops = list(made.ops)
    for later in range(index + 1, len(program.ops)):
        if later not in readers:
            views = tuple(
                replace(v, index=index) if v.tag == Tag.OP and v.index == index + 1 else v for v in ops[later + 1].views
            )
            ops[later + 1] = replace(ops[later + 1], views=views)
    outputs = tuple(
        replace(a, index=index) if a.kind == Alias.OP_KIND and a.index == index + 1 else a for a in made.outputs
    )
    return replace(made, ops=tuple(ops), outputs=outputs)


def skipping(hidden: int) -> Callable[[int], int]:
    """Shows every op of a Program with one op more but that one."""
    return lambda op: op if op < hidden else op + 1


def recomputed(run: Lying, made: StepTrace, at_op: int) -> StepTrace:
    """The step with everything behind op `at_op` computed from its output as it stands in `made`."""
    program, shown = made.program, made.outputs[at_op]
    const = len(program.consts)
    consts = (*program.consts, Const(program.ops[at_op].header, to_bytes(shown)))
    strides = row_major(program.ops[at_op].extents)
    copy = Op(
        Kind.MAP, program.ops[at_op].dtype, program.ops[at_op].extents, (View(Tag.CONST, const, 0, strides),),
        instrs=(Instr(Code.MOV),), cumulative=program.ops[at_op].cumulative,
    )  # fmt: skip
    forged = replace(with_op(program, at_op, copy), consts=consts)
    step = materialise(run.job.executable(forged), made.before, made.context, made.rows)
    return StepTrace(program, made.before, step.outputs, step.next, made.context, made.rows)


def row_major(extents: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor in row-major order."""
    strides, step = [], 1
    for extent in reversed(extents):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
