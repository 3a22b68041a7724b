"""The Arbiter against the reference: random ops of every kind, random elements, spoiled openings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lockstep.chain.contracts import Contract
from lockstep.numerics import scalar
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle, openings
from lockstep.protocol.errors import ChainError, LockstepError
from lockstep.protocol.merkle import TensorHeader, ceil_log2
from lockstep.protocol.moves import Opening
from lockstep.protocol.openings import Known
from lockstep.protocol.program import F32, I32, Alias, Const, Fold, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.statement import Statement
from lockstep.protocol.types import Digest, Seed, StateRoot, Step
from tests import games
from tests.arena import Arena
from tests.games import PlainStep

pytestmark = pytest.mark.chain

SIZES = (700, 256, 30, 1)
"""Elements of the state's tensors and of the constants: several leaves, one leaf, a part of one, a scalar."""
SPECIAL = (0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 1, 0x807FFFFF, 0x3F800000, 0xFFFFFFFF, 0x7FFFFFFF)


class Maker:
    """Random Programs: each op reads what stands before it, inside its bounds."""

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
        """A view of `extents`, then k terms with stride 0 or 1, that stays inside a random source."""
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

    def op(self, kind: Kind, mode: int = 0) -> Op:
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
            # One row more would leave the table; indices are mostly outside, sometimes within.
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
        instrs = [Instr(scalar.Op.IMM, imm=self.word())]
        for _ in range(self.rng.randint(1, 14)):
            written = len(views) + len(instrs)
            a, b, c = (self.rng.randrange(written) for _ in range(3))
            instrs.append(Instr(self.rng.choice(list(scalar.Op)), a, b, c, self.rng.getrandbits(32)))
        return Op(Kind.MAP, self.rng.choice((F32, I32)), extents, views, instrs=tuple(instrs))

    def step(self) -> PlainStep:
        """A Program with an op of each kind and fold mode, in random order, and its one step."""
        wanted = [(kind, 0) for kind in Kind if kind != Kind.FOLD] + [(Kind.FOLD, mode) for mode in Fold]
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
            Step(self.rng.getrandbits(32)), program.header,
        )  # fmt: skip
        step = PlainStep(program, tuple(held), data, statement)
        prev, graph = StateRoot(step.prev[-1][0]), step.graph[-1][0]
        step.statement = replace(statement, prev=prev).with_graph(graph)
        return step


class ChainArbiter:
    """The contract, asked through eth_call."""

    def __init__(self, arena: Arena) -> None:
        self.contract = Contract(arena.devnet.w3, arena.contracts.addresses.arbiter, "Arbiter")

    def execute(self, s: Statement, op: int, descriptor: bytes, element: int, chunk: int, opened: Any) -> int:
        h = s.program_header
        roots = (
            s.graph, h.depth, s.prev, h.s_in, s.consts_root, ceil_log2(max(h.n_consts, 1)), s.dataset_root,
            s.dataset_rows, s.row_length,
        )  # fmt: skip
        context = (s.seed, s.round, s.slot, s.t, op)
        abi = [o.abi() for o in opened]
        return int(self.contract.read("execute", descriptor, roots, context, element, chunk, abi))


@pytest.fixture(scope="module")
def arbiter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChainArbiter]:
    arena = Arena.start(tmp_path_factory.mktemp("chain"))
    yield ChainArbiter(arena)
    arena.stop()


Question = tuple[Statement, int, bytes, int, int, tuple[Opening, ...]]
"""The arguments of `execute`."""


def asked(rng: random.Random, step: PlainStep, index: int) -> Question:
    """A random element (and chunk) of an op, with its openings."""
    op = step.program.ops[index]
    element = rng.randrange(op.header.elements)
    chunk = rng.randrange(op.chunks) if op.chunks else 0
    graph = Known(step.graph, step.program.depth)
    opened = openings.build(step, graph, step.statement, index, element, chunk)
    return step.statement, index, step.program.descriptors[index], element, chunk, opened


@pytest.mark.parametrize("seed", range(12))
def test_random_ops_give_the_reference_bits(arbiter: ChainArbiter, seed: int) -> None:
    rng = random.Random(seed)
    step = Maker(seed).step()
    for index, op in enumerate(step.program.ops):
        for _ in range(2):
            question = asked(rng, step, index)
            expected = ReferenceArbiter().execute(*question)
            assert arbiter.execute(*question) == expected, f"op {index} {op} at {question[3:5]}"
            if op.chunks <= 1:
                assert expected == int.from_bytes(step.output(index).data[4 * question[3] :][:4], "little")


def spoiled(rng: random.Random, opened: tuple[Opening, ...]) -> tuple[Opening, ...]:
    """The openings with one thing wrong."""
    i = rng.randrange(len(opened))
    o = opened[i]
    byte = rng.randrange(len(o.data))
    choices = [
        replace(o, data=o.data[:byte] + bytes([o.data[byte] ^ 1]) + o.data[byte + 1 :]),
        replace(o, data=o.data + bytes(4)),
        replace(o, leaf_index=o.leaf_index + 1),
        replace(o, header=bytes([o.header[0] ^ 1]) + o.header[1:]),
        replace(o, header=o.header + bytes(4)),
        replace(o, leaf_proof=(*o.leaf_proof, Digest(bytes(32)))),
        replace(o, root_proof=(*o.root_proof, merkle.EMPTY[0])),
    ]
    changed: list[Opening] = [*opened[:i], rng.choice(choices), *opened[i + 1 :]]
    return tuple(rng.choice((changed, [*opened, o], opened[:-1], changed, changed)))


@pytest.mark.parametrize("seed", range(100, 106))
def test_spoiled_openings_are_refused_by_both(arbiter: ChainArbiter, seed: int) -> None:
    rng = random.Random(seed)
    step = Maker(seed).step()
    for index in range(len(step.program.ops)):
        question = asked(rng, step, index)
        if not question[-1]:
            continue
        wrong = (*question[:-1], spoiled(rng, question[-1]))
        with pytest.raises(LockstepError):
            ReferenceArbiter().execute(*wrong)
        with pytest.raises(ChainError):
            arbiter.execute(*wrong)


def test_operand_that_is_not_earlier_is_refused(arbiter: ChainArbiter) -> None:
    """A descriptor that reads its own output: openings that verify do not help."""
    step = Maker(1).step()
    own = len(step.program.ops) - 1
    op = Op(Kind.MAP, F32, (), (View(Tag.OP, own, 0, ()),), instrs=(Instr(scalar.Op.MOV, 0),))
    tensor = step.output(own)
    opening = Opening(
        tensor.header.encode(), tensor.leaf(0), tuple(merkle.proof(tensor.levels, 0)),
        tuple(merkle.proof(step.graph, own)), 0,
    )  # fmt: skip
    for mine, refused in ((own + 1, False), (own, True)):
        question = (step.statement, mine, op.encode(), 0, 0, (opening,))
        if refused:
            with pytest.raises(ChainError, match="OperandNotEarlier"):
                arbiter.execute(*question)
            with pytest.raises(LockstepError, match="OperandNotEarlier"):
                ReferenceArbiter().execute(*question)
        else:
            assert arbiter.execute(*question) == ReferenceArbiter().execute(*question)


def test_descriptor_with_bytes_after_its_end_is_refused(arbiter: ChainArbiter) -> None:
    step = Maker(1).step()
    index = next(i for i, op in enumerate(step.program.ops) if op.kind == Kind.RANDOM)
    statement, _, descriptor, element, chunk, opened = asked(random.Random(0), step, index)
    with pytest.raises(ChainError, match="DescriptorInvalid"):
        arbiter.execute(statement, index, descriptor + b"\0", element, chunk, opened)


@pytest.mark.parametrize("mode", list(Fold))
def test_combine_gives_the_reference_bits(arbiter: ChainArbiter, mode: Fold) -> None:
    rng, maker = random.Random(mode), Maker(int(mode))
    for count in (1, 2, 255, 256):
        words = b"".join(maker.word().to_bytes(4, "big") for _ in range(count))
        assert arbiter.contract.read("combine", int(mode), words) == ReferenceArbiter().combine(mode, words), count
    too_many = rng.randbytes(4 * 257)
    with pytest.raises(ChainError, match="OutOfRange"):
        arbiter.contract.read("combine", int(mode), too_many)
