"""Every registered model: its description, its Programs, and what makes it that model."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.execution.jobs import TrainingJob
from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import check_programs
from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.defects import Held, ProgramParts
from lockstep.protocol.types import Cid
from lockstep.storage.containers import JobSpec
from lockstep.storage.dataset import Dataset
from lockstep.tracing.arithmetic import Arithmetic
from lockstep.tracing.lowering import COPIED_BYTES
from lockstep.training.baseline import Sample, evaluate, flat_parameters, load_parameters, optimise
from lockstep.training.export import load_model, save_model
from lockstep.training.job import Batch, build_programs, described_parameters, training_job
from lockstep.training.losses import bound
from lockstep.training.models import (
    CNN,
    GPT,
    MLP,
    MODELS,
    CNNConfig,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    MLPConfig,
    ModelKind,
    build_model,
    describe,
    loss_of,
)
from lockstep.training.models.encoder import corrupted
from lockstep.training.models.llama import rotary_tables, rotated
from lockstep.training.models.lora import LoRAConfig, adapt, merged
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters, layout_of
from lockstep.training.strategies import diloco
from tests.support import invalid

SEED = bytes(range(32))
GPT_SMALL = GPTConfig(vocabulary=32, context=16, layers=1, heads=2, width=32, bias=True, tied=False)
LLAMA_SMALL = LlamaConfig(vocabulary=32, context=16, layers=1, heads=4, kv_heads=2, width=32, hidden=48)
CNN_SMALL = CNNConfig(size=8, channels=2, classes=4, width=4, groups=2)
ENCODER_SMALL = EncoderConfig(vocabulary=33, context=16, layers=1, heads=2, width=32)
H = 20
INNER = AdamW(learning_rate=5e-3, warmup=4)


def started(model: nn.Module, seed: int = 1) -> nn.Module:
    return load_parameters(model, initial_parameters(model, seed))


def small(name: str) -> tuple[nn.Module, int]:
    """A small model of the registry and the length of its rows."""
    return {
        "gpt": lambda: (GPT(GPT_SMALL), 17),
        "llama": lambda: (Llama(LLAMA_SMALL), 17),
        "mlp": lambda: (MLP(MLPConfig(vocabulary=32)), 17),
        "encoder": lambda: (Encoder(ENCODER_SMALL), 16),
        "cnn": lambda: (CNN(CNN_SMALL), CNN_SMALL.row_length),
        "lora": lambda: (adapt(started(GPT(GPT_SMALL)), rank=4, targets=["qkv", "up"]), 17),
    }[name]()


NAMES = list(MODELS)


def rows(length: int, count: int = 40) -> np.ndarray:
    """Something to learn: sequences that count up from their first token, with gaps; bars of light for a CNN."""
    if length == CNN_SMALL.row_length:
        labels = np.arange(count, dtype=np.int32) % CNN_SMALL.classes
        images = np.random.default_rng(0).integers(0, 60, (count, 8, 8, 2), dtype=np.int32)
        images[np.arange(count), 2 * labels] += 150
        return np.concatenate([images.reshape(count, -1), labels.reshape(-1, 1)], 1)
    starts = np.arange(count, dtype=np.int32).reshape(-1, 1)
    return (starts * 7 + 3 * np.arange(length, dtype=np.int32)) % 32


def losses_beside(
    model: nn.Module, loss, flat: np.ndarray, trained: np.ndarray, sample: Sample
) -> tuple[float, float, float]:
    """The loss on all rows: at the start, after H eager steps from there, and of what a Program has `trained`."""
    same = bound(loss, sample.words(1, 0))
    eager = load_parameters(model, flat)
    before = evaluate(eager, same, sample.rows)
    optimise(eager, lambda t: sample.value(eager, loss, t), INNER, steps=H)
    due = evaluate(eager, same, sample.rows)
    return before, due, evaluate(load_parameters(model, trained), same, sample.rows)


@cache
def job_of(name: str) -> tuple[nn.Module, TrainingJob]:
    model, length = small(name)
    settings = {"batch": Batch(4, length), "rounds": 1, "slots": 2, "min_slots": 1, "seed": 1}
    spec = diloco.DiLoCo(inner=INNER, inner_steps=H)
    return model, training_job(model, spec, Dataset(rows(length), 256), **settings)


# --- the registry ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_description_builds_the_same_model_and_is_plain_json(name: str) -> None:
    model, _ = small(name)
    described = describe(model)
    again = build_model(json.loads(json.dumps(described)))
    assert describe(again) == described
    assert [(n, p.shape, p.requires_grad) for n, p in again.named_parameters()] == [
        (n, p.shape, p.requires_grad) for n, p in model.named_parameters()
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_job_of_a_model_could_be_defended(name: str) -> None:
    class Params:
        shared_depth, payload_depth, slots, carry = 1, 0, 2, 0
        row_length = small(name)[1]

    _, job = job_of(name)
    check_programs(job.programs.step, job.programs.encode, job.programs.merge, Params())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_job_of_a_model_cannot_be_voided(name: str) -> None:
    """Every rule that the contract knows holds under all evidence that the three Programs admit."""
    _, job = job_of(name)
    step, encode, merge = (ProgramParts.of(p) for p in (job.programs.step, job.programs.encode, job.programs.merge))
    params = replace(
        invalid.sound().job, step_program=step.root, encode_program=encode.root, merge_program=merge.root, slots=2,
        row_length=job.dataset.row_tokens,
    )  # fmt: skip
    assert defects.find(Held(params, (step, encode, merge))) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_twenty_steps_end_at_torch_s_loss(name: str, accumulation: int) -> None:
    model, length = small(name)
    batch = Batch(4, length, accumulation)
    loss, flat = loss_of(model), initial_parameters(model, 1)
    spec = diloco.DiLoCo(inner=INNER, inner_steps=H)
    step = compile(build_programs(model, loss, spec, batch=batch, rounds=1, slots=2).step)
    zero = np.zeros_like(flat)
    state = [flat, None, flat, None, zero, zero, np.array(0, np.int32), None]
    sample = Sample(rows(length), batch, SEED)
    for t in range(1, H + 1):
        state = list(step.run(state, StepContext(SEED, 0, 0, t), sample.rows))
    before, due, got = losses_beside(model, loss, flat, state[0], sample)
    assert before - due > 0.02, "the steps teach something"
    assert got == pytest.approx(due, abs=0.02 * (before - due))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
def test_trained_model_comes_back_from_its_files(name: str, tmp_path: Path) -> None:
    model, job = job_of(name)
    flat = job.genesis.shared[0]
    save_model(tmp_path, flat, job.parameters, job.model, job.programs.step.consts)
    inputs = torch.arange(128 if name == "cnn" else 12).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path)(inputs), load_parameters(model, flat)(inputs))


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (LlamaConfig, {"kv_heads": 3}),
        (LlamaConfig, {"width": 12, "heads": 4}),
        (LlamaConfig, {"layers": 0}),
        (LlamaConfig, {"epsilon": 0.0}),
        (EncoderConfig, {"width": 30}),
        (EncoderConfig, {"vocabulary": 1}),
        (EncoderConfig, {"context": 0}),
        (CNNConfig, {"size": 10}),
        (CNNConfig, {"width": 6}),
        (CNNConfig, {"classes": 0}),
        (LoRAConfig, {"rank": 0}),
        (LoRAConfig, {"targets": []}),
    ],
)
def test_shape_that_cannot_be_is_refused(config, fields) -> None:
    with pytest.raises(UsageError) as caught:
        config(**fields)
    assert caught.value.hint


def test_model_that_is_not_registered_is_refused() -> None:
    with pytest.raises(UsageError, match="Linear"):
        loss_of(nn.Linear(2, 2))


def test_model_of_one_s_own_is_a_row_of_the_registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(MODELS, "line", ModelKind(LineConfig, Line, lambda model: line_loss))
    model = Line(LineConfig(8))
    settings = {"batch": Batch(4, 9), "rounds": 1, "slots": 2, "min_slots": 1}
    job = training_job(model, diloco.DiLoCo(inner_steps=2), Dataset(rows(9), 32), **settings)
    assert (job.genesis.shared[0][:8] == model.head.weight.detach().numpy().reshape(-1)).all(), "the weights it has"
    save_model(tmp_path, job.genesis.shared[0], job.parameters, job.model)
    x = torch.ones(1, 8)
    assert torch.equal(load_model(tmp_path)(x), model(x))


@dataclass(frozen=True)
class LineConfig:
    """The shape of a line."""

    inputs: int = 8


class Line(nn.Module):
    """One number out of some."""

    def __init__(self, config: LineConfig) -> None:
        super().__init__()
        self.config = config
        self.head = nn.Linear(config.inputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, inputs] -> [B]."""
        return self.head(x).squeeze(1)


def line_loss(model, rows_BL: torch.Tensor) -> torch.Tensor:
    """Squared error of the last element."""
    x_BL = rows_BL.to(torch.float32)
    return nn.functional.mse_loss(model(x_BL[:, :-1]), x_BL[:, -1])


# --- llama -------------------------------------------------------------------------------------------------


def test_rotated_products_depend_on_distance_alone() -> None:
    """Su 2021, equation 11: <rotate(q, m), rotate(k, n)> is a function of m - n."""
    cos, sin = rotary_tables(LlamaConfig(context=32, heads=1, kv_heads=1, width=8))
    q, k = (torch.from_numpy(np.random.default_rng(s).standard_normal(8)).expand(1, 1, 32, 8) for s in (0, 1))
    products = (rotated(q, cos, sin) @ rotated(k, cos, sin).transpose(-2, -1))[0, 0]
    for distance in (0, 3, 17):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert not torch.allclose(products[0, 0], products[0, 3])
    assert torch.equal(rotated(q, cos, sin)[..., 0, :], q[..., 0, :]), "position 0 stays"


def test_llama_sees_no_later_token_and_every_earlier_one() -> None:
    model = started(Llama(LLAMA_SMALL))
    tokens = torch.arange(16).view(1, 16)
    with torch.no_grad():
        before = model(tokens)
        tokens[0, 9] = 31
        after = model(tokens)
    same = (before == after).all(-1)[0]
    assert same[:9].all()
    assert not same[9:].any()


# --- encoder -----------------------------------------------------------------------------------------------


def test_fifteen_percent_are_chosen_and_of_those_eighty_ten_ten() -> None:
    count, vocabulary = 200_000, 33
    words = np.random.default_rng(0).integers(-(2**31), 2**31, (1, count, 2), dtype=np.int64).astype(np.int32)
    tokens = torch.full((1, count), 5)
    inputs, chosen = corrupted(tokens, torch.from_numpy(words), vocabulary)
    assert (inputs[~chosen] == 5).all(), "what is not chosen stays"
    assert chosen.float().mean().item() == pytest.approx(0.15, abs=0.003)
    of_chosen = inputs[chosen]
    masked, kept = ((of_chosen == token).float().mean().item() for token in (vocabulary - 1, 5))
    assert masked == pytest.approx(0.8, abs=0.01)
    assert kept == pytest.approx(0.1 + 0.1 / (vocabulary - 1), abs=0.01)
    others = torch.bincount(of_chosen, minlength=vocabulary)[:-1]
    others[5] = others[4]
    assert others.min() > 0, "any token may stand in"
    assert others.max() < 1.5 * others.float().mean()


@pytest.mark.slow
def test_masks_differ_between_steps_and_passes_and_are_the_program_s() -> None:
    model, length = small("encoder")
    batch = Batch(2, length, accumulation=2)
    sample = Sample(rows(length), batch, SEED)
    drawn = [sample.words(t, k)(64) for t in (1, 2) for k in (0, 1)]
    assert len({tuple(w.tolist()) for w in drawn}) == 4
    step = build_programs(model, loss_of(model), diloco.DiLoCo(inner_steps=1), batch=batch, rounds=1, slots=2).step
    streams = sorted(op.p0 for op in step.ops if op.kind.name == "RANDOM")
    assert streams == [0, 1]


def test_loss_of_no_chosen_token_is_zero_not_nan() -> None:
    model = started(Encoder(ENCODER_SMALL))
    loss = bound(loss_of(model), lambda count: torch.full((count,), 0xFFFF, dtype=torch.int32))
    assert loss(model, torch.zeros(2, 16, dtype=torch.int64)).item() == 0.0


# --- adapters ----------------------------------------------------------------------------------------------


def test_adapters_change_nothing_at_first_and_the_base_stays() -> None:
    base = started(GPT(GPT_SMALL))
    model = adapt(base, rank=4)
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        assert torch.equal(started(model, 5)(tokens), base(tokens))
    assert all(p.requires_grad for p in base.parameters()), "the model given is not the one that froze"
    assert {n.rsplit(".", 2)[-2] for n, p in model.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}


def test_a_large_base_is_never_copied() -> None:
    base = started(GPT(replace(GPT_SMALL, layers=1, width=320, heads=2)))
    model = adapt(base, rank=2)
    weights = {name: p for name, p in base.named_parameters() if p.nbytes > COPIED_BYTES}
    assert weights, "some are large"
    frozen = dict(model.named_parameters())
    built = build_programs(model, loss_of(model), diloco.DiLoCo(inner_steps=H), batch=Batch(2, 17), rounds=1, slots=2)
    read = {np.frombuffer(c.data, np.uint8).ctypes.data for c in built.step.consts}
    for name, p in weights.items():
        assert frozen["base." + name.replace("qkv", "qkv.layer")].data_ptr() == p.data_ptr(), f"{name} of the model"
        assert p.data_ptr() in read, f"{name} of the Program"
        assert p.requires_grad


def test_state_of_a_job_holds_adapters_alone_and_its_step_the_base() -> None:
    model, job = job_of("lora")
    adapters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert adapters <= job.genesis.shared[0].size < adapters + 256
    roots = {const.root.hex() for const in job.programs.step.consts}
    frozen = [p for p in job.parameters if "root" in p]
    assert len(frozen) == sum(not p.requires_grad for p in model.parameters())
    assert {p["root"] for p in frozen} <= roots
    assert not job.programs.encode.consts
    assert not job.programs.merge.consts


@pytest.mark.slow
def test_base_is_part_of_the_program_s_root() -> None:
    other = adapt(started(GPT(GPT_SMALL), 2), rank=4, targets=["qkv", "up"])
    spec, settings = diloco.DiLoCo(inner=INNER, inner_steps=H), {"batch": Batch(4, 17), "rounds": 1, "slots": 2}
    built = build_programs(other, loss_of(other), spec, **settings)
    assert built.step.root != job_of("lora")[1].programs.step.root


def test_merged_adapters_compute_the_same_and_export_as_the_base(tmp_path: Path) -> None:
    model = small("lora")[0]
    flat = 0.1 * np.random.default_rng(0).standard_normal(layout_of(model).size).astype(np.float32)
    plain = merged(load_parameters(model, flat))
    assert type(plain) is GPT
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        torch.testing.assert_close(plain(tokens), model(tokens), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(plain(tokens), started(GPT(GPT_SMALL))(tokens)), "the adapters said something"
        save_model(tmp_path, flat_parameters(plain), layout_of(plain).describe(), describe(plain))
        assert torch.equal(load_model(tmp_path)(tokens), plain(tokens))


@pytest.mark.slow
def test_gpt_2_of_transformers_is_adapted_in_its_own_layers() -> None:
    transformers = pytest.importorskip("transformers")
    shape = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    model = adapt(transformers.GPT2LMHeadModel(shape).eval(), rank=2, targets=["c_attn"])
    flat = 0.1 * np.random.default_rng(0).standard_normal(layout_of(model).size).astype(np.float32)
    plain = merged(load_parameters(model, flat)).eval()
    tokens = torch.arange(12).view(1, 12)
    with torch.no_grad():
        torch.testing.assert_close(plain(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-5)
    assert layout_of(model).used == 2 * 32 + 96 * 2
    built = build_programs(model, loss_of(model), diloco.DiLoCo(inner_steps=2), batch=Batch(2, 17), rounds=1, slots=2)
    assert built.layout.used == layout_of(model).used
    assert describe(build_model(describe(model))) == describe(model)


def test_export_without_the_job_s_constants_is_refused(tmp_path: Path) -> None:
    _, job = job_of("lora")
    with pytest.raises(PayloadInvalid, match="frozen"):
        save_model(tmp_path, job.genesis.shared[0], job.parameters, job.model)


@pytest.mark.parametrize(("targets", "what"), [(["nothing"], "nothing"), (["head"], "shares")])
def test_layer_that_cannot_be_adapted_is_refused(targets: list[str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        adapt(GPT(GPTConfig(layers=1)), targets=targets)


def test_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing to train"):
        layout_of(GPT(GPT_SMALL).requires_grad_(False))


def test_frozen_parameter_that_no_step_reads_is_refused() -> None:
    model = GPT(GPT_SMALL)
    model.spare = nn.Parameter(torch.ones(8), requires_grad=False)
    settings = {"batch": Batch(4, 17), "rounds": 1, "slots": 2, "min_slots": 1}
    with pytest.raises(UsageError, match="spare"):
        training_job(model, diloco.DiLoCo(), Dataset(rows(17), 256), **settings)


# --- frozen weights as codes ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int8", "int8x2"])
def test_frozen_weights_of_integer_products_are_codes_and_no_floats(form: str, tmp_path: Path) -> None:
    base = started(GPT(replace(GPT_SMALL, tied=False)), 1)
    model = adapt(base, rank=4, targets=["qkv", "up"])
    arithmetic = Arithmetic("int8", {"*": form})
    job = training_job(
        model, diloco.DiLoCo(inner_steps=2), Dataset(rows(17), 256), batch=Batch(2, 17), rounds=1, slots=2, min_slots=1,
        arithmetic=arithmetic,
    )  # fmt: skip
    limbs = {p["name"]: len(p["limbs"]) for p in job.parameters if "limbs" in p}
    matrices = {name for name, p in model.named_parameters() if not p.requires_grad and p.dim() == 2}
    assert set(limbs) == {name for name in matrices if "tokens" not in name and "positions" not in name}
    assert set(limbs.values()) == {2 if form == "int8x2" else 1}
    weights = dict(model.named_parameters())
    floats = {bytes(const.data) for const in job.programs.step.consts}
    for name in limbs:
        assert weights[name].detach().numpy().tobytes() not in floats, f"{name} is no table of floats"

    # Whoever has the Programs and a checkpoint has the model, as near as its codes are.
    save_model(tmp_path, job.genesis.shared, job.parameters, job.model, job.programs.step.consts)
    found = dict(load_model(tmp_path).named_parameters())
    for name, parameter in weights.items():
        if parameter.requires_grad:
            continue
        far = (found[name] - parameter).abs().max().item()
        assert far <= (0.0 if name not in limbs else parameter.abs().max().item() / (250 if form == "int8" else 6e4))
        assert (far > 0) == (name in limbs), name


def test_a_spec_with_frozen_codes_survives_its_file() -> None:
    model = adapt(started(GPT(GPT_SMALL), 1), rank=2)
    built = build_programs(
        model, loss_of(model), diloco.DiLoCo(inner_steps=2), batch=Batch(2, 17), rounds=1, slots=2,
        arithmetic=Arithmetic("int8"),
    )  # fmt: skip
    listed = described_parameters(model, built)
    spec = JobSpec({}, Cid(""), Cid(""), {}, listed, {}, arithmetic=Arithmetic("int8").to_dict())
    assert JobSpec.decode(spec.encode()) == spec
    assert any("limbs" in p for p in listed)
