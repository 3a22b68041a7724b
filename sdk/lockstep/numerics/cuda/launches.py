"""Kernel launches: their arguments, the ops that they read and write, and C++ for scalar instructions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from lockstep.numerics.cuda.views import word
from lockstep.numerics.loops import FLOATS, OTHERS
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import Instr, View


class Space(IntEnum):
    """The location of a kernel's argument. The first members have the numbers of `Tag`."""

    OP = 0
    STATE = 1
    CONST = 2
    CONTEXT = 4
    DATASET = 5
    SCRATCH = 6
    VALUE = 7
    """No memory: the offset itself is the argument."""


class KernelArgument(NamedTuple):
    """An argument of a kernel: the address of a word in a tensor or region, or a number."""

    space: Space
    entry: int = 0
    offset: int = 0
    """Offset in words."""


NOWHERE = KernelArgument(Space.VALUE)
"""The address to pass for an output that is not written."""


class Launch(NamedTuple):
    """One kernel with its grid and arguments; the addresses of its outputs come last."""

    kernel: str
    blocks: int
    threads: int
    arguments: tuple[KernelArgument, ...]
    shared: int = 0
    """Bytes of dynamic shared memory, in addition to what the kernel declares."""
    outputs: int = 1


Launches = Sequence[Sequence[Launch]]
"""The launches for each op, by index."""


def reads(launches: Sequence[Launch]) -> set[int]:
    """Returns the ops whose outputs the launches read."""
    arguments = (own.arguments[: len(own.arguments) - own.outputs] for own in launches)
    return {place.entry for own in arguments for place in own if place.space == Space.OP}


def writes(launches: Sequence[Launch]) -> set[int]:
    """Returns the ops whose outputs the launches compute, in full or in part."""
    arguments = (own.arguments[len(own.arguments) - own.outputs :] for own in launches)
    return {place.entry for own in arguments for place in own if place.space == Space.OP}


def place_of(view: View) -> KernelArgument:
    """Returns the first word of a view as a kernel argument."""
    return KernelArgument(Space(view.tag), view.index, view.offset)


def boolean(flag: bool) -> str:
    """Returns a flag as a C++ literal."""
    return "true" if flag else "false"


def evaluate(instr: Instr, registers: Sequence[str] | None = None) -> str:
    """Returns a C++ expression for an instruction over named registers, by default r0, r1, ..."""
    opcode = Opcode(instr.op)
    if opcode == Opcode.IMM:
        return word(instr.imm)
    names = [registers[r] if registers and r < len(registers) else f"r{r}" for r in (instr.a, instr.b, instr.c)]
    if opcode in FLOATS:
        raw = FLOATS[opcode].format(*(f"value({name})" for name in names))
        return f"word(f32::canonical({raw.replace('raw::', 'f32::raw::')}))"
    return OTHERS[opcode].format(*names)
