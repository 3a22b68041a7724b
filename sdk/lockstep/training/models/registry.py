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
OWN_MODEL = "own"
"""The name of every class that is neither here nor in `transformers`: its code is its author's."""


def describe(model: nn.Module) -> dict[str, Any]:
    """`config.json`: {"model": name, ...the configuration's fields}; what `transformers` writes for its models; and for
    a class of its author's {"model": "own", "class": name}, of which nobody can build a model without the code."""
    model = unwrapped(model)
    if hf.is_transformers(model):
        return hf.describe(model)
    name = _name_of(model)
    if name is None:
        return {"model": OWN_MODEL, "class": type(model).__name__}
    return {"model": name, **asdict(model.config)}  # type: ignore[call-overload]


def is_own(config: Mapping[str, Any]) -> bool:
    """Returns True if a `config.json` describes a class of its author's."""
    return config.get("model") == OWN_MODEL


def loss_of(model: nn.Module) -> Loss | RandomLoss:
    """The loss that a registered model, or one of `transformers`, is trained on; UsageError for another."""
    model = unwrapped(model)
    if hf.is_transformers(model):
        return hf.loss_of(model)
    name = _name_of(model)
    if name is None:
        raise UsageError(
            f"the loss of a {type(model).__name__} is not known", "give one: (model, rows) -> scalar, as a function"
        )
    return MODELS[name].loss(model)


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """The inverse of `describe`, with torch's own initial weights."""
    if hf.is_described(config):
        return hf.build_model(config)
    fields = dict(config)
    name = fields.pop("model", None)
    if name == OWN_MODEL:
        raise UsageError(
            f"config.json is of {config.get('class')}, a class of its author's",
            "give its code: `--model FILE.py:FUNCTION`; in Python handle.load(model), or load_model(folder, model)",
        )
    if not isinstance(name, str) or name not in MODELS:
        raise UsageError(f"no model is called {name!r}", f"one of {', '.join(MODELS)}")
    kind = MODELS[name]
    try:
        model: nn.Module = kind.model(kind.config(**fields))
    except TypeError as error:
        raise UsageError(f"config.json does not fit {name}: {error}", "it belongs to another release") from error
    return model


def _name_of(model: nn.Module) -> str | None:
    """The name of a model's class in the registry."""
    return next((name for name, kind in MODELS.items() if type(model) is kind.model), None)
