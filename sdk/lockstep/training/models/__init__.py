"""Models in plain torch, one file each; a model is rebuilt from its `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from lockstep.protocol.errors import UsageError
from lockstep.training.models.gpt import GPT, GPTConfig, next_token_loss
from lockstep.training.models.mlp import MLP, MLPConfig

__all__ = ["GPT", "MLP", "GPTConfig", "MLPConfig", "build_model", "describe", "next_token_loss"]

MODELS: dict[str, tuple[Any, Any]] = {"gpt": (GPTConfig, GPT), "mlp": (MLPConfig, MLP)}
"""Name in `config.json` to configuration and model."""


def describe(model: nn.Module) -> dict[str, Any]:
    """`config.json`: {"model": name, ...the configuration's fields}."""
    for name, (_, kind) in MODELS.items():
        if type(model) is kind:
            return {"model": name, **asdict(model.config)}  # type: ignore[call-overload]
    raise UsageError(f"{type(model).__name__} is not a registered model", f"one of {', '.join(MODELS)}")


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """The inverse of `describe`, with torch's own initial weights."""
    fields = dict(config)
    name = fields.pop("model", None)
    if name not in MODELS:
        raise UsageError(f"no model is called {name!r}", f"one of {', '.join(MODELS)}")
    shape, kind = MODELS[name]
    try:
        model: nn.Module = kind(shape(**fields))
    except TypeError as error:
        raise UsageError(f"config.json does not fit {name}: {error}", "it belongs to another release") from error
    return model
