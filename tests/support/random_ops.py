"""Random ops of every kind with openings, and vectors that both Python and Solidity read.

python -m tests.support.random_ops        writes tests/vectors/arbiter.json anew
"""

from __future__ import annotations

import json
import random
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from lockstep.numerics import scalar
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.dispute import openings
from lockstep.protocol.dispute.moves import Opening
from lockstep.protocol.dispute.openings import Known
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.programs.program import (
    F32,
    HEAD_BYTES,
    I32,
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
)
from lockstep.protocol.types import Digest, Seed, StateRoot, Step
from tests.support import games
from tests.support.games import PlainStep

VECTORS = Path(__file__).parents[1] / "vectors/arbiter.json"
SIZES = (700, 256, 30, 1)
"""Elements of the state's tensors and of the constants: several leaves, one leaf, part of one, a scalar."""
SPECIAL = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF, 0x3F800000, 0xFFFFFFFF, 0x7FFFFFFF)


class Maker:
    """Creates random Programs: each op reads earlier ops, within bounds."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ops: list[Op] = []

    def word(self) -> int:
        if self.rng.random() < 0.2:
            return self.rng.choice(SPECIAL)
        return games.f32(self.rng.gauss(0, 2)) if self.rng.random() < 0.8 else self.rng.getrandbits(32)

    def extents(self) -> tuple[int, ...]:
        return self.rng.choice(((), (5,), (300,), (3, 4), (2, 3, 50), (4, 1, 2, 1)))

    def view(self, extents: tuple[int, ...], *, k: int | None = None, tags: tuple[Tag, ...] = tuple(Tag)) -> View:
        """Returns a view of `extents`, then k terms with stride 0 or 1, inside a random source."""
        tag = self.rng.choice([t for t in tags if t != Tag.OP or self.ops])
        if tag == Tag.CONTEXT:
            return View(tag, 0, self.rng.randrange(3), (0,) * (len(extents) + (k is not None)))
        if tag == Tag.IOTA:
            strides = [self.rng.randint(-9, 9) for _ in extents] + ([self.rng.randint(-2, 2)] if k is not None else [])
            return View(tag, 0, self.rng.randint(-(2**31), 2**31 - 1), tuple(strides))
        index = self.rng.randrange(len(self.ops) if tag == Tag.OP else len(SIZES))
        size = self.ops[index].header.elements if tag == Tag.OP else SIZES[index]
        along = [] if k is None else [self.rng.choice((0, 1)) if k <= size else 0]
        room = size - 1 - (along[0] * (k - 1) if k is not None else 0)
        strides, low, high = [], 0, 0
        for extent in extents:
            most = (room - (high - low)) // max(extent - 1, 1)
            stride = self.rng.randint(-most, most)
            strides.append(stride)
            low, high = low + min(stride * (extent - 1), 0), high + max(stride * (extent - 1), 0)
        offset = self.rng.randint(-low, room - high)
        return View(tag, index, offset, (*strides, *along))

    def held(self, extents: tuple[int, ...], along: int, terms: int, unit: int = 1) -> View:
        """Returns a view of a tensor with `terms` units of words along k, `along` units apart, at whole units."""
        sizes = {(Tag.OP, i): op.header.elements for i, op in enumerate(self.ops)}
        sizes |= {(tag, i): size for tag in (Tag.STATE, Tag.CONST) for i, size in enumerate(SIZES)}
        (tag, index), size = self.rng.choice([(t, n) for t, n in sizes.items() if n // unit > along * (terms - 1)])
        room = size // unit - 1 - along * (terms - 1)
        strides, low, high = [], 0, 0
        for extent in extents:
            most = (room - (high - low)) // max(extent - 1, 1)
            strides.append(self.rng.randint(-most, most))
            reach = strides[-1] * (extent - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        offset = self.rng.randint(-low, room - high)
        return View(tag, index, unit * offset, (*(unit * s for s in strides), unit * along))

    def quant(self, mode: int) -> Op:
        """Returns an op for codes or scales of a random tensor's values."""
        lead, words, k = (
            self.rng.choice(((), (3,), (2, 2))),
            self.rng.choice((1, 2, 8, 64)),
            self.rng.choice((1, 5, 100, 300)),
        )
        view = self.held(lead, 1, k)
        view = replace(view, strides=(*view.strides[:-1], 0, view.strides[-1]))
        groups, codes = -(-k // (4 * words)), mode in (Quant.CODES, Quant.CODES_POWER)
        stream = self.rng.choice((0, self.rng.randrange(1 << 31, 1 << 32))) if codes else 0
        extents = (*lead, groups * words if codes else groups)
        return Op(Kind.QUANT, I32 if codes else F32, extents, (view,), (k,), mode, p0=words, p1=stream)

    def qdot(self) -> Op:
        """Returns a product with arbitrary words as codes and scales."""
        extents, words, groups = (
            self.rng.choice(((), (5,), (3, 4))),
            self.rng.choice((1, 2, 16, 64)),
            self.rng.choice((1, 2, 3)),
        )
        codes = [self.held(extents, 1, groups, unit=words) for _ in range(2)]
        scales = [self.held(extents, self.rng.choice((0, 1)), groups) for _ in range(2)]
        return Op(Kind.FOLD, F32, extents, (*codes, *scales), (groups,), Fold.QDOT, p0=words)

    def op(self, kind: Kind, mode: int = 0) -> Op:
        if kind == Kind.QUANT:
            return self.quant(mode)
        if kind == Kind.FOLD and mode == Fold.QDOT:
            return self.qdot()
        extents = self.extents()
        if kind == Kind.MAP:
            return self._map(extents)
        if kind == Kind.FOLD:
            k = self.rng.choice((1, 100, 256, 257, 600))
            views = tuple(self.view(extents, k=k) for _ in range(2 if mode == Fold.DOT else 1))
            return Op(kind, I32 if mode == Fold.ISUM else F32, extents, views, (k,), mode)
        if kind == Kind.GATHER:
            table = self.view(extents, tags=(Tag.STATE, Tag.CONST, Tag.IOTA))
            index = self.view(extents)
            # one more row would leave the table; indices are mostly outside, sometimes inside
            rows = self.rng.choice((1, 2**32 - 1)) if table.tag == Tag.IOTA else 1
            return Op(kind, F32, extents, (index, table), p0=rows, p1=self.rng.randrange(8))
        if kind == Kind.CONCAT:
            sizes = tuple(self.rng.randint(1, 4) for _ in range(self.rng.randint(1, 3)))
            inner = self.rng.choice(((), (3,)))
            parts = tuple(self.view((s, *inner)) for s in sizes)
            return Op(kind, F32, (sum(sizes), *inner), parts, sizes=sizes)
        if kind == Kind.DRAW:
            return Op(kind, I32, (2, games.LENGTH), (), p0=self.rng.randrange(2**31))
        return Op(kind, I32, self.rng.choice(((9,), (2, 3))), (), p0=self.rng.getrandbits(32))

    def _map(self, extents: tuple[int, ...]) -> Op:
        views = tuple(self.view(extents) for _ in range(self.rng.randint(0, 5)))
        instrs = [Instr(scalar.Opcode.IMM, imm=self.word())]
        for _ in range(self.rng.randint(1, 14)):
            written = len(views) + len(instrs)
            a, b, c = (self.rng.randrange(written) for _ in range(3))
            instrs.append(Instr(self.rng.choice(list(scalar.Opcode)), a, b, c, self.rng.getrandbits(32)))
        return Op(Kind.MAP, self.rng.choice((F32, I32)), extents, views, instrs=tuple(instrs))

    def step(self) -> PlainStep:
        """Returns a Program with an op of each kind and fold mode, in random order, and its one step."""
        moded = (Kind.FOLD, Kind.QUANT)
        wanted = [(kind, 0) for kind in Kind if kind not in moded] + [(Kind.FOLD, mode) for mode in Fold]
        wanted += [(Kind.QUANT, mode) for mode in Quant]
        wanted += [(Kind.MAP, 0)] * 3
        self.rng.shuffle(wanted)
        for kind, mode in wanted:
            self.ops.append(self.op(kind, mode))
        headers = [TensorHeader(F32, () if n == 1 else (n,)) for n in SIZES]
        held = [games.Contents(h, games.pack([self.word() for _ in range(h.elements)])) for h in headers]
        consts = tuple(Const(h, games.pack([self.word() for _ in range(h.elements)])) for h in headers)
        program = Program(tuple(self.ops), tuple(headers), (Alias(1, len(self.ops) - 1),), consts)
        data = games.dataset()
        rows, length = data.header.shape
        statement = Statement(
            StateRoot(bytes(32)), Digest(bytes(32)), program.ops_root, program.consts_root, games.tensor_root(data),
            Seed(self.rng.randbytes(32)), rows, length, self.rng.getrandbits(32), self.rng.getrandbits(32),
            Step(self.rng.getrandbits(32)), program.root, program.header[:HEAD_BYTES],
        )  # fmt: skip
        step = PlainStep(program, tuple(held), data, statement)
        prev, graph = StateRoot(step.prev[-1][0]), step.graph[-1][0]
        step.statement = replace(statement, prev=prev).with_graph(graph)
        return step


Question = tuple[Statement, int, bytes, int, int, tuple[Opening, ...]]
"""Arguments of `execute`."""


def asked(rng: random.Random, step: PlainStep, index: int) -> Question:
    """Returns a random element (and chunk) of an op, with its openings."""
    op = step.program.ops[index]
    element = rng.randrange(op.header.elements)
    chunk = rng.randrange(op.chunks) if op.chunks else 0
    graph = Known(step.graph, step.program.depth)
    opened = openings.build(step, graph, step.statement, index, element, chunk)
    return step.statement, index, step.program.descriptors[index], element, chunk, opened


def abi(question: Question, staged: int = 0) -> tuple[Any, ...]:
    """Returns the arguments of the contract's `execute`."""
    s, op, descriptor, element, chunk, opened = question
    h = s.fields
    roots = (
        s.graph, h.depth, s.prev, h.s_in, s.consts_root, ceil_log2(max(h.n_consts, 1)), s.dataset_root, s.dataset_rows,
        s.row_length,
    )  # fmt: skip
    context = (s.seed, s.round, s.slot, s.t, op)
    return descriptor, roots, context, element, chunk, [astuple(o) for o in opened], staged


def vectors() -> dict[str, Any]:
    """Returns the contents of tests/vectors/arbiter.json: two elements of each op of one Program, one level of each
    fold.
    """
    rng = random.Random(2024)
    step = Maker(2024).step()
    executed = []
    for index, op in enumerate(step.program.ops):
        for _ in range(2):
            question = asked(rng, step, index)
            word = ReferenceArbiter().execute(*question)
            executed.append({"kind": op.kind.name.lower(), "arguments": _plain(abi(question)), "word": word})
    combined = []
    for mode in Fold:
        words = b"".join(Maker(int(mode)).word().to_bytes(4, "big") for _ in range(9)) + rng.randbytes(40)
        word = ReferenceArbiter().combine(mode, words)
        combined.append({"mode": int(mode), "words": "0x" + words.hex(), "word": word})
    return {"execute": executed, "combine": combined}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else int(value)


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")
