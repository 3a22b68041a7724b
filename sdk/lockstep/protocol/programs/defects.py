"""Proves, from opened pieces, that a Program could not be defended. Twin of contracts/Validator.sol: same names, same
order.

    evidence = the parts of a Program that hash to its root, and the pieces that one rule reads
    check    = the rule of `protocol.programs.rules` that they break, or HOLDS

`every` lists all evidence about a job's parts; for an invalid job, some of it is a proof.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from hashlib import sha256
from typing import Any, Protocol, overload

from lockstep.protocol import merkle
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.merkle import LEAF_BYTES, TensorHeader, ceil_log2
from lockstep.protocol.programs import rules
from lockstep.protocol.programs.program import (
    I32,
    Alias,
    Const,
    Fold,
    HeaderFields,
    Kind,
    Op,
    Program,
    Tag,
    decode_entry,
    graph_depth,
)
from lockstep.protocol.programs.rules import Broken, Free, LayoutSide, Rule
from lockstep.protocol.reverts import revert
from lockstep.protocol.sections import Sections
from lockstep.protocol.types import Digest

STEP, ENCODE, MERGE = range(3)
NAMES = ("step", "encode", "merge")


class Subject(IntEnum):
    """The part of a job that evidence is about."""

    HEADER = 0
    INPUT = 1
    OUTPUT = 2
    OP = 3
    OPERAND = 4
    CUMULATIVE = 5
    CONSTANT = 6
    LAYOUT = 7
    GENESIS = 8
    OUTER = 9
    CARRY = 10
    PAYLOAD = 11
    DATASET = 12


class JobFacts(Protocol):
    """The parameters of a job (`protocol.jobs.JobParams`) that its rules depend on."""

    @property
    def step_program(self) -> bytes: ...
    @property
    def encode_program(self) -> bytes: ...
    @property
    def merge_program(self) -> bytes: ...
    @property
    def dataset_root(self) -> bytes: ...
    @property
    def dataset_rows(self) -> int: ...
    @property
    def row_length(self) -> int: ...
    @property
    def genesis_shared(self) -> bytes: ...
    @property
    def genesis_outer(self) -> bytes: ...
    @property
    def zero_carry(self) -> bytes: ...
    @property
    def zero_payload(self) -> bytes: ...
    @property
    def shared_depth(self) -> int: ...
    @property
    def payload_depth(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def carry(self) -> int: ...


JOB_FIELDS = (
    "step_program", "encode_program", "merge_program", "dataset_root", "dataset_rows", "row_length", "genesis_shared",
    "genesis_outer", "zero_carry", "zero_payload", "shared_depth", "payload_depth", "slots",
    "carry",
)  # fmt: skip
"""Fields of the contract's struct Job, in order."""


@dataclass(frozen=True)
class JobParts:
    """The parameters of a job that the rules depend on, as the contract extracts them."""

    step_program: bytes
    encode_program: bytes
    merge_program: bytes
    dataset_root: bytes
    dataset_rows: int
    row_length: int
    genesis_shared: bytes
    genesis_outer: bytes
    zero_carry: bytes
    zero_payload: bytes
    shared_depth: int
    payload_depth: int
    slots: int
    carry: int


def job_of(p: JobParams) -> JobParts:
    """Extracts the parameters that the rules depend on. Twin of Validator._jobOf."""
    role = p.role
    return JobParts(
        role.step_program, role.encode_program, p.merge.program, role.dataset_root, role.dataset_rows, role.row_length,
        p.genesis.shared, p.genesis.outer, role.zero_carry, role.zero_payload, p.genesis.shared_depth,
        role.payload_depth, role.slots, int(role.carries),
    )  # fmt: skip


def abi_job(job: JobFacts) -> tuple[Any, ...]:
    """Returns the fields of the contract's struct Job."""
    return tuple(getattr(job, name) for name in JOB_FIELDS)


@dataclass(frozen=True)
class Code:
    """The parts of a Program that hash to its root."""

    header: bytes = b""
    ops_root: Digest = merkle.EMPTY[0]
    consts_root: Digest = merkle.EMPTY[0]


@dataclass(frozen=True)
class Piece:
    """An opened leaf of the ops, a tensor, or a leaf of that tensor."""

    data: bytes
    """A descriptor (none: EMPTY), a tensor's header (none: `tree` is the root itself), or a leaf's bytes."""
    tree: Digest = merkle.EMPTY[0]
    proof: tuple[Digest, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """Opened pieces of a job, and the subject that they are about."""

    subject: Subject
    program: int = 0
    """The Program: 0 step, 1 encode, 2 merge; for a LAYOUT the `Side`."""
    index: int = 0
    """Index of the op, entry or constant."""
    at: int = 0
    """Operand number of an OPERAND; leaf index if a tensor's leaf is shown."""
    code: Code = field(default_factory=Code)
    other: Code = field(default_factory=Code)
    """The second Program of a LAYOUT."""
    pieces: tuple[Piece, ...] = ()

    def abi(self) -> tuple[Any, ...]:
        """Returns the fields of the contract's struct Evidence."""
        return astuple(self)


def check(job: JobFacts, e: Evidence) -> Rule:
    """Returns the rule that the evidence shows to be broken; HOLDS if none is.

    Raises if the evidence is not about this job.
    """
    try:
        _check(job, e)
    except Broken as broken:
        return broken.rule
    return Rule.HOLDS


def _check(job: JobFacts, e: Evidence) -> None:
    if e.subject == Subject.DATASET:
        return _dataset(job, e)
    if e.subject == Subject.LAYOUT:
        return _layout(job, e)
    opened = _code(job, _program_of(e.subject, e.program), e.code)
    if e.subject == Subject.INPUT:
        opened.entry(e.index)
    elif e.subject == Subject.OUTPUT:
        opened.output(e.index, e.pieces)
    elif e.subject == Subject.OP:
        _op(job, e, opened)
    elif e.subject == Subject.OPERAND:
        _operand(job, e, opened)
    elif e.subject == Subject.CUMULATIVE:
        _cumulative(e, opened)
    elif e.subject == Subject.CONSTANT:
        _leaf(e, opened.constant(e.index, e.pieces))
    elif e.subject in (Subject.GENESIS, Subject.OUTER):
        _genesis(job, e, opened)
    elif e.subject in (Subject.CARRY, Subject.PAYLOAD):
        _zero(job, e, opened)
    return None


def _program_of(subject: Subject, program: int) -> int:
    if subject in (Subject.GENESIS, Subject.CARRY):
        return STEP
    if subject == Subject.PAYLOAD:
        return ENCODE
    return MERGE if subject == Subject.OUTER else program


# -- headers -----------------------------------------------------------------------------------------------------------


def _code(job: JobFacts, which: int, code: Code) -> OpenedProgram:
    """Opens the header of Program `which`; reverts unless it is one."""
    if which > MERGE:
        raise revert("EvidenceWrong")
    root = bytes((job.step_program, job.encode_program, job.merge_program)[which])
    # INVARIANT: evidence is about the Programs that the job names.
    if merkle.program_root(code.header, code.ops_root, code.consts_root) != root:
        raise revert("ProofInvalid")
    # INVARIANT: a Program has exactly one header.
    if len(code.header) < 15:
        raise Broken(Rule.HEADER_LENGTH, "a header without its fixed fields")
    f = HeaderFields.decode(code.header)
    # INVARIANT: a Program is of this format, profile and op-set.
    if f.foreign:
        raise Broken(Rule.HEADER_FOREIGN, "a header of another format, profile or op-set")
    # INVARIANT: a state has at most 2^10 entries.
    rules.check_width("input", 1 << f.s_in)
    rules.check_width("output", 1 << f.s_out)
    # INVARIANT: a Program has exactly one header.
    if len(code.header) != f.length:
        raise Broken(Rule.HEADER_LENGTH, "a header of another length than it implies")
    # INVARIANT: a Program has 1 to 2^14 ops.
    rules.check_op_count(f.n)
    # INVARIANT: G_t is the least tree with room for every op and, aligned, the state block.
    if f.depth != graph_depth(f.n, f.s_out):
        raise Broken(Rule.GRAPH_DEPTH, f"a graph of depth {f.depth}")
    return OpenedProgram(code, f)


@dataclass(frozen=True)
class OpenedProgram:
    """A partly opened Program: its header, and the parts that pieces open."""

    code: Code
    fields: HeaderFields

    def entry(self, k: int) -> TensorHeader | None:
        """Returns entry k of the input state."""
        if k >= 1 << self.fields.s_in:
            raise revert("EvidenceWrong")
        try:
            entry = decode_entry(self.fields.entry(self.code.header, k))
        except ValueError as error:
            raise Broken(Rule.INPUT_ENTRY, f"input entry {k} does not parse: {error}") from error
        rules.check_input(k, entry)
        return entry

    def output(self, k: int, pieces: Sequence[Piece], piece: int = 0) -> TensorHeader | None:
        """Returns entry k of the output state; piece `piece` is an op's descriptor."""
        if k >= 1 << self.fields.s_out:
            raise revert("EvidenceWrong")
        alias = self.fields.alias(self.code.header, k)
        rules.check_output(k, alias, self.fields.n, _Entries(self))
        header = None
        if alias.kind == Alias.OP_KIND:
            header = _shaped(self.descriptor(alias.index, pieces, piece), self.fields.opset).header
        elif alias.kind == Alias.STATE_KIND:
            header = self.entry(alias.index)
        rules.check_output_rank(k, header)
        return header

    def descriptor(self, index: int, pieces: Sequence[Piece], piece: int) -> bytes:
        """Returns the descriptor of op `index`, opened by piece `piece`."""
        if index >= self.fields.n or piece >= len(pieces):
            raise revert("EvidenceWrong")
        opened = pieces[piece]
        leaf = merkle.leaf(opened.data) if opened.data else merkle.EMPTY[0]
        # INVARIANT: every op has a descriptor at its place in the tree.
        if not _stands(self.code.ops_root, leaf, index, self.fields.n, opened.proof):
            raise Broken(Rule.OP_MISSING, f"op {index} has no descriptor")
        return opened.data

    def constant(self, index: int, pieces: Sequence[Piece], piece: int = 0) -> TensorHeader:
        """Returns constant `index`, whose header and tree are piece `piece`."""
        if index >= self.fields.n_consts or piece >= len(pieces):
            raise revert("EvidenceWrong")
        opened = pieces[piece]
        data = opened.data
        root = _tensor_root(opened) if data or opened.tree != merkle.EMPTY[0] else merkle.EMPTY[0]
        # INVARIANT: every constant has a tensor at its place in the tree.
        if not _stands(self.code.consts_root, root, index, self.fields.n_consts, opened.proof):
            raise Broken(Rule.CONSTANT_MISSING, f"constant {index} has no tensor")
        if len(data) < 2 or len(data) != 2 + 4 * data[1]:
            raise Broken(
                Rule.CONSTANT_HEADER,
                f"constant {index} has a header of {len(data)} bytes; a header has 2, and 4 more for each dimension",
            )
        header = TensorHeader(data[0], struct.unpack_from(f">{data[1]}I", data, 2))
        rules.check_constant(index, header)
        return header


def _stands(root: bytes, value: bytes, index: int, count: int, proof: Sequence[bytes]) -> bool:
    """Returns True if a proof shows a leaf of the full tree with `count` leaves; a leaf at another position, or EMPTY,
    does not count.

    In a tree with all of its leaves neither can be shown, because leaves and nodes are hashed with different domains.
    """
    # INVARIANT: evidence is about the Programs that the job names.
    if not merkle.verify(root, value, index, proof):
        raise revert("ProofInvalid")
    return value != merkle.EMPTY[0] and len(proof) == ceil_log2(count)


class _Entries(Sequence[TensorHeader | None]):
    """The input state's entries, decoded on access."""

    def __init__(self, opened: OpenedProgram) -> None:
        self._opened = opened

    def __len__(self) -> int:
        return 1 << self._opened.fields.s_in

    @overload
    def __getitem__(self, k: int) -> TensorHeader | None: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[TensorHeader | None]: ...
    def __getitem__(self, k: int | slice) -> TensorHeader | Sequence[TensorHeader | None] | None:
        return [self[i] for i in range(*k.indices(len(self)))] if isinstance(k, slice) else self._opened.entry(k)


# -- one op ------------------------------------------------------------------------------------------------------------


def _shaped(data: bytes, opset: int) -> Op:
    """Parses a descriptor and checks that its output has a shape."""
    op = _parse(data, opset)
    rules.check_shape(op)
    return op


def _parse(data: bytes, opset: int) -> Op:
    # INVARIANT: a descriptor has one canonical encoding and nothing after it.
    if len(data) < 24:
        raise Broken(Rule.DESCRIPTOR_LENGTH, f"a descriptor of {len(data)} bytes")
    kind, mode, _, n_out, n_k, operands, instrs, zero = data[:8]
    # INVARIANT: an op is of a kind of its Program's op-set.
    if not Kind.MAP <= kind <= (Kind.DRAW if opset < 2 else Kind.QUANT):
        raise Broken(Rule.KIND, f"kind {kind} is not in op-set {opset}")
    # INVARIANT: a fold has a mode of its Program's op-set.
    if kind == Kind.FOLD and mode > (Fold.ISUM if opset < 2 else Fold.QDOT):
        raise Broken(Rule.FOLD_MODE, f"fold mode {mode} is not in op-set {opset}")
    view = 7 + 4 * (n_out + n_k)
    views_at = 24 + 4 * (n_out + n_k)
    length = views_at + operands * view + 8 * instrs + (4 * operands if kind == Kind.CONCAT else 0)
    # INVARIANT: a descriptor has one canonical encoding and nothing after it.
    if zero or len(data) != length:
        raise Broken(Rule.DESCRIPTOR_LENGTH, f"a descriptor of {len(data)} bytes where {length} are due")
    # INVARIANT: a view has one of the five sources.
    if any(data[views_at + j * view] > Tag.CONTEXT for j in range(operands)):
        raise Broken(Rule.TAG, "an operand with an unknown tag")
    return Op.decode(data)


def _op(job: JobFacts, e: Evidence, opened: OpenedProgram) -> Op:
    """Checks everything that op `e.index` (piece 0) must satisfy by itself."""
    op = _shaped(opened.descriptor(e.index, e.pieces, 0), opened.fields.opset)
    rules.check_fields(op)
    rules.check_names(e.index, op, _Entries(opened), opened.fields.n_consts)
    rules.check_kind(op)
    rules.check_draw_length(op, job.row_length)
    rules.check_total(op.cumulative)
    return op


def _cumulative(e: Evidence, opened: OpenedProgram) -> None:
    opset = opened.fields.opset
    op = _shaped(opened.descriptor(e.index, e.pieces, 0), opset)
    before = _parse(opened.descriptor(e.index - 1, e.pieces, 1), opset).cumulative if e.index else 0
    rules.check_cumulative(op, before)


def _operand(job: JobFacts, e: Evidence, opened: OpenedProgram) -> None:
    op = _op(job, e, opened)
    if e.at >= len(op.views):
        raise revert("EvidenceWrong")
    view = op.views[e.at]
    source: TensorHeader | None = None
    if view.tag == Tag.OP:
        source = _shaped(opened.descriptor(view.index, e.pieces, 1), opened.fields.opset).header
    elif view.tag == Tag.CONST:
        source = opened.constant(view.index, e.pieces, 1)
    elif view.tag == Tag.STATE:
        source = opened.entry(view.index)
    elif view.tag == Tag.CONTEXT:
        source = rules.CONTEXT
    rules.check_operand(op, e.at, source)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _leaf(e: Evidence, header: TensorHeader) -> None:
    """Checks that piece 1, if present, is leaf `e.at` of the tensor of piece 0."""
    if len(e.pieces) < 2:
        return
    if e.at >= header.leaves:
        raise revert("EvidenceWrong")
    piece = e.pieces[1]
    # INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
    _verify(e.pieces[0].tree, merkle.leaf(piece.data), e.at, header.depth, piece.proof)
    # INVARIANT: a leaf has 1 KiB, the last one what is left.
    if len(piece.data) != min(4 * header.elements - LEAF_BYTES * e.at, LEAF_BYTES):
        raise Broken(Rule.TENSOR_LEAF, f"leaf {e.at} has {len(piece.data)} bytes")


def _genesis(job: JobFacts, e: Evidence, opened: OpenedProgram) -> None:
    """Checks that tensor `e.index` of the job's first checkpoint matches the Programs' states."""
    outer = e.subject == Subject.OUTER
    sections = Sections(job.shared_depth, job.payload_depth, job.slots)
    if e.index >= sections.shared.stop or not e.pieces:
        raise revert("EvidenceWrong")
    side = LayoutSide.MERGE_IN if outer else LayoutSide.STEP_IN
    _width(job, side, opened)
    entry = opened.entry(e.index + (sections.outer if outer else sections.shared).start)
    piece = e.pieces[0]
    value = _tensor_root(piece) if piece.data else piece.tree
    _verify(job.genesis_outer if outer else job.genesis_shared, value, e.index, job.shared_depth, piece.proof)
    # INVARIANT: the first checkpoint has the tensors of the state tables.
    if (entry is None) != (value == merkle.EMPTY[0]) or (
        piece.data and entry is not None and piece.data != entry.encode()
    ):
        raise Broken(Rule.GENESIS_ENTRY, f"genesis entry {e.index} is not {entry}")
    if piece.data and entry is not None:
        _leaf(e, entry)


def _zero(job: JobFacts, e: Evidence, opened: OpenedProgram) -> None:
    """Checks that tensor `e.index` of a zero carry or payload is zero."""
    carry = e.subject == Subject.CARRY
    depth = job.shared_depth if carry else job.payload_depth
    if e.index >= 1 << depth or not e.pieces:
        raise revert("EvidenceWrong")
    _width(job, LayoutSide.STEP_IN if carry else LayoutSide.ENCODE_OUT, opened)
    start = Sections(job.shared_depth, job.payload_depth, job.slots).carry.start
    entry = opened.entry(e.index + start) if carry else opened.output(e.index, e.pieces, 1)
    value = e.pieces[0].tree
    _verify(job.zero_carry if carry else job.zero_payload, value, e.index, depth, e.pieces[0].proof)
    # INVARIANT: what the contract puts in the place of a carry or a payload is zero, as its parties compute it.
    if value != zero_tensor(entry):
        raise Broken(Rule.ZERO_ENTRY, f"entry {e.index} is not the zero tensor of {entry}")


def _dataset(job: JobFacts, e: Evidence) -> None:
    header = TensorHeader(I32, (job.dataset_rows, job.row_length))
    # INVARIANT: a dataset is a tensor like any other: at most 2^31 - 1 elements.
    if header.elements > rules.MAX_ELEMENTS:
        raise Broken(Rule.DATASET_SIZE, f"a dataset of {header.elements} elements")
    if not e.pieces:
        raise revert("EvidenceWrong")
    _verify(job.dataset_root, _tensor_root(e.pieces[0]), 0, 0, e.pieces[0].proof)
    # INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
    if e.pieces[0].data != header.encode():
        raise Broken(Rule.DATASET_HEADER, "the dataset has another header than the job says")
    _leaf(e, header)


def _tensor_root(piece: Piece) -> Digest:
    """Returns SHA256(0x02 ‖ header ‖ tree); the header need not be valid."""
    return Digest(sha256(b"\x02" + piece.data + piece.tree).digest())


def zero_tensor(entry: TensorHeader | None) -> Digest:
    """Returns the root of the zero tensor for a state entry, without building it; EMPTY stays EMPTY."""
    if entry is None:
        return merkle.EMPTY[0]
    full = merkle.leaf(bytes(LEAF_BYTES))
    last = merkle.leaf(bytes(4 * entry.elements - LEAF_BYTES * (entry.leaves - 1)))
    at = entry.leaves - 1
    # Climbs from the last leaf: left of its path the tree is full, right of it EMPTY.
    for height in range(entry.depth):
        last = merkle.node(full, last) if at & 1 else merkle.node(last, merkle.EMPTY[height])
        full, at = merkle.node(full, full), at >> 1
    return Digest(merkle.tensor_root_of_tree(entry, last))


# -- three Programs ----------------------------------------------------------------------------------------------------


def _layout(job: JobFacts, e: Evidence) -> None:
    if e.program > LayoutSide.MERGE_OUT:
        raise revert("EvidenceWrong")
    side = LayoutSide(e.program)
    own = _code(job, side // 2, e.code)
    _width(job, side, own)
    entry = _at(own, side, e.index, e.pieces)
    wanted = rules.due(side, e.index, job)
    if isinstance(wanted, Free):
        return
    if isinstance(wanted, tuple):
        there, k = wanted
        opened = own if there // 2 == side // 2 else _code(job, there // 2, e.other)
        _width(job, there, opened)
        wanted = _at(opened, there, k, e.pieces)
    rules.check_layout_entry(side, e.index, entry, wanted)


def _at(opened: OpenedProgram, side: LayoutSide, k: int, pieces: Sequence[Piece]) -> TensorHeader | None:
    return opened.output(k, pieces) if side % 2 else opened.entry(k)


def _width(job: JobFacts, side: LayoutSide, opened: OpenedProgram) -> None:
    rules.check_layout_width(side, 1 << (opened.fields.s_out if side % 2 else opened.fields.s_in), job)


def _verify(root: bytes, value: bytes, index: int, depth: int, proof: Sequence[bytes]) -> None:
    # INVARIANT: a tree's depth comes from the claim or the Program, never from the proof that a mover sends.
    if len(proof) != depth or not merkle.verify(root, value, index, proof):
        raise revert("ProofInvalid")


# -- the prover's side -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProgramParts:
    """A Program's committed bytes as in its file, even if they are not a valid Program."""

    header: bytes
    descriptors: tuple[bytes, ...]
    consts: tuple[Const, ...] = ()

    @staticmethod
    def of(program: Program) -> ProgramParts:
        """Returns the committed bytes of a Program."""
        return ProgramParts(program.header, program.descriptors, program.consts)

    @cached_property
    def ops(self) -> list[list[Digest]]:
        """Merkle levels over the descriptors."""
        return merkle.levels([merkle.leaf(d) for d in self.descriptors] or [merkle.EMPTY[0]])

    @cached_property
    def trees(self) -> list[Digest]:
        """Roots of the trees over the constants' contents."""
        return [c.tree for c in self.consts]

    @cached_property
    def tables(self) -> list[list[Digest]]:
        """Merkle levels over the constants."""
        roots = [merkle.tensor_root_of_tree(c.header, tree) for c, tree in zip(self.consts, self.trees, strict=True)]
        return merkle.levels(roots or [merkle.EMPTY[0]])

    @cached_property
    def code(self) -> Code:
        """The Program's header and the roots of its ops and constants."""
        return Code(self.header, self.ops[-1][0], self.tables[-1][0])

    @property
    def root(self) -> Digest:
        """The Program root."""
        return Digest(merkle.program_root(self.code.header, self.code.ops_root, self.code.consts_root))

    def op(self, i: int) -> Piece:
        """Opens the descriptor of op i; EMPTY beyond the last."""
        data = self.descriptors[i] if i < len(self.descriptors) else b""
        return Piece(data, proof=tuple(merkle.proof(self.ops, i)))

    def const(self, k: int) -> Piece:
        """Opens the header of constant k; EMPTY beyond the last."""
        proof = tuple(merkle.proof(self.tables, k))
        if k >= len(self.consts):
            return Piece(b"", proof=proof)
        return Piece(self.consts[k].header.encode(), self.trees[k], proof)


@dataclass(frozen=True)
class Held:
    """A job's committed parts, as far as a party has them."""

    job: JobFacts
    programs: tuple[ProgramParts, ProgramParts, ProgramParts]
    """The Programs step, encode, merge."""


def every(held: Held) -> Iterator[Evidence]:
    """Yields all evidence about the three Programs, with the pieces that it needs; none convicts a valid job."""
    for which in (STEP, ENCODE, MERGE):
        yield from _of_program(which, held.programs[which])
    for side in LayoutSide:
        yield from _of_layout(held, side)


def find(held: Held) -> tuple[Evidence, Rule] | None:
    """Returns the first evidence that convicts, with the broken rule; None if every rule that can be checked holds."""
    for evidence in every(held):
        rule = check(held.job, evidence)
        if rule != Rule.HOLDS:
            return evidence, rule
    return None


def _of_program(which: int, parts: ProgramParts) -> Iterator[Evidence]:
    about = Evidence(Subject.HEADER, which, code=parts.code)
    yield about
    fields = _fields(parts.header)
    if fields is None:
        return
    for k in range(1 << fields.s_in):
        yield replace(about, subject=Subject.INPUT, index=k)
    for k in range(1 << fields.s_out):
        yield replace(about, subject=Subject.OUTPUT, index=k, pieces=_alias_piece(parts, fields, k))
    # If a tree is too small for the header's count, its first missing leaf proves it.
    for k in range(min(fields.n_consts, len(parts.consts) + 1)):
        yield replace(about, subject=Subject.CONSTANT, index=k, pieces=(parts.const(k),))
    for i in range(min(fields.n, len(parts.descriptors) + 1)):
        own = replace(about, index=i, pieces=(parts.op(i),))
        yield replace(own, subject=Subject.OP)
        before = (parts.op(i - 1),) if i else ()
        yield replace(own, subject=Subject.CUMULATIVE, pieces=(*own.pieces, *before))
        for j, piece in enumerate(_sources(parts, i)):
            yield replace(own, subject=Subject.OPERAND, at=j, pieces=(*own.pieces, *piece))


def _fields(header: bytes) -> HeaderFields | None:
    """Returns the fixed fields of a header whose tables are complete; None otherwise."""
    fields = HeaderFields.decode(header) if len(header) >= 15 else None
    return fields if fields is not None and fields.s_in < 16 and fields.length == len(header) else None


def _sources(parts: ProgramParts, i: int) -> Iterator[tuple[Piece, ...]]:
    """Yields, for each operand of op i, the pieces that open its source."""
    try:
        views = _parse(parts.op(i).data, HeaderFields.decode(parts.header).opset).views
    except Broken:
        return
    for view in views:
        if view.tag == Tag.OP and view.index < len(parts.descriptors):
            yield (parts.op(view.index),)
        elif view.tag == Tag.CONST and view.index < len(parts.consts):
            yield (parts.const(view.index),)
        else:
            yield ()


def _alias_piece(parts: ProgramParts, fields: HeaderFields, k: int) -> tuple[Piece, ...]:
    if k >= 1 << fields.s_out:
        return ()
    alias = fields.alias(parts.header, k)
    named = alias.kind == Alias.OP_KIND and alias.index < len(parts.descriptors)
    return (parts.op(alias.index),) if named else ()


def _of_layout(held: Held, side: LayoutSide) -> Iterator[Evidence]:
    parts = held.programs[side // 2]
    fields = _fields(parts.header)
    if fields is None:
        return
    about = Evidence(Subject.LAYOUT, int(side), code=parts.code)
    if 1 << (fields.s_out if side % 2 else fields.s_in) != rules.width_of(side, held.job):
        yield about
        return
    for k in range(rules.width_of(side, held.job)):
        wanted = rules.due(side, k, held.job)
        pieces = _alias_piece(parts, fields, k) if side % 2 else ()
        evidence = replace(about, index=k, pieces=pieces)
        if isinstance(wanted, tuple) and wanted[0] // 2 != side // 2:
            there, at = wanted
            other = held.programs[there // 2]
            other_fields = _fields(other.header)
            if other_fields is None:
                continue
            opened = _alias_piece(other, other_fields, at) if there % 2 else pieces
            evidence = replace(evidence, other=other.code, pieces=opened)
        yield evidence


def checkpoint_evidence(
    subject: Subject, parts: ProgramParts, tensors: Sequence[tuple[TensorHeader, Digest] | None]
) -> Iterator[Evidence]:
    """Yields evidence about GENESIS or OUTER: every entry of a checkpoint's subtree, given as (header, tree), None =
    EMPTY.
    """
    roots = [merkle.EMPTY[0] if t is None else Digest(merkle.tensor_root_of_tree(t[0], t[1])) for t in tensors]
    levels = merkle.levels(roots)
    for k, tensor in enumerate(tensors):
        proof = tuple(merkle.proof(levels, k))
        piece = Piece(b"", merkle.EMPTY[0], proof) if tensor is None else Piece(tensor[0].encode(), tensor[1], proof)
        yield Evidence(subject, index=k, code=parts.code, pieces=(piece,))


def zero_evidence(subject: Subject, parts: ProgramParts, roots: Sequence[Digest]) -> Iterator[Evidence]:
    """Yields evidence about every entry of a zero carry (CARRY) or zero payload (PAYLOAD)."""
    levels = merkle.levels(list(roots))
    fields = _fields(parts.header)
    for k, root in enumerate(roots):
        piece = Piece(b"", root, tuple(merkle.proof(levels, k)))
        more = _alias_piece(parts, fields, k) if subject == Subject.PAYLOAD and fields is not None else ()
        yield Evidence(subject, index=k, code=parts.code, pieces=(piece, *more))
