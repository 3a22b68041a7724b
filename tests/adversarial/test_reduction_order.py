"""Another reduction order: the same 600 terms of a product, added up from the other end, in honest chunks."""

from dataclasses import replace

import pytest

from lockstep.execution.jobs import ClaimRun
from lockstep.numerics.scalar import Op as Code
from lockstep.numerics.trace import StepTrace, materialise
from lockstep.protocol.programs.program import F32, Alias, Instr, Kind, Op, Program, Tag, View
from tests.adversarial.cheat import Cheat, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, at, named, shown
from tests.support.toyjob import SIZE, STEPS, TERMS

_MOVE = (Instr(Code.MOV),)


def backwards(run: Lying, t: int, step: StepTrace) -> StepTrace:
    """The step whose gradient was added up from the last term to the first."""
    program = step.program
    fold = program.ops[named(program, "gradient")]
    ops: list[Op] = list(program.ops)
    # Two copies with their terms in reverse, behind everything that they read, and the fold over them.
    features, error = named(program, "features"), named(program, "error")
    at_fold = named(program, "gradient")
    copies = (
        Op(Kind.MAP, F32, (SIZE, TERMS), (View(Tag.OP, features, TERMS - 1, (TERMS, -1)),), instrs=_MOVE),
        Op(Kind.MAP, F32, (TERMS,), (View(Tag.OP, error, TERMS - 1, (-1,)),), instrs=_MOVE),
    )
    views = (
        replace(fold.views[0], index=at_fold),
        replace(fold.views[1], index=at_fold + 1),
    )
    made = [*ops[:at_fold], *copies, replace(fold, views=views), *(_later(op, at_fold) for op in ops[at_fold + 1 :])]
    outputs = tuple(
        replace(a, index=a.index + 2) if a.kind == Alias.OP_KIND and a.index >= at_fold else a for a in program.outputs
    )
    forged = materialise(
        run.job.executable(Program(_counted(made), program.inputs, outputs, program.consts)), step.before, step.context,
        step.rows,
    )  # fmt: skip
    behind = {op: op if op < at_fold else op + 2 for op in range(len(ops))}
    return shown(step, forged, behind)


def _later(op: Op, at_fold: int) -> Op:
    views = tuple(replace(v, index=v.index + 2) if v.tag == Tag.OP and v.index >= at_fold else v for v in op.views)
    return replace(op, views=views)


def _counted(ops: list[Op]) -> tuple[Op, ...]:
    total, counted = 0, []
    for op in ops:
        total += op.header.elements
        counted.append(replace(op, cumulative=total))
    return tuple(counted)


def where(run: ClaimRun) -> Where:
    return Where(1, named(run.program(1), "gradient"), rule="op")


CHEAT = Cheat("another reduction order", "fraud", {"backwards": convicts(at(range(1, STEPS + 1), backwards), where)})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_another_order_of_a_sum_is_convicted_in_that_sum(court: Court, form: str) -> None:
    run(court, CHEAT, form)
