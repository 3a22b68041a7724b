"""The Arbiter against the reference: random ops of every kind, random elements, spoiled openings."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lockstep.chain.contracts import Contract
from lockstep.numerics import scalar
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.dispute import openings
from lockstep.protocol.dispute.moves import Opening
from lockstep.protocol.dispute.openings import Known
from lockstep.protocol.errors import ChainError, LockstepError
from lockstep.protocol.programs.program import CHUNK, F32, Fold, Instr, Kind, Op, Tag, View
from lockstep.protocol.types import Digest, StateRoot
from tests.support.arena import Arena
from tests.support.games import PlainStep
from tests.support.questions import spoiled
from tests.support.random_ops import VECTORS, Maker, Question, abi, asked, vectors

pytestmark = pytest.mark.chain


class ChainArbiter:
    """The contract, asked through eth_call."""

    def __init__(self, arena: Arena) -> None:
        self.contract = Contract(arena.devnet.w3, arena.contracts.addresses.arbiter, "Arbiter")

    def execute(self, *question: Any) -> int:
        statement_to_openings, staged = question[:6], question[6] if len(question) > 6 else 0
        return int(self.contract.read("execute", *abi(statement_to_openings, staged)))

    def stage(self, question: Question, staged: int) -> int:
        descriptor, roots, context, element, _, opened, _ = abi(question)
        return int(self.contract.read("stage", descriptor, roots, context, element, opened, staged))


@pytest.fixture(scope="module")
def arbiter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChainArbiter]:
    arena = Arena.start(tmp_path_factory.mktemp("chain"))
    yield ChainArbiter(arena)
    arena.stop()


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(2)
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


def of_stage(question: Question) -> tuple[Any, ...]:
    statement, index, descriptor, element, _, opened = question
    return statement, index, descriptor, element, opened


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_staged_operands_give_the_same_word(arbiter: ChainArbiter, seed: int) -> None:
    """A map's operands, opened some at a time, are those that it would have opened at once."""
    rng, step = random.Random(seed), Maker(seed).step()
    reference, staged_any = ReferenceArbiter(), False
    for index in (i for i, op in enumerate(step.program.ops) if op.kind == Kind.MAP):
        *about, opened = asked(rng, step, index)
        whole, staged, rest = reference.execute(*about, opened), 0, opened
        while rest:
            part = (*about, rest[:1])
            following = reference.stage(*of_stage(part), staged)  # type: ignore[arg-type]
            assert arbiter.stage(part, staged) == following, f"op {index} after {staged:#x}"
            staged, staged_any = following, True
            rest = openings.build(
                step, Known(step.graph, step.program.depth), step.statement, index, about[3], about[4], staged
            )
            assert arbiter.execute(*about, rest, staged) == whole, f"op {index} after {staged:#x}"
            assert reference.execute(*about, rest, staged) == whole
        more = (*about, opened[:1])
        for refusing in (
            lambda m=more, s=staged: reference.stage(*of_stage(m), s),
            lambda m=more, s=staged: arbiter.stage(m, s),
        ):
            if opened:
                with pytest.raises(LockstepError, match="OpeningsWrong"):
                    refusing()
    assert staged_any


def summing(*positions: int, entry: int) -> Op:
    """A scalar map of some words of one tensor of the state, each an operand of its own."""
    views = tuple(View(Tag.STATE, entry, position, ()) for position in positions)
    sums = [Instr(scalar.Opcode.FADD, k and len(views) + k - 1, k + 1) for k in range(len(views) - 1)]
    return Op(Kind.MAP, F32, (), views, instrs=tuple(sums))


def shown(step: PlainStep, entry: int, leaf: int) -> Opening:
    """One leaf of a tensor of the state."""
    tensor = step.state(entry)
    proof = tuple(merkle.proof(tensor.levels, leaf))
    return Opening(tensor.header.encode(), tensor.leaf(leaf), proof, tuple(merkle.proof(step.prev, entry)), leaf)


def test_a_leaf_that_operands_share_is_opened_once(arbiter: ChainArbiter) -> None:
    step = Maker(3).step()
    described, index = summing(3, 256, 255, 3, 257, entry=0).encode(), len(step.program.ops)
    first, second = shown(step, 0, 0), shown(step, 0, 1)
    right = (step.statement, index, described, 0, 0, (first, second))
    assert arbiter.execute(*right) == ReferenceArbiter().execute(*right)
    for wrong in ((first,), (second, first), (first, second, first), (first, second, first, first, second)):
        question = (step.statement, index, described, 0, 0, wrong)
        with pytest.raises(ChainError, match=r"OpeningsWrong|OutOfRange"):
            arbiter.execute(*question)
        with pytest.raises(LockstepError, match=r"OpeningsWrong|OutOfRange"):
            ReferenceArbiter().execute(*question)


def test_a_shared_leaf_is_read_inside_its_tensor(arbiter: ChainArbiter) -> None:
    """A leaf whose committed bytes reach beyond the tensor's elements."""
    step = Maker(3).step()
    header, data = step.state(2).header, bytes(4 * CHUNK)
    root = Digest(merkle.tensor_root_of_tree(header, merkle.leaf(data)))
    prev = merkle.levels([root if entry == 2 else node for entry, node in enumerate(step.prev[0])])
    statement = replace(step.statement, prev=StateRoot(prev[-1][0]))
    opening = Opening(header.encode(), data, (), tuple(merkle.proof(prev, 2)), 0)
    last = header.elements - 1
    for positions, inside in (((0, last), True), ((0, last + 1), False), ((last + 1, 0), False)):
        question = (statement, len(step.program.ops), summing(*positions, entry=2).encode(), 0, 0, (opening,))
        if inside:
            assert arbiter.execute(*question) == ReferenceArbiter().execute(*question) == 0
            continue
        with pytest.raises(ChainError, match="OutOfRange"):
            arbiter.execute(*question)
        with pytest.raises(LockstepError, match="OutOfRange"):
            ReferenceArbiter().execute(*question)


def test_only_a_map_is_staged(arbiter: ChainArbiter) -> None:
    step = Maker(1).step()
    index = next(i for i, op in enumerate(step.program.ops) if op.kind == Kind.CONCAT)
    question = asked(random.Random(0), step, index)
    with pytest.raises(ChainError, match="OpUnknown"):
        arbiter.stage(question, 0)
    with pytest.raises(LockstepError, match="OpUnknown"):
        ReferenceArbiter().stage(*of_stage(question))


def test_operand_that_is_not_earlier_is_refused(arbiter: ChainArbiter) -> None:
    """A descriptor that reads its own output: openings that verify do not help."""
    step = Maker(1).step()
    own = len(step.program.ops) - 1
    op = Op(Kind.MAP, F32, (), (View(Tag.OP, own, 0, ()),), instrs=(Instr(scalar.Opcode.MOV, 0),))
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
    for count in (1, 2, 255, 256, 257, 511, 512):
        words = b"".join(maker.word().to_bytes(4, "big") for _ in range(count))
        assert arbiter.contract.read("combine", int(mode), words) == ReferenceArbiter().combine(mode, words), count
    too_many = rng.randbytes(4 * 513)
    with pytest.raises(ChainError, match="OutOfRange"):
        arbiter.contract.read("combine", int(mode), too_many)


def test_committed_vectors_are_the_references() -> None:
    assert json.loads(VECTORS.read_text()) == vectors(), "run `python -m tests.support.random_ops` and commit"
