"""A GPT: pre-norm decoder with learned positions (Radford 2019, section 2.3).

Shapes: B rows, T positions, C width, H heads, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.losses import Model, logits


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT; `config.json` of an exported model."""

    vocabulary: int = 256
    context: int = 64
    """T: context length, in tokens."""
    layers: int = 4
    heads: int = 4
    width: int = 128
    """C."""
    tied: bool = True
    """The head is the token embedding, transposed."""
    gelu: str = "tanh"
    """"tanh" or "none" (by erf)."""
    bias: bool = False
    """True: linear layers and norms have biases."""

    def __post_init__(self) -> None:
        if min(self.vocabulary, self.context, self.layers, self.heads, self.width) < 1:
            raise UsageError(f"{self} has a size below 1", "use sizes of at least 1")
        if self.width % self.heads:
            raise UsageError(f"width {self.width} does not divide into {self.heads} heads", "make it a multiple")
        if self.gelu not in ("tanh", "none"):
            raise UsageError(f"no GELU is called {self.gelu!r}", 'use "tanh" or "none"')

    @property
    def row_length(self) -> int:
        """Tokens of a dataset row: inputs and the last target."""
        return self.context + 1


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.proj = nn.Linear(config.width, config.width, bias=config.bias)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        B, T, C = x_BTC.shape
        parts = self.qkv(x_BTC).split(C, dim=2)
        q_BHTD, k_BHTD, v_BHTD = (p.view(B, T, self.heads, C // self.heads).transpose(1, 2) for p in parts)
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        return self.proj(y_BHTD.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    """Attention, then a feed-forward network four times as wide, each around a residual."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, bias=config.bias)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.width, bias=config.bias)
        self.up = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.down = nn.Linear(4 * config.width, config.width, bias=config.bias)
        self.gelu = nn.GELU(approximate=config.gelu)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x_BTC = x_BTC + self.attn(self.norm1(x_BTC))
        return x_BTC + self.down(self.gelu(self.up(self.norm2(x_BTC))))


class GPT(nn.Module):
    """Maps tokens to the logits of the next token."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=config.bias)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """i64 [B, T] -> f32 [B, T, V]; T <= context."""
        x_BTC = self.tokens(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.norm(x_BTC))

    def initial_scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of a weight; residual projections shrink with depth (Radford 2019, 2.3)."""
        return 0.02 / (2 * self.config.layers) ** 0.5 if name.endswith(("proj.weight", "down.weight")) else 0.02


def next_token_loss(model: Model, rows_BL: Tensor) -> Tensor:
    """Mean cross-entropy, nats per token, of predicting each of the last L - 1 tokens from those before it."""
    logits_BTV = logits(model(rows_BL[:, :-1]))
    return F.cross_entropy(logits_BTV.reshape(-1, logits_BTV.shape[-1]), rows_BL[:, 1:].reshape(-1).long())
