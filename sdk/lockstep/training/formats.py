"""Converts this library's models to the names, shapes and `config.json` of Hugging Face's `transformers`, and back.

    config, tensors = published({"model": "gpt", ...}, tensors)     # as GPT2LMHeadModel reads them
    tensors = recovered({"model": "gpt", ...}, tensors, names)      # back, under our own names

Our own configuration stays in `config.json` under "lockstep". Needs neither torch nor transformers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OWN = "lockstep"
"""Key of our own configuration in `config.json`."""

Config = Mapping[str, Any]
Tensors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Format:
    """The form of one of this library's models as a class of `transformers`."""

    config: Callable[[Config], dict[str, Any]]
    """Our configuration -> `config.json` of the class."""
    names: tuple[tuple[str, str], ...]
    """(pattern, replacement), applied in turn to our name of a parameter: the result is the name in `transformers`."""
    transposed: re.Pattern[str]
    """Our names of the matrices that `transformers` stores as [in, out]."""
    zeros: Callable[[Config], Iterator[tuple[str, tuple[int, ...]]]]
    """(name, shape) of tensors that `transformers` has and we do not; all zero."""

    def theirs(self, name: str) -> str:
        """Returns the name in `transformers` of one of our parameters."""
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name

    def turned(self, name: str, tensor: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns our tensor as `transformers` stores it, or the reverse."""
        return np.ascontiguousarray(tensor.T) if self.transposed.search(name) else tensor


def published(config: Config, tensors: Tensors) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Converts `config.json` and tensors of a model for `transformers`; unchanged if there is no such class."""
    form = FORMATS.get(str(config.get("model")))
    if form is None:
        return dict(config), dict(tensors)
    written = {form.theirs(name): form.turned(name, tensor) for name, tensor in tensors.items()}
    for name, shape in form.zeros(config):
        written.setdefault(name, np.zeros(shape, np.float32))
    return {**form.config(config), OWN: dict(config)}, written


def recovered(config: Config, tensors: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The inverse of `published` on tensors: those of our `names` that exist; others keep their names."""
    form = FORMATS[str(config["model"])]
    left, found = dict(tensors), {}
    for name in names:
        if form.theirs(name) in left:
            tensor = left.pop(form.theirs(name))
            found[name] = tensor.T if form.transposed.search(name) else tensor
    for name, _ in form.zeros(config):
        left.pop(name, None)
    return {**found, **left}


# --- one for each model ------------------------------------------------------------------------------------


def _common(architecture: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": kind, "dtype": "float32", **fields}


def _gpt2(config: Config) -> dict[str, Any]:
    return _common(
        "GPT2LMHeadModel",
        "gpt2",
        vocab_size=config["vocabulary"],
        n_positions=config["context"],
        n_embd=config["width"],
        n_layer=config["layers"],
        n_head=config["heads"],
        activation_function="gelu_new" if config["gelu"] == "tanh" else "gelu",
        layer_norm_epsilon=1e-5,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        tie_word_embeddings=config["tied"],
        bos_token_id=None,
        eos_token_id=None,
    )


def _gpt2_zeros(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    width = config["width"]
    for i in range(0 if config["bias"] else config["layers"]):
        layer = f"transformer.h.{i}"
        yield f"{layer}.ln_1.bias", (width,)
        yield f"{layer}.ln_2.bias", (width,)
        yield f"{layer}.attn.c_attn.bias", (3 * width,)
        yield f"{layer}.attn.c_proj.bias", (width,)
        yield f"{layer}.mlp.c_fc.bias", (4 * width,)
        yield f"{layer}.mlp.c_proj.bias", (width,)
    if not config["bias"]:
        yield "transformer.ln_f.bias", (width,)


def _llama(config: Config) -> dict[str, Any]:
    return _common(
        "LlamaForCausalLM",
        "llama",
        vocab_size=config["vocabulary"],
        max_position_embeddings=config["context"],
        hidden_size=config["width"],
        intermediate_size=config["hidden"],
        num_hidden_layers=config["layers"],
        num_attention_heads=config["heads"],
        num_key_value_heads=config["kv_heads"],
        head_dim=config["width"] // config["heads"],
        rms_norm_eps=config["epsilon"],
        rope_theta=config["theta"],
        rope_parameters={"rope_type": "default", "rope_theta": config["theta"]},
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=config["tied"],
        bos_token_id=None,
        eos_token_id=None,
    )


def _bert(config: Config) -> dict[str, Any]:
    return _common(
        "BertForMaskedLM",
        "bert",
        vocab_size=config["vocabulary"],
        max_position_embeddings=config["context"],
        hidden_size=config["width"],
        intermediate_size=4 * config["width"],
        num_hidden_layers=config["layers"],
        num_attention_heads=config["heads"],
        type_vocab_size=1,
        layer_norm_eps=config["epsilon"],
        hidden_act="gelu",
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        tie_word_embeddings=True,
        pad_token_id=None,
    )


def _bert_zeros(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "bert.embeddings.token_type_embeddings.weight", (1, config["width"])


def _no_zeros(_config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    return iter(())


_NONE = re.compile(r"(?!)")

FORMATS: dict[str, Format] = {
    "gpt": Format(
        _gpt2,
        (
            (r"^tokens\.", "transformer.wte."),
            (r"^positions\.", "transformer.wpe."),
            (r"^norm\.", "transformer.ln_f."),
            (r"^head\.", "lm_head."),
            (r"^blocks\.", "transformer.h."),
            (r"\.norm([12])\.", r".ln_\1."),
            (r"\.attn\.qkv\.", ".attn.c_attn."),
            (r"\.attn\.proj\.", ".attn.c_proj."),
            (r"\.up\.", ".mlp.c_fc."),
            (r"\.down\.", ".mlp.c_proj."),
        ),
        re.compile(r"\.(qkv|proj|up|down)\.weight$"),
        _gpt2_zeros,
    ),
    "llama": Format(_llama, ((r"^(?!lm_head\.)", "model."),), _NONE, _no_zeros),
    "encoder": Format(
        _bert,
        (
            (r"^tokens\.", "bert.embeddings.word_embeddings."),
            (r"^positions\.", "bert.embeddings.position_embeddings."),
            (r"^norm\.", "bert.embeddings.LayerNorm."),
            (r"^transform\.", "cls.predictions.transform.dense."),
            (r"^head_norm\.", "cls.predictions.transform.LayerNorm."),
            (r"^head\.weight$", "cls.predictions.decoder.weight"),
            (r"^head\.bias$", "cls.predictions.bias"),
            (r"^blocks\.", "bert.encoder.layer."),
            (r"\.attn\.proj\.", ".attention.output.dense."),
            (r"\.attn\.", ".attention.self."),
            (r"\.norm1\.", ".attention.output.LayerNorm."),
            (r"\.up\.", ".intermediate.dense."),
            (r"\.down\.", ".output.dense."),
            (r"\.norm2\.", ".output.LayerNorm."),
        ),
        _NONE,
        _bert_zeros,
    ),
}
"""Formats by the name of our model."""
