"""A job that could not be defended: its step has a map with 33 instructions, one more than the contract evaluates."""

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
    """Returns the toy job's step with negations added after a map until there are too many; everything else is
    valid.
    """
    good = toyjob.step_program()
    at = next(i for i, op in enumerate(good.ops) if op.kind == Kind.MAP and op.instrs)
    op = good.ops[at]
    last = len(op.views) + len(op.instrs) - 1
    more = tuple(Instr(int(Opcode.FNEG), last + j) for j in range(MAX_INSTRS + 1 - len(op.instrs)))
    ops = (*good.ops[:at], replace(op, instrs=(*op.instrs, *more)), *good.ops[at + 1 :])
    return replace(good, ops=ops)


def schedule() -> JobPrograms:
    """Returns the toy job's Programs with this step."""
    return replace(toyjob.schedule(), step=step_program())


def publish(store: ContentStore, **changes: object) -> JobParams:
    """Stores the job's parts, as a careless requester would; returns its parameters."""
    params, program = toyjob.publish(store, **changes), step_program()
    spec = JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)
    spec = replace(spec, programs={**spec.programs, "step": store.put(encode_program(program))})
    store.put(spec.encode(), codec="dag-cbor")
    return amended(params, spec_digest=spec.digest, step_program=Digest(program.root))
