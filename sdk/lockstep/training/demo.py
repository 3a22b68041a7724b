"""The demo's job: a byte-level GPT of 0.8 M parameters on the State of the Union, by DiLoCo."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.storage.dataset import Dataset
from lockstep.storage.payload import Checkpoint
from lockstep.training.baseline import evaluate, load_parameters, train_eager
from lockstep.training.data import demo_corpus
from lockstep.training.job import PAYLOAD_DEPTH, SHARED_DEPTH, Batch, Programs, build_programs
from lockstep.training.models import GPT, GPTConfig, build_model, describe, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco

MODEL = GPTConfig(vocabulary=256, context=64, layers=4, heads=4, width=128)
SPEC = diloco.Spec(
    inner=AdamW(learning_rate=1e-3),
    inner_steps=20,
    outer_learning_rate=0.7,
    outer_momentum=0.5,
)
BATCH = Batch(rows=8, row_length=MODEL.context + 1)
ROUNDS = 6
SLOTS = 3
MIN_SLOTS = 2


@dataclass(frozen=True)
class DemoJob:
    """Everything that a requester submits, and what its result is compared with."""

    programs: Programs
    dataset: Dataset
    """To train on."""
    held_out: Dataset
    genesis: Checkpoint
    model: dict[str, Any]
    """config.json."""
    parameters: tuple[dict[str, Any], ...]
    """{name, offset, shape} of each parameter."""
    strategy: dict[str, Any]
    spec: diloco.Spec = field(repr=False)
    inner_steps: int = SPEC.inner_steps
    rounds: int = ROUNDS
    slots: int = SLOTS
    min_slots: int = MIN_SLOTS
    shared_depth: int = SHARED_DEPTH
    payload_depth: int = PAYLOAD_DEPTH
    batch: Batch = BATCH
    seed: int = 0

    def loss(self, flat: np.ndarray) -> float:
        """Held-out loss of a checkpoint's parameters by plain eager PyTorch, nats per token."""
        return evaluate(load_parameters(build_model(self.model), flat), next_token_loss, self.held_out.rows)

    def baseline_loss(self) -> float:
        """Held-out loss after rounds x H eager AdamW steps from the same start with one worker's batch."""
        model = load_parameters(build_model(self.model), self.genesis.shared[0])
        train_eager(
            model,
            next_token_loss,
            self.dataset.rows,
            self.spec.inner,
            steps=self.rounds * self.inner_steps,
            batch_rows=self.batch.rows,
            seed=self.seed,
        )
        return evaluate(model, next_token_loss, self.held_out.rows)


def demo_job(seed: int = 0, *, folder: Path | None = None, spec: diloco.Spec = SPEC, rounds: int = ROUNDS) -> DemoJob:
    """The demo's job; `seed` fixes the first weights, `folder` holds the speeches (default: found by itself)."""
    corpus = demo_corpus(BATCH.row_length, folder)
    model = GPT(MODEL)
    flat = initial_parameters(model, seed)
    programs = build_programs(model, next_token_loss, spec, batch=BATCH, rounds=rounds, slots=SLOTS)
    return DemoJob(
        programs=programs,
        dataset=corpus.train,
        held_out=corpus.held_out,
        genesis=Checkpoint((flat,), (np.zeros_like(flat),)),
        model=describe(model),
        parameters=tuple(programs.layout.describe()),
        strategy=spec.to_dict(),
        spec=spec,
        inner_steps=spec.inner_steps,
        rounds=rounds,
        seed=seed,
    )
