"""The average of a job's weights over its merges, in the outer state."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.storage.dataset import Dataset
from lockstep.storage.payload import Checkpoint
from lockstep.training.averages import AverageSpec
from lockstep.training.describe import refuse_wrong
from lockstep.training.job import Batch, training_job
from lockstep.training.rehearsal import Rehearsal
from lockstep.training.strategies import diloco, fedavg
from lockstep.training.strategies.base import Strategy
from tests.unit.training.test_written import ROWS, CentredNet, squares

ROUNDS, DECAY = 2, 0.75


def job_of(model: nn.Module, spec: Strategy, ema: float = DECAY):
    return training_job(
        model, spec, Dataset(ROWS, 64), batch=Batch(4, 8), loss=squares, rounds=ROUNDS, slots=2, min_slots=1, ema=ema
    )


SPECS = {"with a momentum": diloco.DiLoCo(inner_steps=2), "alone": fedavg.FedAvg(inner_steps=2)}


def centred() -> nn.Module:
    torch.manual_seed(0)
    return CentredNet()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SPECS)
def test_merges_average_the_weights_and_leave_the_buffers(name: str) -> None:
    job = job_of(centred(), SPECS[name])
    rehearsal, found = Rehearsal(job), AverageSpec.of(job.strategy)
    state = rehearsal.first()
    due = state.checkpoint.shared[0]
    for _ in range(ROUNDS):
        state = rehearsal.next(state)
        due = np.float32(DECAY) * due + np.float32(1 - DECAY) * state.checkpoint.shared[0]
    averaged, buffers = found.weights(state.checkpoint)
    np.testing.assert_allclose(averaged, due, rtol=1e-6, atol=1e-8)
    assert not np.array_equal(averaged, state.checkpoint.shared[0])
    assert np.array_equal(buffers, state.checkpoint.shared[1])
    assert found.outer == len(state.checkpoint.outer) - 1


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_training_goes_on_as_without_an_average(name: str) -> None:
    job, plain = job_of(centred(), SPECS[name]), job_of(centred(), SPECS[name], 0.0)
    assert "average" not in plain.strategy
    for program in ("step", "encode"):
        assert getattr(job.programs, program).root == getattr(plain.programs, program).root, program
    mine, theirs = (r.next(r.next(r.first())).checkpoint for r in (Rehearsal(job), Rehearsal(plain)))
    assert all(np.array_equal(a, b) for a, b in zip(mine.shared, theirs.shared, strict=True))
    assert len(mine.outer) == len(theirs.outer) + 1


def test_place_of_an_average_is_checked() -> None:
    shared, outer = (np.zeros(256, np.float32),), (np.ones(256, np.float32),)
    assert AverageSpec(0.9, 0, 1).weights(Checkpoint(shared, outer))[0][0] == 1
    for spec in (AverageSpec(0.9, 1, 1), AverageSpec(0.9, 0, 2)):
        with pytest.raises(PayloadInvalid, match="lacks its spec's average"):
            spec.weights(Checkpoint(shared, outer))
    for wrong in (3, {}, {"outer": -1, "tensors": 1}, {"outer": True, "tensors": 1}):
        with pytest.raises(PayloadInvalid, match="the spec's average"):
            AverageSpec.of({"average": wrong})
    with pytest.raises(UsageError, match="keeps no average") as caught:
        AverageSpec.of({"name": "diloco"})
    assert "ema = " in caught.value.hint


def test_decay_is_one(tmp_path: Path) -> None:
    for wrong in (1.0, -0.5, float("nan")):
        with pytest.raises(UsageError, match="ema is"):
            job_of(CentredNet(), diloco.DiLoCo(inner_steps=2), wrong)
    with pytest.raises(UsageError, match="ema is"):
        refuse_wrong({"texts": str(tmp_path), "ema": "0.9"})
    refuse_wrong({"texts": str(tmp_path), "ema": 0.9})
