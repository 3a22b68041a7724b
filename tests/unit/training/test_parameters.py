"""Flat parameters: their order and their first values."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import torch

from lockstep.training.baseline import flat_parameters, load_parameters
from lockstep.training.models import GPT, MLP, GPTConfig, MLPConfig
from lockstep.training.parameters import initial_parameters, layout_of

SMALL = GPTConfig(vocabulary=50, context=16, layers=2, heads=2, width=32, bias=True)


def test_layout_is_dense_and_whole_leaves_come_first() -> None:
    layout = layout_of(GPT(GPTConfig()))
    at = 0
    for parameter in layout.parameters:
        assert parameter.offset == at, parameter.name
        at += parameter.elements
    ragged = [p.elements % 256 != 0 for p in layout.parameters]
    assert ragged == sorted(ragged)
    assert layout.size % 256 == 0
    assert 0 <= layout.size - at < 256


def test_tied_head_lies_in_the_flat_tensor_once() -> None:
    tied, untied = (layout_of(GPT(GPTConfig(tied=t))) for t in (True, False))
    assert untied.used - tied.used == 256 * 128
    assert "head.weight" not in [p.name for p in tied.parameters]


def test_demo_has_about_0_8_million_parameters() -> None:
    assert 0.75e6 < layout_of(GPT(GPTConfig())).used < 0.85e6


def test_flat_tensor_and_model_are_each_others_inverse() -> None:
    model = GPT(SMALL)
    flat = initial_parameters(model, 5)
    assert (flat_parameters(load_parameters(model, flat)) == flat).all()
    parts = layout_of(model).split(torch.from_numpy(flat))
    assert torch.equal(layout_of(model).join(parts), torch.from_numpy(flat))


def test_first_weights_are_the_same_on_every_machine() -> None:
    """A change here is another model for every seed."""
    digest = sha256(initial_parameters(GPT(GPTConfig()), 0).tobytes()).hexdigest()
    assert digest == "185af6e2c9c31ba12dbb4888f824571c3348bcd650574d34c2428e4d069dbf82"


def test_first_weights_depend_on_the_seed_and_not_on_torch() -> None:
    one = initial_parameters(MLP(MLPConfig()), 1)
    torch.manual_seed(99)
    assert (one == initial_parameters(MLP(MLPConfig()), 1)).all()
    assert (one != initial_parameters(MLP(MLPConfig()), 2)).any()


def test_first_weights_have_the_models_scale() -> None:
    model = GPT(GPTConfig())
    flat = initial_parameters(model, 0)
    for p in layout_of(model).parameters:
        part = flat[p.offset : p.offset + p.elements].astype(np.float64)
        if len(p.shape) < 2:
            assert (part == 1).all(), p.name
            continue
        scale = model.initial_scale(p.name, p.shape)
        assert abs(part.std() / scale - 1) < 0.02, p.name
        assert abs(part.mean()) < 0.03 * scale, p.name
        assert np.abs(part).max() < 6.1 * scale, p.name


def test_norm_weights_start_at_one_and_biases_at_zero() -> None:
    model = GPT(SMALL)
    flat = initial_parameters(model, 0)
    vectors = {p.name: flat[p.offset] for p in layout_of(model).parameters if len(p.shape) == 1}
    assert {name.rsplit(".", 1)[1]: float(v) for name, v in vectors.items()} == {"weight": 1.0, "bias": 0.0}
