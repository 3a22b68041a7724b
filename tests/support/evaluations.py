"""A small evaluation for chains in tests: a GPT of one layer on rows unknown to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.execution.jobs import TrainingJob
from lockstep.storage.dataset import Dataset
from lockstep.training.baseline import load_parameters
from lockstep.training.evaluation import evaluation_job
from lockstep.training.job import Batch
from lockstep.training.models import GPT, GPTConfig
from lockstep.training.parameters import initial_parameters, layout_of
from tests.support.toyjob import TOY_TERMS

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)
BATCH, BATCHES = Batch(rows=4, row_length=CONFIG.row_length), 5
ROWS = np.random.default_rng(11).integers(0, CONFIG.vocabulary, (40, CONFIG.row_length), dtype=np.int32)


def parameters(seed: int = 1) -> np.ndarray:
    """Returns weights that are nonzero in every part."""
    flat, used = initial_parameters(GPT(CONFIG), seed), layout_of(GPT(CONFIG)).used
    flat[:used] += 0.05 * np.random.default_rng(seed).standard_normal(used).astype(np.float32)
    return flat


def model() -> GPT:
    """Returns the evaluated model."""
    loaded = load_parameters(GPT(CONFIG), parameters())
    assert isinstance(loaded, GPT)
    return loaded


def job(**changes: Any) -> TrainingJob:
    """Returns the job: loss by three slots of five batches each, of which two suffice."""
    settings = {
        "parameters": parameters(), "batch": BATCH, "batches": BATCHES, "slots": 3, "min_slots": 2, "terms": TOY_TERMS,
        **changes,
    }  # fmt: skip
    return evaluation_job(model(), Dataset(ROWS, CONFIG.vocabulary), **settings)


def added(payloads: Sequence[np.ndarray]) -> np.ndarray:
    """Sums the metrics of slots' payloads as the merge does, word for word: f32 [3]."""
    total, rest, count = (np.float32(0) for _ in range(3))
    for value, own, batches in payloads:
        new = total + value
        part = new - total
        rest = rest + (((total - (new - part)) + (value - part)) + own)
        total, count = new, count + batches
    return np.array([total, rest, count], np.float32)
