"""Rules that make a Program defensible in a dispute, one function each (docs/protocol.md, section 8).

A Program that breaks a rule could leave an honest defender without a valid move. Parties check whole Programs before
they join (`numerics.validate`); `protocol.programs.defects` checks opened parts of a committed Program, as
contracts/Validator.sol does. Each function raises `Broken` with the rule, what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from math import prod
from typing import Protocol

from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.programs.opcodes import ARITY, FUNCTIONS, Opcode
from lockstep.protocol.programs.program import (
    CHUNK,
    F32,
    I32,
    MAX_GROUP_WORDS,
    STOCHASTIC,
    Alias,
    Fold,
    Instr,
    Kind,
    Op,
    Quant,
    Tag,
    View,
    groups_of,
)
from lockstep.protocol.sections import Sections

MAX_OPS = 1 << 14
MAX_AXES = 8
MAX_ELEMENTS = (1 << 31) - 1
"""Most elements of one tensor."""
MAX_TERMS = CHUNK**3
"""Most terms K of a fold: two levels of partials."""
MAX_OPERANDS = 8
MAX_TENSOR_OPERANDS = 6
"""Most tensor operands of a map; each costs an opening."""
MAX_INSTRS = 32
MAX_FUNCTIONS = 8
LAST_OPCODE = int(max(Opcode))
MAX_TOTAL = 1 << 40
"""Most elements of all ops of one Program, unless a party allows fewer."""
MAX_STATE_DEPTH = 10
"""Most log2 of a state's entries: the header lists them, and four moves of a game carry the header (at most 9 KiB)."""
LAYOUT_HINT = "trace the three Programs of a job together"


class Rule(IntEnum):
    """Rules that a Program or a job can break, numbered as in IValidator.sol."""

    HOLDS = 0
    HEADER_LENGTH = 1
    HEADER_FOREIGN = 2
    STATE_WIDTH = 3
    OP_COUNT = 4
    GRAPH_DEPTH = 5
    INPUT_ENTRY = 6
    OUTPUT_ENTRY = 7
    OUTPUT_RANK = 8
    DESCRIPTOR_LENGTH = 9
    KIND = 10
    TAG = 11
    DTYPE = 12
    AXES = 13
    SHAPE = 14
    FOLD_AXIS = 15
    FOREIGN_FIELD = 16
    OPERAND_ORDER = 17
    OPERAND_STATE = 18
    OPERAND_CONST = 19
    MAP_EMPTY = 20
    OPERAND_COUNT = 21
    INSTRUCTION_COUNT = 22
    FUNCTION_COUNT = 23
    OPCODE = 24
    REGISTER = 25
    FOLD_MODE = 26
    FOLD_DTYPE = 27
    FOLD_TERMS = 28
    FOLD_STRIDE = 29
    TABLE_ROWS = 30
    TABLE_COMPUTED = 31
    CONCAT_AXIS = 32
    CONCAT_PARTS = 33
    RANDOM_FORM = 34
    DRAW_FORM = 35
    DRAW_LENGTH = 36
    ELEMENT_LIMIT = 37
    OPERAND_DTYPE = 38
    OPERAND_RANGE = 39
    CUMULATIVE = 40
    CONSTANT_HEADER = 41
    TENSOR_LEAF = 42
    LAYOUT_WIDTH = 43
    LAYOUT_ENTRY = 44
    GENESIS_ENTRY = 45
    ZERO_ENTRY = 46
    DATASET_HEADER = 47
    DATASET_SIZE = 48
    OP_MISSING = 49
    CONSTANT_MISSING = 50
    GROUP_WORDS = 51
    GROUP_PLACE = 52
    QUANT_FORM = 53
    QUANT_SHAPE = 54


class Broken(ProgramInvalid):
    """A Program or a job breaks a rule."""

    def __init__(self, rule: Rule, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.rule = rule


# -- headers -----------------------------------------------------------------------------------------------------------


def check_op_count(n: int) -> None:
    """Checks that a Program has 1 to 2^14 ops."""
    if not 1 <= n <= MAX_OPS:
        raise Broken(Rule.OP_COUNT, f"a Program of {n} ops", f"1 to {MAX_OPS} can be defended")


def check_width(what: str, entries: int) -> None:
    """Checks that a state has a power of two of entries, at most 2^10."""
    if entries != 1 << ceil_log2(max(entries, 1)) or entries > 1 << MAX_STATE_DEPTH:
        raise Broken(Rule.STATE_WIDTH, f"an {what} state of {entries} entries", "pad it to a power of two, <= 2^10")


def check_input(k: int, entry: TensorHeader | None) -> None:
    """Checks that entry k of the input state is EMPTY or a flat tensor."""
    # INVARIANT: state is flat.
    if entry is not None and (len(entry.shape) > 1 or not fits(entry)):
        raise Broken(Rule.INPUT_ENTRY, f"input entry {k} is {entry}", "state tensors are f32 or i32 of rank 0 or 1")


def check_output(k: int, alias: Alias, ops: int, inputs: Sequence[TensorHeader | None]) -> None:
    """Checks that entry k of the output state is EMPTY, an op, or a tensor of the input state."""
    if alias.kind == Alias.EMPTY_KIND:
        valid = alias.index == 0
    elif alias.kind == Alias.OP_KIND:
        valid = alias.index < ops
    else:
        valid = alias.kind == Alias.STATE_KIND and alias.index < len(inputs) and inputs[alias.index] is not None
    # INVARIANT: an output entry names what exists.
    if not valid:
        hint = "an output entry names a whole op, an input entry, or nothing"
        raise Broken(Rule.OUTPUT_ENTRY, f"output entry {k} names kind {alias.kind}, index {alias.index}", hint)


def check_output_rank(k: int, header: TensorHeader | None) -> None:
    """Checks that entry k of the output state is flat."""
    # INVARIANT: state is flat.
    if header is not None and len(header.shape) > 1:
        raise Broken(Rule.OUTPUT_RANK, f"output entry {k} has shape {header.shape}", "state tensors have rank 0 or 1")


def check_constant(k: int, header: TensorHeader) -> None:
    """Checks that constant k is a tensor that can be opened."""
    # INVARIANT: a constant is f32 or i32, of at most 8 axes and 2^31 - 1 elements.
    if not fits(header):
        raise Broken(
            Rule.CONSTANT_HEADER,
            f"constant {k} has dtype {header.dtype} and shape {header.shape}",
            f"use f32 (0) or i32 (1), at most {MAX_AXES} axes, dimensions >= 1, and fewer than 2^31 elements",
        )


def fits(header: TensorHeader) -> bool:
    """Returns True if the dtype is known, every dimension is >= 1, and there are at most 8 axes and 2^31 - 1
    elements.
    """
    return header.dtype in (F32, I32) and len(header.shape) <= MAX_AXES and _countable(header.shape)


def _countable(extents: Sequence[int]) -> bool:
    return all(extent >= 1 for extent in extents) and prod(extents) <= MAX_ELEMENTS


# -- one op ------------------------------------------------------------------------------------------------------------


def check_shape(op: Op) -> None:
    """Checks dtype, axes and extents of an op's output."""
    # INVARIANT: an op's dtype is in the table.
    if op.dtype not in (F32, I32):
        raise Broken(Rule.DTYPE, f"dtype {op.dtype} is not in the table", "0 is f32, 1 is i32")
    axes = len(op.extents) + len(op.k_extents)
    # INVARIANT: an op has at most 8 axes.
    if axes > MAX_AXES:
        raise Broken(Rule.AXES, f"{axes} axes", f"merge axes: at most {MAX_AXES}")
    # INVARIANT: a tensor has no empty dimension and at most 2^31 - 1 elements.
    if not _countable(op.extents):
        raise Broken(Rule.SHAPE, f"an output of shape {op.extents}", "dimensions are >= 1 and elements < 2^31")


def check_fields(op: Op) -> None:
    """Checks that fields which an op's kind does not have are 0."""
    # INVARIANT: a fold or quant has one k axis, nothing else has any.
    if len(op.k_extents) != (op.kind in (Kind.FOLD, Kind.QUANT)):
        raise Broken(Rule.FOLD_AXIS, f"{len(op.k_extents)} k axes", "one for a fold or quant, none for other kinds")
    # INVARIANT: fields that a kind does not have are 0.
    foreign = Rule.FOREIGN_FIELD
    if op.kind != Kind.MAP and op.instrs:
        raise Broken(foreign, "instructions outside of a map", "put the expression into a map of its own")
    if op.kind not in (Kind.FOLD, Kind.QUANT) and op.mode:
        raise Broken(foreign, f"mode {op.mode} outside of a fold or quant", "modes belong to folds and quants")
    if op.kind in (Kind.MAP, Kind.FOLD) and ((op.p0 and not op.is_qdot) or op.p1):
        raise Broken(foreign, "parameters that its kind does not have", "p0 and p1 are 0")
    if op.kind in (Kind.CONCAT, Kind.RANDOM, Kind.DRAW) and op.p1:
        raise Broken(foreign, "a second parameter that its kind does not have", "p1 is 0")
    if op.kind != Kind.CONCAT and op.sizes:
        raise Broken(foreign, "sizes outside of a concat", "sizes are the parts of a concat")


def check_names(i: int, op: Op, inputs: Sequence[TensorHeader | None], consts: int) -> None:
    """Checks that every operand of op i names an earlier op, an input or a constant."""
    axes = len(op.extents) + len(op.k_extents)
    for j, view in enumerate(op.views):
        if len(view.strides) != axes:
            raise Broken(
                Rule.DESCRIPTOR_LENGTH, f"operand {j} has {len(view.strides)} strides for {axes} axes",
                "one stride per axis",
            )  # fmt: skip
        # INVARIANT: an operand's index is always smaller than the op's own.
        if view.tag == Tag.OP and view.index >= i:
            raise Broken(
                Rule.OPERAND_ORDER, f"operand {j} is op {view.index}, which is not computed yet", "order the ops by use"
            )
        # INVARIANT: a state operand is a tensor of the input state.
        if view.tag == Tag.STATE and (view.index >= len(inputs) or inputs[view.index] is None):
            raise Broken(
                Rule.OPERAND_STATE, f"operand {j} is state entry {view.index}, which is EMPTY",
                "read an entry of the input state",
            )  # fmt: skip
        # INVARIANT: a constant operand is one of the Program's constants.
        if view.tag == Tag.CONST and view.index >= consts:
            raise Broken(
                Rule.OPERAND_CONST, f"operand {j} is constant {view.index} of {consts}", "add the table to the Program"
            )
        # INVARIANT: fields that a kind does not have are 0.
        if view.tag in (Tag.IOTA, Tag.CONTEXT) and view.index:
            raise Broken(
                Rule.FOREIGN_FIELD, f"operand {j} has an index that its tag does not have",
                "iota and context have index 0",
            )  # fmt: skip


def check_kind(op: Op) -> None:
    """Checks the rules of an op's kind that concern its descriptor alone."""
    _KINDS[op.kind](op)


def _check_map(op: Op) -> None:
    # INVARIANT: a map has a result.
    if not op.views and not op.instrs:
        raise Broken(Rule.MAP_EMPTY, "a map of nothing", "an operand or an IMM gives it a value")
    tensors = sum(view.tag < Tag.IOTA for view in op.views)
    # INVARIANT: a map has at most 8 operands, 6 of them tensors.
    if len(op.views) > MAX_OPERANDS or tensors > MAX_TENSOR_OPERANDS:
        raise Broken(
            Rule.OPERAND_COUNT, f"{len(op.views)} operands, {tensors} of them tensors",
            f"at most {MAX_OPERANDS} and {MAX_TENSOR_OPERANDS}: split the expression",
        )  # fmt: skip
    # INVARIANT: a map has at most 32 instructions.
    if len(op.instrs) > MAX_INSTRS:
        raise Broken(
            Rule.INSTRUCTION_COUNT, f"{len(op.instrs)} instructions", f"at most {MAX_INSTRS}: split the expression"
        )
    functions = sum(instr.op in FUNCTIONS for instr in op.instrs)
    # INVARIANT: a map has at most 8 functions.
    if functions > MAX_FUNCTIONS:
        raise Broken(
            Rule.FUNCTION_COUNT, f"{functions} functions",
            f"at most {MAX_FUNCTIONS} of exp, log, tanh: split the expression",
        )  # fmt: skip
    for k, instr in enumerate(op.instrs):
        _check_instr(k, instr, len(op.views) + k)


def _check_instr(k: int, instr: Instr, registers: int) -> None:
    # INVARIANT: an instruction has an opcode of the op-set.
    if instr.op > LAST_OPCODE:
        raise Broken(Rule.OPCODE, f"instruction {k} has opcode {instr.op}", f"opcodes are 0 to {LAST_OPCODE}")
    immediate = instr.op == Opcode.IMM
    reads = 0 if immediate else ARITY[Opcode(instr.op)]
    named = (instr.a, instr.b, instr.c)
    # INVARIANT: a register is written before it is read.
    if any(register >= registers for register in named[:reads]):
        raise Broken(
            Rule.REGISTER, f"instruction {k} reads register {max(named[:reads])} of {registers}",
            "registers are written in order",
        )  # fmt: skip
    # INVARIANT: fields that a kind does not have are 0.
    if any(named[reads:]) or (instr.imm and not immediate):
        raise Broken(
            Rule.FOREIGN_FIELD, f"instruction {k} has fields that {Opcode(instr.op).name} does not read", "they are 0"
        )


def _check_fold(op: Op) -> None:
    # INVARIANT: a fold has one of the six modes.
    if op.mode > max(Fold):
        raise Broken(Rule.FOLD_MODE, f"fold mode {op.mode}", "dot, sum, max, min, isum or qdot")
    # INVARIANT: a dot has two operands, a qdot four, any other fold one.
    if len(op.views) != {Fold.DOT: 2, Fold.QDOT: 4}.get(Fold(op.mode), 1):
        raise Broken(Rule.OPERAND_COUNT, f"{len(op.views)} operands", "two for a dot, four for a qdot, else one")
    # INVARIANT: isum folds i32, the others f32.
    if op.dtype != (I32 if op.mode == Fold.ISUM else F32):
        raise Broken(
            Rule.FOLD_DTYPE, f"{Fold(op.mode).name.lower()} of dtype {op.dtype}", "isum folds i32, the others f32"
        )
    # INVARIANT: a fold has 1 to 2^24 terms, a qdot 1 to 2^16 groups.
    if not 1 <= op.k_terms <= MAX_TERMS:
        raise Broken(Rule.FOLD_TERMS, f"K = {op.k_terms}", f"1 to {MAX_TERMS} terms: fold in two ops")
    if op.mode == Fold.QDOT:
        _check_qdot(op)
        return
    for j, view in enumerate(op.views):
        if view.tag < Tag.IOTA:
            _check_along_k(j, view)


def _check_along_k(j: int, view: View) -> None:
    # INVARIANT: a chunk of 256 terms lies in at most two leaves of each operand.
    if view.strides[-1] not in (0, 1):
        raise Broken(
            Rule.FOLD_STRIDE, f"operand {j} has stride {view.strides[-1]} along k",
            "copy it with a transposing map first",
        )  # fmt: skip


def _check_group(op: Op) -> None:
    # INVARIANT: a group has 1 to 64 words of four codes, a power of two.
    if not 1 <= op.p0 <= MAX_GROUP_WORDS or op.p0 & (op.p0 - 1):
        raise Broken(Rule.GROUP_WORDS, f"groups of {op.p0} words", "p0 is a power of two, at most 64")


def _check_qdot(op: Op) -> None:
    _check_group(op)
    for j, view in enumerate(op.views):
        # INVARIANT: codes and scales are tensors.
        if view.tag >= Tag.IOTA:
            raise Broken(Rule.GROUP_PLACE, f"operand {j} is computed", "write it as a map")
        if j < 2:
            # INVARIANT: a group of codes lies in one leaf, and the next one along k behind it.
            if view.strides[-1] != op.p0 or any(at % op.p0 for at in (view.offset, *view.strides)):
                raise Broken(
                    Rule.GROUP_PLACE, f"operand {j} has codes elsewhere than at whole groups of {op.p0} words",
                    "its offset and strides are multiples of p0, that along k is p0",
                )  # fmt: skip
        else:
            _check_along_k(j, view)


def _check_quant(op: Op) -> None:
    codes = op.gives_codes
    # INVARIANT: a quant gives i32 codes or f32 scales of one tensor.
    if op.mode > max(Quant) or op.dtype != (I32 if codes else F32):
        raise Broken(Rule.QUANT_FORM, f"quant mode {op.mode} of dtype {op.dtype}", "0 and 2 give i32, 1 and 3 f32")
    if len(op.views) != 1 or op.views[0].tag >= Tag.IOTA:
        raise Broken(Rule.QUANT_FORM, f"a quant of {len(op.views)} operands", "it reads one tensor")
    # INVARIANT: codes are rounded to nearest, or by a stream from 2^31 on; scales by nothing.
    if op.p1 and (op.p1 < STOCHASTIC or not codes):
        raise Broken(Rule.QUANT_FORM, f"a quant of stream {op.p1}", "0 rounds to nearest; streams begin at 2^31")
    _check_group(op)
    groups = groups_of(op.k_extents[0], op.p0)
    # INVARIANT: the last axis of a quant holds the groups of k, at least one, whole.
    if not op.extents or not groups or op.extents[-1] != groups * (op.p0 if codes else 1):
        raise Broken(
            Rule.QUANT_SHAPE, f"an output of shape {op.extents} for {op.k_extents[0]} values",
            "its last axis has p0 words, or one scale, for each group",
        )  # fmt: skip
    # INVARIANT: a group of values lies in at most two leaves.
    if op.views[0].strides[-1] != 1 or op.views[0].strides[-2]:
        raise Broken(
            Rule.QUANT_SHAPE, "an operand that is not contiguous along k", "copy it with a transposing map first"
        )


def _check_gather(op: Op) -> None:
    # INVARIANT: a gather has an index and a table.
    if len(op.views) != 2:
        raise Broken(Rule.OPERAND_COUNT, f"{len(op.views)} operands", "an index and a table")
    # INVARIANT: a table has 1 to 2^31 - 1 rows, and as many elements between two at most.
    if not 1 <= op.p0 <= MAX_ELEMENTS or op.p1 > MAX_ELEMENTS:
        what = "a table without rows" if op.p0 < 1 else f"a table of {op.p0} rows, {op.p1} apart"
        raise Broken(Rule.TABLE_ROWS, what, "p0 is the number of rows, p1 their distance")
    # INVARIANT: a table is a tensor.
    if op.views[1].tag >= Tag.IOTA:
        raise Broken(Rule.TABLE_COMPUTED, "a table that is computed", "write it as a map")


def _check_concat(op: Op) -> None:
    # INVARIANT: a concat joins along an axis of its output.
    if op.p0 >= len(op.extents):
        raise Broken(Rule.CONCAT_AXIS, f"axis {op.p0} of {len(op.extents)}", "concatenate along an axis of the output")
    # INVARIANT: the parts of a concat are not empty and fill its axis exactly.
    if not op.views or len(op.sizes) != len(op.views) or any(size < 1 for size in op.sizes):
        raise Broken(
            Rule.CONCAT_PARTS, f"{len(op.views)} parts of sizes {op.sizes}", "every part has a size of at least 1"
        )
    if sum(op.sizes) != op.extents[op.p0]:
        raise Broken(
            Rule.CONCAT_PARTS, f"parts of {sum(op.sizes)} along an axis of {op.extents[op.p0]}",
            "the parts fill the axis exactly",
        )  # fmt: skip


def _check_random(op: Op) -> None:
    # INVARIANT: a random gives i32 words and reads nothing.
    if op.views or op.dtype != I32:
        raise Broken(
            Rule.RANDOM_FORM, "a random with operands or another dtype than i32", "it gives i32 words of a stream"
        )


def _check_draw(op: Op) -> None:
    # INVARIANT: a draw gives whole i32 rows and reads nothing else.
    if op.views or op.dtype != I32 or len(op.extents) != 2:
        raise Broken(Rule.DRAW_FORM, "a draw that is not i32 (rows, row length)", "draw whole rows of the dataset")


_KINDS: dict[Kind, Callable[[Op], None]] = {
    Kind.MAP: _check_map,
    Kind.FOLD: _check_fold,
    Kind.GATHER: _check_gather,
    Kind.CONCAT: _check_concat,
    Kind.RANDOM: _check_random,
    Kind.DRAW: _check_draw,
    Kind.QUANT: _check_quant,
}


def check_draw_length(op: Op, row_length: int) -> None:
    """Checks that a draw's rows are as long as the dataset's."""
    # INVARIANT: a draw's rows are the dataset's rows.
    if op.kind == Kind.DRAW and op.extents[1] != row_length:
        raise Broken(Rule.DRAW_LENGTH, f"draws rows of {op.extents[1]}", f"the job's rows have {row_length} tokens")


def check_total(total: int, limit: int = MAX_TOTAL) -> None:
    """Checks the total elements of all ops so far."""
    # INVARIANT: the ops of a Program have at most 2^40 elements together.
    if total > limit:
        raise Broken(
            Rule.ELEMENT_LIMIT, f"the Program has more than {limit} elements",
            "a smaller batch, or a job that allows more",
        )  # fmt: skip


def check_cumulative(op: Op, before: int) -> None:
    """Checks the op's cumulative count; `before` is the count of the previous op."""
    total = before + op.header.elements
    # INVARIANT: every descriptor carries the elements of all ops up to and including itself.
    if op.cumulative != total:
        raise Broken(
            Rule.CUMULATIVE, f"its cumulative elements are {op.cumulative}, not {total}", "build the Program anew"
        )


# -- one operand -------------------------------------------------------------------------------------------------------

CONTEXT = TensorHeader(I32, (3,))
"""Header of the tensor that a context operand reads: round, slot, t."""


def check_operand(op: Op, j: int, source: TensorHeader | None) -> None:
    """Checks operand j against its source; None for iota, whose values are computed."""
    _check_dtype(op, j, source)
    _check_range(op, j, source)


def _check_dtype(op: Op, j: int, source: TensorHeader | None) -> None:
    """Checks dtypes: an operand that is moved or folded has the op's dtype; an immediate takes the dtype in which it is
    read.
    """
    if op.kind == Kind.GATHER and j == 0:
        # INVARIANT: an index is an integer.
        if source is not None and source.dtype != I32:
            raise Broken(Rule.OPERAND_DTYPE, "an f32 index", "convert it with a map (F2I)")
    elif op.kind == Kind.QUANT or op.is_qdot:
        # INVARIANT: codes are i32; scales, and what is quantised, are f32.
        wanted = I32 if op.is_qdot and j < 2 else F32
        if source is not None and source.dtype != wanted:
            raise Broken(Rule.OPERAND_DTYPE, f"operand {j} has dtype {source.dtype}", "codes are i32, values are f32")
    elif op.kind != Kind.MAP:
        # INVARIANT: what is moved or folded keeps its dtype.
        if source is None and any(op.views[j].strides) and op.dtype != I32:
            raise Broken(
                Rule.OPERAND_DTYPE, f"operand {j} is an i32 sequence in an f32 op", "convert it with a map (I2F)"
            )
        if source is not None and source.dtype != op.dtype:
            raise Broken(
                Rule.OPERAND_DTYPE, f"operand {j} has dtype {source.dtype}, the op {op.dtype}", "convert it with a map"
            )


def _check_range(op: Op, j: int, source: TensorHeader | None) -> None:
    if source is None:
        return
    view = op.views[j]
    extents = [*op.extents, *op.k_extents]
    if op.kind == Kind.CONCAT:
        extents[op.p0] = op.sizes[j]
    reach = [s * (e - 1) for s, e in zip(view.strides, extents, strict=True)]
    if op.kind == Kind.GATHER and j == 1:
        reach.append(op.p1 * (op.p0 - 1))
    if op.is_qdot and j < 2:
        reach.append(op.p0 - 1)
    low = view.offset + sum(r for r in reach if r < 0)
    high = view.offset + sum(r for r in reach if r > 0)
    # INVARIANT: a view reads inside its source.
    if low < 0 or high >= source.elements:
        raise Broken(
            Rule.OPERAND_RANGE, f"operand {j} reads elements {low} to {high} of {source.elements}",
            "a view stays inside what it reads",
        )  # fmt: skip


# -- three Programs ----------------------------------------------------------------------------------------------------


class Shapes(Protocol):
    """Parameters of a job (`protocol.jobs.JobParams`) that determine the layouts of its states."""

    @property
    def shared_depth(self) -> int:
        """Depth b of the tree of shared tensors."""

    @property
    def payload_depth(self) -> int:
        """Depth p of the tree of a payload's tensors."""

    @property
    def slots(self) -> int:
        """Number of slots, and so of claims, in a round."""

    @property
    def carry(self) -> int:
        """1 if `encode` outputs the carry together with the payload, else 0."""


class LayoutSide(IntEnum):
    """One of the six layouts of a job's three Programs."""

    STEP_IN = 0
    STEP_OUT = 1
    ENCODE_IN = 2
    ENCODE_OUT = 3
    MERGE_IN = 4
    MERGE_OUT = 5


class Free:
    """Marks an entry without a requirement."""


FREE = Free()
Due = TensorHeader | tuple[LayoutSide, int] | Free | None
"""Requirement on an entry: a tensor, equality with an entry of another layout, anything, or EMPTY."""


def width_of(side: LayoutSide, p: Shapes) -> int:
    """Returns the number of entries in a layout."""
    b, payload, q = p.shared_depth, p.payload_depth, ceil_log2(p.slots)
    return 1 << (b + 2, b + 2, b + 2, payload + 1, payload + q + 2, b + 1)[side]


def due(side: LayoutSide, k: int, p: Shapes) -> Due:
    """Returns the requirement on entry k of a layout (docs/protocol.md, section 3)."""
    # INVARIANT: layouts of consecutive Programs are equal.
    s = Sections(p.shared_depth, p.payload_depth, p.slots)
    if side in (LayoutSide.STEP_OUT, LayoutSide.ENCODE_IN):
        return LayoutSide.STEP_IN, k
    if side == LayoutSide.STEP_IN:
        if s.anchor.start <= k < s.anchor.stop:
            return LayoutSide.STEP_IN, k - s.anchor.start
        if k < s.carry.stop:
            return FREE
        return TensorHeader(I32, ()) if k == s.clock else None
    if side == LayoutSide.ENCODE_OUT:
        if k < s.payload.stop:
            return FREE
        # INVARIANT: what one round puts out as its carry is laid out as the next one's.
        return (LayoutSide.ENCODE_IN, s.carry.start + k - s.carried.start) if p.carry else None
    if k < s.shared.stop:
        return LayoutSide.STEP_IN, k
    if side == LayoutSide.MERGE_OUT:
        return LayoutSide.MERGE_IN, k
    if k < s.outer.stop:
        return FREE
    if s.received.start <= k < s.received.stop:
        return LayoutSide.ENCODE_OUT, (k - s.received.start) % s.payload.stop
    return TensorHeader(F32, (p.slots,)) if k == s.mask else None


def check_layout_width(side: LayoutSide, entries: int, p: Shapes) -> None:
    """Checks that a layout has as many entries as the job's depths imply."""
    wanted = width_of(side, p)
    # INVARIANT: a layout has the width that the job's depths imply.
    if entries != wanted:
        raise Broken(Rule.LAYOUT_WIDTH, f"the {_name(side)} has {entries} entries, {wanted} are due", LAYOUT_HINT)


def check_layout_entry(side: LayoutSide, k: int, entry: TensorHeader | None, wanted: TensorHeader | None) -> None:
    """Checks that entry k satisfies the requirement that `due` returns."""
    # INVARIANT: layouts of consecutive Programs are equal.
    if entry != wanted:
        raise Broken(Rule.LAYOUT_ENTRY, f"{_name(side)} entry {k} is {entry}, {wanted} is due", LAYOUT_HINT)


def _name(side: LayoutSide) -> str:
    program, _, end = side.name.lower().partition("_")
    return f"{program} {end}put"
