"""A toy job with codes, scales, groups and partials: every form of `quant` and `qdot` in one step."""

from __future__ import annotations

from lockstep.numerics.scalar import Opcode as Code
from lockstep.protocol.programs.program import (
    CODES,
    F32,
    I32,
    STOCHASTIC,
    Alias,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Quant,
    Tag,
    View,
)
from tests.support import games
from tests.support.games import FOUND, N, f32

ROWS, SMALL, LARGE = 3, 1, 64
"""Rows of the small codes; words of a small and of a large group."""
SMALL_GROUPS, RAGGED = ROWS * N // CODES, 500
"""390 groups, more than a move shows; terms of two large groups, of which the second is not full."""

SMALL_CODES, SMALL_SCALES, DICED_CODES, DICED_SCALES, LONG = range(5)
LARGE_CODES, LARGE_SCALES, POWER_CODES, POWER_SCALES, WORDS, ALONE, PAIR, STRANGE, CARRY, MOVED, CLOCK = range(5, 16)


def _op(index: int, *strides: int, offset: int = 0) -> View:
    return View(Tag.OP, index, offset, strides)


def _state(index: int, *strides: int, offset: int = 0) -> View:
    return View(Tag.STATE, index, offset, strides)


def step_program() -> Program:
    """Returns the step Program; state and layout are those of `games.step_program`."""
    words = N // CODES
    stream = STOCHASTIC + 5
    small = (_op(SMALL_CODES, 0, 1), _op(DICED_CODES, 0, 1), _op(SMALL_SCALES, 0, 1), _op(DICED_SCALES, 0, 1))
    ops = (
        Op(Kind.QUANT, I32, (ROWS, words), (_state(0, 0, 0, 1),), (N,), Quant.CODES, p0=SMALL),
        Op(Kind.QUANT, F32, (ROWS, words), (_state(0, 0, 0, 1),), (N,), Quant.SCALES, p0=SMALL),
        Op(Kind.QUANT, I32, (ROWS, words), (_state(1, 0, 0, 1),), (N,), Quant.CODES, p0=SMALL, p1=stream),
        Op(Kind.QUANT, F32, (ROWS, words), (_state(1, 0, 0, 1),), (N,), Quant.SCALES, p0=SMALL),
        # 4: two levels of partials.
        Op(Kind.FOLD, F32, (2,), small, (SMALL_GROUPS,), Fold.QDOT, p0=SMALL),
        # 5: windows of w and m that are not at a leaf's start; the last group is not full.
        Op(Kind.QUANT, I32, (2 * LARGE,), (_state(0, 0, 1, offset=7),), (RAGGED,), Quant.CODES, p0=LARGE),
        Op(Kind.QUANT, F32, (2,), (_state(0, 0, 1, offset=7),), (RAGGED,), Quant.SCALES, p0=LARGE),
        Op(
            Kind.QUANT, I32, (2 * LARGE,), (_state(1, 0, 1, offset=20),), (RAGGED,), Quant.CODES_POWER, p0=LARGE,
            p1=stream + 1,
        ),
        Op(Kind.QUANT, F32, (2,), (_state(1, 0, 1, offset=20),), (RAGGED,), Quant.SCALES_POWER, p0=LARGE),
        # 9: words that no op has made codes, including -128.
        Op(Kind.RANDOM, I32, (2 * LARGE,), (), p0=9),
        Op(
            Kind.FOLD, F32, (2,),
            (_op(LARGE_CODES, 64, 64), _op(POWER_CODES, 64, 64), _op(LARGE_SCALES, 1, 0), _op(POWER_SCALES, 1, 1)),
            (1,), Fold.QDOT, p0=LARGE,
        ),
        Op(
            Kind.FOLD, F32, (),
            (_op(LARGE_CODES, 64), _op(POWER_CODES, 64), _op(LARGE_SCALES, 0, offset=1), _op(POWER_SCALES, 1)),
            (2,), Fold.QDOT, p0=LARGE,
        ),
        Op(
            Kind.FOLD, F32, (), (_op(WORDS, 16), _op(LARGE_CODES, 16), _op(DICED_SCALES, 1, offset=250), _op(6, 0)),
            (8,), Fold.QDOT, p0=16,
        ),
        # 13: the results, carried.
        Op(
            Kind.CONCAT, F32, (FOUND,),
            (*(_op(i, stride) for i, stride in ((LONG, 1), (ALONE, 1), (PAIR, 0), (STRANGE, 0), (LARGE_SCALES, 1))),),
            sizes=(2, 2, 1, 1, 2),
        ),
        Op(
            Kind.MAP, F32, (N,), (_state(0, 1), _op(CARRY, 0, offset=4)),
            instrs=(Instr(Code.FTANH, 1), Instr(Code.IMM, imm=f32(1 / 256)), Instr(Code.FFMA, 2, 3, 0)),
        ),
        Op(Kind.MAP, I32, (), (_state(6), View(Tag.IOTA, 0, 1, ())), instrs=(Instr(Code.IADD, 0, 1),)),
    )  # fmt: skip
    outputs = (
        Alias(1, MOVED), Alias(2, 1), Alias(2, 2), Alias(2, 3), Alias(1, CARRY), Alias(2, 5), Alias(1, CLOCK), Alias(0),
    )  # fmt: skip
    return Program(games.counted(ops), games.step_program().inputs, outputs)
