"""Contract and client that disagree, by mutation: one of the two computes other bits, and a check says so beforehand.

A client that is off would lose its stake: its self-check refuses to claim. A contract that is off would convict the
honest: the same elements, executed by the deployed bytecode before anything is staked, differ from the client's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from lockstep.chain.contracts import Contract
from lockstep.node.player import HeldClaim
from lockstep.numerics.scalar import Op as Code
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.dispute import openings
from lockstep.protocol.dispute.openings import Known
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.programs.program import CHUNK, F32, HEAD_BYTES, Instr, Kind, Program
from lockstep.protocol.types import Step, TensorRoot
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import at, by_program, lying
from tests.support.random_ops import abi
from tests.support.toyjob import STEPS

GAS = 5_000_000
MUTANTS = 400
"""Bytes of the Arbiter's code that are tried before one mutant answers otherwise instead of not at all."""

SWAPS = {0x01: 0x03, 0x03: 0x01, 0x10: 0x11, 0x11: 0x10, 0x16: 0x17, 0x17: 0x16, 0x1B: 0x1C, 0x1C: 0x1B}
"""add sub, lt gt, and or, shl shr."""


def off(honest: Program) -> Program:
    """A kernel whose maps of floats come out one ulp high."""
    ops = []
    for op in honest.ops:
        if op.kind == Kind.MAP and op.dtype == F32 and op.instrs:
            last = len(op.views) + len(op.instrs) - 1
            op = replace(op, instrs=(*op.instrs, Instr(Code.IMM, imm=1), Instr(Code.IADD, last, last + 1)))
        ops.append(op)
    return replace(honest, ops=tuple(ops))


def client(court: Court) -> Ended:
    """A build whose kernels are off computes a claim, and refuses to make it."""
    wrong = lying(court.run(0), at(range(1, STEPS + 2), by_program(off)))
    with pytest.raises(DoctorError, match="self-check"):
        court.compute(wrong)
    assert court.contracts.market.claim(court.contracts.market.claim_id_of(court.job_id, 0, 0)).status.name == "JOINED"
    return Ended("refused", Where(rule="self-check"), Where(rule="self-check"))


def contract(court: Court) -> Ended:
    """A deployment whose Arbiter is off by one opcode gives other words for an honest step's elements."""
    held = HeldClaim.of(court.run(0))
    step, statement = held.whole(1), statement_of(court, held)
    arbiter = court.contracts.addresses.arbiter
    sound = bytes(court.devnet.w3.eth.get_code(arbiter))
    assert list(disagreements(court, step, statement, sound)) == [], "the deployed Arbiter computes our bits"
    found = None
    for code in mutants(sound):
        found = next(disagreements(court, step, statement, code), None)
        if found is not None:
            break
    assert found is not None, "no mutant answered otherwise"
    return Ended("refused", Where(t=1), Where(1, found))


def statement_of(court: Court, held: HeldClaim) -> Statement:
    """What would be argued about step 1."""
    step, params = held.step(1), court.params
    program = step.program
    return Statement(
        held.state_zero, step.graph[-1][0], program.ops_root, program.consts_root, TensorRoot(params.role.dataset_root),
        held.run.seed, params.role.dataset_rows, params.role.row_length, 0, 0, Step(1), program.root,
        program.header[:HEAD_BYTES],
    )  # fmt: skip


def mutants(code: bytes) -> Iterator[bytes]:
    """The bytecode with one opcode swapped, constants of PUSH left alone."""
    places, at_byte = [], 0
    while at_byte < len(code):
        if code[at_byte] in SWAPS:
            places.append(at_byte)
        at_byte += 1 + (code[at_byte] - 0x5F if 0x60 <= code[at_byte] <= 0x7F else 0)
    for place in Random(4).sample(places, min(MUTANTS, len(places))):
        yield code[:place] + bytes([SWAPS[code[place]]]) + code[place + 1 :]


def disagreements(court: Court, step: StepTrace, statement: Statement, code: bytes) -> Iterator[int]:
    """Ops of which `code` in the Arbiter's place computes another word than the client; reverts say nothing."""
    from web3.exceptions import ContractLogicError, Web3RPCError

    contract = Contract(court.devnet.w3, court.contracts.addresses.arbiter, "Arbiter")
    graph = Known(step.graph, step.program.depth)
    for index, op in enumerate(step.program.ops):
        element = op.header.elements // 2
        chunked = op.kind == Kind.FOLD and op.k_terms > CHUNK
        expected = step.partials(index, element)[0] if chunked else int(step.output(index).words[element])
        opened = openings.build(step, graph, statement, index, element, 0)
        call = contract.call("execute", *abi((statement, index, step.program.descriptors[index], element, 0, opened)))
        try:
            answer = court.devnet.w3.eth.call(
                {"to": call.to, "data": call.data, "gas": GAS}, "latest", {call.to: {"code": "0x" + code.hex()}}
            )  # type: ignore[arg-type, typeddict-item]
        except (ContractLogicError, Web3RPCError):
            continue
        if len(answer) == 32 and int.from_bytes(answer, "big") != expected:
            yield index


CHEAT = Cheat(
    "contract and client that disagree", "refused", {"a mutated client": client, "a mutated contract": contract}
)


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_disagreement_is_noticed_before_anybody_claims(court: Court, form: str) -> None:
    run(court, CHEAT, form)
