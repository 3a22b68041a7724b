"""Proofs that a job cannot be defended. Twin of contracts/Validator.sol's `proveInvalid`.

protocol/programs/rules.py has the rules; protocol/programs/defects.py opens the parts of a job that break one.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.protocol.market import precommitted, verdicts
from lockstep.protocol.market.state import Draft
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import MERGE, Evidence, Subject
from lockstep.protocol.programs.rules import Rule
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, Digest, JobId


def prove_invalid(d: Draft, sender: Address, job: JobId, evidence: Evidence) -> None:
    """Voids a job by evidence that it breaks a rule."""
    precommitted.require_committed(d, "Validator", sender)
    p = d.params[job]
    if p is None:
        # Nothing hashes to the roots of a job that does not exist, so no evidence passes for one.
        opens = evidence.pieces if evidence.subject == Subject.DATASET else evidence.program <= MERGE
        raise revert("ProofInvalid" if opens else "EvidenceWrong")
    rule = defects.check(defects.job_of(p), evidence)
    # INVARIANT: a job is void by a rule that it breaks, and by nothing else.
    if rule == Rule.HOLDS:
        raise revert("RuleHolds")

    d.emit("Validator", "Invalid", job, sender, rule, evidence.subject, evidence.program, evidence.index)

    verdicts.on_invalid(d, d.at.validator, job, sender)


def commit(d: Draft, sender: Address, digests: Sequence[Digest]) -> None:
    """Commits to calls of `prove_invalid`."""
    precommitted.commit(d, "Validator", digests)
