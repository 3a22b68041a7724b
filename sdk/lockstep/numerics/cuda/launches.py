"""Launches of kernels: their arguments, what of these is read and written; the C++ of a scalar instruction."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from lockstep.numerics.cuda.views import word
from lockstep.numerics.loops import FLOATS, OTHERS
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import Instr, View


class Space(IntEnum):
    """The place of a kernel's argument. The first ones have the numbers of `Tag`."""

    OP = 0
    STATE = 1
    CONST = 2
    CONTEXT = 4
    DATASET = 5
    SCRATCH = 6
    VALUE = 7
    """Nowhere: the argument is its offset."""


class KernelArgument(NamedTuple):
    """An argument of a kernel: a word of a tensor or of a region, or a number."""

    space: Space
    entry: int = 0
    offset: int = 0
    """Words."""


NOWHERE = KernelArgument(Space.VALUE)
"""The address of what is not written."""


class Launch(NamedTuple):
    """One kernel with its grid and arguments; the places of its outputs are the last ones."""

    kernel: str
    blocks: int
    threads: int
    arguments: tuple[KernelArgument, ...]
    shared: int = 0
    """Bytes of shared memory beside what the kernel declares."""
    outputs: int = 1


Launches = Sequence[Sequence[Launch]]
"""The launches in the place of each op."""


def reads(launches: Sequence[Launch]) -> set[int]:
    """The ops whose outputs are read."""
    arguments = (own.arguments[: len(own.arguments) - own.outputs] for own in launches)
    return {place.entry for own in arguments for place in own if place.space == Space.OP}


def writes(launches: Sequence[Launch]) -> set[int]:
    """The ops whose outputs, or parts of them, are computed."""
    arguments = (own.arguments[len(own.arguments) - own.outputs :] for own in launches)
    return {place.entry for own in arguments for place in own if place.space == Space.OP}


def place_of(view: View) -> KernelArgument:
    """Returns the first word that a view shows, as an argument of a kernel."""
    return KernelArgument(Space(view.tag), view.index, view.offset)


def boolean(flag: bool) -> str:
    """A flag as C++ writes it."""
    return "true" if flag else "false"


def evaluate(instr: Instr, registers: Sequence[str] | None = None) -> str:
    """The instruction's result as an expression of the registers' names, r0, r1, ... where none are given."""
    opcode = Opcode(instr.op)
    if opcode == Opcode.IMM:
        return word(instr.imm)
    names = [registers[r] if registers and r < len(registers) else f"r{r}" for r in (instr.a, instr.b, instr.c)]
    if opcode in FLOATS:
        raw = FLOATS[opcode].format(*(f"value({name})" for name in names))
        return f"word(f32::canonical({raw.replace('raw::', 'f32::raw::')}))"
    return OTHERS[opcode].format(*names)
