"""The demo's job: a byte-level GPT of 0.8 M parameters on the State of the Union, by DiLoCo or another strategy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lockstep.execution.jobs import TrainingJob
from lockstep.presets import DEVNET
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.types import Address, Seconds
from lockstep.tracing.arithmetic import FLOAT32, Arithmetic
from lockstep.training.baseline import evaluate, load_parameters, train_eager
from lockstep.training.data import Corpus, demo_corpus
from lockstep.training.export import generate
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco
from lockstep.training.strategies.base import Strategy
from lockstep.training.strategies.registry import strategy_named

MODEL = GPTConfig(vocabulary=256, context=64, layers=4, heads=4, width=128)
SPEC = diloco.DiLoCo(
    inner=AdamW(learning_rate=1e-3, restart_warmup=4),
    inner_steps=20,
    payload="int8-block",
    outer_learning_rate=0.7,
    outer_momentum=0.5,
)
"""The outer momentum: 0.9 suits long runs, but overshoots within six rounds, while 0.5 does not."""
MOST_STEPS = 20
"""H of the demo for strategies whose default is larger."""
BATCH = Batch(rows=8, row_length=MODEL.context + 1)
ROUNDS = 6
MIN_SLOTS = 2
WITNESSES = 1
"""Witnesses drawn each round: the fewest that a job with few slots needs (economics.offer)."""
AUDIT_SECONDS = Seconds(60)
PROMPT = b"The state of the Union is "
SAMPLE_BYTES = 200


@dataclass(frozen=True)
class DemoJob:
    """The demo's job, and the eager baseline to compare its result with."""

    seed: int
    slots: int
    rounds: int
    spec: Strategy
    corpus: Corpus
    arithmetic: Arithmetic = FLOAT32

    def job(self, *, aggregator: Address = ZERO_ADDRESS, witnesses: int = 0) -> TrainingJob:
        """Returns the job to submit, traced and with initial weights; if `witnesses` > 0, with as many as it needs."""
        terms = replace(DEVNET, witnesses=witnesses, audit_seconds=AUDIT_SECONDS if witnesses else DEVNET.audit_seconds)
        return training_job(
            GPT(MODEL),
            self.spec,
            self.corpus.train,
            batch=BATCH,
            rounds=self.rounds,
            slots=self.slots,
            min_slots=min(MIN_SLOTS, self.slots),
            seed=self.seed,
            aggregator=aggregator,
            terms=terms.audited(self.slots, self.spec.inner_steps),
            arithmetic=self.arithmetic,
        )

    @cached_property
    def parameters(self) -> int:
        """The model's parameters, without the padding of their tensor."""
        return sum(p.numel() for p in GPT(MODEL).parameters())

    @cached_property
    def start(self) -> NDArray[np.float32]:
        """The model's initial weights."""
        return initial_parameters(GPT(MODEL), self.seed)

    def evaluate(self, flat: NDArray[np.float32]) -> float:
        """Loss of flat parameters on held-out text by plain eager PyTorch, nats per token."""
        return evaluate(_model(flat), next_token_loss, self.corpus.held_out.rows)

    def baseline_loss(self) -> float:
        """Returns the loss of a baseline on the same text: rounds x H eager AdamW steps of one worker, from the same
        start, with the same batch and schedule."""
        model = _model(self.start)
        inner = getattr(self.spec, "inner", None)
        train_eager(
            model,
            next_token_loss,
            self.corpus.train.rows,
            inner if isinstance(inner, AdamW) else AdamW(learning_rate=1e-3),
            steps=self.rounds * self.spec.inner_steps,
            batch_rows=BATCH.rows,
            seed=self.seed,
        )
        return evaluate(model, next_token_loss, self.corpus.held_out.rows)

    def sample(self, flat: NDArray[np.float32]) -> str:
        """Returns a prompt and the text that the model writes after it."""
        return (PROMPT + generate(_model(flat), PROMPT, SAMPLE_BYTES, seed=self.seed)).decode(errors="replace")


def demo_job(
    seed: int = 0, *, slots: int = 3, spec: Strategy = SPEC, arithmetic: Arithmetic = FLOAT32
) -> DemoJob:  # fmt: skip
    """The demo's job on the speeches; `seed` fixes the first weights."""
    return DemoJob(seed, slots, ROUNDS, spec, demo_corpus(BATCH.row_length), arithmetic)


def demo_strategy(name: str, *, carry: bool = False) -> Strategy:
    """Returns the demo's strategy of that name, diloco with or without a carry; raises UsageError if there is none."""
    if name == SPEC.name:
        return replace(SPEC, carry=carry)
    made: Any = strategy_named(name)()
    return made if made.inner_steps <= MOST_STEPS else replace(made, inner_steps=MOST_STEPS)


def _model(flat: NDArray[np.float32]) -> nn.Module:
    return load_parameters(GPT(MODEL), flat)
