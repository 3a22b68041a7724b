"""A job that nobody could defend: its step has a map of 33 instructions, one more than a contract evaluates."""

from __future__ import annotations

from dataclasses import replace

from lockstep.execution.jobs import JobPrograms
from lockstep.numerics.scalar import Opcode
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.program import Instr, Kind, Program
from lockstep.protocol.programs.rules import MAX_INSTRS
from lockstep.protocol.types import Digest
from lockstep.storage import ContentStore, cid_of_digest
from lockstep.storage.containers import JobSpec, encode_program
from tests.support import toyjob
from tests.support.params import amended


def step_program() -> Program:
    """The toy job's, with negations after one of its maps until there are too many; nothing else is wrong."""
    good = toyjob.step_program()
    at = next(i for i, op in enumerate(good.ops) if op.kind == Kind.MAP and op.instrs)
    op = good.ops[at]
    last = len(op.views) + len(op.instrs) - 1
    more = tuple(Instr(int(Opcode.FNEG), last + j) for j in range(MAX_INSTRS + 1 - len(op.instrs)))
    ops = (*good.ops[:at], replace(op, instrs=(*op.instrs, *more)), *good.ops[at + 1 :])
    return replace(good, ops=ops)


def schedule() -> JobPrograms:
    """The toy job's Programs, the step this one."""
    return replace(toyjob.schedule(), step=step_program())


def publish(store: ContentStore, **changes: object) -> JobParams:
    """Store the job's parts as a careless requester would."""
    params, program = toyjob.publish(store, **changes), step_program()
    spec = JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)
    spec = replace(spec, programs={**spec.programs, "step": store.put(encode_program(program))})
    store.put(spec.encode(), codec="dag-cbor")
    return amended(params, spec_digest=spec.digest, step_program=Digest(program.root))
