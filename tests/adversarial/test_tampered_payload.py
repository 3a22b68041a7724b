"""Scaled, noised or sign-flipped payload: honest training, and then a payload that counts ten times, or otherwise."""

import pytest

from lockstep.demo.cheats.lies import DEVNET_CHAIN_ID, cheat_of
from lockstep.numerics.scalar import Op as Code
from lockstep.protocol.programs.program import Instr, Program
from tests.adversarial.cheat import Cheat, Ended, convict, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lie, at, by_program, named, skipping, tapped
from tests.support.toyjob import STEPS

ENCODE = STEPS + 1
THOUSANDTH = 0x3A83126F
"""0.001 as a binary32 word."""


def scaled(court: Court) -> Ended:
    """Ten times (the demo's lie)."""
    lie = cheat_of("scaled-payload", court.job.programs, court.job.params, 0, DEVNET_CHAIN_ID)
    return convict(court, lie.run(court.run(0)), Where(ENCODE, lie.expectation.op_index, rule="op"))


def payload(*instrs: Instr) -> Lie:
    """The difference that a payload is, changed by instructions (registers: 0 the value, 1 its flat index)."""

    def program(honest: Program) -> Program:
        return tapped(honest, named(honest, "difference"), instrs)

    def lie(run, t, step):  # type: ignore[no-untyped-def]
        # What stands at the op's place is the changed value.
        return by_program(program, lambda op: skipping(named(step.program, "difference"))(op))(run, t, step)

    return at(ENCODE, lie)


def where(run):  # type: ignore[no-untyped-def]
    return Where(ENCODE, named(run.program(ENCODE), "difference"), rule="op")


NOISE = (Instr(Code.I2F, 1), Instr(Code.IMM, imm=THOUSANDTH), Instr(Code.FMUL, 2, 3), Instr(Code.FADD, 0, 4))

CHEAT = Cheat(
    "scaled, noised or sign-flipped payload", "fraud",
    {
        "x 10": scaled,
        "with noise": convicts(payload(*NOISE), where),
        "sign flipped": convicts(payload(Instr(Code.FNEG, 0)), where),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_tampered_payload_is_convicted_in_encode(court: Court, form: str) -> None:
    run(court, CHEAT, form)
