"""Computes one element of one op in Python integers: the specification against which kernels and contract are tested.

Nothing here is fast. `element` gives the word of an op's output at a flat position; `chunk`, `value` and `partials`
give the intermediate results of a fold that a dispute game asks for. The caller provides operand words through
`Operands.word`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from Crypto.Hash import keccak

from lockstep.numerics import codes, scalar
from lockstep.protocol.errors import Mismatch, UsageError
from lockstep.protocol.programs.program import CHUNK, CODES, STOCHASTIC, Fold, Kind, Op, Tag, View

Word = int
Coordinates = tuple[int, ...]

_IDENTITY = {Fold.MAX: scalar.NEGATIVE_INFINITY, Fold.MIN: scalar.INFINITY}
_JOIN: dict[int, Callable[[Word, Word], Word]] = {
    Fold.DOT: scalar.fadd, Fold.SUM: scalar.fadd, Fold.MAX: scalar.fmax, Fold.MIN: scalar.fmin,
    Fold.ISUM: scalar.iadd, Fold.QDOT: scalar.fadd,
}  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """The dataset rows that a draw reads."""

    rows: int
    word: Callable[[int, int], Word]
    """Maps (row, column) to a word."""


@dataclass(frozen=True)
class Operands:
    """Accessors for everything that an op can read."""

    word: Callable[[Tag, int, int], Word]
    """Maps (OP, STATE or CONST; index; flat element) to a word."""
    seed: bytes
    """32 bytes: the round's randomness."""
    context: tuple[int, int, int]
    """The step's context words: round, slot, t."""
    dataset: Rows | None = None

    def read(self, view: View, coordinates: Coordinates, extra: int = 0) -> Word:
        """Returns the word of a view at `coordinates`, `extra` elements further on."""
        at = position(view, coordinates) + extra
        if view.tag == Tag.IOTA:
            return at & scalar.MASK
        if view.tag == Tag.CONTEXT:
            return self.context[at]
        return self.word(view.tag, view.index, at)


def position(view: View, coordinates: Coordinates) -> int:
    """Returns offset + sum(stride x coordinate)."""
    return view.offset + sum(s * c for s, c in zip(view.strides, coordinates, strict=True))


def unflatten(extents: Sequence[int], flat: int) -> Coordinates:
    """Returns the row-major coordinates of a flat position."""
    coordinates = []
    for extent in reversed(extents):
        flat, coordinate = divmod(flat, extent)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))


def element(op: Op, at: int, operands: Operands) -> Word:
    """Computes the word of an op's output at flat position `at`."""
    o = unflatten(op.extents, at)
    if op.kind == Kind.MAP:
        return _map(op, o, operands)
    if op.kind == Kind.FOLD:
        return value(op, at, levels(op), 0, operands)
    if op.kind == Kind.GATHER:
        return _gather(op, o, operands)
    if op.kind == Kind.CONCAT:
        return _concat(op, o, operands)
    if op.kind == Kind.RANDOM:
        return philox(operands.seed, op.p0, at, operands.context)
    if op.kind == Kind.QUANT:
        return _quant(op, o, at, operands)
    return _draw(op, o, operands)


# --- folds ---------------------------------------------------------------------------------------------


def levels(op: Op) -> int:
    """Returns the number of levels of partials above a fold's chunks: 1 for K <= 65,536, else 2."""
    return 1 if op.chunks <= CHUNK else 2


def width(op: Op, level: int) -> int:
    """Returns the number of values at a level: all chunks at level 0, one value at the top."""
    count = op.chunks
    for _ in range(level):
        count = -(-count // CHUNK)
    return count


def chunk(op: Op, at: int, c: int, operands: Operands) -> Word:
    """Folds terms 256 c .. 256 c + 255 of output `at`, or group c of a qdot: the unit that the contract executes."""
    o = unflatten(op.extents, at)
    if op.mode == Fold.QDOT:
        return _group(op, (*o, c), operands)
    acc = _IDENTITY.get(Fold(op.mode), 0)
    for k in range(CHUNK * c, min(CHUNK * (c + 1), op.k_terms)):
        a = operands.read(op.views[0], (*o, k))
        if op.mode == Fold.DOT:
            acc = scalar.ffma(a, operands.read(op.views[1], (*o, k)), acc)
        else:
            acc = _JOIN[op.mode](acc, a)
    return acc


def combine(mode: int, words: Sequence[Word]) -> Word:
    """Combines at most 256 values of one level into one value of the next."""
    acc = _IDENTITY.get(Fold(mode), 0)
    for word in words:
        acc = _JOIN[mode](acc, word)
    return acc


def joined(mode: int, chunks: Sequence[Word]) -> Word:
    """Combines the results of all chunks of a fold, 256 at a time, into its element."""
    words = list(chunks)
    while len(words) > 1:
        words = [combine(mode, words[i : i + CHUNK]) for i in range(0, len(words), CHUNK)]
    return words[0]


def partials(op: Op, at: int, level: int, index: int, operands: Operands) -> list[Word]:
    """Returns the values of level - 1 that combine to value `index` of `level` >= 1."""
    below = range(CHUNK * index, min(CHUNK * (index + 1), width(op, level - 1)))
    return [value(op, at, level - 1, j, operands) for j in below]


def value(op: Op, at: int, level: int, index: int, operands: Operands) -> Word:
    """Returns value `index` of a level of output `at`: a chunk at level 0, the element itself at the top."""
    if level == 0:
        return chunk(op, at, index, operands)
    return combine(op.mode, partials(op, at, level, index, operands))


def _group(op: Op, at: Coordinates, operands: Operands) -> Word:
    a, b = ([operands.read(view, at, i) for i in range(op.p0)] for view in op.views[:2])
    return codes.group_product(a, b, operands.read(op.views[2], at), operands.read(op.views[3], at))


# --- the other kinds -----------------------------------------------------------------------------------


def _map(op: Op, o: Coordinates, operands: Operands) -> Word:
    registers = [operands.read(v, o) for v in op.views]
    for i in op.instrs:
        if i.op == scalar.Opcode.IMM:
            registers.append(i.imm)
            continue
        read = (i.a, i.b, i.c)[: scalar.ARITY[scalar.Opcode(i.op)]]
        registers.append(scalar.apply(i.op, *(registers[r] for r in read)))
    return registers[-1]


def _gather(op: Op, o: Coordinates, operands: Operands) -> Word:
    index, table = op.views
    row = operands.read(index, o)
    return operands.read(table, o, row * op.p1) if row < op.p0 else 0


def _concat(op: Op, o: Coordinates, operands: Operands) -> Word:
    along = o[op.p0]
    for view, size in zip(op.views, op.sizes, strict=True):
        if along < size:
            return operands.read(view, (*o[: op.p0], along, *o[op.p0 + 1 :]))
        along -= size
    raise UsageError("a coordinate beyond the parts of a concat", hint="validate the Program first")


def _quant(op: Op, o: Coordinates, at: int, operands: Operands) -> Word:
    """Computes a word of four codes, or the scale of a group."""
    view, k_terms = op.views[0], op.k_extents[0]
    size = CODES * op.p0
    first = size * (o[-1] // op.p0 if op.gives_codes else o[-1])
    values = [operands.read(view, (*o, k)) for k in range(first, min(first + size, k_terms))]
    scale, inverse = codes.scale_of(codes.magnitude(values), op.takes_powers)
    if not op.gives_codes:
        return scale
    values += [0] * (size - len(values))
    own = CODES * (o[-1] % op.p0)
    found = []
    for j, x in enumerate(values[own : own + CODES]):
        random = None
        if op.p1 >= STOCHASTIC:
            # Two codes share the halves of one random word; code at + j is number row x (padded k) + k of all codes.
            word = philox(operands.seed, op.p1, (CODES * at + j) >> 1, operands.context)
            random = word >> 16 * (j & 1) & 0xFFFF
        found.append(codes.code_of(x, inverse, random) if first + own + j < k_terms else 0)
    return codes.packed(found)


def philox(seed: bytes, stream: int, at: int, context: tuple[int, int, int]) -> Word:
    """Returns word `at` of a stream of Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC
    2011).
    """
    k0 = int.from_bytes(seed[:4], "little") ^ stream
    k1 = int.from_bytes(seed[4:8], "little")
    c0, c1, c2, c3 = at >> 2, *context
    for _ in range(10):
        left, right = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & scalar.MASK, (left >> 32) ^ c3 ^ k1, left & scalar.MASK
        k0, k1 = (k0 + 0x9E3779B9) & scalar.MASK, (k1 + 0xBB67AE85) & scalar.MASK
    return (c0, c1, c2, c3)[at & 3]


def drawn_row(seed: bytes, context: tuple[int, int, int], j: int, rows: int) -> int:
    """Returns the dataset row of draw j: keccak(seed ‖ round ‖ slot ‖ t ‖ j) mod rows."""
    message = seed + b"".join(word.to_bytes(4, "big") for word in (*context, j & scalar.MASK))
    return int.from_bytes(keccak.new(digest_bits=256, data=message).digest(), "big") % rows


def _draw(op: Op, o: Coordinates, operands: Operands) -> Word:
    if operands.dataset is None:
        raise Mismatch("a draw has no dataset", hint="fetch the job's dataset first")
    j, column = o
    row = drawn_row(operands.seed, operands.context, op.p0 + j, operands.dataset.rows)
    return operands.dataset.word(row, column)
