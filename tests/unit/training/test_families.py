"""One model of each family, 200 steps as a Program and in eager PyTorch: losses within 1 %."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.small_models import SmallModel, found
from lockstep.training.comparison import compare
from lockstep.training.job import Batch
from lockstep.training.models import next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters

transformers: Any = pytest.importorskip("transformers")

ROWS, TOKENS, VOCABULARY, SIDE = 4, 12, 128, 32
INNER = AdamW(learning_rate=3e-4, warmup=20)


class Recurrent(nn.Module):
    """An LSTM over embedded tokens (Hochreiter and Schmidhuber 1997)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """[B, T] -> scores [B, T, V]."""
        return self.head(self.lstm(self.table(rows))[0])


def lstm() -> SmallModel:
    def loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(rows)[:, :-1].reshape(-1, VOCABULARY), rows[:, 1:].reshape(-1))

    return SmallModel(Recurrent(), loss, TOKENS, VOCABULARY, "own")


def mixture() -> SmallModel:
    config = transformers.DeepseekV3Config(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2, n_group=1,
        topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, v_head_dim=16,
        qk_nope_head_dim=8, n_shared_experts=1, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return SmallModel(transformers.DeepseekV3ForCausalLM(config), next_token_loss, TOKENS + 1, VOCABULARY, "own")


def swin() -> SmallModel:
    """Two stages of two blocks, the second of each with shifted windows; the class is the brightness of an image."""
    config = transformers.SwinConfig(
        image_size=SIDE, patch_size=4, num_channels=3, embed_dim=16, depths=[2, 2], num_heads=[1, 2], window_size=2,
        mlp_ratio=2.0, num_labels=4,
    )  # fmt: skip

    def loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
        images = (rows.view(-1, 3, SIDE, SIDE).float() - 64) / 64
        return F.cross_entropy(model(pixel_values=images).logits, rows[:, 0] // 32)

    return SmallModel(transformers.SwinForImageClassification(config), loss, 3 * SIDE * SIDE, VOCABULARY, "own")


FAMILIES: dict[str, Callable[[], SmallModel]] = {
    "LSTM": lstm,
    "Mamba": lambda: found(transformers.MambaForCausalLM, "causal"),
    "T5": lambda: found(transformers.T5ForConditionalGeneration, "sequence-to-sequence"),
    "Whisper": lambda: found(transformers.WhisperForConditionalGeneration, "speech to text"),
    "a mixture like DeepSeek's": mixture,
    "Swin": swin,
}
"""Family to its model; ResNet with batch norm is in test_statistics.py."""


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_200_steps_end_within_a_hundredth_of_eager_s_loss(family: str) -> None:
    torch.manual_seed(5)
    case = FAMILIES[family]()
    # Torch draws dropout otherwise.
    model = case.model.eval()
    rows = np.random.default_rng(9).integers(2, case.most, (32, case.row_length)).astype(np.int32)
    # Half of each row is the row's first token, so that there is something to learn.
    rows[:, ::2] = rows[:, :1]
    first = initial_parameters(model, 0)
    result = compare(model, case.loss, rows, first, INNER, batch=Batch(ROWS, case.row_length), steps=200)
    print(f"{family}: ratio {result.ratio:.5f}, loss {result.start:.4f} to {result.ours:.4f}")
    assert result.ours < 0.99 * result.start, "it learns"
    assert result.ratio == pytest.approx(1, abs=0.01)
