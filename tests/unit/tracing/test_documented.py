"""Functions of torch's documentation on drawn shapes, native binary32 against eager float64, forward and gradient."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.tracing import trace
from tests.unit.tracing.documented import FAMILIES, Drawn
from tests.unit.tracing.helpers import ramp
from tests.unit.tracing.test_gradients import CONTEXT

QUICK = [
    ("embedding", "embedding_bag mean"),
    ("distances", "cdist p=2.0"),
    ("ctc", "ctc_loss zero_infinity"),
    ("3-D", "conv3d"),
    ("3-D", "max_pool3d with indices"),
    ("pooling", "adaptive_max_pool2d"),
    ("spectra", "fft.irfft"),
    ("complex", "FNO"),
    ("complex", "div"),
    ("linear algebra", "solve"),
    ("linear algebra", "cholesky"),
    ("sampling", "grid_sample bilinear border"),
    ("indexing", "masked_scatter"),
]
"""A case of each kind of formula; the slow test has the rest."""


def shapes_of(words: str, draw: random.Random) -> list[tuple[int, ...]]:
    """The shapes that words stand for: see `documented.py`."""
    extents: dict[str, int] = {"#": 32}

    def extent(letter: str) -> int:
        if letter.isdigit():
            return int(letter)
        if letter not in extents:
            extents[letter] = draw.randint(1, 4) if letter.islower() else draw.randint(5, 8)
        return extents[letter]

    return [tuple(map(extent, word)) for word in words.split()]


def check(case: Drawn, seed: int) -> None:
    """Every value and the gradients of their weighted sum, of arguments whose axes lie in memory in a drawn order."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    shapes = shapes_of(case.shapes, draw)
    orders = [draw.sample(range(len(shape)), len(shape)) for shape in shapes]
    given = [torch.from_numpy(numbers.standard_normal(prod(shape)).astype(np.float32)) for shape in shapes]

    def arranged(x: torch.Tensor, shape: tuple[int, ...], order: list[int]) -> torch.Tensor:
        return x.view([shape[i] for i in order]).permute([order.index(i) for i in range(len(order))])

    def both(*flat: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in flat]
        made = case.function(*map(arranged, leaves, shapes, orders))
        values = [y for y in tree_leaves(made) if isinstance(y, torch.Tensor)]
        results = [y.reshape(-1).to(leaves[0].dtype) for y in values]
        sloped = [y for y in values if y.is_floating_point() and y.requires_grad]
        if sloped:
            total = torch.stack([(y * ramp(y.numel()).view(y.shape)).sum() for y in sloped]).sum()
            results += [g for g in torch.autograd.grad(total, leaves, allow_unused=True) if g is not None]
        return results

    torch.set_default_dtype(torch.float64)
    try:
        due = [y.detach().numpy() for y in both(*(x.double() for x in given))]
    finally:
        torch.set_default_dtype(torch.float32)
    program = trace(both, *given)
    state = [x.numpy() for x in given]
    state += [None] * (len(program.inputs) - len(state))  # type: ignore[list-item]
    got = compile(program).run(state, CONTEXT)
    for k, (a, b) in enumerate(zip(got, due, strict=False)):
        assert a is not None
        finite = b[np.isfinite(b)]
        scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * scale, err_msg=f"output {k} of {shapes}")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("family", "name"), QUICK)
def test_formula_is_float64_s(family: str, name: str) -> None:
    check(FAMILIES[family][name][0], 3)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), [(f, name) for f, rows in FAMILIES.items() for name in rows])
def test_documented_function_is_float64_s_on_drawn_shapes(family: str, name: str) -> None:
    for case in FAMILIES[family][name]:
        for seed in (3, 20):
            check(case, seed)
