"""A Llama: RMSNorm, rotary positions, SwiGLU, grouped-query attention (Touvron 2023, section 2.2; Llama 2, A.2.1).

Parameters are those of `LlamaForCausalLM` in `transformers`, which keeps all but the head under `model.`; so are their
meanings, the rotation of the two halves of a head among them. Shapes: B rows, T positions, C width, H heads, G key and
value heads, D = C / H, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a Llama; `config.json` of an exported model."""

    vocabulary: int = 256
    context: int = 64
    """T: context length, in tokens."""
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    """G: each serves heads / kv_heads queries (Ainslie 2023, section 2.2)."""
    width: int = 128
    """C."""
    hidden: int = 344
    """Width of the feed-forward network: 8/3 of `width` makes it as large as a GPT's."""
    tied: bool = False
    """The head is the token embedding, transposed."""
    theta: float = 10000.0
    """Base of the rotations' wavelengths."""
    epsilon: float = 1e-5
    """Epsilon of RMSNorm."""

    def __post_init__(self) -> None:
        sizes = (self.vocabulary, self.context, self.layers, self.heads, self.kv_heads, self.width, self.hidden)
        if min(sizes) < 1:
            raise UsageError(f"{self} has a size below 1", "use sizes of at least 1")
        if self.width % (2 * self.heads):
            raise UsageError(
                f"width {self.width} does not give {self.heads} heads of even size",
                "make width an even multiple of heads: rotations need pairs",
            )
        if self.heads % self.kv_heads:
            raise UsageError(f"{self.heads} heads do not share {self.kv_heads} key heads", "make it a multiple")
        if not (self.theta > 0 and self.epsilon > 0):
            raise UsageError(f"theta is {self.theta} and epsilon is {self.epsilon}", "use numbers above 0")

    @property
    def row_length(self) -> int:
        """Tokens of a dataset row: inputs and the last target."""
        return self.context + 1


def rotary_tables(config: LlamaConfig) -> tuple[Tensor, Tensor]:
    """(cos, sin) f32 [T, D/2] of position x theta^(-2i/D) (Su 2021, section 3.2.2); the angles in float64."""
    half = config.width // config.heads // 2
    rates = config.theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(config.context, dtype=torch.float64).unsqueeze(1) * rates
    return angles.cos().float(), angles.sin().float()


def rotated(x_BHTD: Tensor, cos_TF: Tensor, sin_TF: Tensor) -> Tensor:
    """[B, H, T, D]: coordinate i < D/2 turned with coordinate i + D/2 by the angle of its position."""
    low, high = x_BHTD.chunk(2, -1)
    return torch.cat([low * cos_TF - high * sin_TF, high * cos_TF + low * sin_TF], -1)


class Attention(nn.Module):
    """Causal self-attention on rotated queries and keys."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        narrow = config.width // config.heads * config.kv_heads
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, narrow, bias=False)
        self.v_proj = nn.Linear(config.width, narrow, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)
        for name, table in zip(("cos", "sin"), rotary_tables(config), strict=True):
            self.register_buffer(name, table, persistent=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        B, T, C = x_BTC.shape
        cos, sin = self.cos[:T], self.sin[:T]

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(B, T, heads, C // self.heads).transpose(1, 2)

        q_BHTD = rotated(split(self.q_proj(x_BTC), self.heads), cos, sin)
        k_BGTD = rotated(split(self.k_proj(x_BTC), self.kv_heads), cos, sin)
        v_BGTD = split(self.v_proj(x_BTC), self.kv_heads)
        grouped = self.heads != self.kv_heads
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BGTD, v_BGTD, is_causal=True, enable_gqa=grouped)
        return self.o_proj(y_BHTD.transpose(1, 2).reshape(B, T, C))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, equation 6): down(silu(gate x) up x)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.width, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))


class Layer(nn.Module):
    """Attention, then a feed-forward network, each with a norm before it and a residual around it."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.width, config.epsilon)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.width, config.epsilon)
        self.mlp = FeedForward(config)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC))
        return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))


class Llama(nn.Module):
    """Maps tokens to the logits of the next token."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, config.epsilon)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """i64 [B, T] -> f32 [B, T, V]; T <= context."""
        x_BTC = self.embed_tokens(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.lm_head(self.norm(x_BTC))

    def initial_scale(self, name: str, shape: tuple[int, ...]) -> float:
        """Initial standard deviation of a weight; residual projections shrink with depth, as in a GPT."""
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        return 0.02 / (2 * self.config.layers) ** 0.5 if residual else 0.02
