"""The false challenger: its step differs from the honest one in one place, and the contract would not agree with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.demo.cheats.challenges import InventedStep, challenger_of, place_of
from lockstep.execution.jobs import Job, slot_run
from lockstep.market.held import HeldClaim
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import DisputedClaim, MoveRefused
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import NO_STATE, Body
from lockstep.protocol.programs.program import CHUNK
from lockstep.protocol.types import ClaimId, ProgramRoot, TensorRoot, TraceRoot
from lockstep.storage.directory import DirectoryStore
from tests.support import games, toyjob


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return toyjob.load(DirectoryStore(tmp_path_factory.mktemp("toy")))


def held_pair(job: Job, seed: int) -> tuple[HeldClaim, HeldClaim]:
    """(honest, invented) of slot 0."""
    run = slot_run(job, job.genesis, toyjob.SEED, 0, 0)
    truth = HeldClaim.of(run)
    step = InventedStep(run.materialise(1, run.start), place_of(job.programs, seed))
    lie = HeldClaim(run, [step.root, *truth.trace[1:]])
    lie.keep(1, step)
    return truth, lie


def claim_of(job: Job, held: HeldClaim) -> DisputedClaim:
    p = job.params
    body = Body(TraceRoot(honest.trace_levels(held.trace)[-1][0]), NO_STATE, NO_STATE)
    return DisputedClaim(
        ClaimId(b"\7" * 32), games.WORKER, len(held.trace), body,
        held.state_zero, ProgramRoot(p.role.step_program), ProgramRoot(p.role.encode_program), toyjob.SEED, 0, 0,
        TensorRoot(p.role.dataset_root), p.role.dataset_rows, p.role.row_length,
        p.windows.clock_seconds, p.windows.step_seconds, p.prices.bond,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_false_challenger_comes_to_a_proof_that_proves_nothing(job: Job, seed: int) -> None:
    truth, lie = held_pair(job, seed)
    place = place_of(job.programs, seed)
    match = games.Match(claim_of(job, truth), ReferenceArbiter())
    opening = honest.opening(match.claim, lie, truth.trace, 0)
    assert opening is not None
    assert opening.t == 1
    refused: list[tuple[str, int]] = []

    def attacks(state: Any, log: Any) -> moves.Move | None:
        move = honest.point(state, log, lie)
        if isinstance(move, moves.ProveOp):
            with pytest.raises(MoveRefused) as raised:
                match.play(move, games.CHALLENGER)
            at = CHUNK * state.position + move.chunk if state.phase == moves.GamePhase.ELEMENT else state.position
            refused.append((raised.value.rule, at))
            return None
        return move

    ended = match.run(opening, games.defends(truth), attacks)
    assert ended.verdict is Verdict.REJECTED
    assert match.log[-1] == ended
    assert refused == [("EqualBits", place.element)]
    assert match.finding is None


def test_lies_of_a_verifier_are_for_devnets_alone() -> None:
    party = SimpleNamespace(addresses=SimpleNamespace(chain_id=1))
    with pytest.raises(UsageError, match="refuse chain 1"):
        challenger_of(0)(party)


def test_place_follows_from_the_seed(job: Job) -> None:
    places = [place_of(job.programs, seed) for seed in range(30)]
    assert places == [place_of(job.programs, seed) for seed in range(30)]
    assert len({p.op_index for p in places}) > 5
    assert any(p.chunk for p in places), "some aim at a later chunk of a fold"
