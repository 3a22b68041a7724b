"""Other learning rate, decay or betas: every step is honest but for one constant of the optimizer."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from lockstep.numerics.arrays import to_array, to_bytes
from lockstep.numerics.scalar import Op as Code
from lockstep.protocol.programs.program import Const, Program
from tests.adversarial.cheat import Cheat, Ended, convict, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import at, by_program, named, with_op
from tests.support.toyjob import STEPS

TRAINING = range(1, STEPS + 1)


def rate(court: Court) -> Ended:
    """The rates half as large again (the demo's lie)."""
    lie = cheat_of("wrong-lr", court.job.programs, court.job.params, 0, DEVNET_CHAIN_ID)
    return convict(court, lie.run(court.run(0)), Where(1, lie.expectation.op_index, rule="op"))


def no_decay(program: Program) -> Program:
    """The table's first column, what a step leaves of a parameter, is 1."""
    table = next(i for i, c in enumerate(program.consts) if len(c.header.shape) == 2 and c.header.shape[1] == 2)
    values = to_array(program.consts[table].header, program.consts[table].data).copy()
    values[:, 0] = np.float32(1)
    consts = list(program.consts)
    consts[table] = Const(consts[table].header, to_bytes(values))
    return replace(program, consts=tuple(consts))


def other_beta(name: str, old: float, new: float):  # type: ignore[no-untyped-def]
    """The moment `name` with another constant."""

    def program(honest: Program) -> Program:
        index = named(honest, name)
        op = honest.ops[index]
        words = {int(np.float32(old).view(np.uint32)): int(np.float32(new).view(np.uint32))}
        instrs = tuple(replace(i, imm=words.get(i.imm, i.imm)) if i.op == Code.IMM else i for i in op.instrs)
        assert instrs != op.instrs, "the constant is there"
        return with_op(honest, index, replace(op, instrs=instrs))

    return at(TRAINING, by_program(program))


def first_op(name: str, t: int = 1):  # type: ignore[no-untyped-def]
    """Where a constant is first read with effect: the moments are zero in step 1, and a beta multiplies them."""
    return lambda run: Where(t, named(run.program(1), name), rule="op")


CHEAT = Cheat(
    "other learning rate, decay or betas", "fraud",
    {
        "rate x 1.5": rate,
        "no decay": convicts(at(TRAINING, by_program(no_decay)), first_op("rates")),
        "beta 1 = 0.8": convicts(other_beta("m", 0.9, 0.8), first_op("m", 2)),
        "beta 2 = 0.99": convicts(other_beta("v", 0.95, 0.99), first_op("v", 2)),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_another_optimizer_is_convicted_where_its_constant_is_read(court: Court, form: str) -> None:
    run(court, CHEAT, form)
