"""Our own models as files that `transformers` reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.training.baseline import load_parameters
from lockstep.training.export import load_model, save_model
from lockstep.training.formats import FORMATS
from lockstep.training.losses import logits
from lockstep.training.models import (
    GPT,
    MODELS,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    describe,
)
from lockstep.training.parameters import initial_parameters, layout_of

SMALL = {"vocabulary": 40, "context": 16, "layers": 2, "heads": 4, "width": 32}
MODELS_AND_CLASSES: dict[str, tuple[nn.Module, str]] = {
    "gpt": (GPT(GPTConfig(**SMALL)), "GPT2LMHeadModel"),
    "gpt untied, erf, biases": (GPT(GPTConfig(**SMALL, tied=False, gelu="none", bias=True)), "GPT2LMHeadModel"),
    "llama": (Llama(LlamaConfig(**SMALL, hidden=48, theta=500.0, epsilon=1e-4)), "LlamaForCausalLM"),
    "llama tied": (Llama(LlamaConfig(**SMALL, kv_heads=4, hidden=48, tied=True)), "LlamaForCausalLM"),
    "encoder": (Encoder(EncoderConfig(**SMALL)), "BertForMaskedLM"),
}


@pytest.fixture(params=list(MODELS_AND_CLASSES))
def saved(request, tmp_path: Path) -> tuple[nn.Module, str, Path]:
    """A model with life in every parameter, the class that reads it, and its folder."""
    model, name = MODELS_AND_CLASSES[request.param]
    layout = layout_of(model)
    flat = initial_parameters(model, 3)
    flat[: layout.used] += 0.05 * np.random.default_rng(0).standard_normal(layout.used).astype(np.float32)
    save_model(tmp_path / "out", flat, layout.describe(), describe(model))
    return load_parameters(model, flat).eval(), name, tmp_path / "out"


def test_transformers_reads_every_tensor_and_computes_the_same(saved: tuple[nn.Module, str, Path]) -> None:
    hf = pytest.importorskip("transformers")
    model, name, folder = saved
    auto = hf.AutoModelForMaskedLM if name.endswith("MaskedLM") else hf.AutoModelForCausalLM
    loaded, report = auto.from_pretrained(folder, output_loading_info=True)
    assert type(loaded).__name__ == name
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    tokens = torch.arange(30).view(2, 15)
    with torch.no_grad():
        torch.testing.assert_close(logits(loaded(tokens)), model(tokens), rtol=1e-4, atol=1e-5)


def test_our_own_model_comes_back_bit_for_bit(saved: tuple[nn.Module, str, Path]) -> None:
    model, _, folder = saved
    loaded = load_model(folder)
    assert describe(loaded) == describe(model)
    for (name, due), (_, got) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(got, due), name


def test_formats_are_of_models_that_there_are() -> None:
    assert set(FORMATS) <= set(MODELS)
