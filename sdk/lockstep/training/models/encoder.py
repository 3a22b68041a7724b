"""An encoder with a masked-LM head: post-norm, bidirectional (Devlin 2018, sections 3 and A.1).

The last token of the vocabulary is the mask. Shapes: B rows, T positions, C width, H heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.losses import Model, RandomLoss, logits


@dataclass(frozen=True)
class EncoderConfig:
    """The shape of an encoder; `config.json` of an exported model."""

    vocabulary: int = 257
    """V: the data's tokens, then the mask."""
    context: int = 64
    """T: context length, in tokens."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    """C."""
    epsilon: float = 1e-12
    """Epsilon of LayerNorm."""

    def __post_init__(self) -> None:
        if min(self.vocabulary, self.context, self.layers, self.heads, self.width) < 1:
            raise UsageError(f"{self} has a size below 1", "use sizes of at least 1")
        if self.width % self.heads:
            raise UsageError(f"width {self.width} does not divide into {self.heads} heads", "make it a multiple")
        if not 2 <= self.vocabulary <= 1 << 15:
            raise UsageError(f"vocabulary is {self.vocabulary}", "use 2 (one token and the mask) to 2^15")

    @property
    def row_length(self) -> int:
        """Tokens of a dataset row, equal to the context: inputs and targets are the same tokens."""
        return self.context


class Attention(nn.Module):
    """Bidirectional self-attention."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.proj = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        B, T, C = x_BTC.shape
        q_BHTD, k_BHTD, v_BHTD = (
            part(x_BTC).view(B, T, self.heads, C // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD)
        return self.proj(y_BHTD.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """Attention, then a feed-forward network four times as wide, each with a residual and a norm behind it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attn = Attention(config)
        self.norm1 = nn.LayerNorm(config.width, config.epsilon)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width, config.epsilon)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x_BTC = self.norm1(x_BTC + self.attn(x_BTC))
        return self.norm2(x_BTC + self.down(F.gelu(self.up(x_BTC))))


class Encoder(nn.Module):
    """A bidirectional encoder: maps tokens, some of them masked, to logits for each position."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.norm = nn.LayerNorm(config.width, config.epsilon)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.transform = nn.Linear(config.width, config.width)
        self.head_norm = nn.LayerNorm(config.width, config.epsilon)
        self.head = nn.Linear(config.width, config.vocabulary)
        self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """i64 [B, T] -> f32 [B, T, V]; T <= context."""
        x_BTC = self.norm(self.tokens(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]])
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.head_norm(F.gelu(self.transform(x_BTC))))

    def initial_scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of a weight."""
        return 0.02


_CHOSEN = round(0.15 * (1 << 16))
_MASKED, _REPLACED = round(0.8 * (1 << 15)), round(0.9 * (1 << 15))


def corrupted(tokens_BT: Tensor, words_BTK: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """(inputs i64 [B, T], chosen bool [B, T]): of 15 % chosen tokens 80 % become the mask, 10 % any token, 10 % stay.

    Devlin 2018, section A.1. Of the two words of a token the first decides, the second is the token put in its place.
    """
    first, second = words_BTK.unbind(-1)
    chosen = (first & 0xFFFF) < _CHOSEN
    what = (first >> 16) & 0x7FFF
    any_token = (second & 0xFFFF) * (vocabulary - 1) >> 16
    swapped = torch.where(what < _REPLACED, any_token, tokens_BT)
    put = torch.where(what < _MASKED, vocabulary - 1, swapped)
    return torch.where(chosen, put, tokens_BT), chosen


def masked_token_loss(vocabulary: int) -> RandomLoss:
    """Mean cross-entropy, nats per chosen token, of predicting what stood there."""

    def value(model: Model, rows_BT: Tensor, words_BTK: Tensor) -> Tensor:
        inputs_BT, chosen_BT = corrupted(rows_BT, words_BTK, vocabulary)
        logits_BTV = logits(model(inputs_BT))
        each = F.cross_entropy(logits_BTV.reshape(-1, vocabulary), rows_BT.reshape(-1).long(), reduction="none")
        counted = chosen_BT.reshape(-1).to(torch.float32)
        return (each * counted).sum() / counted.sum().clamp(min=1.0)

    return RandomLoss(value, words=2)
