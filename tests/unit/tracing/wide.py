"""Runs a Program in float64: the graph alone, without binary32's rounding.

Comparing this with eager float64 torch tests the tracer to 1e-9; what the kernels round is tested with the kernels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lockstep.numerics.reference import philox
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.program import F32, Alias, Fold, Kind, Program, Quant, Tag, View
from lockstep.protocol.programs.program import Op as ProgramOp

Array = np.ndarray
SEED = bytes(range(32))
"""The seed of the random words that round."""


def run(program: Program, state: list[Array | None], rows: Array | None = None, context: tuple = (0, 0, 1)) -> list:
    """Output entries of the Program on `state`; `rows` [R, L] is what `draw` number 0 .. R-1 gives."""
    outputs: list[Array] = []
    consts = [np.frombuffer(c.data, "<f4" if c.header.dtype == F32 else "<i4") for c in program.consts]
    wide = [_wide(s) for s in state] + [None] * (len(program.inputs) - len(state))
    sources = {Tag.OP: outputs, Tag.STATE: wide, Tag.CONST: [_wide(c) for c in consts]}

    def read(view: View, shape: tuple[int, ...]) -> Array:
        if view.tag in (Tag.IOTA, Tag.CONTEXT):
            value = np.full(shape, view.offset, dtype=np.int64)
            for axis, (n, stride) in enumerate(zip(shape, view.strides, strict=True)):
                value += stride * np.arange(n).reshape([-1 if a == axis else 1 for a in range(len(shape))])
            return value if view.tag == Tag.IOTA else np.array(context)[value]
        flat = sources[view.tag][view.index].reshape(-1)
        ends = [s * (n - 1) for s, n in zip(view.strides, shape, strict=True)]
        assert view.offset + sum(min(e, 0) for e in ends) >= 0, "a view starts before its source"
        assert view.offset + sum(max(e, 0) for e in ends) < flat.size, "a view ends after its source"
        return as_strided(flat[view.offset :], shape, [s * flat.itemsize for s in view.strides])

    for op in program.ops:
        shape = (*op.extents, *op.k_extents)
        if op.kind == Kind.MAP:
            registers = [read(v, shape) for v in op.views]
            for instr in op.instrs:
                arguments = [registers[r] for r in (instr.a, instr.b, instr.c)] if registers else []
                registers.append(_INSTRUCTIONS[Opcode(instr.op)](instr.imm, *arguments))
            result = _float(registers[-1]) if op.dtype == F32 else _int(registers[-1])
            result = np.array(np.broadcast_to(result, shape))
        elif op.is_qdot:
            # A group of codes lies behind its first word.
            inner = [replace(v, strides=(*v.strides, 1)) for v in op.views[:2]]
            a, b = (_codes(read(v, (*shape, op.p0))) for v in inner)
            scales = [_float(read(v, shape)) for v in op.views[2:]]
            result = ((a * b).sum(-1) * scales[0] * scales[1]).sum(-1)
        elif op.kind == Kind.FOLD:
            result = _fold(op.mode, [read(v, shape) for v in op.views])
        elif op.kind == Kind.QUANT:
            view = op.views[0]
            values = read(
                replace(view, strides=(*view.strides[:-2], view.strides[-1])), (*op.extents[:-1], op.k_extents[0])
            )
            result = _quantised(op, values, context)
        elif op.kind == Kind.GATHER:
            index, table = read(op.views[0], shape), read(op.views[1], shape)
            del table
            base = op.views[1]
            lifted = View(base.tag, base.index, base.offset, (op.p1, *base.strides))
            stack = read(lifted, (op.p0, *shape))
            inside = (index >= 0) & (index < op.p0)
            picked = np.take_along_axis(stack, np.where(inside, index, 0)[None], 0)[0]
            result = np.where(inside, picked, 0)
        elif op.kind == Kind.CONCAT:
            parts = []
            for view, size in zip(op.views, op.sizes, strict=True):
                part = read(view, tuple(size if a == op.p0 else n for a, n in enumerate(shape)))
                parts.append(_float(part) if op.dtype == F32 else part)
            result = np.concatenate(parts, op.p0)
        elif op.kind == Kind.DRAW:
            assert rows is not None
            result = rows[op.p0 : op.p0 + op.extents[0]].astype(np.int64)
        else:
            raise AssertionError(op.kind)
        assert result.shape == op.extents, (op, result.shape)
        outputs.append(np.ascontiguousarray(result).reshape(op.extents))
    entries = {
        Alias.EMPTY_KIND: lambda i: None,
        Alias.OP_KIND: lambda i: outputs[i],
        Alias.STATE_KIND: lambda i: wide[i],
    }
    return [entries[a.kind](a.index) for a in program.outputs]


def _quantised(op: ProgramOp, values: Array, context: tuple) -> Array:
    """Codes, four in a word, or scales."""
    words = op.p0
    groups = -(-values.shape[-1] // (4 * words))
    padding = [(0, 0)] * (values.ndim - 1) + [(0, 4 * words * groups - values.shape[-1])]
    grouped = np.pad(_float(values), padding).reshape(*values.shape[:-1], groups, 4 * words)
    scale = np.abs(grouped).max(-1, keepdims=True) / 127
    if op.mode == Quant.SCALES:
        return scale[..., 0]
    assert op.mode == Quant.CODES, op.mode
    steps = grouped / np.where(scale, scale, 1)
    if op.p1:
        drawn = np.array([philox(SEED, op.p1, at, context) for at in range(steps.size // 2)], np.uint32)
        halves = drawn.view("<u2").reshape(steps.shape)
        steps = np.floor(steps + halves / 65536)
    codes = np.clip(np.rint(steps), -127, 127).astype(np.int8)
    return codes.reshape(*values.shape[:-1], -1).view("<i4").astype(np.int64)


def _codes(words: Array) -> Array:
    """Codes of words [..., W] as floats [..., 4 W]."""
    return np.ascontiguousarray(words.astype("<i4")).view(np.int8).astype(np.float64)


def _wide(values: Array | None) -> Array | None:
    if values is None:
        return None
    values = np.asarray(values)
    return values.astype(np.int64 if values.dtype.kind in "iu" else np.float64)


def _float(x: Array) -> Array:
    """Integers are words: their bits are read as a float."""
    return x if x.dtype.kind == "f" else x.astype(np.int64).astype(np.uint32).view(np.float32).astype(np.float64)


def _int(x: Array) -> Array:
    return x if x.dtype.kind != "f" else x.astype(np.float32).view(np.int32).astype(np.int64)


def _wrap(x: Array) -> Array:
    return x.astype(np.int64).astype(np.int32).astype(np.int64)


def _fold(mode: int, terms: list[Array]) -> Array:
    if mode == Fold.DOT:
        return np.einsum("...k,...k->...", *(_float(t) for t in terms))
    if mode == Fold.ISUM:
        return _wrap(terms[0].sum(-1))
    return {Fold.SUM: np.sum, Fold.MAX: np.max, Fold.MIN: np.min}[Fold(mode)](_float(terms[0]), axis=-1)


def _floats(function, arity=2):
    def run_(_imm, a, b=0, c=0):
        with np.errstate(all="ignore"):
            return function(*(_float(x) for x in (a, b, c)[:arity]))

    return run_


def _ints(function, arity=2):
    def run_(_imm, a, b=0, c=0):
        return _wrap(np.asarray(function(*(_int(x) for x in (a, b, c)[:arity]))))

    return run_


def _select(_imm, c, a, b):
    if a.dtype.kind == "f" or b.dtype.kind == "f":
        a, b = _float(a), _float(b)
    return np.where(_int(c) != 0, a, b)


def _trunc_div(a, b):
    quotient = np.abs(a) // np.where(b == 0, 1, np.abs(b))
    return np.where(b == 0, 0, np.sign(a) * np.sign(b) * quotient)


_INSTRUCTIONS = {
    Opcode.MOV: lambda _imm, a, *_: a,
    Opcode.IMM: lambda imm, *_: np.array(imm, np.uint32).view(np.int32).astype(np.int64),
    Opcode.FADD: _floats(np.add),
    Opcode.FSUB: _floats(np.subtract),
    Opcode.FMUL: _floats(np.multiply),
    Opcode.FDIV: _floats(np.divide),
    Opcode.FFMA: _floats(lambda a, b, c: a * b + c, 3),
    Opcode.FSQRT: _floats(np.sqrt, 1),
    Opcode.FNEG: _floats(np.negative, 1),
    Opcode.FABS: _floats(np.abs, 1),
    Opcode.FMIN: _floats(np.minimum),
    Opcode.FMAX: _floats(np.maximum),
    Opcode.FEXP: _floats(np.exp, 1),
    Opcode.FLOG: _floats(np.log, 1),
    Opcode.FTANH: _floats(np.tanh, 1),
    Opcode.FLT: _floats(lambda a, b: (a < b).astype(np.int64)),
    Opcode.FLE: _floats(lambda a, b: (a <= b).astype(np.int64)),
    Opcode.FEQ: _floats(lambda a, b: (a == b).astype(np.int64)),
    Opcode.SELECT: _select,
    Opcode.IADD: _ints(np.add),
    Opcode.ISUB: _ints(np.subtract),
    Opcode.IMUL: _ints(np.multiply),
    Opcode.IDIV: _ints(_trunc_div),
    Opcode.IREM: _ints(lambda a, b: a - _trunc_div(a, b) * b),
    Opcode.IAND: _ints(np.bitwise_and),
    Opcode.IOR: _ints(np.bitwise_or),
    Opcode.IXOR: _ints(np.bitwise_xor),
    Opcode.ISHL: _ints(lambda a, b: a << (b & 31)),
    Opcode.ISHR: _ints(lambda a, b: a >> (b & 31)),
    Opcode.ILT: _ints(lambda a, b: a < b),
    Opcode.ILE: _ints(lambda a, b: a <= b),
    Opcode.IEQ: _ints(lambda a, b: a == b),
    Opcode.IMIN: _ints(np.minimum),
    Opcode.IMAX: _ints(np.maximum),
    Opcode.I2F: lambda _imm, a, *_: _int(a).astype(np.float64),
    Opcode.F2I: lambda _imm, a, *_: np.clip(np.rint(np.nan_to_num(_float(a), nan=0)), -(2**31), 2**31 - 1).astype(
        np.int64
    ),
    Opcode.FCANON: lambda _imm, a, *_: _float(a),
}
