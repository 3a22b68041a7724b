"""Models in plain torch, one file each; a model is rebuilt from its `config.json`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from lockstep.protocol.errors import UsageError
from lockstep.training import hf
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.models.cnn import CNN, CNNConfig, image_loss
from lockstep.training.models.encoder import Encoder, EncoderConfig, masked_token_loss
from lockstep.training.models.gpt import GPT, GPTConfig, next_token_loss
from lockstep.training.models.llama import Llama, LlamaConfig
from lockstep.training.models.lora import LoRA, LoRAConfig
from lockstep.training.models.mlp import MLP, MLPConfig

__all__ = [
    "CNN", "GPT", "MLP", "MODELS", "CNNConfig", "Encoder", "EncoderConfig", "GPTConfig", "Llama", "LlamaConfig", "LoRA",
    "LoRAConfig", "MLPConfig", "ModelKind", "build_model", "describe", "image_loss", "loss_of", "masked_token_loss",
    "next_token_loss",
]  # fmt: skip


@dataclass(frozen=True)
class ModelKind:
    """One row of the registry."""

    config: type[Any]
    """A frozen dataclass of plain values: the fields of `config.json`."""
    model: type[nn.Module]
    """Built from a configuration, which it keeps as `config`."""
    loss: Callable[[Any], Loss | RandomLoss]
    """What a model is trained on."""


MODELS: dict[str, ModelKind] = {
    "gpt": ModelKind(GPTConfig, GPT, lambda model: next_token_loss),
    "llama": ModelKind(LlamaConfig, Llama, lambda model: next_token_loss),
    "mlp": ModelKind(MLPConfig, MLP, lambda model: next_token_loss),
    "encoder": ModelKind(EncoderConfig, Encoder, lambda model: masked_token_loss(model.config.vocabulary)),
    "cnn": ModelKind(CNNConfig, CNN, lambda model: image_loss),
    "lora": ModelKind(LoRAConfig, LoRA, lambda model: loss_of(model.base)),
}
"""By the name in `config.json`."""


def describe(model: nn.Module) -> dict[str, Any]:
    """`config.json`: {"model": name, ...the configuration's fields}, or what `transformers` writes for its models."""
    if hf.is_transformers(model):
        return hf.describe(model)
    name, _ = _row(model)
    return {"model": name, **asdict(model.config)}  # type: ignore[call-overload]


def loss_of(model: nn.Module) -> Loss | RandomLoss:
    """The loss that a registered model, or one of `transformers`, is trained on."""
    if hf.is_transformers(model):
        return hf.loss_of(model)
    return _row(model)[1].loss(model)


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """The inverse of `describe`, with torch's own initial weights."""
    if hf.is_described(config):
        return hf.build_model(config)
    fields = dict(config)
    name = fields.pop("model", None)
    if not isinstance(name, str) or name not in MODELS:
        raise UsageError(f"no model is called {name!r}", f"one of {', '.join(MODELS)}")
    kind = MODELS[name]
    try:
        model: nn.Module = kind.model(kind.config(**fields))
    except TypeError as error:
        raise UsageError(f"config.json does not fit {name}: {error}", "it belongs to another release") from error
    return model


def _row(model: nn.Module) -> tuple[str, ModelKind]:
    for name, kind in MODELS.items():
        if type(model) is kind.model:
            return name, kind
    raise UsageError(f"{type(model).__name__} is not a registered model", f"one of {', '.join(MODELS)}")
