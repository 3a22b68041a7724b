"""Builds Programs without torch: tensors are handles with views, and each kind of op has a method.

The tracer writes the Programs of models. This builder serves small ones: merges, encodings, tests.

    >>> b = ProgramBuilder([(F32, 6)])
    >>> x = b.input(0).reshape(2, 3)
    >>> total = b.sum(x, name="total")          # over the last axis
    >>> b.finish([total]).ops[0].extents
    (2,)
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from lockstep.numerics.arrays import const
from lockstep.numerics.scalar import ARITY
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.programs.opcodes import Opcode
from lockstep.protocol.programs.program import (
    F32,
    I32,
    MAX_GROUP_WORDS,
    Alias,
    Const,
    Fold,
    Instr,
    Kind,
    Op,
    Program,
    Quant,
    Tag,
    View,
    groups_of,
)


@dataclass(frozen=True)
class Tensor:
    """A view of a tensor in a Program: an operand or a result of an op."""

    dtype: int
    shape: tuple[int, ...]
    tag: Tag
    index: int
    offset: int
    strides: tuple[int, ...]

    def _with(self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None) -> Tensor:
        offset = self.offset if offset is None else offset
        return replace(self, shape=tuple(shape), strides=tuple(strides), offset=offset)

    def permute(self, *axes: int) -> Tensor:
        """Permutes the axes."""
        return self._with([self.shape[a] for a in axes], [self.strides[a] for a in axes])

    def expand(self, *shape: int) -> Tensor:
        """Broadcasts: axes are added in front, extents of 1 repeat."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead + [
            0 if own == 1 and wanted != 1 else s
            for own, wanted, s in zip(self.shape, shape[lead:], self.strides, strict=True)
        ]
        if any(own not in (1, wanted) for own, wanted in zip(self.shape, shape[lead:], strict=True)):
            raise ProgramInvalid(f"{self.shape} does not broadcast to {shape}", hint="extents are equal or 1")
        return self._with(shape, strides)

    def unsqueeze(self, axis: int) -> Tensor:
        """Inserts an axis of extent 1 before `axis`."""
        return self._with((*self.shape[:axis], 1, *self.shape[axis:]), (*self.strides[:axis], 0, *self.strides[axis:]))

    def slice(self, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
        """Selects coordinates start, start + step, ... before `stop` along `axis`."""
        shape, strides = list(self.shape), list(self.strides)
        shape[axis] = -(-(stop - start) // step)
        strides[axis] *= step
        return self._with(shape, strides, self.offset + start * self.strides[axis])

    def reshape(self, *shape: int) -> Tensor:
        """Reshapes in row-major order. Raises ProgramInvalid unless the view is contiguous."""
        if self.strides != row_major(self.shape):
            raise ProgramInvalid("a strided view cannot be reshaped", hint="copy it with a map first")
        if _product(shape) != _product(self.shape):
            raise ProgramInvalid(f"{self.shape} does not reshape to {shape}", hint="the number of elements stays")
        return self._with(shape, row_major(shape))

    def view(self) -> View:
        """Converts this tensor to an operand with the same axes."""
        return View(self.tag, self.index, self.offset, self.strides)


@dataclass(frozen=True)
class Quantised:
    """A tensor quantised to small integers along its last axis k: an operand of `ProgramBuilder.qdot`."""

    codes: Tensor
    """i32 (..., groups x words): four codes per word; k is padded to whole groups with the code 0."""
    scales: Tensor
    """f32 (..., groups): one scale per group."""
    words: int
    """Number of words of codes in a group."""

    @property
    def lead(self) -> tuple[int, ...]:
        """Extents of the axes before k."""
        return self.scales.shape[:-1]

    @property
    def groups(self) -> int:
        """Number of groups along k."""
        return self.scales.shape[-1]

    def unsqueeze(self, axis: int) -> Quantised:
        """Inserts an axis of extent 1 before `axis`."""
        return replace(self, codes=self.codes.unsqueeze(axis), scales=self.scales.unsqueeze(axis))

    def permute(self, *axes: int) -> Quantised:
        """Permutes the axes before k."""
        k = len(axes)
        return replace(self, codes=self.codes.permute(*axes, k), scales=self.scales.permute(*axes, k))


class Expression:
    """A map's instructions under construction: each opcode is a method, and values are register numbers.

    `e.fadd(x, y)` appends FADD and returns its register; `e.f32(0.5)` and `e.i32(7)` are immediates.
    """

    def __init__(self, operands: int) -> None:
        self.operands = operands
        self.instrs: list[Instr] = []

    def imm(self, word: int) -> int:
        """Adds a 32-bit immediate; returns its register."""
        return self._append(Instr(Opcode.IMM, imm=word & 0xFFFFFFFF))

    def f32(self, value: float) -> int:
        """Adds a float immediate, rounded once; returns its register."""
        return self.imm(int.from_bytes(struct.pack("<f", value), "little"))

    def i32(self, value: int) -> int:
        """Adds an integer immediate; returns its register."""
        return self.imm(value)

    def apply(self, op: Opcode, *registers: int) -> int:
        """Appends an opcode with as many registers as it reads; returns the result's register."""
        if op == Opcode.IMM or len(registers) != ARITY[op]:
            raise ProgramInvalid(f"{op.name} of {len(registers)} registers", hint=f"it reads {ARITY[op]}")
        return self._append(Instr(op, *registers))

    def __getattr__(self, name: str) -> Callable[..., int]:
        try:
            op = Opcode[name.upper()]
        except KeyError:
            raise AttributeError(name) from None
        return lambda *registers: self.apply(op, *registers)

    def _append(self, instr: Instr) -> int:
        self.instrs.append(instr)
        return self.operands + len(self.instrs) - 1


@dataclass
class ProgramBuilder:
    """A Program under construction.

    `inputs` lists the input state's (dtype, elements): elements is None for a scalar, a whole entry None for EMPTY. The
    list is padded with EMPTY to a power of two.
    """

    entries: Sequence[tuple[int, int | None] | None] = ()
    ops: list[Op] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    consts: list[Const] = field(default_factory=list)

    # --- leaves -------------------------------------------------------------------------------------------------

    def input(self, k: int) -> Tensor:
        """Returns entry k of the input state."""
        entry = self.entries[k]
        if entry is None:
            raise ProgramInvalid(f"input {k} is EMPTY", hint="read an entry that the state has")
        dtype, elements = entry
        shape = () if elements is None else (elements,)
        return Tensor(dtype, shape, Tag.STATE, k, 0, row_major(shape))

    def const(self, array: npt.NDArray[Any]) -> Tensor:
        """Adds a constant table (float32 or int32); equal tables are stored once."""
        table = const(array)
        if table not in self.consts:
            self.consts.append(table)
        shape = table.header.shape
        return Tensor(table.header.dtype, shape, Tag.CONST, self.consts.index(table), 0, row_major(shape))

    def iota(self, shape: Sequence[int], axis: int, start: int = 0, step: int = 1) -> Tensor:
        """Returns i32 coordinates: start + step x coordinate along `axis`."""
        strides = tuple(step if a == axis else 0 for a in range(len(shape)))
        return Tensor(I32, tuple(shape), Tag.IOTA, 0, start, strides)

    def word(self, shape: Sequence[int], word: int, dtype: int = I32) -> Tensor:
        """Returns a tensor with the same 32-bit word everywhere."""
        signed = word - (1 << 32) if word >= 1 << 31 else word
        return Tensor(dtype, tuple(shape), Tag.IOTA, 0, signed, (0,) * len(shape))

    def context(self, word: int) -> Tensor:
        """Returns a word of the step's context as an i32 scalar: 0 is the round, 1 the slot, 2 the step t."""
        return Tensor(I32, (), Tag.CONTEXT, 0, word, ())

    # --- ops ----------------------------------------------------------------------------------------------------

    def map(
        self,
        extents: Sequence[int],
        operands: Sequence[Tensor],
        instrs: Callable[..., object] | Sequence[Instr] = (),
        dtype: int | None = None,
        name: str = "",
    ) -> Tensor:
        """Adds a map: an expression of its operands (broadcast to `extents`) at each element.

        `instrs` is a sequence, or a function of an Expression and the operands' registers; without instructions the
        result is the last operand. `dtype` defaults to the last operand's.
        """
        extents = tuple(extents)
        views = tuple(t.expand(*extents).view() for t in operands)
        if callable(instrs):
            expression = Expression(len(operands))
            instrs(expression, *range(len(operands)))
            instrs = expression.instrs
        dtype = dtype if dtype is not None else operands[-1].dtype
        return self._append(Op(Kind.MAP, dtype, extents, views, instrs=tuple(instrs)), name)

    def dot(self, a: Tensor, b: Tensor, name: str = "") -> Tensor:
        """Adds a dot product over the last axis of both, sum_k fma(a, b); the other axes broadcast: (..., K) x (..., K)
        -> (...).
        """
        extents = _broadcast(a.shape[:-1], b.shape[:-1])
        k = a.shape[-1]
        if k != b.shape[-1]:
            raise ProgramInvalid(f"a dot of {k} and {b.shape[-1]} terms", hint="both end in the same K")
        views = tuple(t.expand(*extents, k).view() for t in (a, b))
        return self._fold(Fold.DOT, F32, extents, k, views, name)

    def quant(
        self, x: Tensor, words: int = MAX_GROUP_WORDS, stream: int = 0, power: bool = False, name: str = ""
    ) -> Quantised:
        """Quantises x (f32, contiguous along its last axis) to codes and scales, in groups of 4 x `words` values.

        A `stream` of 2^31 or more selects stochastic rounding with that random stream; `power` restricts scales to
        powers of two.
        """
        codes, scales = (Quant.CODES_POWER, Quant.SCALES_POWER) if power else (Quant.CODES, Quant.SCALES)
        name = name or f"quant_{len(self.ops)}"
        return Quantised(
            self._quant(codes, I32, x, words, stream, f"{name}.codes"),
            self._quant(scales, F32, x, words, 0, f"{name}.scales"),
            words,
        )

    def qdot(self, a: Quantised, b: Quantised, name: str = "") -> Tensor:
        """Adds a quantised dot product over k, exact within a group and f32 between groups; the axes before k
        broadcast.
        """
        if (a.groups, a.words) != (b.groups, b.words):
            raise ProgramInvalid(
                f"a qdot of {a.groups} x {a.words} and {b.groups} x {b.words} words", hint="both have the same groups"
            )
        extents = _broadcast(a.lead, b.lead)
        codes = [t.codes.expand(*extents, a.groups * a.words).view() for t in (a, b)]
        views = [replace(v, strides=(*v.strides[:-1], v.strides[-1] * a.words)) for v in codes]
        views += [t.scales.expand(*extents, a.groups).view() for t in (a, b)]
        op = Op(Kind.FOLD, F32, extents, tuple(views), (a.groups,), Fold.QDOT, p0=a.words)
        return self._append(op, name)

    def sum(self, a: Tensor, name: str = "") -> Tensor:
        """Adds a sum over the last axis: f32, or wrapping i32."""
        return self._reduce(Fold.SUM if a.dtype == F32 else Fold.ISUM, a, name)

    def max(self, a: Tensor, name: str = "") -> Tensor:
        """Adds a maximum over the last axis."""
        return self._reduce(Fold.MAX, a, name)

    def min(self, a: Tensor, name: str = "") -> Tensor:
        """Adds a minimum over the last axis."""
        return self._reduce(Fold.MIN, a, name)

    def gather(self, index: Tensor, table: Tensor, axis: int = 0, name: str = "") -> Tensor:
        """Adds a gather table[index] along `axis`, of shape index.shape + the table's other axes; +0 outside of the
        table.
        """
        rest = tuple(e for a, e in enumerate(table.shape) if a != axis)
        strides = tuple(s for a, s in enumerate(table.strides) if a != axis)
        extents = (*index.shape, *rest)
        views = (
            View(index.tag, index.index, index.offset, index.strides + (0,) * len(rest)),
            View(table.tag, table.index, table.offset, (0,) * len(index.shape) + strides),
        )
        op = Op(Kind.GATHER, table.dtype, extents, views, p0=table.shape[axis], p1=table.strides[axis])
        return self._append(op, name)

    def pick(self, index: Tensor, table: Tensor, name: str = "") -> Tensor:
        """Adds a gather of one element per row of the last axis: table[..., index[...]]."""
        views = (index.view(), View(table.tag, table.index, table.offset, table.strides[:-1]))
        op = Op(Kind.GATHER, table.dtype, index.shape, views, p0=table.shape[-1], p1=table.strides[-1])
        return self._append(op, name)

    def concat(self, parts: Sequence[Tensor], axis: int = 0, name: str = "") -> Tensor:
        """Adds a concatenation along `axis`."""
        extents = list(parts[0].shape)
        extents[axis] = sum(p.shape[axis] for p in parts)
        op = Op(
            Kind.CONCAT, parts[0].dtype, tuple(extents), tuple(p.view() for p in parts), p0=axis,
            sizes=tuple(p.shape[axis] for p in parts),
        )  # fmt: skip
        return self._append(op, name)

    def random(self, extents: Sequence[int], stream: int = 0, name: str = "") -> Tensor:
        """Adds an op that gives Philox words (i32) of a random stream."""
        return self._append(Op(Kind.RANDOM, I32, tuple(extents), (), p0=stream), name)

    def draw(self, rows: int, length: int, first: int = 0, name: str = "") -> Tensor:
        """Adds an op that reads dataset rows (i32), sampled by keccak."""
        return self._append(Op(Kind.DRAW, I32, (rows, length), (), p0=first), name)

    # --- the end ------------------------------------------------------------------------------------------------

    def finish(self, outputs: Sequence[Tensor | None]) -> Program:
        """Returns the Program with the output state `outputs`: whole op outputs or inputs, None for EMPTY, padded with
        EMPTY.
        """
        inputs = [None if e is None else TensorHeader(e[0], () if e[1] is None else (e[1],)) for e in self.entries]
        aliases = [Alias(Alias.EMPTY_KIND) if t is None else self._alias(t) for t in outputs]
        return Program(
            tuple(self.ops),
            tuple(inputs + [None] * ((1 << ceil_log2(max(len(inputs), 1))) - len(inputs))),
            tuple(aliases + [Alias(Alias.EMPTY_KIND)] * ((1 << ceil_log2(max(len(aliases), 1))) - len(aliases))),
            tuple(self.consts),
            tuple(self.names),
        )

    def _alias(self, t: Tensor) -> Alias:
        if t.tag == Tag.OP and (t.offset, t.shape) == (0, self.ops[t.index].extents):
            return Alias(Alias.OP_KIND, t.index)
        if t.tag == Tag.STATE and t == self.input(t.index):
            return Alias(Alias.STATE_KIND, t.index)
        raise ProgramInvalid("an output is a view", hint="outputs are whole ops or inputs: copy the view with a map")

    def _fold(
        self, mode: Fold, dtype: int, extents: tuple[int, ...], k: int, views: Sequence[View], name: str
    ) -> Tensor:
        return self._append(Op(Kind.FOLD, dtype, extents, tuple(views), (k,), mode), name)

    def _quant(self, mode: Quant, dtype: int, x: Tensor, words: int, stream: int, name: str) -> Tensor:
        groups = groups_of(x.shape[-1], words)
        extents = (*x.shape[:-1], groups * words if dtype == I32 else groups)
        view = View(x.tag, x.index, x.offset, (*x.strides[:-1], 0, x.strides[-1]))
        op = Op(Kind.QUANT, dtype, extents, (view,), (x.shape[-1],), mode, p0=words, p1=stream)
        return self._append(op, name)

    def _reduce(self, mode: Fold, a: Tensor, name: str) -> Tensor:
        return self._fold(mode, a.dtype, a.shape[:-1], a.shape[-1], (a.view(),), name)

    def _append(self, op: Op, name: str) -> Tensor:
        before = self.ops[-1].cumulative if self.ops else 0
        op = replace(op, cumulative=before + op.header.elements)
        self.ops.append(op)
        self.names.append(name or f"{op.kind.name.lower()}_{len(self.ops) - 1}")
        return Tensor(op.dtype, op.extents, Tag.OP, len(self.ops) - 1, 0, row_major(op.extents))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides of a contiguous tensor."""
    strides, stride = [], 1
    for extent in reversed(shape):
        strides.append(stride)
        stride *= extent
    return tuple(reversed(strides))


def _product(shape: Sequence[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


def _broadcast(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)
