"""The policy of products: what becomes integers, with how many limbs, and how close that is to float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import STOCHASTIC, Fold, Kind, Program, Quant, Tag
from lockstep.tracing import trace
from lockstep.tracing.arithmetic import FLOAT32, Arithmetic, Products
from lockstep.training.job import Batch, build_programs
from lockstep.training.models import GPT, GPTConfig, Llama, LlamaConfig, next_token_loss
from lockstep.training.strategies import diloco
from tests.unit.tracing import wide

INT8 = Arithmetic("int8")
TWO_LIMBS = Arithmetic("int8", {"*": "int8x2"})
BOUNDS = {"int8": 2e-2, "int8x2": 3e-4}
"""Bounds on the error of a product of normal numbers, relative to its norm: half a code is 1/254 of the largest."""


class Layer(nn.Module):
    """A module around one function of two tensors."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.function(a, b)


def step_of(function: Callable[..., torch.Tensor], a: tuple[int, ...], b: tuple[int, ...]) -> Callable[..., list]:
    """(a, b, g), all flat -> the function's value, and its gradients along g by a and b."""

    def step(flat_a: torch.Tensor, flat_b: torch.Tensor, flat_g: torch.Tensor) -> list[torch.Tensor]:
        left, right = (x.detach().requires_grad_() for x in (flat_a.view(a), flat_b.view(b)))
        y = Layer(function)(left, right)
        found = torch.autograd.grad((y * flat_g.view(y.shape)).sum(), [left, right])
        return [x.reshape(-1) for x in (y, *found)]

    return step


def traced(
    function: Callable[..., torch.Tensor], a: tuple[int, ...], b: tuple[int, ...], policy: Arithmetic
) -> Program:
    count = function(torch.zeros(a), torch.zeros(b)).numel()
    sizes = [int(np.prod(a)), int(np.prod(b)), count]
    program = trace(step_of(function, a, b), *(torch.zeros(n) for n in sizes), products=Products(policy))
    validate(program)
    return program


def numbers(*sizes: int) -> list[np.ndarray]:
    generator = np.random.Generator(np.random.Philox(key=7))
    return [generator.standard_normal(n).astype(np.float32) for n in sizes]


def run(program: Program, state: list[np.ndarray], *, threads: int = 1, path: str = "auto", t: int = 1) -> list:
    """On the executor."""
    padded = [*state, *[None] * (len(program.inputs) - len(state))]
    return list(compile(program, threads=threads, path=path).run(padded, StepContext(wide.SEED, 0, 0, t)))


def kinds(program: Program, kind: Kind, mode: int) -> list:
    return [op for op in program.ops if op.kind == kind and op.mode == mode]


CASES: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "linear": (F.linear, (24, 64), (48, 64)),
    "linear of ragged groups": (F.linear, (5, 300), (7, 300)),
    "linear of one term": (F.linear, (3, 1), (2, 1)),
    "linear with leading axes": (F.linear, (2, 3, 40), (6, 40)),
    "batched": (torch.matmul, (2, 3, 8, 20), (2, 3, 20, 6)),
    "scores": (lambda q, k: q.transpose(1, 2) @ k.transpose(1, 2).mT, (2, 9, 3, 16), (2, 9, 3, 16)),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (2, 3, 6, 6), (4, 3, 3, 3)),
    "strided convolution by groups": (lambda x, w: F.conv2d(x, w, stride=2, groups=2), (2, 4, 7, 7), (6, 2, 3, 3)),
    "a broadcast gradient": (lambda a, b: (a @ b.mT).sum(0), (4, 20), (3, 20)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", BOUNDS)
def test_products_and_their_gradients_are_close_to_float64(name: str, form: str) -> None:
    """By the graph alone, and by the executor."""
    function, a, b = CASES[name]
    program = traced(function, a, b, Arithmetic("int8", {"*": form}))
    # The gradient of a strided convolution's image is a product for each remainder of the strides.
    remainders = 4 if name.startswith("strided") else 1
    assert len(kinds(program, Kind.FOLD, Fold.QDOT)) == 2 + remainders, "the product and its two gradients"
    assert not kinds(program, Kind.FOLD, Fold.DOT)
    state = numbers(*(i.shape[0] for i in program.inputs if i is not None))
    wanted = [x.detach().numpy() for x in step_of(function, a, b)(*(torch.from_numpy(x).double() for x in state))]
    for way, outputs in (("graph", wide.run(program, state)), ("executor", run(program, state))):
        for found, due in zip(outputs, wanted, strict=False):
            assert np.linalg.norm(found - due) <= BOUNDS[form] * np.linalg.norm(due), way


def test_stochastic_words_depend_on_neither_threads_nor_tiling() -> None:
    program = traced(F.linear, (130, 300), (70, 300), INT8)
    state = numbers(130 * 300, 70 * 300, 130 * 70)
    first = [x.tobytes() for x in run(program, state)[:3]]
    for threads, path in ((2, "auto"), (3, "auto"), (1, "scalar"), (2, "scalar")):
        again = [x.tobytes() for x in run(program, state, threads=threads, path=path)[:3]]
        assert again == first, (threads, path)
    forward, *gradients = (x.tobytes() for x in run(program, state, t=2)[:3])
    assert forward == first[0], "the forward draws nothing"
    assert gradients != first[1:], "every step draws its own"


def test_gradients_alone_are_rounded_stochastically_each_along_its_own_k_from_its_own_stream() -> None:
    program = traced(F.linear, (24, 64), (48, 64), INT8)
    codes = kinds(program, Kind.QUANT, Quant.CODES)
    streams = sorted(op.p1 for op in codes)
    assert streams == [0, 0, 0, 0, STOCHASTIC, STOCHASTIC + 1], "x and w twice each, and the gradient twice"
    rounded = [op for op in codes if op.p1]
    assert {op.k_extents for op in rounded} == {(48,), (24,)}, "along outputs, and along rows"


def test_stochastic_rounding_has_no_bias() -> None:
    program = traced(F.linear, (8, 16), (12, 16), INT8)
    state = numbers(8 * 16, 12 * 16, 8 * 12)
    exact = step_of(F.linear, (8, 16), (12, 16))(*(torch.from_numpy(x).double() for x in state))[1].detach().numpy()
    # The weights' own codes are the same in every step: what remains is theirs.
    nearest = np.mean([wide.run(program, state, context=(0, 0, t))[1] for t in range(1, 65)], 0)
    once = [np.linalg.norm(wide.run(program, state, context=(0, 0, t))[1] - nearest) for t in (1, 2, 3)]
    more = np.mean([wide.run(program, state, context=(0, 0, t))[1] for t in range(65, 129)], 0)
    assert np.linalg.norm(nearest - more) < min(once) / 2, "means of 64 steps agree better than one step with a mean"
    assert np.linalg.norm(nearest - exact) < BOUNDS["int8"] * np.linalg.norm(exact)


def test_what_enters_two_products_along_the_same_k_is_quantised_once() -> None:
    both = traced(lambda x, w: F.linear(x, w[:8]) + F.linear(x, w[8:]), (6, 40), (16, 40), INT8)
    forward = [op for op in kinds(both, Kind.QUANT, Quant.CODES) if op.k_extents == (40,)]
    assert len(forward) == 3, "x, and two weights"


def test_products_outside_of_modules_stay_in_float32() -> None:
    program = trace(
        lambda a, b: [(a.view(4, 6) @ b.view(6, 5)).reshape(-1)],
        torch.zeros(24),
        torch.zeros(30),
        products=Products(INT8),
    )
    assert kinds(program, Kind.FOLD, Fold.DOT)
    assert not kinds(program, Kind.QUANT, Quant.CODES)
    assert program.opset == 1


def products_of(model: nn.Module, arithmetic: Arithmetic = INT8) -> dict[str, str]:
    """Name of each product of a model's step to its class."""
    products = Products(arithmetic)
    shape = (2, model.config.row_length)
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for _, p in model.named_parameters()]

    def step(*flat: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().view(s).requires_grad_() for x, s in zip(flat, shapes, strict=True)]
        rows = torch.zeros(shape, dtype=torch.int64)
        state = dict(zip(names, leaves, strict=True)) | dict(model.named_buffers())
        loss = next_token_loss(lambda x: torch.func.functional_call(model, state, (x,)), rows)
        return [x.reshape(-1) for x in torch.autograd.grad(loss, leaves)]

    trace(step, *(torch.zeros(s.numel()) for s in shapes), products=products)
    return products.names


def test_products_of_a_gpt_are_known_by_what_they_are() -> None:
    names = products_of(GPT(GPTConfig(32, 16, layers=1, heads=2, width=32)))
    layers = {f"blocks.0.{name}": "linear" for name in ("attn.qkv", "attn.proj", "up", "down")}
    classes = {**layers, "blocks.0.attn": "attention", "head": "head"}
    both = {f"{n}:{when}": c for n, c in classes.items() for when in ("forward", "gradients")}
    assert names == {**both, "blocks.0.attn:values": "values"}


def test_products_of_a_llama_are_known_by_what_they_are() -> None:
    names = products_of(Llama(LlamaConfig(32, 16, layers=1, heads=4, kv_heads=2, width=32, hidden=48)))
    assert {n for n, c in names.items() if c == "head"} == {"lm_head:forward", "lm_head:gradients"}
    assert {n for n, c in names.items() if c == "attention"} == {
        "layers.0.self_attn:forward", "layers.0.self_attn:gradients",
    }  # fmt: skip
    assert {n for n, c in names.items() if c == "values"} == {"layers.0.self_attn:values"}
    assert names["layers.0.mlp.down_proj:forward"] == "linear"


def step_program(model: nn.Module, arithmetic: Arithmetic) -> Program:
    batch = Batch(rows=2, row_length=model.config.row_length)
    spec = diloco.DiLoCo(inner_steps=2)
    return build_programs(model, next_token_loss, spec, batch=batch, rounds=1, slots=2, arithmetic=arithmetic).step


def groups(program: Program, name: str) -> list[int]:
    """Numbers of groups of the qdots of a module."""
    named = zip(program.ops, program.names, strict=True)
    return [op.k_extents[0] for op, n in named if op.kind == Kind.FOLD and op.mode == Fold.QDOT and n.startswith(name)]


@pytest.mark.slow
def test_the_last_pattern_that_matches_decides() -> None:
    model = Llama(LlamaConfig(32, 16, layers=2, heads=2, kv_heads=2, width=32, hidden=48))
    policy = Arithmetic(
        "int8",
        {
            "*": "int8",
            "layers.*.mlp.down_proj": "int8x2",
            "layers.1.mlp.down_proj:gradients": "float32",
            "lm_head": "float32",
        },
    )
    program = step_program(model, policy)
    validate(program)
    assert groups(program, "layers.0.mlp.down_proj") == [3, 3, 3], "two limbs, three products"
    assert groups(program, "layers.1.mlp.down_proj") == [3], "the forward alone"
    assert groups(program, "layers.0.mlp.up_proj") == [1, 1, 1]
    assert groups(program, "lm_head") == []


def weighted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Attention whose operands are computed."""
    return ((1.5 * a) @ (1.5 * b).mT).softmax(-1) @ (1.5 * b)


def test_values_are_integers_only_where_a_pattern_names_them() -> None:
    def products_in(*patterns: str) -> int:
        program = traced(weighted, (4, 8), (4, 8), Arithmetic("int8", dict.fromkeys(patterns, "int8")))
        return len(kinds(program, Kind.FOLD, Fold.QDOT))

    assert products_in("*") == products_in("*", "*:forward") == 5, "scores, and the four gradients"
    assert products_in("*", "*:values") == products_in(":values") == 6


def test_products_after_weights_that_are_computed_are_no_values() -> None:
    """A layer whose weight is normalised multiplies data by a computed tensor, and its k is no token."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = GPTConfig(32, 16)
            self.tokens = nn.Embedding(32, 8)
            self.layers = nn.Sequential(*(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)) for _ in range(2)))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.layers(self.tokens(tokens)) @ self.tokens.weight.t()

    products = Products(INT8)
    model = Normed()
    trace(lambda t: [model(t.view(1, 16).long()).reshape(-1)], torch.zeros(16, dtype=torch.int32), products=products)
    assert "values" not in products.names.values()


@pytest.mark.slow
def test_codes_of_a_step_come_from_nothing_but_tensors() -> None:
    program = step_program(GPT(GPTConfig(32, 16, layers=1, heads=2, width=32)), INT8)
    for op in program.ops:
        if op.is_qdot:
            assert all(view.tag < Tag.IOTA for view in op.views)


@pytest.mark.slow
def test_a_policy_of_float32_changes_no_root() -> None:
    model = GPT(GPTConfig(32, 16, layers=1, heads=2, width=32))
    assert step_program(model, Arithmetic("float32")).root == step_program(model, FLOAT32).root
    assert step_program(model, INT8).root != step_program(model, FLOAT32).root


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"products": "int4"}, "int4"),
        ({"product": "int8"}, "product"),
        ({"products": "int8", "modules": {"head": "int9"}}, "int9"),
        ({"products": "int8", "modules": "head"}, "table"),
        ({"products": "int8", "modules": {"head": ["int8"]}}, "int8x2"),
        ({"modules": {"head": "int8"}}, "float32"),
        ({"products": 8}, "8"),
    ],
)
def test_a_wrong_name_is_refused_with_a_hint(table: dict, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        Arithmetic.of(table)
    assert what in f"{caught.value.message} {caught.value.hint}"


def test_a_pattern_that_names_no_product_is_refused_with_the_products_that_there_are() -> None:
    model = GPT(GPTConfig(32, 16, layers=1, heads=2, width=32))
    with pytest.raises(UsageError, match=r"blocks\.7\.down names no product") as caught:
        step_program(model, Arithmetic("int8", {"blocks.7.down": "int8x2"}))
    assert "blocks.0.down" in caught.value.hint


def test_a_policy_survives_its_table() -> None:
    assert Arithmetic.of(TWO_LIMBS.to_dict()) == TWO_LIMBS
    assert Arithmetic.of({}) == FLOAT32
