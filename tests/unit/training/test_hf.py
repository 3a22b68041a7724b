"""Classes of `transformers`, traced unchanged: logits, gradients, whole steps, files that `from_pretrained` reads."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import dag_cbor
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.executor import Executable
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import LockstepError, PayloadInvalid, UsageError
from lockstep.protocol.programs.program import Program
from lockstep.storage.dataset import Dataset
from lockstep.tracing import trace
from lockstep.tracing.arithmetic import Arithmetic, Products
from lockstep.training.baseline import Sample, flat_parameters, optimise
from lockstep.training.describe import job_of
from lockstep.training.export import generate, load_model, save_model
from lockstep.training.gradients import gradient
from lockstep.training.hf import is_transformers
from lockstep.training.job import Batch, build_programs, training_job
from lockstep.training.losses import logits
from lockstep.training.models import build_model, describe, loss_of, next_token_loss
from lockstep.training.models.lora import adapt, merged
from lockstep.training.optimizers import AdamW
from lockstep.training.parameters import initial_parameters, layout_of, without_weights
from lockstep.training.strategies import diloco
from tests.unit.tracing.test_integers import judged

hf = pytest.importorskip("transformers")

from tests.unit.training.zoo import KINDS, VOCABULARY  # noqa: E402  (it imports transformers)

ROWS, LENGTH = 2, 12
CONTEXT = StepContext(bytes(range(32)), round=0, slot=1, t=1)
RARE = set(KINDS) - {"gpt2", "llama", "qwen3", "opt", "bert", "vit"}
"""Of a family whose other members are tested every time."""
EACH = [pytest.param(n, marks=[pytest.mark.slow] if n in RARE else []) for n in KINDS]


def inputs(name: str) -> torch.Tensor:
    """Tokens [2, 12], or images [2, 3, 8, 8]."""
    rng = np.random.default_rng(3)
    if name == "vit":
        return torch.from_numpy(rng.standard_normal((ROWS, 3, 8, 8)).astype(np.float32))
    return torch.from_numpy(rng.integers(2, VOCABULARY, (ROWS, LENGTH)))


def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with targets that follow from the inputs."""
    scores = logits(model(x))
    if x.dim() == 4:
        return F.cross_entropy(scores, torch.arange(ROWS))
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), (x + 1).remainder(VOCABULARY).reshape(-1))


@cache
def traced(name: str, form: str = "float32") -> Program:
    """(flat parameters, flat inputs) -> (gradient, logits); the products in float32, int8 or int8x2."""
    model, x = KINDS[name].build(), inputs(name)
    layout = layout_of(model)

    def both(flat: torch.Tensor, given: torch.Tensor) -> list[torch.Tensor]:
        given = given.view(x.shape)
        given = given if x.is_floating_point() else given.long()
        with torch.no_grad():
            scores = logits(torch.func.functional_call(model, layout.split(flat), (given,)))
        return [*gradient(model, loss, layout, [flat], given), scores.reshape(-1)]

    example = torch.zeros(x.numel(), dtype=torch.float32 if x.is_floating_point() else torch.int32)
    policy = Arithmetic() if form == "float32" else Arithmetic("int8", {"*": form})
    return trace(both, torch.zeros(layout.size), example, products=Products(policy))


def state_of(name: str) -> list[np.ndarray]:
    """Flat parameters, flat inputs."""
    model, x = KINDS[name].build(), inputs(name)
    words = x.numpy().reshape(-1).astype(np.float32 if x.is_floating_point() else np.int32)
    return [initial_parameters(model, 0), words]


@cache
def computed(name: str, form: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Gradient and logits by the Program."""
    gradients, scores = compile(traced(name, form)).run(state_of(name), CONTEXT)[:2]
    return gradients, scores


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", EACH)
def test_program_keeps_every_rule_and_gives_the_logits(name: str) -> None:
    validate(traced(name))
    with torch.no_grad():
        due = logits(KINDS[name].build()(inputs(name)))
    np.testing.assert_allclose(computed(name)[1], due.reshape(-1), rtol=1e-4, atol=1e-5 * float(due.abs().max()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", EACH)
def test_gradient_is_float64_s(name: str) -> None:
    model, x = KINDS[name].build().double(), inputs(name)
    x = x.double() if x.is_floating_point() else x
    if "experts" in name or name == "mixtral":
        model.set_experts_implementation("eager")  # the others know no float64
    loss(model, x).backward()
    layout, grad = layout_of(model), computed(name)[0]
    parameters = dict(model.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in parameters.values() if p.grad is not None)
    for place in layout.parameters:
        got = grad[place.offset : place.offset + place.elements].reshape(place.shape)
        due = parameters[place.name].grad
        due = torch.zeros(place.shape) if due is None else due
        assert np.abs(got - due.numpy()).max() < 2e-6 * largest + 2e-5 * float(due.abs().max()), place.name


FORMS = {"int8": 0.1, "int8x2": 1e-3}
"""Bounds on the error of a gradient, or of logits, relative to its norm, after two layers of such products."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EACH)
def test_products_of_integers_are_the_reference_s_and_near_float64_s(name: str, form: str) -> None:
    program = traced(name, form)
    validate(program)
    assert judged(program, state_of(name), context=CONTEXT) > 100
    model, x = KINDS[name].build().double(), inputs(name)
    x = x.double() if x.is_floating_point() else x
    if "experts" in name or name == "mixtral":
        model.set_experts_implementation("eager")
    scores = logits(model(x)).detach().numpy().reshape(-1)
    loss(model, x).backward()
    parameters, due = dict(model.named_parameters()), np.zeros(layout_of(model).size)
    for place in layout_of(model).parameters:
        grad = parameters[place.name].grad
        if grad is not None:
            due[place.offset : place.offset + place.elements] = grad.numpy().reshape(-1)
    for found, wanted in zip(computed(name, form), (due, scores), strict=True):
        far = np.linalg.norm(found.reshape(-1)[: wanted.size] - wanted) / np.linalg.norm(wanted)
        assert far < FORMS[form]


CAUSAL = [pytest.param(p.values[0], marks=p.marks) for p in EACH if KINDS[p.values[0]].is_causal]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_later_token_changes_no_bit_of_an_earlier_logit(name: str) -> None:
    flat, tokens = state_of(name)

    def words(program: Executable, changed: int | None) -> np.ndarray:
        """[rows, positions, vocabulary]."""
        given = tokens.reshape(ROWS, LENGTH).copy()
        if changed is not None:
            given[:, changed] = 2 + (given[:, changed] - 1) % (VOCABULARY - 2)
        scores = program.run([flat, given.reshape(-1)], CONTEXT)[1]
        return np.asarray(scores).reshape(ROWS, LENGTH, -1).view(np.uint32)

    for form in ("float32", "int8"):
        program = compile(traced(name, form))
        before = words(program, None)
        for t in (LENGTH - 1, LENGTH // 2):
            after = words(program, t)
            assert (before[:, :t] == after[:, :t]).all(), f"token {t} changes an earlier logit in {form}"
            assert (before[:, t] != after[:, t]).any()


# --- files -------------------------------------------------------------------------------------------------


def exported(model: torch.nn.Module, folder: Path) -> Path:
    """What `download` writes of a job."""
    save_model(folder, initial_parameters(model, 0), layout_of(model).describe(), describe(model))
    return folder


@pytest.mark.parametrize("name", EACH)
def test_export_is_what_from_pretrained_reads(name: str, tmp_path: Path) -> None:
    model, x = KINDS[name].build(), inputs(name)
    loaded, report = type(model).from_pretrained(exported(model, tmp_path / "out"), output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    with torch.no_grad():
        due = logits(model(x))
        torch.testing.assert_close(logits(loaded(x)), due, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(logits(load_model(tmp_path / "out")(x)), due, rtol=1e-4, atol=1e-5)


def test_auto_class_finds_the_model(tmp_path: Path) -> None:
    loaded = hf.AutoModelForCausalLM.from_pretrained(exported(KINDS["llama"].build(), tmp_path / "out"))
    assert type(loaded) is hf.LlamaForCausalLM
    assert loaded.dtype == torch.float32


def test_described_model_is_built_again_and_writes() -> None:
    model = KINDS["qwen3"].build()
    config = describe(model)
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    again = build_model(json.loads(json.dumps(config)))
    assert type(again) is type(model)
    assert layout_of(again) == layout_of(model)
    assert describe(again) == config
    assert len(generate(again, b"\x01\x02", 60, temperature=0)) == 60, "past the largest position"


def test_description_of_every_kind_fits_a_job_s_spec() -> None:
    for kind in KINDS.values():
        config = describe(kind.build())
        assert dag_cbor.decode(dag_cbor.encode(config)) == config


@pytest.mark.parametrize(
    "change",
    [
        {"architectures": ["NoSuchModel"]},
        {"architectures": ["AutoModel"]},
        {"architectures": ["logging"]},
        {"architectures": []},
        {"architectures": "LlamaForCausalLM"},
        {"model_type": "rnn"},
        {"model_type": "bert"},
        {"hidden_size": 64},
        {"hidden_size": "wide"},
        {"num_hidden_layers": 3},
    ],
)
def test_config_of_another_model_is_a_clear_error(tmp_path: Path, change: dict) -> None:
    folder = exported(KINDS["llama"].build(), tmp_path / "out")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(LockstepError) as caught:
        load_model(folder)
    assert caught.value.hint


def test_configuration_cannot_name_kernels_of_a_hub() -> None:
    config = describe(KINDS["llama"].build())
    model = build_model({**config, "attn_implementation": "kernels-community/x", "_attn_implementation": "flex"})
    assert model.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.slow
def test_own_models_need_no_transformers_and_others_name_the_extra() -> None:
    script = (
        "import sys; import lockstep.training.job, lockstep.training.export\n"
        "from lockstep.training.models import GPT, GPTConfig, build_model, describe\n"
        "from lockstep.protocol.errors import UsageError\n"
        "describe(GPT(GPTConfig(layers=1, width=8)))\n"
        "assert 'transformers' not in sys.modules\n"
        "sys.modules['transformers'] = None\n"
        "try: build_model({'architectures': ['LlamaForCausalLM'], 'model_type': 'llama'})\n"
        "except UsageError as error: print(error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "lockstep-compute[hf]" in done.stdout


# --- jobs --------------------------------------------------------------------------------------------------

INNER = AdamW(learning_rate=3e-3, warmup=2, epsilon=1e-5)
"""With an epsilon above the rounding of a gradient that is zero, as that of a key's bias is."""
H = 3


def rows() -> np.ndarray:
    """i32 [40, 13]."""
    return np.random.default_rng(5).integers(2, VOCABULARY, (40, LENGTH + 1), dtype=np.int32)


def trained(program: Program, flat: np.ndarray) -> np.ndarray:
    """The flat parameters after H steps of round 0, slot 1."""
    executable, zero = compile(program), np.zeros_like(flat)
    state: list = [flat, None, flat, None, zero, zero, np.array(0, np.int32), None]
    for t in range(1, H + 1):
        state = list(executable.run(state, StepContext(CONTEXT.seed, 0, 1, t), rows()))
    return state[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_job_trains_as_torch_s_adamw_in_float64(name: str) -> None:
    model = KINDS[name].build()
    batch = Batch(rows=3, row_length=LENGTH + 1)
    job = training_job(
        model, diloco.DiLoCo(inner=INNER, inner_steps=H), Dataset(rows(), VOCABULARY), batch=batch, rounds=1, slots=2,
        min_slots=1,
    )  # fmt: skip
    flat = initial_parameters(model, 0)
    assert (job.genesis.shared[0] == flat).all(), "it starts from the weights that it has"
    assert job.parameters[0]["name"] in dict(model.named_parameters())
    wide = copy.deepcopy(model).double()
    sample = Sample(rows(), batch, CONTEXT.seed, 0, 1)
    optimise(wide, lambda t: sample.value(wide, loss_of(model), t), INNER, steps=H)
    due, got = flat_parameters(wide), trained(job.programs.step, flat)
    moved = np.abs(due - flat)
    assert moved.max() > 1e-3, "the steps move the weights"
    np.testing.assert_allclose(got, due, rtol=0, atol=5e-3 * moved.max())
    assert np.median(np.abs(got - due)) < 1e-6, "binary32 alone separates most of them"


@pytest.mark.slow
def test_dropout_of_a_model_in_training_is_part_of_its_step() -> None:
    model = KINDS["gpt2"].build()
    spec, batch = diloco.DiLoCo(inner=INNER, inner_steps=H), Batch(rows=2, row_length=LENGTH + 1)

    def step(training: bool) -> Program:
        return build_programs(model.train(training), next_token_loss, spec, batch=batch, rounds=1, slots=2).step

    dropped, whole = step(True), step(False)
    assert {op.kind.name for op in dropped.ops} - {op.kind.name for op in whole.ops} == {"RANDOM"}
    flat = initial_parameters(model, 0)
    assert 0 < np.abs(trained(dropped, flat) - trained(whole, flat)).max() < 0.1


@pytest.mark.slow
def test_caches_and_checkpoints_change_no_gradient() -> None:
    def computed_with(cache: bool = True, checkpoints: bool = False) -> np.ndarray:
        model = KINDS["llama"].build()
        model.config.use_cache = cache
        if checkpoints:
            model.train().activation_checkpointing_enable()
        layout, x = layout_of(model), inputs("llama")
        program = trace(
            lambda flat, x: [*gradient(model, loss, layout, [flat], x.view(ROWS, LENGTH).long()), None],
            torch.zeros(layout.size),
            torch.zeros(ROWS * LENGTH, dtype=torch.int32),
        )
        state = [initial_parameters(model, 0), x.numpy().reshape(-1).astype(np.int32)]
        return compile(program).run(state, CONTEXT)[0]

    plain = computed_with()
    for other in (computed_with(cache=False), computed_with(checkpoints=True)):
        np.testing.assert_allclose(other, plain, rtol=0, atol=2e-6 * np.abs(plain).max())


def test_loss_of_the_model_itself_can_be_used() -> None:
    model = KINDS["llama"].build()
    layout, x = layout_of(model), inputs("llama")

    def own(called: Any, rows: torch.Tensor) -> torch.Tensor:
        return called(rows, labels=rows).loss

    program = trace(
        lambda flat, x: [*gradient(model, own, layout, [flat], x.view(ROWS, LENGTH).long()), None],
        torch.zeros(layout.size),
        torch.zeros(ROWS * LENGTH, dtype=torch.int32),
    )
    got = compile(program).run([initial_parameters(model, 0), x.numpy().reshape(-1).astype(np.int32)], CONTEXT)[0]
    wide = model.double()
    wide(x, labels=x).loss.backward()
    due = flat_parameters_of_gradient(wide)
    np.testing.assert_allclose(got, due, rtol=0, atol=2e-5 * np.abs(due).max())


def flat_parameters_of_gradient(model: torch.nn.Module) -> np.ndarray:
    """The gradients in the layout's order."""
    return layout_of(model).join({n: p.grad for n, p in model.named_parameters()}).numpy()


@pytest.mark.slow
def test_adapters_of_a_frozen_model_train_and_are_merged(tmp_path: Path) -> None:
    adapted = adapt(KINDS["llama"].build(), rank=4, targets=("q_proj", "v_proj"))
    batch = Batch(rows=2, row_length=LENGTH + 1)
    job = training_job(
        adapted, diloco.DiLoCo(inner=INNER, inner_steps=H), Dataset(rows(), VOCABULARY), batch=batch, rounds=1, slots=2,
        min_slots=1,
    )  # fmt: skip
    flat = trained(job.programs.step, job.genesis.shared[0])
    assert np.abs(flat - job.genesis.shared[0]).max() > 1e-3
    save_model(tmp_path / "out", flat, job.parameters, job.model, job.programs.step.consts)
    loaded = load_model(tmp_path / "out")
    plain = merged(loaded)
    assert type(plain) is hf.LlamaForCausalLM
    x = inputs("llama")
    with torch.no_grad():
        torch.testing.assert_close(logits(plain(x)), logits(loaded(x)), rtol=1e-4, atol=1e-5)


def test_a_folder_of_transformers_is_read_in_shards_and_as_a_hub_has_it(tmp_path: Path) -> None:
    llama, gpt = KINDS["llama"].build(), KINDS["gpt2"].build()
    llama.to(torch.bfloat16).save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    assert not (tmp_path / "shards/model.safetensors").exists()
    found = load_model(tmp_path / "shards")
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    for name, parameter in llama.named_parameters():
        assert torch.equal(found.get_parameter(name), parameter.float()), name
    gpt.save_pretrained(tmp_path / "hub")
    whole = load_file(tmp_path / "hub/model.safetensors")
    # GPT-2's own files name their tensors without the part of the class, and hold masks that it no longer has.
    bare = {name.removeprefix("transformer."): tensor for name, tensor in whole.items()}
    save_file(bare | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, tmp_path / "hub/model.safetensors", {"format": "pt"})
    x = inputs("gpt2")
    with torch.no_grad():
        assert torch.equal(logits(load_model(tmp_path / "hub")(x)), logits(gpt.eval()(x)))
    lost = next(name for name in bare if name.endswith("mlp.c_fc.weight"))
    save_file({n: t for n, t in bare.items() if n != lost}, tmp_path / "hub/model.safetensors", {"format": "pt"})
    with pytest.raises(PayloadInvalid, match=f"lack 1 weights of GPT2LMHeadModel, e.g. transformer.{lost}"):
        load_model(tmp_path / "hub")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "linear", "row"), [("LlamaForCausalLM", "q_proj", 33), ("BertForMaskedLM", "query", 32)]
)
def test_adapters_are_described_on_a_folder_of_transformers(tmp_path: Path, kind: str, linear: str, row: int) -> None:
    architecture = getattr(hf, kind)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = architecture(architecture.config_class(vocab_size=257, max_position_embeddings=32, **shape))
    model.save_pretrained(tmp_path / "base")
    (tmp_path / "texts").mkdir()
    for i in range(3):
        (tmp_path / f"texts/{i}.txt").write_text("some words of a text, " * 60)
    given: dict[str, Any] = {
        "texts": "texts", "rounds": 1, "slots": 2, "min_slots": 1, "batch": {"rows": 2},
        "adapters": {"base": "base", "rank": 2, "targets": [linear]},
    }  # fmt: skip
    jobs = [job_of(given, tmp_path, weights=weights) for weights in (True, False)]
    assert jobs[0].programs.step.root == jobs[1].programs.step.root
    assert jobs[0].dataset.row_tokens == row
    assert jobs[0].model["base"]["architectures"] == [kind]
    with pytest.raises(UsageError, match="row_length"):
        job_of({**given, "batch": {"row_length": row + 1}}, tmp_path)


def test_model_whose_loss_is_not_known_asks_for_one() -> None:
    with pytest.raises(UsageError, match="ViTForImageClassification") as caught:
        loss_of(KINDS["vit"].build())
    assert "loss=" in caught.value.hint


def test_torch_modules_are_no_models_of_transformers() -> None:
    assert is_transformers(KINDS["opt"].build())
    assert not is_transformers(torch.nn.Linear(2, 2))


def test_a_model_is_traced_without_weights() -> None:
    config = KINDS["llama"].config()
    with without_weights():
        bare = hf.LlamaForCausalLM(config)
    spec, batch = diloco.DiLoCo(inner_steps=H), Batch(rows=2, row_length=LENGTH + 1)
    roots = [
        build_programs(m, next_token_loss, spec, batch=batch, rounds=1, slots=2).step.root
        for m in (hf.LlamaForCausalLM(config), bare)
    ]
    assert roots[0] == roots[1]
    with pytest.raises(UsageError, match="no weights"):
        initial_parameters(bare, 0)


# --- roots -------------------------------------------------------------------------------------------------


def roots() -> list[str]:
    """Of the models that most people train."""
    return [traced(name).root.hex() for name in ("gpt2", "llama", "bert")]


@pytest.mark.slow
def test_roots_depend_on_no_hash_seed() -> None:
    script = "from tests.unit.training.test_hf import roots; print(*roots())"
    for seed, threads in (("1", "1"), ("77", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == roots()
