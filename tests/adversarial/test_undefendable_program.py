"""Undefendable Program: a requester's trap. Honest parties do not join; whoever did is paid from the deposit."""

from dataclasses import replace

import pytest

from lockstep.execution import jobs
from lockstep.execution.invalidity import proof
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.programs.defects import Held, ProgramParts, find, job_of
from lockstep.protocol.programs.program import Op, Program, Tag, View
from lockstep.protocol.types import Digest
from lockstep.storage.containers import JobSpec, encode_program
from tests.adversarial.cheat import Cheat, Ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import named, with_op
from tests.support import toyjob
from tests.support.params import amended


def later_operand(program: Program) -> Program:
    """An op that reads its own output: the defender would have to open what does not exist yet."""
    index = named(program, "squares")
    op = program.ops[index]
    return with_op(program, index, replace(op, views=(View(Tag.OP, index, 0, op.views[0].strides),)))


def too_many_instructions(program: Program) -> Program:
    """A map that no block has the gas for."""
    index = named(program, "squares")
    op = program.ops[index]
    return with_op(program, index, replace(op, instrs=op.instrs * 33))


def out_of_range(program: Program) -> Program:
    """A view beyond the end of its tensor."""
    index = named(program, "squares")
    op = program.ops[index]
    return with_op(program, index, replace(op, views=(replace(op.views[0], offset=1), *op.views[1:])))


def miscounted(program: Program) -> Program:
    """Descriptors whose running sum of elements is off."""
    index = named(program, "clip")
    op: Op = program.ops[index]
    return with_op(program, index, replace(op, cumulative=op.cumulative + 1))


def play(court: Court, trap, about: str) -> Ended:  # type: ignore[no-untyped-def]
    court.forget()
    programs = toyjob.schedule()
    made = trap(programs.step)
    court.submit(step_program=Digest(made.root))
    with pytest.raises(ProgramInvalid):
        check(court, made)
    # Three careless workers join all the same.
    court.seal()
    held = Held(
        job_of(court.params), (ProgramParts.of(made), ProgramParts.of(programs.encode), ProgramParts.of(programs.merge))
    )
    evidence, rule = find(held) or (None, None)
    assert evidence is not None
    assert rule is not None
    _, commit = proof(court.contracts.validator, court.address("verifier"), court.job_id, evidence)
    court.send(commit, "verifier")
    _, prove = proof(court.contracts.validator, court.address("verifier"), court.job_id, evidence)
    # The proof is in the mempool: who copies it is refused, also with a commitment of the same block.
    assert court.refused(prove, "mallory") == "NotCommitted"
    court.send(prove, "verifier")
    assert court.refused(court.contracts.market.leave(court.job_id, 0, 0), "worker-0") == "WrongPhase"
    court.settle_void("verifier")
    return Ended(
        "void",
        Where(op=named(made, about), rule=evidence.subject.name),
        Where(op=evidence.index, rule=evidence.subject.name),
    )


def check(court: Court, made: Program) -> None:
    """What every honest party does before it joins."""
    cids = {name: court.store.put(encode_program(p)) for name, p in (
        ("step", made), ("encode", toyjob.encode_program_of()), ("merge", toyjob.merge_program()))}  # fmt: skip
    spec = JobSpec.decode(court.store.fetch_block(jobs.cid_of_digest(court.params.spec.digest, "dag-cbor")))
    spec = replace(spec, programs=cids)
    court.store.put(spec.encode(), codec="dag-cbor")
    jobs.load(court.job_id, amended(court.params, spec_digest=spec.digest), court.store)


CHEAT = Cheat(
    "undefendable Program", "void",
    {
        "an operand that is not earlier": lambda court: play(court, later_operand, "squares"),
        "33 instructions": lambda court: play(court, too_many_instructions, "squares"),
        "a view out of range": lambda court: play(court, out_of_range, "squares"),
        "elements miscounted": lambda court: play(court, miscounted, "clip"),
    },
)  # fmt: skip


@pytest.mark.parametrize("form", CHEAT.forms)
def test_a_job_that_could_not_be_defended_is_void_and_its_workers_are_paid(court: Court, form: str) -> None:
    run(court, CHEAT, form)
