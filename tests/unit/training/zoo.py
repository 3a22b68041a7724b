"""Small models of `transformers`, one of each kind that people train."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf

hf.logging.set_verbosity_error()

VOCABULARY, WIDTH, POSITIONS = 64, 32, 40
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GATED = {**SHAPE, "intermediate_size": 48, "num_key_value_heads": 2}
DENSE = {**SHAPE, "intermediate_size": 64}
DISTIL = {"vocab_size": VOCABULARY, "dim": WIDTH, "n_layers": 1, "n_heads": 4, "hidden_dim": 64}
OPT = {"ffn_dim": 64, "word_embed_proj_dim": WIDTH}
GPT2 = {"vocab_size": VOCABULARY, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": 1, "n_head": 4}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
ALTERNATING = {"num_hidden_layers": 2, "sliding_window": 4}
"""A layer that sees a window, and one that sees everything."""
IMAGES = {"image_size": 8, "patch_size": 4, "num_channels": 3, "num_labels": 10}


@dataclass(frozen=True)
class Kind:
    """A class and the configuration of a small one."""

    model: type
    config: Callable[[], Any]

    @property
    def is_causal(self) -> bool:
        """True if a position sees no later one."""
        return self.model.__name__.endswith(("ForCausalLM", "LMHeadModel"))

    def build(self) -> torch.nn.Module:
        """With weights of both signs everywhere, biases and norms too, so that every gradient says something."""
        torch.manual_seed(7)
        model = self.model(self.config()).eval()
        with torch.no_grad():
            for p in model.parameters():
                p += 0.05 * torch.randn_like(p)
        return model


KINDS: dict[str, Kind] = {
    "gpt2": Kind(hf.GPT2LMHeadModel, lambda: hf.GPT2Config(**GPT2, **NO_TOKENS)),
    "llama": Kind(hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**GATED)),
    "llama tied": Kind(hf.LlamaForCausalLM, lambda: hf.LlamaConfig(**GATED, tie_word_embeddings=True)),
    "mistral": Kind(hf.MistralForCausalLM, lambda: hf.MistralConfig(**GATED, sliding_window=4)),
    "qwen2": Kind(hf.Qwen2ForCausalLM, lambda: hf.Qwen2Config(**GATED)),
    "qwen3": Kind(hf.Qwen3ForCausalLM, lambda: hf.Qwen3Config(**GATED, head_dim=16)),
    "pythia": Kind(hf.GPTNeoXForCausalLM, lambda: hf.GPTNeoXConfig(**DENSE, rotary_pct=0.5)),
    "opt": Kind(hf.OPTForCausalLM, lambda: hf.OPTConfig(**{**SHAPE, **OPT, "pad_token_id": 1})),
    "phi": Kind(hf.PhiForCausalLM, lambda: hf.PhiConfig(**DENSE)),
    "smollm3": Kind(hf.SmolLM3ForCausalLM, lambda: hf.SmolLM3Config(**GATED)),
    "gemma": Kind(hf.GemmaForCausalLM, lambda: hf.GemmaConfig(**GATED, head_dim=8)),
    "gemma2": Kind(hf.Gemma2ForCausalLM, lambda: hf.Gemma2Config(**{**GATED, **ALTERNATING}, head_dim=8)),
    "gemma3": Kind(hf.Gemma3ForCausalLM, lambda: hf.Gemma3TextConfig(**{**GATED, **ALTERNATING}, head_dim=8)),
    "olmo2": Kind(hf.Olmo2ForCausalLM, lambda: hf.Olmo2Config(**GATED)),
    "bloom": Kind(hf.BloomForCausalLM, lambda: hf.BloomConfig(**{**SHAPE, "n_layer": 1, "n_head": 4})),
    "falcon": Kind(hf.FalconForCausalLM, lambda: hf.FalconConfig(**SHAPE)),
    "mixtral": Kind(hf.MixtralForCausalLM, lambda: hf.MixtralConfig(**GATED, **EXPERTS)),
    "qwen3 experts": Kind(hf.Qwen3MoeForCausalLM, lambda: hf.Qwen3MoeConfig(**GATED, head_dim=8, **QWEN_EXPERTS)),
    "gpt-j": Kind(hf.GPTJForCausalLM, lambda: hf.GPTJConfig(**GPT2, **NO_TOKENS, rotary_dim=4)),
    "bert": Kind(hf.BertForMaskedLM, lambda: hf.BertConfig(**DENSE)),
    "roberta": Kind(hf.RobertaForMaskedLM, lambda: hf.RobertaConfig(**{**DENSE, "pad_token_id": 1})),
    "distilbert": Kind(hf.DistilBertForMaskedLM, lambda: hf.DistilBertConfig(**DISTIL, pad_token_id=None)),
    "vit": Kind(hf.ViTForImageClassification, lambda: hf.ViTConfig(**DENSE, **IMAGES)),
}
"""By what people call them."""
