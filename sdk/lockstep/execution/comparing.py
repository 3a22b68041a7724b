"""Runs a job's Programs for one transition each, natively and by independent code, and compares the results bit by bit.

    check_job(job)                  # raises WrongBits with the op, its place and the element

Three things are compared: the state that a claim is made of (the fast form, in which ops are fused and most are in no
memory), the roots of all ops that a game shows (a sweep), and the arithmetic of numpy. Where a Program is small enough
for the portable executor, all of its words are. Beyond that, sampled elements of every op are, each from its operands
as the sweep shows them, and the state that the sweep ends in is still the fast form's to the last word.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np

from lockstep.execution.capacity import operations
from lockstep.execution.jobs import ClaimRun, Job, State, merge_run, payload_of, slot_run
from lockstep.numerics import portable
from lockstep.numerics.arrays import Array
from lockstep.numerics.executor import Executable
from lockstep.numerics.samples import WrongWord, differences
from lockstep.numerics.trace import StepTrace, materialise, tensor_root
from lockstep.protocol.errors import WrongBits
from lockstep.protocol.programs.program import Alias, Program
from lockstep.protocol.types import Seed

EXACT_OPERATIONS = 1 << 28
"""Most operations of a Program for which every word is compared: about five seconds of the portable executor."""
HINT = "this machine or build computes wrong bits of this job: run `lockstep doctor`, and report it"


@dataclass(frozen=True)
class Compared:
    """Result of computing a transition twice."""

    exact: bool
    """True if every word was compared; False if only sampled words of every op were."""
    wrong: str = ""
    """Description of the first difference; empty if there is none."""


def check_job(job: Job, exact: int = EXACT_OPERATIONS) -> None:
    """Compares a step, the encoding and a merge, from the job's first weights and rows. Raises WrongBits.

    The step is a slot's second one: moments and adapters that start from zeros hide what their products do.
    """
    slot = slot_run(job, job.genesis, Seed(bytes(32)), 0, 0)
    stepped = _check(slot, min(2, slot.transitions - 1), slot.advance(1, slot.start), exact)
    encoded = _check(slot, slot.transitions, stepped, exact)
    payloads = [payload_of(job, encoded)] * job.params.role.slots
    _check(merge_run(job, job.genesis, payloads, slot.seed, 0), 1, None, exact)
    job.turn_to(None)


def _check(run: ClaimRun, t: int, state: State | None, exact: int) -> State:
    """Compares transition t of a run; returns the state after it."""
    before = run.start if state is None else state
    after = run.advance(t, before)
    program = run.program(t)
    run.job.turn_to(None)
    found = compare(run.materialise(t, before), after, run.job.showing(program), exact)
    if found.wrong:
        name = run.job.programs.name_of(run.slot, t, run.transitions - 1)
        raise WrongBits(f"comparison of the Program {name!r} with other code: {found.wrong}", HINT)
    return after


def compare(shown: StepTrace, after: State, executable: Executable, exact: int = EXACT_OPERATIONS) -> Compared:
    """Compares a transition: the state `after` it in a claim, the step materialised by `executable` for a game, and the
    portable executor (or sampled words if the Program has more than `exact` operations).
    """
    program, whole = shown.program, operations(shown.program) <= exact
    if not whole:
        sampled = differences(executable, shown.before, shown.context, shown.rows, Random(0))
        if sampled:
            return Compared(False, _described(program, sampled[0]))
        return Compared(False, _of_state(shown, after))
    due = materialise(portable_of(program), list(shown.before), shown.context, shown.rows)
    wrong = _of_state(due, after)
    first = next((i for i, pair in enumerate(zip(due.roots, shown.roots, strict=True)) if len(set(pair)) > 1), None)
    # A wrong op causes the wrong state.
    return Compared(True, wrong if first is None else _of_op(due, shown, first))


def portable_of(program: Program) -> Executable:
    """Returns the slow executor of a Program: numpy, one thread, no compiled code."""
    return Executable(program, 1, portable.NAME, "off")


def _of_op(due: StepTrace, shown: StepTrace, op: int) -> str:
    """Describes the first word of an op that differs."""
    pair = (trace.made.arrays(frozenset({op}))[op] for trace in (due, shown))
    found = _first(op, *pair)
    if found is not None:
        return _described(due.program, found)
    return f"op {op} ({_named(due.program, op)}) is right on demand, and another where all ops are shown"


def _of_state(due: StepTrace, after: State) -> str:
    """Describes the first word of the state `after` that differs from that of `due`; empty if none does."""
    for k, (alias, root) in enumerate(zip(due.program.outputs, due.entries, strict=True)):
        got = after[k]
        if alias.kind != Alias.OP_KIND or got is None or tensor_root(got) == root:
            continue
        found = _first(alias.index, due.made.arrays(frozenset({alias.index}))[alias.index], got)
        difference = "on demand it is as claimed" if found is None else _described(due.program, found)
        return f"entry {k} of the state that a claim is made of differs: {difference}"
    return ""


def _first(op: int, due: Array, got: Array) -> WrongWord | None:
    words = [np.ascontiguousarray(x).reshape(-1).view(np.uint32) for x in (due, got)]
    at = np.flatnonzero(words[0] != words[1])
    return None if not at.size else WrongWord(op, int(at[0]), *(int(x[at[0]]) for x in words))


def _described(program: Program, d: WrongWord) -> str:
    return f"op {d.op} ({_named(program, d.op)}), element {d.element} is {d.got:#010x} in place of {d.due:#010x}"


def _named(program: Program, op: int) -> str:
    place = program.places[op] if op < len(program.places) else ""
    return f"{program.name_of(op)}, {place}" if place else program.name_of(op)
