"""Trains models of Hugging Face's `transformers` unchanged (extra `[hf]`).

    from transformers import LlamaConfig, LlamaForCausalLM

    job = training_job(LlamaForCausalLM(LlamaConfig(...)), spec, dataset, batch=batch, rounds=6, slots=3, min_slots=2)

A model starts from its current weights, keeps its parameters' names, and trains with dropout if it is in training
mode. `from_pretrained` reads its export. Nothing is downloaded, and no class outside of `transformers` itself is ever
built.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.training.losses import Loss, RandomLoss

CAUSAL = ("ForCausalLM", "LMHeadModel")
_MASKED = "ForMaskedLM"
CONTEXT = 512
"""The default context length of a description: the maximum of some models would fill a machine."""
_KERNELS = ("attn_implementation", "experts_implementation")
"""Configuration keys that name kernels, which a hub may serve: a model built from a configuration uses torch's own."""


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
    """Returns `config.json` as `save_pretrained` writes it, in float32."""
    config = json.loads(model.config.to_json_string())  # type: ignore[union-attr, operator]
    kept = {key: value for key, value in config.items() if not key.startswith("_") and key not in _KERNELS}
    return {**kept, "architectures": [type(model).__name__], "dtype": "float32"}


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """Builds the model of a `config.json`, with its class's initial weights; raises UsageError for unknown classes."""
    return _made(config, lambda architecture, shape: architecture(shape).float())


def load_model(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    """Loads the model in a folder that `save_pretrained` wrote, or of a hub's copy, sharded or not, widened to float32.

    Raises UsageError if its class is unknown, PayloadInvalid if the files lack some of its weights. Nothing is
    downloaded, and no pickle is read.
    """
    found: dict[str, Any] = {}

    def load(architecture: Any, shape: Any) -> nn.Module:
        with _quiet():
            model, told = architecture.from_pretrained(
                folder, config=shape, dtype=torch.float32, local_files_only=True, use_safetensors=True,
                output_loading_info=True,
            )  # fmt: skip
        found.update(told)
        return cast(nn.Module, model.float())

    model = _made(config, load)
    lacking = sorted({*found.get("missing_keys", ()), *(str(each) for each in found.get("mismatched_keys", ()))})
    # INVARIANT: no weight of a model that was given is made up.
    if lacking:
        raise PayloadInvalid(
            f"the files in {folder} lack {len(lacking)} weights of {type(model).__name__}, e.g. {lacking[0]}",
            "its config.json names another class, or files are missing",
        )
    return model


def _made(config: Mapping[str, Any], make: Callable[[Any, Any], nn.Module]) -> nn.Module:
    """Calls `make` with the class and configuration that a `config.json` names; raises UsageError if there are none."""
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
        model = make(architecture, shape)
    except Exception as error:
        # transformers has no error of its own for a configuration that fits no class.
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"config.json does not fit {name}: {why}", "it belongs to another release of transformers"
        ) from error
    return model


def row_length_of(model: nn.Module, limit: int = CONTEXT) -> int:
    """Returns the tokens per row of a text model: its context, at most `limit`, plus one more for a causal model."""
    positions = getattr(model.config, "max_position_embeddings", None)
    context = min(limit, positions) if isinstance(positions, int) and positions > 0 else limit
    return context + type(model).__name__.endswith(CAUSAL)


def is_masked(model: nn.Module) -> bool:
    """Returns True for a masked language model, whose mask is the last token of its vocabulary."""
    return type(model).__name__.endswith(_MASKED)


def loss_of(model: nn.Module) -> Loss | RandomLoss:
    """Returns the loss for a model's class; raises UsageError if the class name does not determine it.

    A masked LM's mask is the last token of its vocabulary.
    """
    from lockstep.training.models.encoder import masked_token_loss
    from lockstep.training.models.gpt import next_token_loss

    name = type(model).__name__
    if name.endswith(CAUSAL):
        return next_token_loss
    if name.endswith(_MASKED):
        return masked_token_loss(model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    raise UsageError(f"{name} has no default loss", "give one: training_job(..., loss=...)")


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses the progress bars of `transformers`."""
    logging = _transformers().utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _transformers() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise UsageError(
            "the model needs transformers, which is not installed", "pip install 'lockstep-compute[hf]'"
        ) from error
