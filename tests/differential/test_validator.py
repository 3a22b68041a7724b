"""Validator.sol against its twin: every vector, and random bytes in the Programs of a sound job."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain import artifacts
from lockstep.chain.contracts import Contract
from lockstep.chain.devnet import Devnet
from lockstep.execution.invalidity import proof
from lockstep.protocol.errors import ChainError
from lockstep.protocol.jobs import JobStatus
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.rules import Rule
from lockstep.protocol.types import Address, JobId
from tests.support import invalid
from tests.support.arena import Arena, Terms, params_of
from tests.support.params import amended

pytestmark = pytest.mark.chain

MUTANTS = 150


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Contract]:
    with Devnet(tmp_path_factory.mktemp("anvil"), block_seconds=0) as devnet:
        compiled = artifacts.load("Validator")
        sender = devnet.account("deployer").address
        devnet.w3.provider.make_request("anvil_impersonateAccount", [sender])  # type: ignore[arg-type]
        factory = devnet.w3.eth.contract(abi=compiled.abi, bytecode=compiled.bytecode)
        hash_ = factory.constructor(sender).transact({"from": sender})
        receipt = devnet.w3.eth.wait_for_transaction_receipt(hash_)
        yield Contract(devnet.w3, Address(receipt["contractAddress"] or ""), "Validator")


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    arena = Arena.start(tmp_path_factory.mktemp("chain"))
    yield arena
    arena.stop()


def job_of(court: Arena, held: defects.Held) -> JobId:
    """A job on chain with the parameters that rules read."""
    court.jobs += 1
    step, encode, merge = invalid.step_program(), invalid.encode_program(), invalid.merge_program()
    job = held.job
    terms = Terms(step, encode, merge, job.dataset_root, job.dataset_rows, job.row_length, job.genesis_shared,
                  job.genesis_outer, job.zero_carry, job.shared_depth, job.payload_depth, 1)  # type: ignore[arg-type] # fmt: skip
    named = {name: getattr(job, name) for name in defects.JOB_FIELDS if name != "carry"}
    named["carry_period"] = job.carry
    params = amended(params_of(terms, job.slots), **named)
    court.send(court.contracts.market.create(params, court.jobs, params.escrow), court.worker)
    return court.last_job()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["33 instructions", "a view beyond the end", "STEP_OUT entry 4", "a flat dataset"])
def test_proven_job_is_void_for_good_and_pays_its_prover(court: Arena, what: str) -> None:
    case, contracts, me = invalid.cases()[what], court.contracts, Address(court.challenger.address)
    job = job_of(court, case.job)
    prove = contracts.validator.prove_invalid(job, case.evidence)
    with pytest.raises(ChainError, match="NotCommitted"):
        court.send(prove, court.challenger)
    for _ in range(2):
        court.send(proof(contracts.validator, me, job, case.evidence)[1], court.challenger)
    with pytest.raises(ChainError, match="NotCommitted"):
        court.send(prove, court.worker)
    stored = contracts.market.job(job)
    assert (stored.status, stored.prover) == (JobStatus.VOID, court.challenger.address)
    with pytest.raises(ChainError, match="WrongJobStatus"):
        court.send(prove, court.challenger)
    with pytest.raises(ChainError, match="WrongJobStatus"):
        court.send(contracts.market.start_round(job, 0), court.worker)
    before = contracts.vault.credits(Address(court.challenger.address))
    court.send(contracts.market.finish(job), court.worker)
    params = contracts.market.params(job)
    gained = contracts.vault.credits(Address(court.challenger.address)) - before
    assert gained == params.deposit * 30 // 100, "30 % of what nobody who worked is owed"


def test_sound_job_stands_and_another_jobs_evidence_is_none_of_its_own(court: Arena) -> None:
    sound, contracts = invalid.sound(), court.contracts
    job = job_of(court, sound)
    tried = dict.fromkeys(list(invalid.everything(sound))[::20], "RuleHolds")
    tried[invalid.cases()["33 instructions"].evidence] = "ProofInvalid"
    for evidence, refusal in tried.items():
        me = Address(court.challenger.address)
        court.send(proof(contracts.validator, me, job, evidence)[1], court.challenger)
        court.devnet.mine(1)
        with pytest.raises(ChainError, match=refusal):
            court.send(proof(contracts.validator, me, job, evidence)[1], court.challenger)
    assert contracts.market.job(job).status == JobStatus.ACTIVE


def on_chain(contract: Contract, *arguments: Any) -> int | str:
    """The rule, or the name of the revert."""
    try:
        return int(contract.read("check", *arguments))
    except ChainError as error:
        return error.code


def twin(job: defects.JobFacts, evidence: defects.Evidence) -> int | str:
    try:
        return int(defects.check(job, evidence))
    except ChainError as error:
        return error.code


def test_every_vector_gives_its_rule(contract: Contract, vectors: Path) -> None:
    for vector in json.loads((vectors / "validator.json").read_text()):
        assert on_chain(contract, vector["job"], vector["evidence"]) == vector["rule"], vector["name"]


def test_evidence_of_what_the_job_has_not_is_refused_for_the_same_reason(contract: Contract) -> None:
    for what, job, evidence, error in invalid.refused():
        assert on_chain(contract, defects.abi_job(job.job), evidence.abi()) == f"chain.{error}", what


@pytest.mark.slow
def test_random_bytes_break_the_same_rule_on_both_sides(contract: Contract) -> None:
    dice, seen = random.Random(41), Counter[int | str]()
    for _ in range(MUTANTS):
        job, near = invalid.mutant(dice)
        for evidence in near:
            expected = twin(job.job, evidence)
            seen[expected] += 1
            assert on_chain(contract, defects.abi_job(job.job), evidence.abi()) == expected, evidence
    assert len(seen) > 20, f"many rules are broken: {seen}"
    assert seen[Rule.HOLDS] > MUTANTS / 2


def test_evidence_of_something_else_is_refused_by_both(contract: Contract) -> None:
    dice, seen = random.Random(42), Counter[int | str]()
    job = invalid.sound()
    evidence = list(invalid.everything(job))
    for _ in range(300):
        a, b = dice.choice(evidence), dice.choice(evidence)
        mixed = defects.Evidence(
            a.subject, b.program, dice.choice((a.index, b.index)), dice.choice((a.at, b.at, 1)), a.code,
            dice.choice((a.other, b.other, b.code)), dice.choice((a.pieces, b.pieces, (*a.pieces, *b.pieces), ())),
        )  # fmt: skip
        expected = twin(job.job, mixed)
        seen[expected] += 1
        assert on_chain(contract, defects.abi_job(job.job), mixed.abi()) == expected, mixed
    assert {"chain.EvidenceWrong", "chain.ProofInvalid", 0} == set(seen), "a sound job is never voided"
