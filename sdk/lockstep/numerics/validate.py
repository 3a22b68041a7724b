"""Validates the Programs of a job before anyone joins: every claim about them must be defendable in a dispute.

`protocol.programs.rules` defines the rules, which the contract repeats. This module applies them to whole Programs, op
by op; an error names the op's index, name and source line. `check_programs` adds the rules between the three Programs
of a job (docs/protocol.md, section 3).
"""

from __future__ import annotations

from typing import Protocol

from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.programs import rules
from lockstep.protocol.programs.program import Alias, Op, Program, Tag, View
from lockstep.protocol.programs.rules import MAX_TOTAL, Free, LayoutSide


def validate(program: Program, max_elements: int = MAX_TOTAL) -> None:
    """Raises ProgramInvalid, naming op and rule, unless every claim about the Program could be defended in a
    dispute.
    """
    _check_header(program)
    total = 0
    for i, op in enumerate(program.ops):
        try:
            _check_op(program, i, op)
            rules.check_cumulative(op, total)
            total = op.cumulative
            rules.check_total(total, max_elements)
        except ProgramInvalid as broken:
            raise _named(program, i, broken.message, broken.hint) from broken
    for k, alias in enumerate(program.outputs):
        rules.check_output(k, alias, len(program.ops), program.inputs)
        rules.check_output_rank(k, program.output_header(k))
    _check_live(program)


def _named(program: Program, i: int, rule: str, hint: str) -> ProgramInvalid:
    place = program.places[i] if i < len(program.places) else ""
    where = f"op {i} ({program.ops[i].kind.name.lower()} {program.name_of(i)}{', ' + place if place else ''})"
    return ProgramInvalid(f"{where}: {rule}", hint=hint)


def _check_header(program: Program) -> None:
    rules.check_op_count(len(program.ops))
    rules.check_width("input", len(program.inputs))
    rules.check_width("output", len(program.outputs))
    for k, entry in enumerate(program.inputs):
        rules.check_input(k, entry)
    for k, const in enumerate(program.consts):
        rules.check_constant(k, const.header)
        if len(const.data) != 4 * const.header.elements:
            raise ProgramInvalid(
                f"constant {k} is {len(const.data)} bytes for {const.header}", hint="4 bytes an element"
            )


def _check_op(program: Program, i: int, op: Op) -> None:
    rules.check_shape(op)
    rules.check_fields(op)
    rules.check_names(i, op, program.inputs, len(program.consts))
    rules.check_kind(op)
    for j, view in enumerate(op.views):
        rules.check_operand(op, j, _source(program, view))


def _source(program: Program, view: View) -> TensorHeader | None:
    """Returns the header of the tensor that a view reads; None for iota, whose values are computed."""
    if view.tag == Tag.OP:
        return program.ops[view.index].header
    if view.tag == Tag.STATE:
        return program.inputs[view.index]
    if view.tag == Tag.CONST:
        return program.consts[view.index].header
    return rules.CONTEXT if view.tag == Tag.CONTEXT else None


def _check_live(program: Program) -> None:
    live = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
    for i in reversed(range(len(program.ops))):
        # INVARIANT: every op leads to the output state.
        if i not in live:
            raise _named(program, i, "it is dead: no output depends on it", "remove the op, whose result nothing uses")
        live.update(view.index for view in program.ops[i].views if view.tag == Tag.OP)


# --- three Programs -------------------------------------------------------------------------------------


class JobTerms(rules.Shapes, Protocol):
    """The parameters of a job (`protocol.jobs.JobParams`) on which its Programs depend."""

    @property
    def row_length(self) -> int:
        """Number of tokens in a row of the dataset."""


def check_programs(step: Program, encode: Program, merge: Program, params: JobTerms) -> None:
    """Validates the three Programs of a job, and that each one's input layout matches the output of the one before.

    Raises ProgramInvalid.
    """
    for name, program in (("step", step), ("encode", encode), ("merge", merge)):
        try:
            validate(program)
            _check_draws(program, params.row_length)
        except ProgramInvalid as error:
            raise ProgramInvalid(f"{name}: {error.message}", hint=error.hint) from error
    b, p, q = params.shared_depth, params.payload_depth, ceil_log2(params.slots)
    if q + p < b:
        raise ProgramInvalid(f"depths b = {b}, p = {p}, q = {q}", hint="q + p >= b: a deeper payload")
    layouts = {
        LayoutSide.STEP_IN: step.inputs,
        LayoutSide.STEP_OUT: step.output_layout,
        LayoutSide.ENCODE_IN: encode.inputs,
        LayoutSide.ENCODE_OUT: encode.output_layout,
        LayoutSide.MERGE_IN: merge.inputs,
        LayoutSide.MERGE_OUT: merge.output_layout,
    }
    for side, layout in layouts.items():
        rules.check_layout_width(side, len(layout), params)
        for k, entry in enumerate(layout):
            wanted = rules.due(side, k, params)
            if not isinstance(wanted, Free):
                rules.check_layout_entry(side, k, entry, _resolved(layouts, wanted))


def _resolved(
    layouts: dict[LayoutSide, tuple[TensorHeader | None, ...]], due: TensorHeader | tuple[LayoutSide, int] | None
) -> TensorHeader | None:
    return layouts[due[0]][due[1]] if isinstance(due, tuple) else due


def _check_draws(program: Program, row_length: int) -> None:
    for i, op in enumerate(program.ops):
        try:
            rules.check_draw_length(op, row_length)
        except ProgramInvalid as broken:
            raise _named(program, i, broken.message, broken.hint) from broken
