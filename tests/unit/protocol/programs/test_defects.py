"""The validator's twin: each rule is provable, where it alone is broken; a job that breaks none cannot be voided."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from lockstep.numerics import validate
from lockstep.protocol.errors import ChainError, ProgramInvalid
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Evidence, Held, Piece, ProgramParts, Subject
from lockstep.protocol.programs.program import Program
from lockstep.protocol.programs.rules import Rule
from lockstep.protocol.types import Digest
from tests.support import invalid, toyjob

CASES = invalid.cases()


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES.values()} == set(Rule) - {Rule.HOLDS}


@pytest.mark.parametrize("what", CASES)
def test_a_broken_rule_is_proven(what: str) -> None:
    case = CASES[what]
    assert defects.check(case.job.job, case.evidence) == case.rule


@pytest.mark.parametrize(("what", "case"), list(invalid.holding()), ids=lambda x: x if isinstance(x, str) else "")
def test_a_kept_rule_is_not_proven_broken(what: str, case: invalid.Case) -> None:
    assert defects.check(case.job.job, case.evidence) == Rule.HOLDS, what


@pytest.mark.sampled(64)
@pytest.mark.parametrize("what", list(invalid.OPS | invalid.OPERANDS))
def test_nothing_but_the_broken_rule_is_found(what: str) -> None:
    """The op is added to a sound Program: what else could be proven of it could be proven of a valid one."""
    case = CASES[what]
    found = {defects.check(case.job.job, e) for e in defects.every(case.job)}
    assert found == {Rule.HOLDS, case.rule}


@pytest.mark.parametrize("op", invalid.SOUND_OPS, ids=lambda op: op.kind.name)
def test_a_sound_op_in_its_place_breaks_nothing(op: object) -> None:
    case = invalid.op_case(Rule.HOLDS, op)  # type: ignore[arg-type]
    assert defects.find(case.job) is None


@pytest.mark.parametrize("codes_too", [False, True])
def test_sound_jobs_hold_under_all_evidence(codes_too: bool) -> None:
    job = invalid.sound(codes_too)
    evidence = list(invalid.everything(job))
    assert {e.subject for e in evidence} == set(Subject)
    assert [e for e in evidence if defects.check(job.job, e)] == []


def test_a_job_with_a_carry_holds_under_all_evidence() -> None:
    job = invalid.carrying()
    assert defects.find(job) is None
    assert not _refuses(job)
    swapped = replace(job, job=replace(job.job, carry=0))
    assert defects.find(swapped) is not None, "without a carry its place is EMPTY"
    assert _refuses(swapped)


@pytest.mark.parametrize(("seed", "jobs"), [(9, 300), pytest.param(10, 3_000, marks=pytest.mark.slow)])
def test_what_the_parties_refuse_is_what_can_be_proven(monkeypatch: pytest.MonkeyPatch, seed: int, jobs: int) -> None:
    """Programs with a few bytes changed: refused before joining if and only if something convicts them."""
    # An op that nobody reads is work for nobody, but can be defended: parties refuse it, no contract does.
    monkeypatch.setattr(validate, "_check_live", lambda program: None)
    dice, refused, sound = random.Random(seed), 0, 0
    while refused + sound < jobs:
        job, _ = invalid.mutant(dice)
        if any(_has_more_than_it_says(parts) for parts in job.programs):
            continue
        provable = defects.find(job) is not None
        assert provable == _refuses(job), "the party's validator and the contract's agree"
        refused, sound = refused + provable, sound + (not provable)
    assert min(refused, sound) > jobs // 20, "both kinds are met"


def _has_more_than_it_says(parts: ProgramParts) -> bool:
    """A header that counts fewer ops or constants than there are: parties refuse it, no game meets the rest."""
    if len(parts.header) < 15:
        return False
    fields = defects.HeaderFields.decode(parts.header)
    return fields.n < len(parts.descriptors) or fields.n_consts < len(parts.consts)


def _refuses(job: Held) -> bool:
    try:
        programs = [Program.decode(p.header, p.descriptors, p.consts) for p in job.programs]
        validate.check_programs(programs[0], programs[1], programs[2], job.job)
    except ProgramInvalid:
        return True
    return False


@pytest.mark.parametrize("carry", [0, 1])
def test_the_toy_job_cannot_be_voided(carry: int) -> None:
    programs = toyjob.schedule(carry=bool(carry))
    parts = (ProgramParts.of(programs.step), ProgramParts.of(programs.encode), ProgramParts.of(programs.merge))
    roots = dict(zip(("step_program", "encode_program", "merge_program"), (p.root for p in parts), strict=True))
    job = replace(invalid.sound().job, row_length=toyjob.TERMS, slots=toyjob.SLOTS, **roots)
    job = replace(job, payload_depth=carry, carry=carry)
    assert defects.find(Held(job, parts)) is None


# -- evidence that is none ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "evidence", "error"), [row[1:] for row in invalid.refused()], ids=[row[0] for row in invalid.refused()]
)
def test_evidence_of_something_else_is_refused(job: Held, evidence: Evidence, error: str) -> None:
    with pytest.raises(ChainError, match=error):
        defects.check(job.job, evidence)


def test_a_descriptor_that_is_not_the_programs_is_refused() -> None:
    job, evidence = invalid.an_op()
    spoiled = bytearray(evidence.pieces[0].data)
    spoiled[2] = 9
    with pytest.raises(ChainError, match="ProofInvalid"):
        defects.check(job.job, replace(evidence, pieces=(replace(evidence.pieces[0], data=bytes(spoiled)),)))


def test_a_proof_of_another_depth_is_refused() -> None:
    job, evidence = invalid.an_op()
    longer = (*evidence.pieces[0].proof, Digest(bytes(32)))
    with pytest.raises(ChainError, match="ProofInvalid"):
        defects.check(job.job, replace(evidence, pieces=(replace(evidence.pieces[0], proof=longer),)))


def test_a_tensor_shown_by_its_root_alone_breaks_nothing() -> None:
    """The header of a genesis tensor must be shown before it can be another one."""
    job = invalid.sound()
    evidence = next(e for e in invalid.everything(job) if e.subject == Subject.GENESIS)
    whole = evidence.pieces[0]
    root = Digest(invalid.merkle.tensor_root_of_tree(*invalid.SHARED[0]))  # type: ignore[misc]
    assert defects.check(job.job, replace(evidence, pieces=(Piece(b"", root, whole.proof),))) == Rule.HOLDS


@pytest.mark.parametrize("elements", [1, 255, 256, 257, 1024, 2_561, 1 << 20, (1 << 20) + 1])
def test_zero_tensors_are_those_of_zeros(elements: int) -> None:
    header = invalid.TensorHeader(0, (elements,))
    assert defects.zero_tensor(header) == invalid.merkle.tensor_root(0, (elements,), bytes(4 * elements))


def test_committed_vectors_are_the_twins() -> None:
    assert json.loads(invalid.VECTORS.read_text()) == invalid.vectors(), (
        "run `python -m tests.support.invalid` and commit"
    )
