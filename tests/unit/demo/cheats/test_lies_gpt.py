"""Lies about a traced GPT: the places that are chosen by looking at a real Program."""

from random import Random

import numpy as np
import pytest

from lockstep.demo.cheats.lies import OF_SLOTS, learning_rate
from lockstep.demo.run import CARRY_CHEATS, INDEX_CHEATS, INTEGER_CHEATS
from lockstep.execution.jobs import ClaimRun, Job, TrainingJob, slot_run
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.program import Fold, Kind
from lockstep.storage.dataset import Dataset
from tests.support import toyjob
from tests.support.params import amended

pytestmark = pytest.mark.slow


TOLD = [
    (products, name)
    for products in ("float32", "int8")
    for name in OF_SLOTS
    if name not in ("silent", "two-signatures", *CARRY_CHEATS, *INDEX_CHEATS)
    and (products == "int8" or name not in INTEGER_CHEATS)
]


@pytest.fixture(scope="module", params=["float32", "int8"])
def gpt(request: pytest.FixtureRequest) -> tuple[TrainingJob, JobParams]:
    """One layer, 512 tokens a step: gradients are sums of two chunks."""
    from lockstep.tracing.arithmetic import Arithmetic
    from lockstep.training.job import Batch, training_job
    from lockstep.training.models import GPT, GPTConfig
    from lockstep.training.optimizers import AdamW
    from lockstep.training.strategies import diloco

    config = GPTConfig(vocabulary=64, context=32, layers=1, heads=2, width=32)
    rows = np.random.default_rng(0).integers(0, 64, (100, 33), dtype=np.int32)
    job = training_job(
        GPT(config), diloco.DiLoCo(inner=AdamW(), inner_steps=4), Dataset(rows, 64),
        batch=Batch(rows=16, row_length=33), rounds=2, slots=3, min_slots=2, seed=0,
        arithmetic=Arithmetic(request.param),
    )  # fmt: skip
    return job, job_params(job)


def job_params(job: TrainingJob) -> JobParams:
    """Only what shapes a claim; nothing of it reaches a chain here."""
    any_job = toyjob_params()
    return amended(
        any_job, shared_depth=job.shared_depth, payload_depth=job.payload_depth, inner_steps=job.inner_steps,
        slots=job.slots, dataset_rows=job.dataset.row_count, row_length=job.dataset.row_tokens,
    )  # fmt: skip


def toyjob_params() -> JobParams:
    import tempfile
    from pathlib import Path

    from lockstep.storage.directory import DirectoryStore

    with tempfile.TemporaryDirectory() as folder:
        return toyjob.publish(DirectoryStore(Path(folder)))


@pytest.fixture(scope="module")
def run(gpt: tuple[TrainingJob, JobParams]) -> ClaimRun:
    job, params = gpt
    whole = Job(toyjob.ID, params, None, job.programs, job.dataset.rows, job.genesis)  # type: ignore[arg-type]
    return slot_run(whole, whole.genesis, toyjob.SEED, 0, 1)


@pytest.mark.parametrize(("gpt", "name"), TOLD, indirect=["gpt"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_lie_about_a_gpt_begins_where_it_was_declared(
    name: str, seed: int, run: ClaimRun, gpt: tuple[TrainingJob, JobParams]
) -> None:
    job, params = gpt
    cheat = OF_SLOTS[name](job.programs, params, Random(seed))
    expected = cheat.expectation
    for round_ in range(4):
        honest = slot_run(run.job, run.job.genesis, toyjob.SEED, round_, 1)
        lying, state = cheat.run(honest), honest.state_before(expected.step)
        truth, lie = honest.materialise(expected.step, state), lying.materialise(expected.step, state)
        # One ulp may be rounded away: then the next round is lied about.
        if truth.root != lie.root:
            break
    ops = [i for i, (a, b) in enumerate(zip(truth.roots, lie.roots, strict=True)) if a != b]
    assert ops[0] == expected.op_index
    assert truth.root != lie.root, "the state tells"
    assert lying.root(expected.step, lying.advance(expected.step, state)) == lie.root


def test_a_word_of_a_gradient_is_what_an_ulp_is_taken_from(gpt: tuple[TrainingJob, JobParams]) -> None:
    job, params = gpt
    for seed in range(8):
        expected = OF_SLOTS["one-ulp"](job.programs, params, Random(seed)).expectation
        assert expected.op_index is not None
        op = job.programs.step.ops[expected.op_index]
        assert (op.kind, op.mode in (Fold.DOT, Fold.SUM, Fold.QDOT)) == (Kind.FOLD, True)
        assert expected.chunk is not None
        assert 0 < expected.chunk < op.chunks, "a later chunk"
        assert op.is_qdot or op.chunks == 2, "of two"


def test_a_wrong_learning_rate_changes_one_column_of_the_table(gpt: tuple[TrainingJob, JobParams]) -> None:
    job, params = gpt
    cheat = OF_SLOTS["wrong-lr"](job.programs, params, Random(0))
    table = learning_rate(job.programs.step, params)
    honest, lie = (np.frombuffer(p.consts[table].data, "<f4") for p in (job.programs.step, cheat.forgeries[1].program))
    changed = np.flatnonzero(honest != lie)
    np.testing.assert_allclose(lie[changed], 1.5 * honest[changed], rtol=1e-6)
    assert len(changed) == len(honest) // 3, "rates alone: not decays, not bias corrections"
    assert np.all(honest[changed] < 0.1)
