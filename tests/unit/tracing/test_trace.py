"""trace: layouts, aliases, sharing, errors, and a root that depends on arithmetic alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import LoweringError, UsageError
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32, Alias, Fold, Kind, Program, Tag
from lockstep.tracing import context, draw, random_words, trace
from lockstep.tracing.fusion import MAX_BIG
from lockstep.training.baseline import load_parameters
from lockstep.training.job import Batch, build_programs
from lockstep.training.models import (
    CNN,
    GPT,
    MLP,
    CNNConfig,
    Encoder,
    EncoderConfig,
    GPTConfig,
    Llama,
    LlamaConfig,
    MLPConfig,
    loss_of,
)  # fmt: skip
from lockstep.training.models.lora import adapt
from lockstep.training.parameters import initial_parameters
from lockstep.training.strategies import diloco

CONTEXT = StepContext(bytes(range(32)), round=2, slot=1, t=5)
GOLDEN = Path(__file__).with_name("roots.json")
SMALL = GPTConfig(vocabulary=32, context=16, layers=2, heads=2, width=32)
QUICK = ("mlp", "gpt", "gpt untied, erf, biases, int8, accumulated", "cnn")
"""Models whose golden roots every run traces: all strategies' payloads and all kinds of ops are among theirs."""


def models() -> dict[str, tuple[nn.Module, diloco.DiLoCo, Batch]]:
    """What golden roots are kept for."""
    rows = Batch(rows=2, row_length=17)
    int8 = diloco.DiLoCo(inner_steps=3, payload="int8-block")
    return {
        "mlp": (MLP(MLPConfig()), diloco.DiLoCo(inner_steps=3), rows),
        "gpt": (GPT(SMALL), diloco.DiLoCo(inner_steps=3), rows),
        "gpt untied, erf, biases, int8, accumulated": (
            GPT(GPTConfig(32, 16, layers=1, heads=4, width=32, tied=False, gelu="none", bias=True)),
            int8,
            Batch(rows=2, row_length=17, accumulation=2),
        ),
        "demo": (GPT(GPTConfig()), diloco.DiLoCo(inner_steps=3), Batch()),
        "llama": (Llama(LlamaConfig(32, 16, layers=1, heads=4, kv_heads=2, width=32, hidden=48)), int8, rows),
        "encoder": (Encoder(EncoderConfig(33, 17, layers=1, heads=2, width=32)), int8, rows),
        "cnn": (CNN(CNNConfig(size=4, width=4, groups=2)), int8, rows),
        "lora": (adapt(_started(GPT(SMALL)), rank=4), int8, rows),
    }


def _started(model: nn.Module) -> nn.Module:
    return load_parameters(model, initial_parameters(model, 0))


@cache
def programs(name: str) -> tuple[Program, Program, Program]:
    """Step, encode and merge of a model."""
    model, spec, batch = models()[name]
    built = build_programs(model, loss_of(model), spec, batch=batch, rounds=2, slots=3)
    return built.step, built.encode, built.merge


def roots(names: Iterable[str]) -> dict[str, list[str]]:
    """Model to the roots of its three Programs."""
    return {name: [program.root.hex() for program in programs(name)] for name in names}


def run(program, *state):
    """On the native executor, from arrays."""
    padded = [None if s is None else np.asarray(s) for s in state]
    padded += [None] * (len(program.inputs) - len(padded))
    return compile(program).run(padded, CONTEXT)


# --- states ------------------------------------------------------------------------------------------------


def test_empty_entries_stay_empty_and_states_are_padded_to_powers_of_two() -> None:
    program = trace(lambda a, _none, b: [a + b, None, b], torch.zeros(4), None, torch.zeros(4))
    header = TensorHeader(F32, (4,))
    assert program.inputs == (header, None, header, None)
    assert [a.kind for a in program.outputs] == [Alias.OP_KIND, Alias.EMPTY_KIND, Alias.STATE_KIND, Alias.EMPTY_KIND]
    validate(program)


def test_output_that_is_an_input_is_an_alias_and_costs_no_op() -> None:
    program = trace(lambda a, b: [b, a], torch.zeros(4), torch.zeros(4))
    assert not program.ops
    assert [a.index for a in program.outputs] == [1, 0]


def test_same_value_twice_is_one_op() -> None:
    program = trace(lambda a: [a * 2 + 1, 2 * a + 1], torch.zeros(300))
    assert [a.index for a in program.outputs] == [program.outputs[0].index] * 2
    assert len(program.ops) <= 2


@pytest.mark.parametrize("n", [1, 5, 300])
def test_reshaped_broadcast_and_scalar_outputs_have_the_state_s_shape(n: int) -> None:
    def outputs(a):
        return [a.sum(), a.sum().reshape(1), a.sum().expand(7), a.view(1, -1).t().reshape(-1), torch.full((3,), 2.5)]

    program = trace(outputs, torch.zeros(n))
    validate(program)
    shapes = [program.output_header(k).shape for k in range(5)]
    assert shapes == [(), (1,), (7,), (n,), (3,)]
    got = run(program, np.ones(n, np.float32))
    assert [g.tolist() for g in got[:3]] == [float(n), [float(n)], [float(n)] * 7]
    assert got[4].tolist() == [2.5] * 3


def test_long_integers_become_i32() -> None:
    program = trace(lambda i: [i + 1], torch.zeros((), dtype=torch.int64))
    assert program.inputs[0] == TensorHeader(I32, ())
    assert run(program, np.array(41, np.int32))[0] == 42


@pytest.mark.parametrize(
    "example",
    [torch.zeros(3, dtype=torch.float64), torch.zeros(2, 2), torch.zeros(0), torch.zeros(3, dtype=torch.bool)],
)
def test_state_that_a_program_does_not_know_is_refused(example: torch.Tensor) -> None:
    with pytest.raises(LoweringError) as caught:
        trace(lambda x: [x], example)
    assert caught.value.hint


def test_output_of_higher_rank_is_refused() -> None:
    with pytest.raises(LoweringError, match="output 0"):
        trace(lambda x: [x.view(2, 2) + 1], torch.zeros(4))


# --- sources -----------------------------------------------------------------------------------------------


def test_rows_random_words_and_context_come_from_the_job() -> None:
    def read(x):
        rows = draw(3, 2, 5)
        words = random_words(6, stream=9)
        place = torch.stack([context("round"), context("slot"), context("t")])
        return [rows.reshape(-1).to(torch.int32), words, place, x]

    program = trace(read, torch.zeros(1))
    validate(program)
    assert {op.kind for op in program.ops} >= {Kind.DRAW, Kind.RANDOM}
    dataset = np.arange(50, dtype=np.int32).reshape(10, 5)
    rows, words, place, _ = compile(program).run([np.zeros(1, np.float32), None][:1], CONTEXT, dataset)
    assert all((row == dataset[row[0] // 5]).all() for row in rows.reshape(2, 5)), "rows are whole rows of the dataset"
    assert len(set(words.tolist())) == 6
    assert place.tolist() == [2, 1, 5]


@pytest.mark.parametrize("call", [lambda: draw(0, 1, 5), lambda: random_words(4, 0), lambda: context("t")])
def test_sources_outside_a_trace_are_an_error(call) -> None:
    with pytest.raises(UsageError, match=r"lockstep\.tracing"):
        call()


# --- what becomes an op ------------------------------------------------------------------------------------


def test_views_cost_nothing() -> None:
    def views(x):
        y = x.view(2, 3, 4).permute(1, 0, 2).reshape(6, 4)
        return [(y[:, 1:3] * y.flip(0)[:, :2]).sum(1)]

    program = trace(views, torch.zeros(24))
    kinds = [op.kind for op in program.ops]
    assert kinds == [Kind.FOLD, Kind.MAP], "a dot of two windows, then the state's rank of 1"


def test_attention_layout_needs_no_copy_between_its_products() -> None:
    """Heads side by side in the output of a fold are written in the order in which the projection reads them."""

    def heads(x, w):
        q = x.view(2, 8, 3, 4).transpose(1, 2)
        y = (q @ q.transpose(-2, -1)) @ q
        return [(y.transpose(1, 2).reshape(16, 12) @ w.view(12, 12).t()).reshape(-1)]

    program = trace(heads, torch.zeros(192), torch.zeros(144))
    kinds = [op.kind for op in program.ops]
    assert kinds.count(Kind.FOLD) == 3
    assert kinds.count(Kind.MAP) == 2, "one transposes v, one flattens the result"


def grouped_attention(masked: bool):
    """The gradient of attention by flat keys: four heads on two heads of keys and values, in torch's form or spread."""

    def gradient(x, k):
        leaf, q = k.detach().requires_grad_(), x.view(1, 4, 16, 8)
        heads = leaf.view(1, 2, 16, 8)
        if masked:
            heads = heads[:, :, None].expand(1, 2, 2, 16, 8).reshape(1, 4, 16, 8)
        y = nn.functional.scaled_dot_product_attention(q, heads, heads, is_causal=True, enable_gqa=not masked)
        return [torch.autograd.grad((y * q).sum(), leaf)[0].reshape(-1), None]

    return gradient


@pytest.mark.parametrize("masked", [False, True], ids=["grouped", "spread"])
def test_gradients_of_shared_heads_are_products_with_rows(masked: bool) -> None:
    program = trace(grouped_attention(masked), torch.zeros(512), torch.zeros(256))
    for op in program.ops:
        if op.kind == Kind.FOLD and op.mode == Fold.DOT and op.extents:
            shared = [bool(a and b) for a, b in zip(*(view.strides[:-1] for view in op.views), strict=True)]
            assert all(shared) or not shared[-1], "neighbours in memory share a row or a column"
    rng = np.random.default_rng(0)
    state = [rng.standard_normal(n).astype(np.float32) for n in (512, 256)]
    due = grouped_attention(masked)(*(torch.from_numpy(s).double() for s in state))[0]
    np.testing.assert_allclose(run(program, *state)[0], due.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_of_two_halves_are_joined_and_not_added() -> None:
    def rotated(x):
        leaf = x.detach().requires_grad_()
        a, b = leaf[..., :4], leaf[..., 4:]
        return [torch.autograd.grad((torch.cat((-b, a), -1) * x).sum(), leaf)[0]]

    program = trace(rotated, torch.zeros(8))
    assert [op.kind for op in program.ops].count(Kind.CONCAT) == 1
    x = np.arange(8, dtype=np.float32)
    assert run(program, x)[0].tolist() == [4, 5, 6, 7, 0, -1, -2, -3]


def test_products_that_are_summed_become_a_dot() -> None:
    program = trace(lambda x, y: [(x * y).sum(), (x * x).sum()], torch.zeros(600), torch.zeros(600))
    assert [(op.kind, op.mode) for op in program.ops] == [(Kind.FOLD, Fold.DOT)] * 2


def test_lookup_at_known_rows_is_a_view() -> None:
    program = trace(lambda w: [nn.functional.embedding(torch.arange(1, 4), w.view(6, 4)).sum(0)], torch.zeros(24))
    assert Kind.GATHER not in [op.kind for op in program.ops]


def test_tables_are_constants_of_the_program() -> None:
    table = torch.tensor([0.5, 0.25, 0.125])
    program = trace(
        lambda i: [nn.functional.embedding(i, table.view(3, 1)).reshape(())], torch.zeros((), dtype=torch.int32)
    )
    assert len(program.consts) == 1
    assert run(program, np.array(1, np.int32))[0] == 0.25
    assert run(program, np.array(7, np.int32))[0] == 0, "beyond the table lies zero"


@pytest.mark.slow
def test_folds_read_contiguous_rows() -> None:
    for program in programs("gpt"):
        for op in program.ops:
            if op.kind == Kind.FOLD:
                reads = [v for v in op.views if v.tag not in (Tag.IOTA, Tag.CONTEXT)]
                assert all(v.strides[-1] in (0, 1) for v in reads)


def test_maps_open_at_most_four_large_tensors() -> None:
    for program in programs("gpt"):
        for op in program.ops:
            if op.kind != Kind.MAP:
                continue
            big = [v for v in op.views if _source_elements(program, v) > 256]
            assert len(big) <= MAX_BIG


def test_names_carry_module_operation_and_line() -> None:
    step = programs("gpt")[0]
    assert "blocks.1.attn.qkv.mm" in step.names
    index = step.names.index("blocks.1.attn._softmax_backward_data")
    assert step.places[index].startswith("gpt.py:"), "a backward op points at its forward's line"
    assert "scaled_dot_product_attention" in step.places[index]


# --- errors ------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """A module with one operation that has no rule."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        """Applies it."""
        return self.how(x * self.weight)


class Stack(nn.Module):
    """Blocks, one of which is odd."""

    def __init__(self, how) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), nn.Identity(), nn.ModuleDict({"attn": Odd(how)})])

    def forward(self, x):
        """Through the odd block."""
        return self.blocks[2]["attn"](x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("how", "aten"),
    [
        (lambda x: torch.special.bessel_j0(x), "aten.special_bessel_j0"),
        (lambda x: x * x.sum().item(), "aten._local_scalar_dense"),
        (lambda x: x[x > 0].sum() + x, "data"),
        (lambda x: x.double(), "float64"),
        (lambda x: torch.poisson(x), "aten.poisson"),
    ],
)
def test_error_names_module_operation_and_line(how, aten: str) -> None:
    model = Stack(how)
    with pytest.raises(LoweringError) as caught:
        trace(lambda x: [torch.func.functional_call(model, {}, (x,))], torch.ones(4))
    message = caught.value.message
    assert "blocks.2.attn" in message, message
    assert aten in message, message
    assert "test_trace.py:" in message, message
    assert caught.value.hint


def test_error_in_a_backward_names_the_forward_line() -> None:
    model = Stack(lambda x: torch.distributions.Dirichlet(x, validate_args=False).rsample())

    def gradient(x):
        leaf = x.detach().requires_grad_()
        return [torch.autograd.grad(model(leaf).sum(), leaf)[0]]

    with pytest.raises(LoweringError, match=r"blocks\.2\.attn.*_dirichlet_grad.*test_trace\.py:\d+ "):
        trace(gradient, torch.ones(4))


def test_failure_of_the_users_own_function_is_told_plainly() -> None:
    with pytest.raises(LoweringError, match="shape"):
        trace(lambda x: [x.view(3, 5)], torch.ones(4))


# --- determinism -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in models()])
def test_programs_keep_every_rule_of_the_validator_and_have_their_golden_roots(name: str) -> None:
    """A change here is a change of every job's Programs: say why in the commit that regenerates the file."""
    for program in programs(name):
        validate(program)
    assert roots([name])[name] == json.loads(GOLDEN.read_text())[name]


def test_every_model_has_golden_roots() -> None:
    assert set(models()) == set(json.loads(GOLDEN.read_text()))


@pytest.mark.slow
def test_roots_depend_on_no_hash_seed_thread_count_or_history() -> None:
    script = "import json; from tests.unit.tracing.test_trace import models, roots; print(json.dumps(roots(models())))"
    seen = []
    for seed, threads in (("1", "1"), ("77", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads}
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
        seen.append(json.loads(done.stdout))
    assert seen[0] == seen[1] == roots(models())


def test_root_does_not_depend_on_names() -> None:
    def one(weights, bias):
        return [(weights * 3 + bias).sum()]

    def other(a, b):
        c = a * 3
        del a
        return [(c + b).sum()]

    examples = (torch.zeros(600), torch.zeros(600))
    assert trace(one, *examples).root == trace(other, *examples).root


def _source_elements(program, view) -> int:
    if view.tag == Tag.OP:
        return program.ops[view.index].header.elements
    return program.inputs[view.index].elements if view.tag == Tag.STATE else 1


if __name__ == "__main__":
    # After a change that is meant to change every Program: `python -m tests.unit.tracing.test_trace`.
    GOLDEN.write_text(json.dumps(roots(models()), indent=2) + "\n")
