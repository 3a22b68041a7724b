"""The models that `config.json` can name: what a name means is entered where the models are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from lockstep.protocol.errors import UsageError
from lockstep.training import hf
from lockstep.training.losses import Loss, RandomLoss
from lockstep.training.wrappers import unwrapped


@dataclass(frozen=True)
class ModelKind:
    """One row of the registry."""

    config: type[Any]
    """A frozen dataclass of plain values: the fields of `config.json`."""
    model: type[nn.Module]
    """Built from a configuration, which it keeps as `config`."""
    loss: Callable[[Any], Loss | RandomLoss]
    """Configuration -> the loss that the model is trained on."""


MODELS: dict[str, ModelKind] = {}
"""Kinds of models by their name in `config.json`."""


def describe(model: nn.Module) -> dict[str, Any]:
    """`config.json`: {"model": name, ...the configuration's fields}, or what `transformers` writes for its models."""
    model = unwrapped(model)
    if hf.is_transformers(model):
        return hf.describe(model)
    name, _ = _row(model)
    return {"model": name, **asdict(model.config)}  # type: ignore[call-overload]


def loss_of(model: nn.Module) -> Loss | RandomLoss:
    """The loss that a registered model, or one of `transformers`, is trained on."""
    model = unwrapped(model)
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
