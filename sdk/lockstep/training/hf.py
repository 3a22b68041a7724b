"""Models of Hugging Face's `transformers`, trained as they are (extra `[hf]`).

    from transformers import LlamaConfig, LlamaForCausalLM

    job = training_job(LlamaForCausalLM(LlamaConfig(...)), spec, dataset, batch=batch, rounds=6, slots=3, min_slots=2)

A model starts from the weights that it has, keeps its parameters' names, and trains with its dropout on if it is in
training mode. Its export is what `from_pretrained` reads. Nothing here downloads, and no class outside of
`transformers` itself is ever built.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from lockstep.protocol.errors import UsageError
from lockstep.training.losses import Loss, RandomLoss

CAUSAL = ("ForCausalLM", "LMHeadModel")
_MASKED = "ForMaskedLM"
_KERNELS = ("attn_implementation", "experts_implementation")
"""Names of kernels, which a hub may serve: a model that is built from a configuration uses torch's own."""


def is_transformers(model: nn.Module) -> bool:
    """Returns True if the model is of a class of `transformers`, or of one that derives from it."""
    return any(
        kind.__name__ == "PreTrainedModel" and kind.__module__.startswith("transformers.")
        for kind in type(model).__mro__
    )


def is_described(config: Mapping[str, Any]) -> bool:
    """Returns True if a `config.json` describes a model of `transformers`."""
    return "model" not in config and "architectures" in config and "model_type" in config


def describe(model: nn.Module) -> dict[str, Any]:
    """`config.json` as `save_pretrained` writes it, in float32."""
    config = json.loads(model.config.to_json_string())  # type: ignore[union-attr, operator]
    kept = {key: value for key, value in config.items() if not key.startswith("_") and key not in _KERNELS}
    return {**kept, "architectures": [type(model).__name__], "dtype": "float32"}


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """The model of a `config.json`, with its class's initial weights; UsageError if there is no such class."""
    transformers = _transformers()
    fields = {key: value for key, value in config.items() if not key.startswith("_") and key not in _KERNELS}
    architectures, kind = fields.get("architectures"), fields.pop("model_type")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    architecture: Any = getattr(transformers, name, None) if isinstance(name, str) else None
    known = isinstance(architecture, type) and issubclass(architecture, transformers.PreTrainedModel)
    if not known:
        raise UsageError(
            f"transformers {transformers.__version__} has no model {name!r}",
            "install the release of transformers that the job was made with",
        )
    try:
        shape = transformers.AutoConfig.for_model(kind, **fields)
        if not isinstance(shape, architecture.config_class):
            raise ValueError(f"it is one of {kind}")
        model: nn.Module = architecture(shape).float()
    except Exception as error:
        # transformers has no error of its own for a configuration that fits no class.
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"config.json does not fit {name}: {why}", "it belongs to another release of transformers"
        ) from error
    return model


def loss_of(model: nn.Module) -> Loss | RandomLoss:
    """Returns the loss for a model's class; UsageError if the class name does not tell.

    A masked-LM's mask is the last token of its vocabulary.
    """
    from lockstep.training.models.encoder import masked_token_loss
    from lockstep.training.models.gpt import next_token_loss

    name = type(model).__name__
    if name.endswith(CAUSAL):
        return next_token_loss
    if name.endswith(_MASKED):
        return masked_token_loss(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    raise UsageError(f"there is no default loss for a {name}", "give one: training_job(..., loss=...)")


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            "this model is one of transformers, which is not installed", "pip install 'lockstep-compute[hf]'"
        ) from error
