"""Evaluations: Programs of forward passes alone, whose sums are eager PyTorch's losses on the same rows."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.execution.jobs import subtree_root
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.trace import tensor_root
from lockstep.numerics.validate import check_programs
from lockstep.protocol import merkle
from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Held, ProgramParts
from lockstep.protocol.programs.program import Alias
from lockstep.storage.dataset import Dataset
from lockstep.training.baseline import Sample, flat_parameters, load_parameters
from lockstep.training.evaluation import build_programs, evaluation_job
from lockstep.training.job import Batch, training_job
from lockstep.training.metrics import MAX_BATCHES, EvaluationSpec, read_metrics
from lockstep.training.models import GPT, MODELS, Encoder, GPTConfig, Llama, loss_of, next_token_loss
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco
from tests.support import invalid

from .test_models import ENCODER_SMALL, GPT_SMALL, LLAMA_SMALL, rows, small

pytestmark = pytest.mark.usefixtures("traced_once")
SEED = bytes(range(32))
ROUND, SLOT, H = 1, 2, 6
EAGER = [("gpt", 1), ("gpt", 2), ("llama", 1), ("encoder", 1), ("encoder", 2)]


def started(model: nn.Module) -> nn.Module:
    """With weights that predict something."""
    flat = initial_parameters(model, 1)
    return load_parameters(model, flat + 0.1 * np.random.default_rng(0).standard_normal(flat.size).astype(np.float32))


def job_of(name: str, **changes: Any) -> Any:
    model, length = small(name)
    settings = {"batch": Batch(4, length), "batches": H, "rounds": 2, "slots": 3, "min_slots": 1, **changes}
    return evaluation_job(model, Dataset(rows(length), 256), parameters=flat_parameters(model), **settings)


def slot_after(programs: Any, flat: np.ndarray, data: np.ndarray, steps: int = H) -> list[Any]:
    """The state of slot 2 in round 1 after its steps."""
    state = [flat, flat, np.zeros(2, np.float32), np.array(ROUND * H, np.int32)]
    executable = compile(programs.step)
    for t in range(1, steps + 1):
        state = list(executable.run(state, StepContext(SEED, ROUND, SLOT, t), data))
    return state


# --- what is claimed is eager PyTorch's loss --------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "accumulation"), EAGER)
def test_the_payload_is_the_sum_of_eager_pytorch_s_losses_on_the_same_rows(name: str, accumulation: int) -> None:
    model, length = {
        "gpt": (GPT(GPT_SMALL), 17), "llama": (Llama(LLAMA_SMALL), 17), "encoder": (Encoder(ENCODER_SMALL), 16),
    }[name]  # fmt: skip
    model, data, batch = started(model), rows(length), Batch(4, length, accumulation)
    flat = flat_parameters(model)
    programs = build_programs(model, loss_of(model), batch=batch, batches=H, rounds=2, slots=3)
    state = slot_after(programs, flat, data)
    payload, nothing = compile(programs.encode).run(state, StepContext(SEED, ROUND, SLOT, H + 1), data)
    sample = Sample(data, batch, SEED, ROUND, SLOT)
    with torch.no_grad():
        eager = [float(sample.value(model, loss_of(model), t)) for t in range(1, H + 1)]
    assert np.ptp(eager) > 1e-3, "every batch is another one"
    found = read_metrics([payload], programs.step, EvaluationSpec(loss_of(model) is next_token_loss))
    assert found.loss == pytest.approx(np.mean(eager), rel=1e-5)
    assert (found.batches, found.rows, nothing) == (H, H * 4 * accumulation, None)
    assert found.perplexity == (None if name == "encoder" else pytest.approx(math.exp(np.mean(eager)), rel=1e-4))


def test_a_step_changes_the_sum_and_the_clock_alone() -> None:
    programs = job_of("gpt").programs
    assert [programs.step.outputs[k] for k in (0, 1)] == [Alias(Alias.STATE_KIND, k) for k in (0, 1)]
    assert programs.merge.outputs[0] == Alias(Alias.STATE_KIND, 0), "the base goes on as it is"
    flat = flat_parameters(small("gpt")[0])
    state = slot_after(programs, flat, rows(17), steps=2)
    assert int(state[3]) == ROUND * H + 2


def test_what_rounding_takes_of_the_sum_is_kept_in_its_rest() -> None:
    model, data = started(GPT(GPT_SMALL)), rows(17)
    flat, steps = flat_parameters(model), 40
    step = compile(build_programs(model, next_token_loss, batch=Batch(1, 17), batches=steps, rounds=1, slots=1).step)
    state = [flat, flat, np.zeros(2, np.float32), np.array(0, np.int32)]
    losses, plain = [], np.float32(0)
    for t in range(1, steps + 1):
        context = StepContext(SEED, 0, 0, t)
        alone = step.run([flat, flat, np.zeros(2, np.float32), np.array(0, np.int32)], context, data)[2]
        assert alone[1] == 0, "nothing is lost of the first"
        losses.append(float(alone[0]))
        plain += alone[0]
        state = list(step.run(state, context, data))
    exact = math.fsum(losses)
    assert plain != np.float32(exact), "a plain sum has lost digits by now"
    assert float(state[2][0]) + float(state[2][1]) == pytest.approx(exact, rel=2**-40)
    assert state[2][0] == plain, "the sum is the one that anybody would add up"


# --- merges -----------------------------------------------------------------------------------------------------------


def merged(program: Any, metrics: Any, payloads: list[Any], mask: list[int]) -> Any:
    half = len(program.inputs) // 4
    flat = np.arange(program.inputs[0].elements, dtype=np.float32)
    state = [flat, np.array(metrics, np.float32), *[None] * (2 * half - 2)]
    state += [np.array(p, np.float32) for p in payloads] + [None] * (half - len(payloads))
    state += [np.array(mask, np.float32), *[None] * (half - 1)]
    base, outer = compile(program).run(state, StepContext(SEED, ROUND, 0xFFFFFFFF, 1))
    assert base.tobytes() == flat.tobytes()
    return outer


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("slots", "mask"), [(1, [1]), (1, [0]), (2, [1, 1]), (3, [1, 0, 1]), (5, [0, 1, 1, 0, 1]), (3, [0, 0, 0])]
)
def test_a_merge_adds_the_accepted_slots_to_the_rounds_before(slots: int, mask: list[int]) -> None:
    program = job_of("mlp", slots=slots).programs.merge
    random = np.random.default_rng(slots)
    before = [np.float32(1000.1), np.float32(3e-5), 300]
    # What is masked out must not count, whatever it holds.
    payloads = [[random.uniform(1, 20), random.normal() * 1e-6, H] if m else [math.nan] * 3 for m in mask]
    outer = merged(program, before, payloads, mask)
    heard = [np.array(p, np.float32) for p, m in zip(payloads, mask, strict=True) if m]
    exact = math.fsum(float(x) for words in (before, *heard) for x in words[:2])
    assert float(outer[0]) + float(outer[1]) == pytest.approx(exact, rel=2**-40)
    assert outer[2] == 300 + H * sum(mask)


# --- the job ----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", list(MODELS))
def test_an_evaluation_could_be_defended_and_not_be_voided(name: str, slots: int) -> None:
    job = job_of(name, slots=slots)
    step, encode, merge = (ProgramParts.of(p) for p in (job.programs.step, job.programs.encode, job.programs.merge))
    params = replace(
        invalid.sound().job, step_program=step.root, encode_program=encode.root, merge_program=merge.root,
        slots=slots, shared_depth=job.shared_depth, payload_depth=job.payload_depth, row_length=job.dataset.row_tokens,
    )  # fmt: skip
    check_programs(job.programs.step, job.programs.encode, job.programs.merge, params)
    assert defects.find(Held(params, (step, encode, merge))) is None


def test_the_step_computes_what_training_computes_on_the_way_forward() -> None:
    """No op kind, mode or function that a training step of the same model does not have as well."""
    model, length = small("gpt")
    trained = training_job(
        model, diloco.DiLoCo(carry=True), Dataset(rows(length), 256), batch=Batch(4, length), rounds=1, slots=2,
        min_slots=1,
    )  # fmt: skip
    ours, theirs = job_of("gpt").programs.step, trained.programs.step
    assert {(op.kind, op.mode) for op in ours.ops} <= {(op.kind, op.mode) for op in theirs.ops}
    assert {i.op for op in ours.ops for i in op.instrs} <= {i.op for op in theirs.ops for i in op.instrs}
    assert len(ours.ops) < len(theirs.ops) / 2


def test_its_base_is_the_root_of_the_checkpoint_lifted_to_its_own_depth() -> None:
    """Whoever holds both roots sees that the model which was evaluated is the one that another job has trained."""
    model, length = small("gpt")
    trained = training_job(
        model, diloco.DiLoCo(carry=True), Dataset(rows(length), 256), batch=Batch(4, length), rounds=1, slots=2,
        min_slots=1,
    )  # fmt: skip
    (flat,) = trained.genesis.shared
    job = evaluation_job(
        model, Dataset(rows(length), 256), parameters=flat, batch=Batch(4, length), batches=H, slots=2, min_slots=1
    )
    theirs = subtree_root(trained.programs.merge.output_layout[trained.sections.shared], trained.genesis.shared)
    ours = subtree_root(job.programs.merge.output_layout[:1], job.genesis.shared)
    assert ours == tensor_root(flat)
    assert merkle.lift(ours, 0, trained.shared_depth) == theirs


def test_dropout_is_off_and_the_model_stays_as_it_was() -> None:
    class Forgetful(GPT):
        """A GPT with dropout behind its head."""

        def __init__(self) -> None:
            super().__init__(GPT_SMALL)
            self.drop = nn.Dropout(0.5)

        def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
            """Logits, some of them dropped."""
            return self.drop(super().forward(tokens_BT))

    model, plain = Forgetful().train(), GPT(GPT_SMALL)
    model.blocks[0].eval()
    flags = [m.training for m in model.modules()]
    settings = {"batch": Batch(2, 17), "batches": 1, "rounds": 1, "slots": 1}
    programs = build_programs(model, next_token_loss, **settings)
    assert [m.training for m in model.modules()] == flags
    expected = build_programs(plain, next_token_loss, **settings)
    assert programs.step.root == expected.step.root


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"slots": 0, "min_slots": 0}, "slots"),
        ({"batches": 0}, "batches is 0"),
        ({"min_slots": 4}, "slots"),
        ({"slots": 65}, "65"),
        ({"batches": 1 << 24, "rounds": 2}, "16777216"),
        ({"batches": MAX_BATCHES // 6 + 1}, "batches"),
        ({"batch": Batch(2, 9)}, "rows have"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as refused:
        job_of("mlp", **changes)
    assert refused.value.hint


@pytest.mark.sampled(1)
@pytest.mark.parametrize("parameters", [np.zeros(7, np.float32), np.zeros(7), np.zeros((1, 7), np.float32)])
def test_parameters_of_another_model_are_refused(parameters: np.ndarray) -> None:
    model, length = small("mlp")
    settings = {"batch": Batch(4, length), "batches": 1, "slots": 1, "min_slots": 1}
    with pytest.raises(UsageError, match="parameters"):
        evaluation_job(model, Dataset(rows(length), 256), parameters=parameters, **settings)


def test_a_loss_of_ones_own_is_measured_and_has_no_perplexity() -> None:
    def squared(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        return (model(tokens[:, :-1]) ** 2).mean()

    model = started(GPT(GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)))
    data, batch = rows(17), Batch(3, 17)
    job = evaluation_job(
        model, Dataset(data, 32), parameters=flat_parameters(model), batch=batch, batches=1, slots=1, min_slots=1,
        loss=squared,
    )  # fmt: skip
    spec = EvaluationSpec.of(job.strategy)
    assert spec == EvaluationSpec(next_token=False)
    state = slot_after(job.programs, job.genesis.shared[0], data, steps=1)
    payload = compile(job.programs.encode).run(state, StepContext(SEED, ROUND, SLOT, 2), data)[0]
    with torch.no_grad():
        due = Sample(data, batch, SEED, ROUND, SLOT).value(model, squared, 1)
    found = read_metrics([payload], job.programs.step, spec)
    assert (found.loss, found.perplexity) == (pytest.approx(float(due), rel=1e-5), None)


# --- what a merge's words mean ----------------------------------------------------------------------------------------

SPEC = EvaluationSpec(next_token=True)


@cache
def step_of_eight_rows() -> Any:
    return job_of("mlp", batch=Batch(4, 17, accumulation=2)).programs.step


def read(*given: float) -> Any:
    return read_metrics([np.array(given, np.float32)], step_of_eight_rows(), SPEC)


def test_words_are_read_as_a_mean_of_batches() -> None:
    found = read(10, 0.5, 4)
    assert (found.loss, found.batches, found.rows) == (2.625, 4, 32)
    assert found.perplexity == pytest.approx(math.exp(2.625))


def test_a_loss_that_is_no_number_is_told_as_it_is() -> None:
    assert read(math.inf, math.nan, 4).loss == math.inf
    assert read(4000, 0, 4).perplexity == math.inf
    for words in ((math.nan, math.nan, 4), (0, 0, 0)):
        assert math.isnan(read(*words).loss)
        assert math.isnan(read(*words).perplexity)


@pytest.mark.parametrize("words", [[1, 2], [1, 2, 3, 4], [1, 0, 2.5], [1, 0, -1], [1, 0, math.nan], [1, 0, math.inf]])
def test_words_that_are_no_metrics_are_refused(words: list[float]) -> None:
    with pytest.raises(PayloadInvalid, match="no metrics"):
        read(*words)


def test_a_job_that_trains_has_no_metrics() -> None:
    assert EvaluationSpec.of(SPEC.to_dict()) == SPEC
    with pytest.raises(UsageError, match="diloco"):
        EvaluationSpec.of(diloco.DiLoCo().to_dict())
    for outer in ((), (np.zeros(3, np.float32),) * 2, (np.zeros(3, np.int32),)):
        with pytest.raises(PayloadInvalid, match="no metrics"):
            read_metrics(outer, step_of_eight_rows(), SPEC)
