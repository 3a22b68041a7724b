"""Writes calls of the Arbiter and of Float32, with the reference's answers, as recordings for forge.

python -m tests.support.questions FOLDER      writes one recording of each contract (tests/support/recordings.py)
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
from eth_utils import keccak
from web3 import Web3

from benchmarks.float32 import WITHOUT_LIBRARY
from lockstep.chain.contracts import Contract
from lockstep.numerics import scalar
from lockstep.numerics._native import apply_op
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.numerics.scalar import Opcode
from lockstep.protocol import merkle
from lockstep.protocol.dispute import openings
from lockstep.protocol.dispute.moves import Opening
from lockstep.protocol.dispute.openings import Known
from lockstep.protocol.errors import LockstepError
from lockstep.protocol.merkle import LEAF_BYTES
from lockstep.protocol.programs.program import CHUNK, F32, I32, PARTIALS, Fold, Instr, Kind, Tag, View
from lockstep.protocol.programs.program import Op as KindOp
from lockstep.protocol.types import Address, Digest
from tests.support import games, recordings
from tests.support.games import PlainStep
from tests.support.random_ops import SPECIAL, Maker, Question, abi, asked
from tests.support.scalar_vectors import vectors

DEPLOYER = Address("0x" + "d0" * 20)
PROGRAMS = 12
FINITE = 4
"""Number of Programs with ordinary numbers: a long fold of arbitrary words is almost always NaN."""
WORDS_PER_OP = 2_000


class Finite(Maker):
    """Draws normal deviates."""

    def word(self) -> int:
        return games.f32(self.rng.gauss(0, 2))


def spoiled(rng: random.Random, opened: tuple[Opening, ...]) -> tuple[Opening, ...]:
    """Returns the openings with one defect."""
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


def answer(question: Question) -> int | None:
    """Returns the reference's answer; None if it refuses."""
    try:
        return ReferenceArbiter().execute(*question)
    except LockstepError:
        return None


def arbiter(programs: int = PROGRAMS) -> Iterator[bytes]:
    """Yields elements of every op of random Programs, right and spoiled; combined partials; every guard."""
    at = _creation(0)
    yield recordings.creation("Arbiter.sol:Arbiter", b"", at, DEPLOYER, 0)
    contract = Contract(Web3(), Address(Web3.to_checksum_address(at)), "Arbiter")

    def ask(function: str, arguments: Any, word: int | None) -> bytes:
        output = None if word is None else word.to_bytes(32, "big")
        return recordings.call(at, contract.call(function, *arguments).data, output)

    for seed in range(programs + FINITE):
        rng, step = random.Random(seed), (Maker if seed < programs else Finite)(seed).step()
        for index, op in enumerate(step.program.ops):
            for _ in range(2):
                question = asked(rng, step, index)
                yield ask("execute", abi(question), answer(question))
                if op.kind == Kind.MAP:
                    yield from (ask(*rest) for rest in staged(step, question))
            if question[-1]:
                wrong = (*question[:-1], spoiled(rng, question[-1]))
                yield ask("execute", abi(wrong), answer(wrong))
    for mode in Fold:
        for count in (1, 2, 7, 8, 9, 16, 255, 256, 257, 264, 511, PARTIALS):
            words = b"".join(Maker(count).word().to_bytes(4, "big") for _ in range(count))
            yield ask("combine", (int(mode), words), ReferenceArbiter().combine(mode, words))
        # A fold's identity matters only where no element is greater, or less.
        for word in SPECIAL:
            words = word.to_bytes(4, "big")
            yield ask("combine", (int(mode), words), ReferenceArbiter().combine(mode, words))
    for function, arguments, error in refused():
        yield recordings.call(at, contract.call(function, *arguments).data, error, success=False)


def staged(step: PlainStep, question: Question) -> Iterator[tuple[str, Any, int | None]]:
    """Yields (function, arguments, word): stages a map's operands one by one; after each, the rest suffices."""
    (statement, index, descriptor, element, chunk, rest), reference = question, ReferenceArbiter()
    graph, known = Known(step.graph, step.program.depth), 0
    while rest:
        encoded, roots, context, at, _, opened, _ = abi((statement, index, descriptor, element, chunk, rest[:1]))
        before, known = known, reference.stage(statement, index, descriptor, element, rest[:1], known)
        yield "stage", (encoded, roots, context, at, opened, before), known
        rest = openings.build(step, graph, statement, index, element, chunk, known)
        after = (statement, index, descriptor, element, chunk, rest)
        yield "execute", abi(after, known), reference.execute(*question)


# -- guards ------------------------------------------------------------------------------------------------------------

OUT_OF_RANGE, DESCRIPTOR, DATASET, PROOF = (
    keccak(text)[:4] for text in (b"OutOfRange()", b"DescriptorInvalid()", b"DatasetInvalid()", b"ProofInvalid()")
)
OPERAND, OPENINGS, OPCODE = b"OperandNotEarlier(uint256,uint256)", b"OpeningsWrong(uint256)", b"OpUnknown(uint256)"

FOLD_MODES = len(Fold)
IOTA = View(Tag.IOTA, 0, 0, (1,))
ALONG = View(Tag.IOTA, 0, 0, (0, 1))
LEAF = View(Tag.CONST, 1, 0, (1,))
"""256 words of the constants: one leaf."""


def refused() -> Iterator[tuple[str, Any, bytes]]:
    """Yields (function, arguments, revert data): each guard of the Arbiter and its readers, broken separately."""
    step = Maker(7).step()
    rng = random.Random(7)

    def ask(
        op: KindOp | bytes, opened: tuple[Opening, ...] = (), element: int = 0, chunk: int = 0, **changed: Any
    ) -> Any:
        descriptor = op if isinstance(op, bytes) else op.encode()
        statement = replace(step.statement, **changed)
        return abi((statement, 5, descriptor, element, chunk, opened))

    add = Instr(scalar.Opcode.IADD, 0, 0)
    plain = KindOp(Kind.MAP, I32, (4,), (IOTA,), instrs=(add,))
    total = KindOp(Kind.FOLD, I32, (4,), (ALONG,), (300,), Fold.ISUM)
    drawn = next(op for op in step.program.ops if op.kind == Kind.DRAW)
    encoded = plain.encode()
    for mode, words in ((1, b""), (1, bytes(3)), (1, bytes(7)), (1, bytes(4 * (PARTIALS + 1)))):
        yield "combine", (mode, words), OUT_OF_RANGE
    yield "combine", (FOLD_MODES, bytes(4)), _error(OPCODE, FOLD_MODES)
    for wrong in (encoded[:23], encoded[:-1], encoded + b"\0", b""):
        yield "execute", ask(wrong), DESCRIPTOR
    for wrong_axes in (replace(plain, k_extents=(2,), views=(ALONG,)), replace(total, k_extents=(), views=(IOTA,))):
        yield "execute", ask(wrong_axes), DESCRIPTOR
    yield "execute", ask(plain, element=4), DESCRIPTOR
    for kind in (0, max(Kind) + 1, 255):
        yield "execute", ask(bytes([kind]) + encoded[1:]), _error(OPCODE, kind)
    for tag in (5, 255):
        yield "execute", ask(encoded[:28] + bytes([tag]) + encoded[29:]), DESCRIPTOR
    for position in (3, -1):
        context = replace(plain, views=(View(Tag.CONTEXT, 0, position, (0,)),))
        yield "execute", ask(context), OUT_OF_RANGE
    yield "execute", ask(replace(plain, views=(), instrs=())), _error(OPCODE, Kind.MAP)
    for instr in (
        Instr(scalar.Opcode.IADD, 1, 0),
        Instr(scalar.Opcode.IADD, 0, 1),
        Instr(scalar.Opcode.SELECT, 0, 0, 1),
    ):
        code = int.from_bytes(instr.encode(), "big")
        yield "execute", ask(replace(plain, instrs=(instr,))), _error(OPCODE, code)
    for opcode in (38, 64, 255):
        yield "execute", ask(replace(plain, instrs=(Instr(opcode, 0, 0),))), _error(OPCODE, opcode)
    yield "execute", ask(total, chunk=2), OUT_OF_RANGE
    yield "execute", ask(replace(total, k_extents=(0,))), OUT_OF_RANGE
    yield "execute", ask(replace(total, mode=FOLD_MODES)), _error(OPCODE, FOLD_MODES)
    yield "execute", ask(replace(total, views=())), DESCRIPTOR
    yield "execute", ask(replace(total, dtype=F32, mode=Fold.DOT)), DESCRIPTOR
    for strides in ((0, 2), (0, -1)):
        yield "execute", ask(replace(total, views=(View(Tag.CONST, 0, 0, strides),))), OUT_OF_RANGE
    yield "execute", ask(replace(total, views=(View(Tag.CONST, 0, -1, (0, 1)),))), OUT_OF_RANGE
    yield "execute", ask(replace(plain, views=(View(Tag.CONST, 0, -1, (0,)),))), OUT_OF_RANGE
    parts = KindOp(Kind.CONCAT, I32, (4,), (IOTA, IOTA), sizes=(1, 2))
    yield "execute", ask(parts, element=3), OUT_OF_RANGE
    yield "execute", ask(replace(drawn, extents=(2,))), DATASET
    yield "execute", ask(replace(drawn, extents=(2, drawn.extents[1] + 1))), DATASET
    yield "execute", ask(drawn, dataset_rows=0), DATASET
    yield "execute", ask(drawn), _error(OPENINGS, 0)
    yield "execute", ask(replace(plain, views=(LEAF,))), _error(OPENINGS, 0)

    question = asked(rng, step, step.program.ops.index(drawn))
    (row,) = question[-1]
    yield "execute", ask(drawn, (replace(row, header=row.header[:-1] + b"\0"),), *question[3:5]), DATASET
    for opened in (2, 3):
        yield "execute", ask(drawn, (row,) * opened, *question[3:5]), _error(OPENINGS, opened)
    yield from _refused_stages(ask, plain, total, drawn)
    yield from _refused_openings(step, ask, plain)


def _refused_stages(ask: Any, *ops: KindOp) -> Iterator[tuple[str, Any, bytes]]:
    """Yields invalid stagings: of an op that is not a map, or with unused openings."""
    for op in ops:
        descriptor, roots, context, element, _, opened, staged = ask(op)
        if op.kind != Kind.MAP:
            yield "stage", (descriptor, roots, context, element, opened, staged), _error(OPCODE, op.kind)
        else:
            nothing = astuple(Opening(b"", b"", (), (), 0))
            yield "stage", (descriptor, roots, context, element, [nothing], staged), _error(OPENINGS, 1)


def _refused_openings(step: PlainStep, ask: Any, plain: KindOp) -> Iterator[tuple[str, Any, bytes]]:
    """Yields invalid openings: a later op, outside of its source, at another place, or incomplete."""
    consts = step.program.consts
    whole = Opening(
        consts[1].header.encode(), consts[1].data, (), tuple(merkle.proof(step.program.consts_levels, 1)), 0
    )
    reads = replace(plain, views=(LEAF,))
    yield "execute", ask(replace(plain, views=(View(Tag.OP, 5, 0, (0,)),)), (whole,)), _error(OPERAND, 5, 5)
    yield "execute", ask(replace(plain, views=(View(Tag.OP, 6, 0, (0,)),)), (whole,)), _error(OPERAND, 6, 5)
    yield "execute", ask(replace(plain, views=(replace(LEAF, offset=256),)), (whole,)), OUT_OF_RANGE
    outside = replace(whole, leaf_index=1)
    yield "execute", ask(replace(plain, views=(replace(LEAF, offset=256),)), (outside,)), OUT_OF_RANGE
    yield "execute", ask(reads, (outside,)), OUT_OF_RANGE
    for header in (b"", b"\0", whole.header[:-1], whole.header + b"\0", whole.header[:1] + b"\2" + whole.header[2:]):
        yield "execute", ask(reads, (replace(whole, header=header),)), PROOF
    yield "execute", ask(reads, (replace(whole, leaf_proof=(Digest(bytes(32)),)),)), PROOF
    yield "execute", ask(reads, (replace(whole, root_proof=whole.root_proof[:-1]),)), PROOF
    yield "execute", ask(reads, (replace(whole, root_proof=whole.root_proof[::-1]),)), PROOF
    yield "execute", ask(reads, (whole, whole)), _error(OPENINGS, 2)
    # A leaf shared by operands is opened once; each reads inside its tensor, whatever follows in the leaf.
    both = (Instr(scalar.Opcode.IADD, 0, 1),)
    yield "execute", ask(replace(plain, views=(LEAF, LEAF), instrs=both), (whole, whole)), _error(OPENINGS, 2)
    long, roots = bytes(LEAF_BYTES), [*step.program.consts_levels[0]]
    roots[2] = Digest(merkle.tensor_root_of_tree(consts[2].header, merkle.leaf(long)))
    tree = merkle.levels(roots)
    padded = Opening(consts[2].header.encode(), long, (), tuple(merkle.proof(tree, 2)), 0)
    for at in (consts[2].header.elements, CHUNK - 1):
        views = (View(Tag.CONST, 2, 0, (0,)), View(Tag.CONST, 2, at, (0,)))
        reading = replace(plain, views=views, instrs=both)
        yield "execute", ask(reading, (padded,), consts_root=tree[-1][0]), OUT_OF_RANGE


def _error(signature: bytes, *arguments: int) -> bytes:
    """Returns the revert data of an error with integer arguments."""
    return bytes(keccak(signature)[:4]) + b"".join(int(a).to_bytes(32, "big") for a in arguments)


# -- Float32 -----------------------------------------------------------------------------------------------------------


def float32(words: int = WORDS_PER_OP) -> Iterator[bytes]:
    """Yields the harness's answers to the vectors of each operation."""
    at = _creation(0)
    yield recordings.creation("Float32Harness.sol:Float32Harness", b"", at, DEPLOYER, 0)
    selector = keccak(b"results(uint256,bytes)")[:4]
    for op in (op for op in Opcode if op not in WITHOUT_LIBRARY):
        a, b, c = vectors(op, words, seed=21)
        packed = np.stack([a, b, c], axis=1).astype(">u4").tobytes()
        due = apply_op(int(op), a, b, c).astype(">u4").tobytes()
        data = selector + int(op).to_bytes(32, "big") + (64).to_bytes(32, "big") + _padded(packed)
        yield recordings.call(at, data, (32).to_bytes(32, "big") + _padded(due))


def _padded(data: bytes) -> bytes:
    """Encodes `bytes` as in the ABI."""
    return len(data).to_bytes(32, "big") + data + bytes(-len(data) % 32)


def _creation(nonce: int) -> str:
    """Returns keccak(rlp([DEPLOYER, nonce]))[12:] for a nonce below 0x80."""
    return "0x" + keccak(b"\xd6\x94" + bytes.fromhex(DEPLOYER[2:]) + bytes([nonce or 0x80]))[12:].hex()


def write(folder: Path) -> None:
    """Writes one recording for each contract."""
    recordings.write(folder, "arbiter", arbiter())
    recordings.write(folder, "float32", float32())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
