"""Trained models as files, and the text that they write."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lockstep.protocol.errors import LockstepError, NotFoundError, PayloadInvalid
from lockstep.training.baseline import evaluate, load_parameters, train_eager
from lockstep.training.export import generate, load_model, not_finite, save_model
from lockstep.training.models import GPT, GPTConfig, build_model, describe, next_token_loss
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters, layout_of

CONFIG = GPTConfig(vocabulary=256, context=16, layers=1, heads=2, width=32)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def saved(request, tmp_path: Path) -> tuple[GPT, Path]:
    model = GPT(GPTConfig(**{**CONFIG.__dict__, "tied": request.param}))
    flat = initial_parameters(model, 3)
    save_model(tmp_path / "out", flat, layout_of(model).describe(), describe(model))
    return load_parameters(model, flat), tmp_path / "out"


def test_model_comes_back_from_its_files(saved: tuple[GPT, Path]) -> None:
    model, folder = saved
    assert sorted(f.name for f in folder.iterdir()) == ["config.json", "model.safetensors"]
    tokens = torch.arange(10).view(1, 10)
    with torch.no_grad():
        assert torch.equal(load_model(folder)(tokens), model(tokens))


def test_missing_file_is_named(saved: tuple[GPT, Path]) -> None:
    (saved[1] / "model.safetensors").unlink()
    with pytest.raises(NotFoundError, match=r"model\.safetensors"):
        load_model(saved[1])


def test_truncated_model_is_a_clear_error(saved: tuple[GPT, Path]) -> None:
    path = saved[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(PayloadInvalid) as caught:
        load_model(saved[1])
    assert caught.value.hint


@pytest.mark.parametrize("change", [{"layers": 2}, {"model": "rnn"}, {"colour": "red"}, {"width": 64}])
def test_config_of_another_model_is_a_clear_error(saved: tuple[GPT, Path], change: dict) -> None:
    path = saved[1] / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "lockstep": {**config["lockstep"], **change}}))
    with pytest.raises(LockstepError) as caught:
        load_model(saved[1])
    assert caught.value.hint


def test_parameter_beyond_the_checkpoint_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(PayloadInvalid, match="head"):
        save_model(tmp_path / "out", np.zeros(10, np.float32), [{"name": "head", "offset": 8, "shape": [2, 2]}], {})
    assert not (tmp_path / "out").exists()


def test_saving_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib, numpy as np\n"
        "from lockstep.training.export import save_model\n"
        "parts = [{'name': 'w', 'offset': 0, 'shape': [2, 2]}]\n"
        "save_model(pathlib.Path(sys.argv[1]), np.ones(4, np.float32), parts, {})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert (tmp_path / "model.safetensors").is_file()


def test_text_is_a_function_of_model_prompt_and_seed(saved: tuple[GPT, Path]) -> None:
    model = saved[0]
    one, again, other = (generate(model, b"prompt longer than the context", 20, seed=s) for s in (1, 1, 2))
    assert one == again != other
    assert len(one) == 20
    assert generate(model, b"x", 5, temperature=0) == generate(model, b"x", 5, temperature=0, seed=9)


def test_described_model_is_built_again() -> None:
    assert describe(build_model(describe(GPT(CONFIG)))) == describe(GPT(CONFIG))


def test_baseline_learns_and_evaluation_counts_every_row() -> None:
    rows = np.tile(np.arange(17, dtype=np.int32), (10, 1))
    model = load_parameters(GPT(CONFIG), initial_parameters(GPT(CONFIG), 0))
    before = evaluate(model, next_token_loss, rows, batch_rows=3)
    assert abs(before - np.log(256)) < 0.1, "a fresh model knows nothing: log V nats per token"
    inner = AdamW(learning_rate=1e-2, warmup=2)
    losses = train_eager(model, next_token_loss, rows, inner, steps=20, batch_rows=4, seed=0)
    after = evaluate(model, next_token_loss, rows, batch_rows=3)
    assert len(losses) == 20
    assert after < before / 2
    assert abs(after - evaluate(model, next_token_loss, rows, batch_rows=10)) < 1e-6


@pytest.mark.parametrize(
    "part",
    [
        {"name": "w", "limbs": [["aa", "bb"]], "shape": [1 << 31, 1 << 31]},
        {"name": "w", "limbs": [["aa", "bb"]], "shape": [4, 8]},
        {"name": "w", "limbs": [["aa", "bb"]], "shape": []},
        {"name": "w", "limbs": [["aa", "bb"]], "shape": [8]},
        {"name": "w", "limbs": [["aa", "bb"]], "shape": [0, 1 << 31]},
        {"name": "w", "limbs": [["aa", "bb"]], "shape": [1 << 31, 0]},
        {"name": "w", "limbs": [], "shape": [4, 8]},
        {"name": "w", "root": "aa", "shape": [1 << 31]},
        {"name": "w", "offset": 0, "shape": [1] * 65},
        {"name": "w", "offset": 0, "shape": [-1, -1]},
        {"name": "w", "offset": 0, "shape": [1 << 62, 1 << 62]},
    ],
)
def test_a_stranger_s_spec_is_checked_before_anything_is_allocated(tmp_path: Path, part: dict) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        save_model(tmp_path / "out", np.zeros(10, np.float32), [part], {})
    assert refused.value.hint
    assert not (tmp_path / "out").exists()


def test_a_spec_that_repeats_one_tensor_fills_no_disk(tmp_path: Path) -> None:
    parts = [{"name": f"w{i}", "offset": 0, "shape": [1 << 20]} for i in range(64)]
    with pytest.raises(PayloadInvalid, match="has 67108864 elements, but the job only 1048576"):
        save_model(tmp_path / "out", np.zeros(1 << 20, np.float32), parts, {})
    assert not (tmp_path / "out").exists()


def test_tensors_that_are_not_finite_are_named(tmp_path: Path) -> None:
    tensors = {"a": torch.ones(3), "b": torch.tensor([1.0, math.nan]), "c": torch.tensor([math.inf])}
    save_file(tensors, tmp_path / "model.safetensors")
    assert not_finite(tmp_path / "model.safetensors") == ["b", "c"]
