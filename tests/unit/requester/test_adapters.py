"""Adapters on a frozen model, from a quote to the whole model, on the chain in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep.storage.dataset import Dataset
from lockstep.training.baseline import load_parameters
from lockstep.training.export import load_model
from lockstep.training.job import Batch, training_job
from lockstep.training.models import GPT, GPTConfig, LoRA
from lockstep.training.models.lora import adapt, merged
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco
from tests.adversarial.court import Court
from tests.support import toyjob

pytestmark = pytest.mark.slow

CONFIG = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32)


def test_adapters_are_trained_and_the_whole_model_is_downloaded(tmp_path: Path) -> None:
    base = load_parameters(GPT(CONFIG), initial_parameters(GPT(CONFIG), 0))
    rows = np.random.default_rng(0).integers(0, CONFIG.vocabulary, (40, CONFIG.row_length), dtype=np.int32)
    job = training_job(
        adapt(base, rank=2), diloco.DiLoCo(inner_steps=2, payload="int8-block"), Dataset(rows, CONFIG.vocabulary),
        batch=Batch(2, CONFIG.row_length), rounds=1, slots=3, min_slots=3, terms=toyjob.TOY_TERMS,
    )  # fmt: skip
    court = Court.in_memory(tmp_path)
    handle = court.hire(job)
    court.rounds(0)
    handle.download(tmp_path / "model")
    court.stop()

    model = load_model(tmp_path / "model")
    assert isinstance(model, LoRA)
    adapted = dict(model.named_parameters())
    for name, weight in base.named_parameters():
        assert torch.equal(adapted["base." + name.replace("qkv", "qkv.layer")], weight), f"{name} is frozen"
    assert adapted["base.blocks.0.attn.qkv.lora_B.weight"].any(), "B began at zero and was trained"
    tokens = torch.arange(8).view(1, 8)
    torch.testing.assert_close(merged(model)(tokens), model(tokens), rtol=1e-4, atol=1e-5)
