"""The demo's job, simulated in one process: no chain, no liars, every float by the Programs."""

from __future__ import annotations

import numpy as np
import pytest

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Kind
from lockstep.training import demo_job
from lockstep.training.demo import MOST_STEPS, demo_strategy
from lockstep.training.strategies.registry import STRATEGIES


@pytest.fixture(scope="module")
def demo():
    return demo_job(seed=0)


@pytest.fixture(scope="module")
def job(demo):
    return demo.job()


@pytest.mark.slow
def test_step_fits_a_tree_of_depth_nine(job) -> None:
    assert len(job.programs.step.ops) <= 350
    assert job.programs.step.depth == 9
    assert len(job.programs.encode.ops) <= 8
    assert len(job.programs.merge.ops) <= 8


@pytest.mark.slow
def test_programs_keep_every_rule_of_the_validator(job) -> None:
    for program in (job.programs.step, job.programs.encode, job.programs.merge):
        validate(program)


@pytest.mark.slow
def test_some_folds_have_several_chunks_and_one_has_two_levels(job) -> None:
    terms = [op.k_terms for op in job.programs.step.ops if op.kind == Kind.FOLD]
    assert sum(256 < k <= 65_536 for k in terms) >= 10
    assert sum(k > 65_536 for k in terms) == 1


def test_layouts_of_the_three_programs_agree(job) -> None:
    step, encode, merge = job.programs.step, job.programs.encode, job.programs.merge
    assert step.inputs == step.output_layout == encode.inputs
    half = len(merge.inputs) // 2
    assert merge.inputs[:4] == merge.output_layout
    assert list(merge.inputs[half : half + job.slots]) == [encode.output_layout[0]] * job.slots


def train(job) -> np.ndarray:
    """Every round of the job, three honest slots."""
    step, encode, merge = (compile(p) for p in (job.programs.step, job.programs.encode, job.programs.merge))
    (base,), (momentum,), rows = job.genesis.shared, job.genesis.outer, job.dataset.rows
    zero, half = np.zeros_like(base), len(job.programs.merge.inputs) // 4
    for round_ in range(job.rounds):
        seed, payloads = bytes([round_]) * 32, []
        for slot in range(job.slots):
            state = [base, None, base, None, zero, zero, np.array(round_ * job.inner_steps, np.int32), None]
            for t in range(1, job.inner_steps + 1):
                state = list(step.run(state, StepContext(seed, round_, slot, t), rows))
            payloads.append(encode.run(state, StepContext(seed, round_, slot, job.inner_steps + 1), rows)[0])
        before = [base, None, momentum, None, *[None] * (2 * half - 4), *payloads, *[None] * (half - job.slots)]
        mask = np.ones(job.slots, np.float32)
        after = merge.run([*before, mask, *[None] * (half - 1)], StepContext(seed, round_, 0xFFFFFFFF, 1))
        base, momentum = after[0], after[2]
    return base


@pytest.mark.slow
def test_three_workers_reach_what_one_machine_reaches(demo, job) -> None:
    first, last, baseline = demo.evaluate(demo.start), demo.evaluate(train(job)), demo.baseline_loss()
    assert first == pytest.approx(np.log(256), abs=0.1), "a fresh model knows nothing"
    assert last <= baseline + 0.05, (last, baseline)
    text = demo.sample(demo.start)
    assert text.startswith("The state of the Union is ")


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_demo_takes_every_strategy_with_rounds_of_its_length(name: str) -> None:
    spec = demo_strategy(name)
    assert spec.to_dict()["name"] == name
    assert 1 <= spec.inner_steps <= MOST_STEPS
    with pytest.raises(UsageError) as refused:
        demo_strategy(name + "x")
    assert name in refused.value.hint
