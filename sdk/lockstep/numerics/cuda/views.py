"""Strided views for the code generator: merges axes, reads through copies, writes positions as C++."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.numerics.builder import row_major
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import Kind, Op, Program, Tag, View

Strides = Sequence[int]


def merged(extents: Sequence[int], *walks: Strides) -> tuple[list[int], list[list[int]]]:
    """Removes axes of extent 1 and merges neighbouring axes that every walk visits as one."""
    kept: list[int] = []
    strides: list[list[int]] = [[] for _ in walks]
    for axis, extent in enumerate(extents):
        if extent == 1:
            continue
        joins = bool(kept) and all(own[-1] == walk[axis] * extent for own, walk in zip(strides, walks, strict=True))
        if joins:
            kept[-1] *= extent
        else:
            kept.append(extent)
        for own, walk in zip(strides, walks, strict=True):
            if joins:
                own.pop()
            own.append(walk[axis])
    return kept, strides


def word(value: int) -> str:
    """Returns a word as a C++ literal; negative numbers modulo 2^32."""
    return f"{value & 0xFFFFFFFF}u"


def position(extents: Sequence[int], strides: Strides, name: str = "i") -> str:
    """Returns a C++ expression, modulo 2^32, for sum(stride x coordinate) of the row-major element called `name`."""
    kept, (walk,) = merged(extents, strides)
    terms = []
    inner = 1
    for axis in reversed(range(len(kept))):
        coordinate = name if inner == 1 else f"{name} / {word(inner)}"
        if axis:
            coordinate += f" % {word(kept[axis])}"
        if walk[axis]:
            terms.append(coordinate if walk[axis] == 1 else f"{coordinate} * {word(walk[axis])}")
        inner *= kept[axis]
    return " + ".join(terms) or "0u"


def seen_through(program: Program, op: Op, view: View) -> View:
    """Returns a fold's operand as a view of the source of its copies.

    The committed form has transposes that make a k axis contiguous; the device need not store them. One axis must stay
    contiguous, or neighbouring threads would read words far apart.
    """
    extents = (*op.extents, *op.k_extents)
    while view.tag == Tag.OP and _is_copy(program.ops[view.index]):
        through = _read_through(view, extents, program.ops[view.index])
        if through is None or 1 not in through.strides:
            break
        view = through
    return view


def _is_copy(op: Op) -> bool:
    """Returns True for a map that only moves words."""
    if op.kind != Kind.MAP or len(op.views) != 1 or op.views[0].tag == Tag.IOTA:
        return False
    return all(instr.op == Opcode.MOV and instr.a == 0 for instr in op.instrs) and len(op.instrs) <= 1


def _read_through(reader: View, extents: Sequence[int], copy: Op) -> View | None:
    """Rewrites a view of a copy as an equivalent view of the copy's source; None if an axis of the view spans axes of
    the copy that do not merge."""
    source = copy.views[0]
    kept, (row, walk) = merged(copy.extents, row_major(copy.extents), source.strides)
    offset, rest = source.offset, reader.offset
    low = []
    for inner, stride in zip(row, walk, strict=True):
        coordinate, rest = divmod(rest, inner)
        low.append(coordinate)
        offset += coordinate * stride
    high = list(low)
    strides = []
    for extent, stride in zip(extents, reader.strides, strict=True):
        if extent == 1 or stride == 0:
            strides.append(0)
            continue
        axis = next((a for a, inner in enumerate(row) if stride % inner == 0), None)
        if axis is None:
            return None
        steps = stride // row[axis]
        reach = steps * (extent - 1)
        (low if reach < 0 else high)[axis] += reach
        strides.append(steps * walk[axis])
    if any(at < 0 for at in low) or any(at >= extent for at, extent in zip(high, kept, strict=True)):
        return None
    return replace(source, offset=offset, strides=tuple(strides))
