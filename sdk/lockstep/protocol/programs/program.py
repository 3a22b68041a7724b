"""The Program: a list of tensor operations in SSA form, as committed bytes.

docs/protocol.md section 2 specifies the layouts field by field. A Program is data: this module only encodes and parses
it; `lockstep.numerics` executes it and `protocol.programs.rules` checks it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from lockstep.protocol import merkle
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.types import Digest, ProgramRoot, StateRoot, TensorRoot

MAGIC = b"LSP1"
PROFILE = 1
"""The arithmetic profile F32-C256."""
OPSET = 2
"""The newest op-set. Set 1 has the kinds up to DRAW and folds up to ISUM; set 2 adds quant and the fold mode QDOT."""
CHUNK = 256
"""Consecutive terms of a fold that give one partial result (docs/numerics.md, The order of sums)."""
PARTIALS = 512
"""Most partials in one move of a game: a fold with more chunks first shows those of its groups of 256."""

F32, I32 = 0, 1
WORD_BYTES = 4
"""Bytes of an element of either dtype."""


class Kind(IntEnum):
    """The kind of an op."""

    MAP = 1
    FOLD = 2
    GATHER = 3
    CONCAT = 4
    RANDOM = 5
    DRAW = 6
    QUANT = 7


class Fold(IntEnum):
    """The reduction of a fold (`Op.mode`)."""

    DOT = 0
    SUM = 1
    MAX = 2
    MIN = 3
    ISUM = 4
    QDOT = 5


class Quant(IntEnum):
    """Output of a quant (codes or scales), and the rule of its scale (`Op.mode`)."""

    CODES = 0
    SCALES = 1
    CODES_POWER = 2
    SCALES_POWER = 3


MAX_GROUP_WORDS = 64
"""Most words of codes in a group: 256 codes, one leaf."""
CODES = 4
"""Codes in a word."""
STOCHASTIC = 1 << 31
"""Least `p1` of a quant that rounds stochastically: it is the random stream; 0 rounds to nearest."""


def is_grouped(terms: int) -> bool:
    """Returns True if a game about a fold of so many terms shows partials of groups of 256 chunks before those of
    single chunks.
    """
    return -(-terms // CHUNK) > PARTIALS


def groups_of(terms: int, words: int) -> int:
    """Returns the number of groups, of `words` words of codes each, for so many values; the last may be partly
    filled.
    """
    return -(-terms // (CODES * words))


class Tag(IntEnum):
    """The source that a view reads."""

    OP = 0
    STATE = 1
    CONST = 2
    IOTA = 3
    CONTEXT = 4


@dataclass(frozen=True)
class View:
    """An affine window on a source: element offset + sum(stride x coordinate)."""

    tag: Tag
    index: int
    offset: int
    strides: tuple[int, ...]
    """One signed stride per output axis, then one per k axis."""

    def encode(self) -> bytes:
        """Encodes tag u8 ‖ index u16 ‖ offset i32 ‖ strides i32."""
        return struct.pack(f">BHi{len(self.strides)}i", self.tag, self.index, self.offset, *self.strides)


@dataclass(frozen=True)
class Instr:
    """One instruction of a map's expression; `op` is an opcode of `numerics.scalar`, and a, b, c are registers."""

    op: int
    a: int = 0
    b: int = 0
    c: int = 0
    imm: int = 0
    """32-bit word, used by `imm` alone."""

    def encode(self) -> bytes:
        """Encodes opcode u8 ‖ a u8 ‖ b u8 ‖ c u8 ‖ imm u32."""
        return struct.pack(">4BI", self.op, self.a, self.b, self.c, self.imm)


@dataclass(frozen=True)
class Op:
    """One operation and its committed descriptor."""

    kind: Kind
    dtype: int
    extents: tuple[int, ...]
    """Extents of the output; () for a scalar."""
    views: tuple[View, ...]
    k_extents: tuple[int, ...] = ()
    mode: int = 0
    instrs: tuple[Instr, ...] = ()
    p0: int = 0
    p1: int = 0
    sizes: tuple[int, ...] = ()
    """For concat only: the extent of each part along axis p0."""
    cumulative: int = 0
    """Total elements of all ops up to and including this one."""

    @property
    def header(self) -> TensorHeader:
        """Dtype and shape of the output."""
        return TensorHeader(self.dtype, self.extents)

    @property
    def is_qdot(self) -> bool:
        """True for a fold that sums products of codes."""
        return self.kind == Kind.FOLD and self.mode == Fold.QDOT

    @property
    def gives_codes(self) -> bool:
        """True for a quant that gives codes, False for one that gives scales."""
        return self.mode in (Quant.CODES, Quant.CODES_POWER)

    @property
    def takes_powers(self) -> bool:
        """True for a quant whose scales are powers of two."""
        return self.mode in (Quant.CODES_POWER, Quant.SCALES_POWER)

    @property
    def k_terms(self) -> int:
        """K, the terms of a fold (a group of a qdot counts 256); 0 for other kinds."""
        if self.kind != Kind.FOLD or not self.k_extents:
            return 0
        return self.k_extents[0] * CHUNK if self.mode == Fold.QDOT else self.k_extents[0]

    @property
    def opset(self) -> int:
        """The least op-set that includes the op."""
        return 2 if self.kind > Kind.DRAW or (self.kind == Kind.FOLD and self.mode > Fold.ISUM) else 1

    @property
    def chunks(self) -> int:
        """Number of chunks in a fold's K terms; 0 for other kinds."""
        return -(-self.k_terms // CHUNK)

    @property
    def is_grouped(self) -> bool:
        """True if a game about the fold shows the partials of its groups before those of a group's chunks."""
        return is_grouped(self.k_terms)

    def encode(self) -> bytes:
        """Encodes the canonical descriptor."""
        return b"".join(
            (
                struct.pack(
                    ">8B",
                    self.kind,
                    self.mode,
                    self.dtype,
                    len(self.extents),
                    len(self.k_extents),
                    len(self.views),
                    len(self.instrs),
                    0,
                ),
                struct.pack(">IIQ", self.p0, self.p1, self.cumulative),
                struct.pack(f">{len(self.extents) + len(self.k_extents)}I", *self.extents, *self.k_extents),
                *(v.encode() for v in self.views),
                struct.pack(f">{len(self.sizes)}I", *self.sizes),
                *(i.encode() for i in self.instrs),
            )
        )

    @staticmethod
    def decode(data: bytes) -> Op:
        """Parses a descriptor. Raises ProgramInvalid if any byte is missing, surplus or out of range."""
        try:
            kind, mode, dtype, n_out, n_k, n_views, n_instr, zero = struct.unpack_from(">8B", data, 0)
            p0, p1, cumulative = struct.unpack_from(">IIQ", data, 8)
            at, axes = 24, n_out + n_k
            extents = struct.unpack_from(f">{axes}I", data, at)
            at += 4 * axes
            views = []
            for _ in range(n_views):
                tag, index, offset, *strides = struct.unpack_from(f">BHi{axes}i", data, at)
                views.append(View(Tag(tag), index, offset, tuple(strides)))
                at += 7 + 4 * axes
            sizes = struct.unpack_from(f">{n_views}I", data, at) if kind == Kind.CONCAT else ()
            at += 4 * len(sizes)
            instrs = tuple(Instr(*struct.unpack_from(">4BI", data, at + 8 * i)) for i in range(n_instr))
            at += 8 * n_instr
            op = Op(
                Kind(kind),
                dtype,
                tuple(extents[:n_out]),
                tuple(views),
                tuple(extents[n_out:]),
                mode,
                instrs,
                p0,
                p1,
                tuple(sizes),
                cumulative,
            )
        except (struct.error, ValueError) as error:
            raise ProgramInvalid(
                f"an op descriptor of {len(data)} bytes does not parse: {error}",
                hint="fetch the Program again; if its root matches, its author wrote it wrong",
            ) from error
        if zero or at != len(data):
            raise ProgramInvalid(
                f"an op descriptor has {len(data)} bytes where {at} are due",
                hint="a descriptor has one canonical encoding and nothing after it",
            )
        return op


@dataclass(frozen=True)
class Alias:
    """An entry of the output state: EMPTY, the output of an op, or an entry of the input state."""

    kind: int
    """0 for EMPTY, 1 for an op, 2 for an input state entry."""
    index: int = 0

    EMPTY_KIND = 0
    OP_KIND = 1
    STATE_KIND = 2


@dataclass(frozen=True)
class Const:
    """A constant table of a Program."""

    header: TensorHeader
    data: bytes | memoryview = field(repr=False)
    """Little-endian words, row-major, in any read-only buffer, such as a memory-mapped file."""
    known_tree: Digest | None = field(default=None, repr=False, compare=False)
    """The value of `tree`, if it is known already."""

    @cached_property
    def tree(self) -> Digest:
        """Root over the leaves of the contents."""
        return merkle.data_root(self.data) if self.known_tree is None else self.known_tree

    @cached_property
    def root(self) -> TensorRoot:
        """The tensor root. Raises ValueError for contents of another length."""
        if len(self.data) != 4 * self.header.elements:
            raise ValueError(f"{len(self.data)} bytes for a tensor of shape {self.header.shape}")
        return merkle.tensor_root_of_tree(self.header, self.tree)


@dataclass(frozen=True)
class Program:
    """A traced graph of reproducible operations, committed by its root."""

    ops: tuple[Op, ...]
    inputs: tuple[TensorHeader | None, ...]
    """2^s_in entries of the input state, None = EMPTY; every tensor has rank 0 or 1."""
    outputs: tuple[Alias, ...]
    """2^s_out entries of the output state."""
    consts: tuple[Const, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)
    """Per op: module path and operation, for messages; not committed."""
    places: tuple[str, ...] = field(default=(), compare=False)
    """Per op: source line, for messages; not committed."""
    opset: int = 1
    """The op-set in the header: as given, or the least that includes all ops if that is higher."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "opset", max([self.opset, *(op.opset for op in self.ops)]))

    @property
    def s_in(self) -> int:
        """log2 of the input state's entries."""
        return ceil_log2(len(self.inputs))

    @property
    def s_out(self) -> int:
        """log2 of the output state's entries."""
        return ceil_log2(len(self.outputs))

    @property
    def depth(self) -> int:
        """D: G_t has 2^D leaves."""
        return graph_depth(len(self.ops), self.s_out)

    @property
    def state_block(self) -> int:
        """Position in G_t of the first entry of the output state."""
        return (1 << self.depth) - (1 << self.s_out)

    @cached_property
    def header(self) -> bytes:
        """The committed header."""
        return b"".join(
            (
                MAGIC,
                struct.pack(
                    ">HHHBBBH", PROFILE, self.opset, len(self.ops), self.depth, self.s_in, self.s_out, len(self.consts)
                ),
                *(encode_entry(e) for e in self.inputs),
                *(struct.pack(">BH", a.kind, a.index) for a in self.outputs),
            )
        )

    @cached_property
    def descriptors(self) -> tuple[bytes, ...]:
        """Committed bytes of the ops."""
        return tuple(op.encode() for op in self.ops)

    @cached_property
    def ops_levels(self) -> list[list[Digest]]:
        """Merkle levels over the descriptors' leaves; a single Z_0 if there are none."""
        return merkle.levels([merkle.leaf(d) for d in self.descriptors] or [merkle.EMPTY[0]])

    @cached_property
    def consts_levels(self) -> list[list[Digest]]:
        """Merkle levels over the constants' tensor roots; a single Z_0 if there are none."""
        return merkle.levels([c.root for c in self.consts] or [merkle.EMPTY[0]])

    @property
    def ops_root(self) -> Digest:
        """Merkle root of the descriptors."""
        return self.ops_levels[-1][0]

    @property
    def consts_root(self) -> Digest:
        """Merkle root of the constants."""
        return self.consts_levels[-1][0]

    @cached_property
    def root(self) -> ProgramRoot:
        """The Program root, to which a job commits."""
        return merkle.program_root(self.header, self.ops_root, self.consts_root)

    def output_header(self, entry: int) -> TensorHeader | None:
        """Returns dtype and shape of an output state entry, None for EMPTY."""
        alias = self.outputs[entry]
        if alias.kind == Alias.OP_KIND:
            return self.ops[alias.index].header
        return self.inputs[alias.index] if alias.kind == Alias.STATE_KIND else None

    @property
    def output_layout(self) -> tuple[TensorHeader | None, ...]:
        """Headers of the output state, which must equal the next Program's `inputs`."""
        return tuple(self.output_header(k) for k in range(len(self.outputs)))

    def held_bytes(self, ops: Iterable[int]) -> int:
        """Returns the bytes of some ops' outputs and operands, which a move about one of them needs."""
        asked = set(ops)
        asked |= {v.index for op in asked for v in self.ops[op].views if v.tag == Tag.OP}
        return WORD_BYTES * sum(self.ops[op].header.elements for op in asked)

    def name_of(self, index: int) -> str:
        """Returns the readable name of op `index`."""
        return self.names[index] if index < len(self.names) else f"{self.ops[index].kind.name.lower()}_{index}"

    @staticmethod
    def decode(
        header: bytes,
        descriptors: Sequence[bytes],
        consts: Sequence[Const],
        names: Sequence[str] = (),
        places: Sequence[str] = (),
    ) -> Program:
        """Assembles a Program from its committed parts.

        Raises ProgramInvalid if they do not parse or are inconsistent.
        """
        parsed = ProgramHeader.decode(header)
        program = Program(
            tuple(Op.decode(bytes(d)) for d in descriptors),
            parsed.inputs,
            parsed.outputs,
            tuple(consts),
            tuple(names),
            tuple(places),
            parsed.opset,
        )
        # INVARIANT: a Program has exactly one header.
        if program.header != header:
            raise ProgramInvalid(
                "the Program's header contradicts its parts",
                hint="op count, depth, constants and state tables must follow from the ops",
            )
        return program


@dataclass(frozen=True)
class ProgramHeader:
    """A parsed header: everything that a game needs of a Program before an op is picked."""

    opset: int
    n: int
    depth: int
    s_in: int
    s_out: int
    n_consts: int
    inputs: tuple[TensorHeader | None, ...]
    outputs: tuple[Alias, ...]

    @staticmethod
    def decode(header: bytes) -> ProgramHeader:
        """Parses `Program.header`. Raises ProgramInvalid."""
        try:
            f = HeaderFields.decode(header)
            if f.s_in > 16 or f.s_out > 16:
                raise ValueError("a state of more than 2^16 entries")
            inputs = tuple(decode_entry(f.entry(header, k)) for k in range(1 << f.s_in))
            outputs = tuple(f.alias(header, k) for k in range(1 << f.s_out))
        except (struct.error, ValueError) as error:
            raise ProgramInvalid(f"a Program header does not parse: {error}", hint="fetch the Program again") from error
        if f.foreign:
            raise ProgramInvalid(
                f"the Program has profile {f.profile} and op-set {f.opset}; "
                f"this build runs profile {PROFILE}, op-sets 1 to {OPSET}",
                hint="install the release that the job names",
            )
        if len(header) != f.length:
            raise ProgramInvalid("a Program header has bytes after its end", hint="fetch the Program again")
        return ProgramHeader(f.opset, f.n, f.depth, f.s_in, f.s_out, f.n_consts, inputs, outputs)


HEAD_BYTES = 15
"""Bytes of the fixed fields of a header."""


@dataclass(frozen=True)
class HeaderFields:
    """Fixed fields of a header, and the offsets of its two tables."""

    magic: bytes
    profile: int
    opset: int
    n: int
    depth: int
    s_in: int
    s_out: int
    n_consts: int

    @staticmethod
    def decode(header: bytes) -> HeaderFields:
        """Parses the first 15 bytes. Raises struct.error if there are fewer."""
        return HeaderFields(*struct.unpack_from(">4sHHHBBBH", header))

    @property
    def foreign(self) -> bool:
        """True if the header has another format or profile than this build, or an unknown op-set."""
        return (self.magic, self.profile) != (MAGIC, PROFILE) or not 1 <= self.opset <= OPSET

    @property
    def length(self) -> int:
        """Length of the whole header in bytes."""
        return HEAD_BYTES + (6 << self.s_in) + (3 << self.s_out)

    def entry(self, header: bytes, k: int) -> bytes:
        """Returns the six bytes of input entry k, fewer if the header ends before."""
        return header[15 + 6 * k : 21 + 6 * k]

    def alias(self, header: bytes, k: int) -> Alias:
        """Returns output entry k. Raises struct.error if the header ends before."""
        return Alias(*struct.unpack_from(">BH", header, 15 + (6 << self.s_in) + 3 * k))


def graph_depth(n: int, s_out: int) -> int:
    """Returns D: the least depth with room for n op roots and, aligned at the end, 2^s_out state entries."""
    blocks = -(-n // (1 << s_out)) + 1
    return ceil_log2(blocks) + s_out


def state_root(entries: Sequence[bytes | None]) -> StateRoot:
    """Returns S, the Merkle root over a state's tensor roots (None = EMPTY); their number must be a power of two."""
    return StateRoot(merkle.tree([e if e is not None else merkle.EMPTY[0] for e in entries]))


def encode_entry(entry: TensorHeader | None) -> bytes:
    """Encodes kind u8 ‖ dtype u8 ‖ dim u32; zeros for EMPTY."""
    if entry is None:
        return struct.pack(">BBI", 0, 0, 0)
    if len(entry.shape) > 1:
        raise ProgramInvalid(f"a state tensor has shape {entry.shape}", hint="state tensors are flat: rank 0 or 1")
    return struct.pack(">BBI", 1 + len(entry.shape), entry.dtype, entry.elements)


def decode_entry(data: bytes) -> TensorHeader | None:
    """Parses the bytes of `encode_entry`. Raises ValueError or struct.error for bytes that it never writes."""
    kind, dtype, dim = struct.unpack(">BBI", data)
    if kind > 2 or dtype > 1:
        raise ValueError(f"state entry of kind {kind}, dtype {dtype}")
    entry = None if kind == 0 else TensorHeader(dtype, () if kind == 1 else (dim,))
    # INVARIANT: a state entry has one encoding.
    if encode_entry(entry) != data:
        raise ValueError(f"state entry of kind {kind}, dtype {dtype}, {dim} elements")
    return entry
