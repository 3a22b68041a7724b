"""bf16 and TF32 compute: a product's operands are rounded, as tensor cores round them, its sums are binary32."""

import pytest

from lockstep.numerics.scalar import Op as Code
from lockstep.protocol.programs.program import Instr, Program
from tests.adversarial.cheat import Cheat, convicts, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import at, by_program, named, skipping, tapped
from tests.support.toyjob import STEPS

HALF = {16: 0x7FFF, 13: 0x0FFF}
"""Rounding to nearest even adds half of what is cut, less one where the last kept bit is even."""


def rounds(bits: int) -> tuple[Instr, ...]:
    """x rounded to nearest even with `bits` bits of its word cut: 16 is bf16, 13 is TF32 (in registers 0..1: x, i)."""
    return (
        Instr(Code.IMM, imm=bits),
        Instr(Code.ISHR, 0, 2),
        Instr(Code.IMM, imm=1),
        Instr(Code.IAND, 3, 4),
        Instr(Code.IMM, imm=HALF[bits]),
        Instr(Code.IADD, 5, 6),
        Instr(Code.IADD, 0, 7),
        Instr(Code.IMM, imm=0xFFFFFFFF << bits & 0xFFFFFFFF),
        Instr(Code.IAND, 8, 9),
    )


def rounded(bits: int):  # type: ignore[no-untyped-def]
    """The gradient's product reads rounded features; the features are shown as they are."""

    def program(honest: Program) -> Program:
        return tapped(honest, named(honest, "features"), rounds(bits), readers=[named(honest, "gradient")])

    def lie(run, t, step):  # type: ignore[no-untyped-def]
        return by_program(program, skipping(named(step.program, "features") + 1))(run, t, step)

    return at(range(1, STEPS + 1), lie)


def where(run):  # type: ignore[no-untyped-def]
    return Where(1, named(run.program(1), "gradient"), rule="op")


CHEAT = Cheat(
    "bf16 or TF32 compute", "fraud", {"bf16": convicts(rounded(16), where), "TF32": convicts(rounded(13), where)}
)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_rounded_operands_are_convicted_in_the_first_product(court: Court, form: str) -> None:
    run(court, CHEAT, form)
