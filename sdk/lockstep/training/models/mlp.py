"""A small multilayer perceptron over token rows: the shortest model that has every part of a job."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class MLPConfig:
    """The shape of an MLP that predicts each token from the one before."""

    vocabulary: int = 16
    width: int = 16


class MLP(nn.Module):
    """Token to the logits of the next token, through one hidden layer."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.hidden = nn.Linear(config.width, config.width)
        self.head = nn.Linear(config.width, config.vocabulary)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """i64 [B, T] -> f32 [B, T, V]."""
        return self.head(self.hidden(self.tokens(tokens_BT)).tanh())

    def initial_scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of a weight."""
        return 0.1
