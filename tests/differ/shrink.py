"""Shrinks a failing case: fewer outputs and ops, leaves in place of ops, simpler maps, smaller extents."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from lockstep.numerics.arrays import DTYPES
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import Alias, Kind, Op, Program, Tag, View
from tests.differ.case import Case, counted, padded
from tests.differ.ways import due_words

Fails = Callable[[Case], bool]
SECONDS = 60
"""Time limit of one trial in seconds; a hanging case counts as failing."""


def apart(fails: Fails) -> Callable[[Case], str]:
    """Wraps the check in a process of its own; returns "fails", "crashes" or "" for neither."""

    def asked(case: Case) -> str:
        child = os.fork()
        if child == 0:
            code = 3
            try:
                # A crash is a valid result, without a core dump.
                faulthandler.disable()
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                signal.alarm(SECONDS)
                code = 1 if fails(case) else 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) or os.WEXITSTATUS(status) not in (0, 1, 3):
            return "crashes"
        return "fails" if os.WEXITSTATUS(status) == 1 else ""

    return asked


def shrunk(case: Case, fails: Callable[[Case], str], seconds: float = 120) -> Case:
    """Returns the smallest case found in that time that fails in the same way."""
    due, end = fails(case), time.monotonic() + seconds
    steps: tuple[Callable[[Case], Iterator[Case]], ...] = (
        _fewer_outputs,
        _leaves,
        _passed_by,
        _fewer_outputs,
        _simpler_ops,
    )
    changed = True
    while changed:
        changed = False
        for step in steps:
            again = True
            while again:
                again = False
                for smaller in step(case):
                    if time.monotonic() > end:
                        return case
                    if _size(smaller) < _size(case) and is_valid(smaller.program) and fails(smaller) == due:
                        case, changed, again = smaller, True, True
                        break
    return case


def _size(case: Case) -> tuple[int, int, int]:
    """Returns a sort key: ops and outputs, elements and terms, fields that are not 0."""
    ops = case.program.ops
    shown = sum(a.kind == Alias.OP_KIND for a in case.program.outputs)
    work = sum(op.header.elements + sum(op.k_extents) + len(op.extents) + len(op.instrs) for op in ops)
    fields = sum(sum(v.tag == Tag.OP for v in op.views) + sum(v.offset != 0 for v in op.views) for op in ops)
    return len(ops) + shown, work, fields


def is_valid(program: Program) -> bool:
    """Returns True if every claim about the Program could be defended."""
    try:
        validate(program)
    except ProgramInvalid:
        return False
    return True


def _fewer_outputs(case: Case) -> Iterator[Case]:
    program = case.program
    outputs = [a for a in program.outputs if a.kind == Alias.OP_KIND]
    for at in range(len(outputs)) if len(outputs) > 1 else ():
        yield _pruned(case, list(program.ops), [outputs[at]])
    part = len(outputs) // 2
    while part:
        for at in range(0, len(outputs), part):
            if kept := outputs[:at] + outputs[at + part :]:
                yield _pruned(case, list(program.ops), kept)
        part //= 2


def _passed_by(case: Case) -> Iterator[Case]:
    """Yields cases in which readers of an op read its operand instead, if both have equally many elements."""
    program = case.program
    outputs = [a for a in program.outputs if a.kind == Alias.OP_KIND]
    for i in reversed(range(len(program.ops))):
        op = program.ops[i]
        for view in op.views:
            if view.tag != Tag.OP:
                continue
            ops = [_reading(o, i, view.index, program.ops[view.index].header.elements) for o in program.ops]
            yield _pruned(case, ops, [Alias(a.kind, view.index) if a.index == i else a for a in outputs])


def _reading(op: Op, i: int, other: int, elements: int) -> Op:
    """Returns the op with `other` read in place of op i; a flat copy becomes as short as that."""
    if not any(v.tag == Tag.OP and v.index == i for v in op.views):
        return op
    views = tuple(replace(v, index=other) if v.tag == Tag.OP and v.index == i else v for v in op.views)
    if op.kind == Kind.MAP and len(op.extents) == 1 and views[0].strides == (1,):
        return replace(op, views=views, extents=(min(op.extents[0], elements),))
    return replace(op, views=views)


def _simpler_ops(case: Case) -> Iterator[Case]:
    program = case.program
    outputs = [a for a in program.outputs if a.kind == Alias.OP_KIND]
    for i, op in enumerate(program.ops):
        for simpler in _simpler(op):
            yield _pruned(case, [*program.ops[:i], simpler, *program.ops[i + 1 :]], outputs)


def _leaves(case: Case) -> Iterator[Case]:
    """Yields cases with an op's words in the state, so that its operands can be removed."""
    program = case.program
    named = {a.index for a in program.outputs if a.kind == Alias.OP_KIND}
    try:
        due = due_words(case)
    except (ValueError, AssertionError):
        return
    for i in reversed(range(len(program.ops))):
        op = program.ops[i]
        if i in named or not any(view.tag == Tag.OP for view in op.views):
            continue
        header = TensorHeader(op.dtype, (op.header.elements,))
        at = len(program.inputs)
        free = [k for k, entry in enumerate(program.inputs) if entry is None]
        inputs, state = list(program.inputs), list(case.state)
        array = due[i].view(DTYPES[op.dtype])
        if free:
            at = free[0]
            inputs[at], state[at] = header, array
        else:
            inputs, state = [*inputs, header], [*state, array]
        ops = [
            replace(o, views=tuple(
                replace(v, tag=Tag.STATE, index=at) if v.tag == Tag.OP and v.index == i else v for v in o.views
            )) for o in program.ops
        ]  # fmt: skip
        outputs = [a for a in program.outputs if a.kind == Alias.OP_KIND]
        changed = Case(case.name, replace(program, inputs=padded(inputs, None)), padded(state, None), case.dataset)
        yield _pruned(changed, ops, outputs)


def _pruned(case: Case, ops: list[Op], outputs: list[Alias]) -> Case:
    """Returns the case with these ops and outputs, without unneeded parts."""
    live = {a.index for a in outputs}
    for i in reversed(range(len(ops))):
        if i in live:
            live |= {v.index for v in ops[i].views if v.tag == Tag.OP}
    place = {old: new for new, old in enumerate(sorted(live))}
    read = {v.index for i in live for v in ops[i].views if v.tag == Tag.STATE}
    last = max(read, default=0)

    def moved(view: View) -> View:
        return replace(view, index=place[view.index]) if view.tag == Tag.OP else view

    kept = [replace(ops[i], views=tuple(moved(v) for v in ops[i].views)) for i in sorted(live)]
    entries = [e if k in read else None for k, e in enumerate(case.program.inputs)][: last + 1]
    state = [a if k in read else None for k, a in enumerate(case.state)][: last + 1]
    aliases = [Alias(Alias.OP_KIND, place[a.index]) for a in outputs]
    program = Program(counted(kept), padded(entries, None), padded(aliases, Alias(0)), case.program.consts)
    return Case(case.name, program, padded(state, None), case.dataset)


def _simpler(op: Op) -> Iterator[Op]:
    if op.kind == Kind.MAP and op.instrs:
        if op.views:
            yield replace(op, views=op.views[-1:], instrs=())
        yield replace(op, instrs=op.instrs[:-1]) if op.views or len(op.instrs) > 1 else op
    if op.k_extents and op.k_extents[0] > 1 and op.kind == Kind.FOLD:
        for k in {1, op.k_extents[0] // 2, op.k_extents[0] - 1}:
            yield replace(op, k_extents=(k,))
    for axis, extent in enumerate(op.extents):
        if extent > 1 and not (op.kind == Kind.CONCAT and axis == op.p0):
            for e in {1, extent // 2, extent - 1}:
                yield replace(op, extents=(*op.extents[:axis], e, *op.extents[axis + 1 :]))
        if extent == 1 and op.kind in (Kind.MAP, Kind.FOLD) and len(op.extents) > 1:
            without = tuple(replace(v, strides=(*v.strides[:axis], *v.strides[axis + 1 :])) for v in op.views)
            yield replace(op, extents=(*op.extents[:axis], *op.extents[axis + 1 :]), views=without)
    for j, view in enumerate(op.views):
        if view.offset:
            yield replace(op, views=(*op.views[:j], replace(view, offset=0), *op.views[j + 1 :]))
        if view.tag == Tag.OP and op.kind == Kind.MAP and len(op.views) > 1:
            constant = View(Tag.IOTA, 0, 0x3F800000, (0,) * len(view.strides))
            yield replace(op, views=(*op.views[:j], constant, *op.views[j + 1 :]))


def described(case: Case) -> str:
    """Formats the ops, one per line."""
    lines = []
    for i, op in enumerate(case.program.ops):
        views = ", ".join(f"{v.tag.name.lower()} {v.index}+{v.offset}{list(v.strides)}" for v in op.views)
        terms = f" over {op.k_extents[0]}" if op.k_extents else ""
        mode = f" mode {op.mode}" if op.mode else ""
        extra = f" p0={op.p0} p1={op.p1} sizes={list(op.sizes)}" if op.p0 or op.p1 or op.sizes else ""
        instrs = " ".join(f"({x.op} {x.a} {x.b} {x.c} {x.imm:#x})" for x in op.instrs)
        lines.append(f"{i}: {op.kind.name.lower()}{mode} {list(op.extents)}{terms} of {views}{extra} {instrs}".rstrip())
    lines.append("shown: " + " ".join(str(a.index) for a in case.program.outputs if a.kind == Alias.OP_KIND))
    return "\n".join(lines)
