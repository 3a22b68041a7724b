"""The Arbiter against the reference: random ops of every kind, random elements, spoiled openings."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from lockstep.chain.contracts import Contract
from lockstep.numerics import scalar
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol import merkle
from lockstep.protocol.dispute.moves import Opening
from lockstep.protocol.errors import ChainError, LockstepError
from lockstep.protocol.programs.program import F32, Fold, Instr, Kind, Op, Tag, View
from tests.support.arena import Arena
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


@pytest.mark.parametrize("seed", range(4))
def test_staged_operands_give_the_same_word(arbiter: ChainArbiter, seed: int) -> None:
    """A map's operands, opened some at a time, are those that it would have opened at once."""
    rng, step = random.Random(seed), Maker(seed).step()
    reference, staged_any = ReferenceArbiter(), False
    for index in (i for i, op in enumerate(step.program.ops) if op.kind == Kind.MAP):
        *about, opened = asked(rng, step, index)
        staged = 0
        for k in range(len(opened)):
            part = (*about, opened[k : k + 1])
            following = reference.stage(*of_stage(part), staged)  # type: ignore[arg-type]
            assert arbiter.stage(part, staged) == following, f"operand {k} of op {index}"  # type: ignore[arg-type]
            staged, staged_any = following, True
            rest = (*about, opened[k + 1 :], staged)
            assert arbiter.execute(*rest) == reference.execute(*about, opened), f"{k + 1} staged of op {index}"
            assert reference.execute(*rest) == reference.execute(*about, opened)
        more = (*about, opened[:1])
        for refusing in (
            lambda m=more, s=staged: reference.stage(*of_stage(m), s),
            lambda m=more, s=staged: arbiter.stage(m, s),
        ):
            if opened:
                with pytest.raises(LockstepError, match="OpeningsWrong"):
                    refusing()
    assert staged_any


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
    for count in (1, 2, 255, 256, 257, 511, 512):
        words = b"".join(maker.word().to_bytes(4, "big") for _ in range(count))
        assert arbiter.contract.read("combine", int(mode), words) == ReferenceArbiter().combine(mode, words), count
    too_many = rng.randbytes(4 * 513)
    with pytest.raises(ChainError, match="OutOfRange"):
        arbiter.contract.read("combine", int(mode), too_many)


def test_committed_vectors_are_the_references() -> None:
    assert json.loads(VECTORS.read_text()) == vectors(), "run `python -m tests.support.random_ops` and commit"
