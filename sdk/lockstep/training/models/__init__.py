"""Models in plain torch, one file each; a model is rebuilt from its `config.json`."""

from __future__ import annotations

from lockstep.training.models.cnn import CNN, CNNConfig, image_loss
from lockstep.training.models.encoder import Encoder, EncoderConfig, masked_token_loss
from lockstep.training.models.gpt import GPT, GPTConfig, next_token_loss
from lockstep.training.models.llama import Llama, LlamaConfig
from lockstep.training.models.lora import LoRA, LoRAConfig
from lockstep.training.models.mlp import MLP, MLPConfig
from lockstep.training.models.registry import MODELS, ModelKind, build_model, describe, is_own, loss_of

__all__ = [
    "CNN", "GPT", "MLP", "MODELS", "CNNConfig", "Encoder", "EncoderConfig", "GPTConfig", "Llama", "LlamaConfig", "LoRA",
    "LoRAConfig", "MLPConfig", "ModelKind", "build_model", "describe", "image_loss", "is_own", "loss_of",
    "masked_token_loss", "next_token_loss",
]  # fmt: skip

MODELS |= {
    "gpt": ModelKind(GPTConfig, GPT, lambda model: next_token_loss),
    "llama": ModelKind(LlamaConfig, Llama, lambda model: next_token_loss),
    "mlp": ModelKind(MLPConfig, MLP, lambda model: next_token_loss),
    "encoder": ModelKind(EncoderConfig, Encoder, lambda model: masked_token_loss(model.config.vocabulary)),
    "cnn": ModelKind(CNNConfig, CNN, lambda model: image_loss),
    "lora": ModelKind(LoRAConfig, LoRA, lambda model: loss_of(model.base)),
}
