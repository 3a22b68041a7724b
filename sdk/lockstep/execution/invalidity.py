"""Evidence, for the contract `Validator`, that a job cannot be defended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.execution import jobs
from lockstep.protocol.errors import ProgramInvalid
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Evidence, Held, ProgramParts
from lockstep.protocol.programs.rules import Rule
from lockstep.storage import cid_of_digest
from lockstep.storage.containers import JobSpec, load_parts

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call, Validator
    from lockstep.execution.footprint import Fits
    from lockstep.execution.jobs import Job
    from lockstep.protocol.jobs import JobParams
    from lockstep.protocol.types import Address, JobId
    from lockstep.storage import ContentStore


class Undefendable(ProgramInvalid):
    """A Program breaks a rule; the error has the evidence that voids its job."""

    def __init__(self, error: ProgramInvalid, evidence: Evidence, rule: Rule) -> None:
        super().__init__(error.message, error.hint)
        self.evidence = evidence
        self.rule = rule


def load(
    job_id: JobId,
    params: JobParams,
    store: ContentStore,
    threads: int = 1,
    path: str = "auto",
    *,
    fits: Fits | None = None,
) -> Job:
    """Loads a job as `jobs.load`; raises Undefendable for a Program that breaks a provable rule."""
    try:
        return jobs.load(job_id, params, store, threads, path, fits=fits)
    except ProgramInvalid as error:
        shown = proven(error, params, store)
        if shown is error:
            raise
        raise shown from error


def proven(error: ProgramInvalid, params: JobParams, store: ContentStore) -> ProgramInvalid:
    """Returns the error as Undefendable if there is evidence, else unchanged."""
    found = evidence_against(params, store)
    return error if found is None else Undefendable(error, *found)


def proof(validator: Validator, me: Address, job_id: JobId, evidence: Evidence) -> tuple[str, Call]:
    """Returns (key, next transaction) to void a job: the commitment to the proof and, once that is mined, the proof. A
    copy of the proof from the mempool therefore earns nothing."""
    prove = validator.prove_invalid(job_id, evidence)
    commit = validator.committed(me, [prove])
    return (f"void/{job_id.hex()}", prove) if commit is None else (f"commit/void/{job_id.hex()}", commit)


def evidence_against(params: JobParams, store: ContentStore) -> tuple[Evidence, Rule] | None:
    """Returns evidence that a job's Programs break a rule, with the rule; None if they break none.

    Raises the store's errors, and Mismatch if its Programs are not those that the job names.
    """
    spec = JobSpec.decode(store.fetch_block(cid_of_digest(params.spec.digest, "dag-cbor")), params.spec.digest)
    step, encode, merge = (
        _parts(store, spec, name, root)
        for name, root in zip(
            defects.NAMES, (params.role.step_program, params.role.encode_program, params.merge.program), strict=True
        )
    )
    return defects.find(Held(defects.job_of(params), (step, encode, merge)))


def _parts(store: ContentStore, spec: JobSpec, name: str, root: bytes) -> ProgramParts:
    if name not in spec.programs:
        raise ProgramInvalid(
            f"the spec names Programs {sorted(spec.programs)}", hint="it must name step, encode and merge"
        )
    return load_parts(store, spec.programs[name], root)
