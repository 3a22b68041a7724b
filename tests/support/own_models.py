"""User-defined models as jobs: running statistics that a step writes, unrolled recurrences, a single matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from lockstep.execution.jobs import TrainingJob
from lockstep.presets import Terms
from lockstep.storage.dataset import Dataset
from lockstep.training.job import Batch, training_job
from lockstep.training.losses import Model
from lockstep.training.models import MODELS, ModelKind, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.strategies import diloco
from lockstep.training.strategies.base import Strategy
from tests.adversarial.court import LONG
from tests.support.toyjob import TOY_TERMS

VOCABULARY, TOKENS, STEPS = 16, 6, 3
TERMS: Terms = replace(TOY_TERMS, **{k: v for k, v in LONG.items() if k != "rounds"})


@dataclass(frozen=True)
class NormedConfig:
    """Shape of `Normed`."""

    width: int = 24
    momentum: float = 0.25


class Normed(nn.Module):
    """Embedding, batch norm (Ioffe and Szegedy 2015), scores."""

    def __init__(self, config: NormedConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(VOCABULARY, config.width)
        self.inner = nn.Linear(config.width, config.width)
        self.norm = nn.BatchNorm1d(config.width, momentum=config.momentum)
        self.head = nn.Linear(config.width, VOCABULARY)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Maps rows [B, T] to scores [B, T, V]."""
        inner: torch.Tensor = self.inner(self.table(rows))
        return self.head(torch.relu(self.norm(inner.transpose(1, 2)).transpose(1, 2)))


@dataclass(frozen=True)
class RecurrentConfig:
    """The shape of `Recurrent`."""

    cell: str = "lstm"
    width: int = 12
    normed: bool = False
    """True if a batch norm follows."""


class Recurrent(nn.Module):
    """Embedding, LSTM (Hochreiter and Schmidhuber 1997) or GRU (Cho 2014), scores."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(VOCABULARY, config.width)
        self.cells = {"lstm": nn.LSTM, "gru": nn.GRU}[config.cell](config.width, config.width, batch_first=True)
        self.norm = nn.BatchNorm1d(config.width, momentum=0.25) if config.normed else nn.Identity()
        self.head = nn.Linear(config.width, VOCABULARY)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Maps rows [B, T] to scores [B, T, V]."""
        made: torch.Tensor = self.cells(self.table(rows))[0]
        return self.head(self.norm(made.transpose(1, 2)).transpose(1, 2) if self.config.normed else made)


@dataclass(frozen=True)
class SpareConfig:
    """The shape of `Spare`."""

    width: int = 24


class Spare(nn.Module):
    """Embedding, scores, and a layer whose result is unused."""

    def __init__(self, config: SpareConfig) -> None:
        super().__init__()
        self.config = config
        self.table = nn.Embedding(VOCABULARY, config.width)
        self.spare = nn.Linear(config.width, config.width + 1)
        self.head = nn.Linear(config.width, VOCABULARY)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Maps rows [B, T] to scores [B, T, V]."""
        return self.head(self.table(rows))


@dataclass(frozen=True)
class MatrixConfig:
    """The shape of `Matrix`."""

    rows: int
    columns: int


class Matrix(nn.Module):
    """A single matrix, in the order of its flat tensor."""

    def __init__(self, config: MatrixConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.rows, config.columns))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns the matrix for rows [B, T]."""
        return self.weight


def squared_distance(model: Model, rows: torch.Tensor) -> torch.Tensor:
    """Returns the mean square distance of the matrix from the mean token."""
    return (model(rows) - rows.to(torch.float32).mean()).square().mean()


@contextmanager
def registered() -> Iterator[None]:
    """Registers these kinds in `MODELS` within the block."""
    own = {
        "normed": ModelKind(NormedConfig, Normed, lambda model: next_token_loss),
        "recurrent": ModelKind(RecurrentConfig, Recurrent, lambda model: next_token_loss),
        "spare": ModelKind(SpareConfig, Spare, lambda model: next_token_loss),
        "matrix": ModelKind(MatrixConfig, Matrix, lambda model: squared_distance),
    }
    MODELS.update(own)
    try:
        yield
    finally:
        for name in own:
            del MODELS[name]


def normed() -> Normed:
    """Returns a model with reproducible weights."""
    torch.manual_seed(11)
    return Normed(NormedConfig())


def spare() -> Spare:
    """Returns a model with reproducible weights."""
    torch.manual_seed(11)
    return Spare(SpareConfig())


def recurrent(cell: str, *, normed: bool = False) -> Recurrent:
    """Returns a model with reproducible weights."""
    torch.manual_seed(11)
    return Recurrent(RecurrentConfig(cell, normed=normed))


def scanned() -> nn.Module:
    """Returns a small Mamba (Gu and Dao 2023), whose selective scan torch unrolls."""
    import transformers

    from benchmarks.small_models import found

    torch.manual_seed(11)
    model: nn.Module = found(transformers.MambaForCausalLM, "causal").model.eval()
    return model


def rows(tokens: int = TOKENS) -> np.ndarray:
    """Returns i32 [40, T + 1], in which each token determines the next."""
    first = np.random.default_rng(4).integers(0, VOCABULARY, (40, 1))
    return ((first + 5 * np.arange(tokens + 1)) % VOCABULARY).astype(np.int32)


def job(model: nn.Module, strategy: Strategy | None = None, tokens: int = TOKENS, **changes: Any) -> TrainingJob:
    """Returns a job of one round, three slots and STEPS steps on `rows`."""
    spec = strategy or diloco.DiLoCo(inner=AdamW(learning_rate=1e-2, warmup=1), inner_steps=STEPS)
    settings = {
        "batch": Batch(4, tokens + 1), "rounds": 1, "slots": 3, "min_slots": 2, "terms": TERMS, **changes,
    }  # fmt: skip
    with registered():
        return training_job(model, spec, Dataset(rows(tokens), VOCABULARY), **settings)
