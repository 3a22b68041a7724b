"""The validator: whether every claim about a Program could be defended, op by op, before anybody joins its job.

Document 4, "Programs that could not be defended": a Program that breaks one of these rules could strand an honest
defender, so it is refused with the op's index and name, the rule, and what to do. `check_schedule` adds what the three
Programs of a job owe each other (docs/protocol.md, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol

from lockstep.numerics import scalar
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.program import CHUNK, F32, I32, Alias, Fold, Instr, Kind, Op, Program, Tag, View

MAX_OPS = 1 << 14
MAX_AXES = 8
MAX_ELEMENTS = (1 << 31) - 1
"""Of one tensor."""
MAX_TERMS = CHUNK**3
"""K of a fold: two levels of partials."""
MAX_OPERANDS = 8
MAX_TENSOR_OPERANDS = 6
"""Of a map: those that cost an opening."""
MAX_INSTRS = 32
MAX_FUNCTIONS = 8
MAX_TOTAL = 1 << 34
"""Elements of all ops of one Program, unless a job sets less."""
MAX_STATE_DEPTH = 10
"""log2 of a state's entries: the header lists them, and four moves of a game carry the header (9 KiB at most)."""

_OPCODES = frozenset(int(op) for op in scalar.Op)
_MODES = frozenset(int(mode) for mode in Fold)
LAYOUT_HINT = "trace the three Programs of a job together"


class Refuse(Protocol):
    """Raises ProgramInvalid for the op at hand."""

    def __call__(self, rule: str, hint: str) -> NoReturn: ...


# --- one Program ----------------------------------------------------------------------------------------


def validate(program: Program, max_elements: int = MAX_TOTAL) -> None:
    """Raises ProgramInvalid, naming op and rule, unless every claim about the Program could be defended."""
    _check_header(program)
    total = 0
    for i, op in enumerate(program.ops):
        refuse = _refusal(program, i)
        _check_shape(op, refuse)
        _check_operands(program, i, op, refuse)
        _KINDS[op.kind](program, op, refuse)
        total += op.header.elements
        # INVARIANT: every descriptor carries the elements of all ops up to and including itself.
        if op.cumulative != total:
            refuse(f"its cumulative elements are {op.cumulative}, not {total}", "build the Program anew")
        if total > max_elements:
            refuse(f"the Program has more than {max_elements} elements", "a smaller batch, or a job that allows more")
    _check_outputs(program)
    _check_live(program)


def _refusal(program: Program, i: int) -> Refuse:
    def refuse(rule: str, hint: str) -> NoReturn:
        place = program.places[i] if i < len(program.places) else ""
        where = f"op {i} ({program.ops[i].kind.name.lower()} {program.name_of(i)}{', ' + place if place else ''})"
        raise ProgramInvalid(f"{where}: {rule}", hint=hint)

    return refuse


def _check_header(program: Program) -> None:
    if not 1 <= len(program.ops) <= MAX_OPS:
        raise ProgramInvalid(f"a Program of {len(program.ops)} ops", hint=f"1 to {MAX_OPS} can be defended")
    for what, entries in (("input", program.inputs), ("output", program.outputs)):
        if len(entries) != 1 << ceil_log2(max(len(entries), 1)) or len(entries) > 1 << MAX_STATE_DEPTH:
            raise ProgramInvalid(f"an {what} state of {len(entries)} entries", hint="pad it to a power of two, <= 2^10")
    for k, entry in enumerate(program.inputs):
        # INVARIANT: state is flat.
        if entry is not None and (len(entry.shape) > 1 or not _fits(entry)):
            raise ProgramInvalid(f"input entry {k} is {entry}", hint="state tensors are f32 or i32 of rank 0 or 1")
    for k, const in enumerate(program.consts):
        if not _fits(const.header) or len(const.data) != 4 * const.header.elements:
            raise ProgramInvalid(
                f"constant {k} is {len(const.data)} bytes for {const.header}", hint="4 bytes an element, f32 or i32"
            )


def _fits(header: TensorHeader) -> bool:
    """dtype in the table, every dimension >= 1, at most 8 axes and 2^31 - 1 elements."""
    return (
        header.dtype in (F32, I32)
        and len(header.shape) <= MAX_AXES
        and all(extent >= 1 for extent in header.shape)
        and header.elements <= MAX_ELEMENTS
    )


def _check_shape(op: Op, refuse: Refuse) -> None:
    if op.dtype not in (F32, I32):
        refuse(f"dtype {op.dtype} is not in the table", "0 is f32, 1 is i32")
    if len(op.extents) + len(op.k_extents) > MAX_AXES:
        refuse(f"{len(op.extents) + len(op.k_extents)} axes", f"merge axes: at most {MAX_AXES}")
    if not _fits(op.header):
        refuse(f"an output of shape {op.extents}", "dimensions are >= 1 and elements < 2^31")
    # INVARIANT: a fold has one k axis, nothing else has any.
    if len(op.k_extents) != (op.kind == Kind.FOLD):
        refuse(f"{len(op.k_extents)} k axes", "one for a fold, none for other kinds")
    if op.kind != Kind.MAP and op.instrs:
        refuse("instructions outside of a map", "put the expression into a map of its own")
    if op.kind != Kind.FOLD and op.mode:
        refuse(f"mode {op.mode} outside of a fold", "modes belong to folds")
    if op.kind in (Kind.MAP, Kind.FOLD) and (op.p0 or op.p1):
        refuse("parameters that its kind does not have", "p0 and p1 are 0")
    if op.kind in (Kind.CONCAT, Kind.RANDOM, Kind.DRAW) and op.p1:
        refuse("a second parameter that its kind does not have", "p1 is 0")
    if op.kind != Kind.CONCAT and op.sizes:
        refuse("sizes outside of a concat", "sizes are the parts of a concat")


def _check_operands(program: Program, i: int, op: Op, refuse: Refuse) -> None:
    axes = len(op.extents) + len(op.k_extents)
    for j, view in enumerate(op.views):
        if len(view.strides) != axes:
            refuse(f"operand {j} has {len(view.strides)} strides for {axes} axes", "one stride per axis")
        # INVARIANT: an operand's index is always smaller than the op's own.
        if view.tag == Tag.OP and view.index >= i:
            refuse(f"operand {j} is op {view.index}, which is not computed yet", "order the ops by use")
        if view.tag == Tag.STATE and (view.index >= len(program.inputs) or program.inputs[view.index] is None):
            refuse(f"operand {j} is state entry {view.index}, which is EMPTY", "read an entry of the input state")
        if view.tag == Tag.CONST and view.index >= len(program.consts):
            refuse(f"operand {j} is constant {view.index} of {len(program.consts)}", "add the table to the Program")
        if view.tag in (Tag.IOTA, Tag.CONTEXT) and view.index:
            refuse(f"operand {j} has an index that its tag does not have", "iota and context have index 0")


def _source(program: Program, view: View) -> TensorHeader | None:
    """What a view reads; None for iota, whose values are computed."""
    if view.tag == Tag.OP:
        return program.ops[view.index].header
    if view.tag == Tag.STATE:
        return program.inputs[view.index]
    if view.tag == Tag.CONST:
        return program.consts[view.index].header
    return TensorHeader(I32, (3,)) if view.tag == Tag.CONTEXT else None


def _check_range(
    program: Program, j: int, view: View, extents: Sequence[int], refuse: Refuse, strides: Sequence[int] | None = None
) -> None:
    source = _source(program, view)
    if source is None:
        return
    reach = [s * (e - 1) for s, e in zip(view.strides if strides is None else strides, extents, strict=True)]
    low = view.offset + sum(r for r in reach if r < 0)
    high = view.offset + sum(r for r in reach if r > 0)
    # INVARIANT: a view reads inside its source.
    if low < 0 or high >= source.elements:
        refuse(f"operand {j} reads elements {low} to {high} of {source.elements}", "a view stays inside what it reads")


def _check_dtype(program: Program, op: Op, j: int, refuse: Refuse) -> None:
    """An operand that is moved or folded has the op's dtype; an immediate is what it is read as."""
    view = op.views[j]
    source = _source(program, view)
    if source is None:
        if any(view.strides) and op.dtype != I32:
            refuse(f"operand {j} is an i32 sequence in an f32 op", "convert it with a map (I2F)")
    elif source.dtype != op.dtype:
        refuse(f"operand {j} has dtype {source.dtype}, the op {op.dtype}", "convert it with a map")


def _check_map(program: Program, op: Op, refuse: Refuse) -> None:
    if not op.views and not op.instrs:
        refuse("a map of nothing", "an operand or an IMM gives it a value")
    tensors = sum(view.tag < Tag.IOTA for view in op.views)
    if len(op.views) > MAX_OPERANDS or tensors > MAX_TENSOR_OPERANDS:
        refuse(
            f"{len(op.views)} operands, {tensors} of them tensors",
            f"at most {MAX_OPERANDS} and {MAX_TENSOR_OPERANDS}: split the expression",
        )
    if len(op.instrs) > MAX_INSTRS:
        refuse(f"{len(op.instrs)} instructions", f"at most {MAX_INSTRS}: split the expression")
    functions = sum(instr.op in scalar.FUNCTIONS for instr in op.instrs)
    if functions > MAX_FUNCTIONS:
        refuse(f"{functions} functions", f"at most {MAX_FUNCTIONS} of exp, log, tanh: split the expression")
    for k, instr in enumerate(op.instrs):
        _check_instr(k, instr, len(op.views) + k, refuse)
    for j, view in enumerate(op.views):
        _check_range(program, j, view, op.extents, refuse)


def _check_instr(k: int, instr: Instr, registers: int, refuse: Refuse) -> None:
    if instr.op not in _OPCODES:
        refuse(f"instruction {k} has opcode {instr.op}", f"opcodes are 0 to {max(scalar.Op)}")
    immediate = instr.op == scalar.Op.IMM
    reads = 0 if immediate else scalar.ARITY[scalar.Op(instr.op)]
    named = (instr.a, instr.b, instr.c)
    # INVARIANT: a register is written before it is read.
    if any(register >= registers for register in named[:reads]):
        refuse(f"instruction {k} reads register {max(named[:reads])} of {registers}", "registers are written in order")
    if any(named[reads:]) or (instr.imm and not immediate):
        refuse(f"instruction {k} has fields that {scalar.Op(instr.op).name} does not read", "they are 0")


def _check_fold(program: Program, op: Op, refuse: Refuse) -> None:
    if op.mode not in _MODES:
        refuse(f"fold mode {op.mode}", "dot, sum, max, min or isum")
    if len(op.views) != (2 if op.mode == Fold.DOT else 1):
        refuse(f"{len(op.views)} operands", "two for a dot, else one")
    if op.dtype != (I32 if op.mode == Fold.ISUM else F32):
        refuse(f"{Fold(op.mode).name.lower()} of dtype {op.dtype}", "isum folds i32, the others f32")
    if not 1 <= op.k_terms <= MAX_TERMS:
        refuse(f"K = {op.k_terms}", f"1 to {MAX_TERMS} terms: fold in two ops")
    for j, view in enumerate(op.views):
        # INVARIANT: a chunk of 256 terms lies in at most two leaves of each operand.
        if view.tag < Tag.IOTA and view.strides[-1] not in (0, 1):
            refuse(f"operand {j} has stride {view.strides[-1]} along k", "copy it with a transposing map first")
        _check_dtype(program, op, j, refuse)
        _check_range(program, j, view, (*op.extents, op.k_terms), refuse)


def _check_gather(program: Program, op: Op, refuse: Refuse) -> None:
    if len(op.views) != 2:
        refuse(f"{len(op.views)} operands", "an index and a table")
    index, table = op.views
    if op.p0 < 1:
        refuse("a table without rows", "p0 is the number of rows")
    indices = _source(program, index)
    if indices is not None and indices.dtype != I32:
        refuse("an f32 index", "convert it with a map (F2I)")
    if table.tag >= Tag.IOTA:
        refuse("a table that is computed", "write it as a map")
    _check_dtype(program, op, 1, refuse)
    _check_range(program, 0, index, op.extents, refuse)
    _check_range(program, 1, table, (*op.extents, op.p0), refuse, (*table.strides, op.p1))


def _check_concat(program: Program, op: Op, refuse: Refuse) -> None:
    if op.p0 >= len(op.extents):
        refuse(f"axis {op.p0} of {len(op.extents)}", "concatenate along an axis of the output")
    if not op.views or len(op.sizes) != len(op.views) or any(size < 1 for size in op.sizes):
        refuse(f"{len(op.views)} parts of sizes {op.sizes}", "every part has a size of at least 1")
    if sum(op.sizes) != op.extents[op.p0]:
        refuse(f"parts of {sum(op.sizes)} along an axis of {op.extents[op.p0]}", "the parts fill the axis exactly")
    for j, (view, size) in enumerate(zip(op.views, op.sizes, strict=True)):
        _check_dtype(program, op, j, refuse)
        _check_range(program, j, view, (*op.extents[: op.p0], size, *op.extents[op.p0 + 1 :]), refuse)


def _check_random(program: Program, op: Op, refuse: Refuse) -> None:
    if op.views or op.dtype != I32:
        refuse("a random with operands or another dtype than i32", "it gives i32 words of a stream")


def _check_draw(program: Program, op: Op, refuse: Refuse) -> None:
    if op.views or op.dtype != I32 or len(op.extents) != 2:
        refuse("a draw that is not i32 (rows, row length)", "draw whole rows of the dataset")


_KINDS: dict[Kind, Callable[[Program, Op, Refuse], None]] = {
    Kind.MAP: _check_map,
    Kind.FOLD: _check_fold,
    Kind.GATHER: _check_gather,
    Kind.CONCAT: _check_concat,
    Kind.RANDOM: _check_random,
    Kind.DRAW: _check_draw,
}


def _check_outputs(program: Program) -> None:
    for k, alias in enumerate(program.outputs):
        hint = "an output entry names a whole op, an input entry, or nothing"
        if alias.kind == Alias.EMPTY_KIND:
            valid = alias.index == 0
        elif alias.kind == Alias.OP_KIND:
            valid = alias.index < len(program.ops)
        else:
            valid = alias.kind == Alias.STATE_KIND and alias.index < len(program.inputs)
            valid = valid and program.inputs[alias.index] is not None
        if not valid:
            raise ProgramInvalid(f"output entry {k} names kind {alias.kind}, index {alias.index}", hint=hint)
        header = program.output_header(k)
        # INVARIANT: state is flat.
        if header is not None and len(header.shape) > 1:
            raise ProgramInvalid(f"output entry {k} has shape {header.shape}", hint="state tensors have rank 0 or 1")


def _check_live(program: Program) -> None:
    live = {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
    for i in reversed(range(len(program.ops))):
        # INVARIANT: every op leads to the output state.
        if i not in live:
            _refusal(program, i)("it is dead: no output depends on it", "remove it: it would be work for nobody")
        live.update(view.index for view in program.ops[i].views if view.tag == Tag.OP)


# --- three Programs -------------------------------------------------------------------------------------


class Layouts(Protocol):
    """What of a job's parameters (`protocol.jobs.JobParams`) its Programs depend on."""

    @property
    def shared_depth(self) -> int:
        """b."""

    @property
    def payload_depth(self) -> int:
        """p."""

    @property
    def slots(self) -> int:
        """Claims of a round."""

    @property
    def row_length(self) -> int:
        """Columns of the dataset."""


Layout = Sequence[TensorHeader | None]


def check_schedule(step: Program, encode: Program, merge: Program, params: Layouts) -> None:
    """Validates the three Programs of a job and that each starts from what the one before it leaves.

    Raises ProgramInvalid.
    """
    for name, program in (("step", step), ("encode", encode), ("merge", merge)):
        try:
            validate(program)
        except ProgramInvalid as error:
            raise ProgramInvalid(f"{name}: {error.message}", hint=error.hint) from error
        _check_draws(name, program, params.row_length)
    b, p, q = params.shared_depth, params.payload_depth, ceil_log2(params.slots)
    if q + p < b:
        raise ProgramInvalid(f"depths b = {b}, p = {p}, q = {q}", hint="q + p >= b: a deeper payload")
    quarter, width, half = 1 << b, 1 << p, 1 << (p + q + 1)
    shared = step.inputs[:quarter]
    payload = encode.output_layout[:width]

    _check_layout("step input", step.inputs, [
        *shared, *shared, *step.inputs[2 * quarter : 3 * quarter], *_padded([TensorHeader(I32, ())], quarter)
    ])  # fmt: skip
    _check_layout("step output", step.output_layout, step.inputs)
    _check_layout("encode input", encode.inputs, step.inputs)
    _check_layout("encode output", encode.output_layout, _padded(payload, 2 * width))
    outer = merge.inputs[quarter : 2 * quarter]
    payloads = _padded([*payload] * params.slots, width << q)
    mask = TensorHeader(F32, (params.slots,))
    _check_layout(
        "merge input", merge.inputs, [*_padded([*shared, *outer], half), *payloads, *_padded([mask], width << q)]
    )
    _check_layout("merge output", merge.output_layout, [*shared, *outer])


def _check_draws(name: str, program: Program, row_length: int) -> None:
    for i, op in enumerate(program.ops):
        if op.kind == Kind.DRAW and op.extents[1] != row_length:
            raise ProgramInvalid(
                f"{name}: op {i} ({program.name_of(i)}) draws rows of {op.extents[1]}",
                hint=f"the job's rows have {row_length} tokens",
            )


def _check_layout(what: str, layout: Layout, due: Layout) -> None:
    # INVARIANT: layouts of consecutive Programs are equal.
    if len(layout) != len(due):
        raise ProgramInvalid(f"the {what} has {len(layout)} entries, {len(due)} are due", hint=LAYOUT_HINT)
    for k, (entry, wanted) in enumerate(zip(layout, due, strict=True)):
        if entry != wanted:
            raise ProgramInvalid(f"{what} entry {k} is {entry}, {wanted} is due", hint=LAYOUT_HINT)


def _padded(entries: Iterable[TensorHeader | None], count: int) -> list[TensorHeader | None]:
    filled = list(entries)
    return filled + [None] * (count - len(filled))
