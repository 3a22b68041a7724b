"""The functions of `families.py` against eager torch, forward and gradient, on several shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.protocol.errors import LoweringError
from lockstep.tracing import trace
from tests.unit.tracing.families import FAMILIES, REFUSED

SHAPES = ((5,), (1,), (3, 7), (2, 1, 5))
CASES = [(family, name) for family, cases in FAMILIES.items() for name in cases]
CONTEXT = StepContext(bytes(range(32)), round=2, slot=1, t=5)
Case = Callable[..., Any]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "name"), CASES)
def test_function_of_torch_has_its_value_and_gradient_on_every_shape(family: str, name: str) -> None:
    case = FAMILIES[family][name]
    if name in REFUSED:
        with pytest.raises(LoweringError) as caught:
            compared(case, SHAPES[0], 0)
        assert caught.value.hint
        return
    for turn, shape in enumerate(SHAPES):
        assert compared(case, shape, turn) is None, shape


def compared(case: Case, shape: tuple[int, ...], turn: int) -> str | None:
    """None if value and gradient of one shape are eager float64's; else what differs."""
    names = list(inspect.signature(case).parameters)
    sizes = {name: _shape(shape, name) for name in names if name != "d"}
    rng = np.random.default_rng(turn)
    given = [torch.from_numpy(rng.standard_normal(max(int(np.prod(s)), 1)).astype(np.float32)) for s in sizes.values()]
    dim = (turn % len(shape)) - (len(shape) if turn % 2 else 0) if shape else 0

    def run(*flat: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in flat]
        seen = {name: _laid_out(x, s, turn) for x, (name, s) in zip(leaves, sizes.items(), strict=True)}
        results = tree_leaves(case(**seen, **({"d": dim} if "d" in names else {})))
        slopes = [r for r in results if r.is_floating_point() and r.requires_grad]
        values = [
            r.detach().reshape(-1).to(torch.int32) if r.dtype == torch.bool else r.detach().reshape(-1) for r in results
        ]
        if not slopes:
            return values
        sums = [(r * (torch.arange(r.numel()) / r.numel() + 1).view(r.shape)).sum() for r in slopes]
        found = torch.autograd.grad(sum(sums[1:], sums[0]), leaves, allow_unused=True)
        return [
            *values,
            *(torch.zeros_like(x) if g is None else g.reshape(-1) for x, g in zip(leaves, found, strict=True)),
        ]

    more = [None] * (len(given) == 3)
    program = trace(lambda *flat: run(*flat[: len(given)]), *given, *more)
    got = compile(program).run([*(x.numpy() for x in given), *more], CONTEXT)
    narrow = run(*given)
    torch.set_default_dtype(torch.float64)
    try:
        due = run(*(x.double() for x in given))
    finally:
        torch.set_default_dtype(torch.float32)
    for k, (ours, near, exact) in enumerate(zip(got, narrow, due, strict=False)):
        a, b = np.asarray(ours, np.float64), exact.double().numpy()
        error, allowed = np.abs(a - b), 3e-6 * (1 + np.abs(b)) + 4 * np.abs(near.double().numpy() - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (error <= allowed)
        if not same.all():
            at = int(np.argmin(same))
            return f"output {k} at {at}: {a[at]!r} for {b[at]!r}, eager float32 has {near.reshape(-1)[at].item()!r}"
    return None


def _shape(shape: tuple[int, ...], name: str) -> tuple[int, ...]:
    """The shape of x, y, or z: they broadcast to that of x."""
    if name == "y":
        return shape[1:]
    return tuple(1 if i % 2 else n for i, n in enumerate(shape)) if name == "z" else shape


def _laid_out(x: torch.Tensor, shape: tuple[int, ...], turn: int) -> torch.Tensor:
    """The flat input under a shape; every other time transposed in memory."""
    if turn % 2 and len(shape) > 1:
        return x.view(shape[::-1]).permute(*reversed(range(len(shape))))
    return x.view(shape)
