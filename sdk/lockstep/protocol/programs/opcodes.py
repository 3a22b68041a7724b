"""Opcodes of a map's expression machine: their numbers, and the number of registers that each reads.

`lockstep.numerics.scalar` defines their results; this module has only what is needed to check a descriptor's bytes.
"""

from __future__ import annotations

from enum import IntEnum


class Opcode(IntEnum):
    """Operations on words with operands a, b, c.

    Each operation of the op-set has one number, which Programs commit to.
    """

    MOV = 0
    IMM = 1
    FADD = 2
    FSUB = 3
    FMUL = 4
    FDIV = 5
    FFMA = 6
    FSQRT = 7
    FNEG = 8
    FABS = 9
    FMIN = 10
    FMAX = 11
    FEXP = 12
    FLOG = 13
    FTANH = 14
    FLT = 15
    FLE = 16
    FEQ = 17
    SELECT = 18
    IADD = 19
    ISUB = 20
    IMUL = 21
    IDIV = 22
    IREM = 23
    IAND = 24
    IOR = 25
    IXOR = 26
    ISHL = 27
    ISHR = 28
    IUSHR = 29
    ILT = 30
    ILE = 31
    IEQ = 32
    IMIN = 33
    IMAX = 34
    I2F = 35
    F2I = 36
    FCANON = 37


_UNARY = (
    Opcode.MOV, Opcode.IMM, Opcode.FSQRT, Opcode.FNEG, Opcode.FABS, Opcode.FEXP, Opcode.FLOG, Opcode.FTANH,
    Opcode.I2F, Opcode.F2I, Opcode.FCANON,
)  # fmt: skip
_TERNARY = (Opcode.FFMA, Opcode.SELECT)

ARITY: dict[Opcode, int] = dict.fromkeys(Opcode, 2) | dict.fromkeys(_UNARY, 1) | dict.fromkeys(_TERNARY, 3)
"""Number of operands a, b, c that an operation reads. IMM reads its immediate instead of a."""

FUNCTIONS = frozenset({Opcode.FEXP, Opcode.FLOG, Opcode.FTANH})
"""Operations that are sequences of other operations; an expression has at most 8 of them."""
