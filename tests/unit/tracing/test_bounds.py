"""What a Program may hold: sums of any length, and every other bound refused with its module and its line."""

from __future__ import annotations

import resource
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import LoweringError, ProgramInvalid
from lockstep.protocol.programs import rules
from lockstep.protocol.programs.program import Fold, Kind, Program
from lockstep.tracing import trace
from lockstep.tracing.graph import MAX_PARTS, ROW_TERMS

CONTEXT = StepContext(bytes(32), round=0, slot=0, t=1)
LONG = rules.MAX_TERMS + 3 * ROW_TERMS + 300 * 256 + 7
"""Terms: more than one fold may have, and no whole number of rows."""


@cache
def long_sums() -> Program:
    """(f32 [LONG], i32 [LONG]) -> the sum, the sum of squares, the largest, the smallest; the sum of integers."""

    def sums(x, words):
        return [x.sum(), (x * x).sum(), x.amax(), x.amin(), words.sum().to(torch.int32)]

    return trace(sums, torch.empty(LONG, device="meta"), torch.empty(LONG, dtype=torch.int32, device="meta"))


def test_sums_of_any_length_are_right() -> None:
    validate(long_sums())
    dice = np.random.default_rng(0)
    # Small integers: every order of additions gives the same sum.
    x = dice.integers(-1, 2, LONG).astype(np.float32)
    x[LONG - 1], x[5] = 3, -4
    words = dice.integers(-(2**31), 2**31, LONG, dtype=np.int64).astype(np.int32)
    *got, integers = compile(long_sums()).run([x, words], CONTEXT)[:5]
    assert [float(y) for y in got] == [x.sum(dtype=np.float64), (x * x).sum(dtype=np.float64), 3, -4]
    assert int(integers) == int(words.sum(dtype=np.int64).astype(np.int32))


def test_a_long_sum_reads_its_terms_where_they_lie() -> None:
    copies = [op for op in long_sums().ops if op.header.elements > LONG // ROW_TERMS + 1]
    assert not copies, "rows and what is left of them are views"
    rows = [op for op in long_sums().ops if op.kind == Kind.FOLD and op.k_terms == ROW_TERMS]
    assert {Fold(op.mode) for op in rows} == set(Fold) - {Fold.QDOT}, "a sum of squares is a dot"


def test_sums_along_one_axis_are_cut_too() -> None:
    terms = rules.MAX_TERMS + 5
    program = trace(lambda x: [x.view(terms, 2).sum(0)], torch.empty(2 * terms, device="meta"))
    x = np.random.default_rng(1).integers(0, 2, 2 * terms).astype(np.float32)
    assert compile(program).run([x], CONTEXT)[0].tolist() == x.reshape(terms, 2).sum(0, dtype=np.float64).tolist()


def test_the_longest_fold_stays_one() -> None:
    program = trace(lambda x: [x.sum()], torch.empty(rules.MAX_TERMS, device="meta"))
    assert [(op.kind, op.k_terms) for op in program.ops] == [(Kind.FOLD, rules.MAX_TERMS)]


@pytest.mark.slow
def test_a_concat_of_many_parts_is_several() -> None:
    count = 2 * MAX_PARTS + 3
    program = trace(lambda x: [torch.cat([x[i : i + 2] for i in range(count)])], torch.zeros(count + 1))
    validate(program)
    assert len(program.descriptors) == 4, "each of them has an encoding"
    x = np.arange(count + 1, dtype=np.float32)
    due = [value for i in range(count) for value in (i, i + 1)]
    assert compile(program).run([x], CONTEXT)[0].tolist() == due


class Wide(nn.Module):
    """A product with 2^32 elements."""

    def forward(self, x):
        """x x^T, summed."""
        return (x.view(-1, 1) @ x.view(1, -1)).sum(0)


class Net(nn.Module):
    """With a wide layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Identity(), Wide()])

    def forward(self, x):
        """Through both."""
        return self.layers[1](self.layers[0](x))


WHERE = r"layers\.1` uses aten\.{}, .*{}.*test_bounds\.py:\d+ "


def test_a_tensor_that_is_too_large_is_named() -> None:
    with pytest.raises(LoweringError, match=WHERE.format("mm", r"\(65536, 65536\)")):
        trace(lambda x: [Net()(x)], torch.empty(1 << 16, device="meta"))


def test_a_program_of_too_many_elements_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules.check_total, "__defaults__", (1000,))
    with pytest.raises(LoweringError, match=WHERE.format("mm", "more than 1000 elements")):
        trace(lambda x: [Net()(x)], torch.empty(64))


def test_a_program_of_too_many_ops_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_OPS", 1)
    with pytest.raises(LoweringError, match=WHERE.format("sum.dim_IntList", "a Program of 2 ops")):
        trace(lambda x: [Net()(x)], torch.empty(64))


def test_a_state_that_is_too_wide_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match="2048 entries"):
        trace(lambda *state: [state[0] + 1], torch.zeros(3), *[None] * 1024)


def test_a_state_tensor_that_is_too_large_is_refused() -> None:
    with pytest.raises(ProgramInvalid, match="input entry 0"):
        trace(lambda x: [x + 1], torch.empty(1 << 31, device="meta"))


def test_tracing_allocates_no_elements() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = trace(lambda x: [x * (1 / x.norm())], torch.empty(1 << 30, device="meta"))
    validate(program)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 512 << 10, f"{grown} KiB for 4 GiB of elements"


def test_a_constant_without_values_is_named() -> None:
    table = torch.empty(4, device="meta")
    with pytest.raises(LoweringError, match=r"no values .*test_bounds\.py:\d+ ") as caught:
        trace(lambda x: [x * table], torch.zeros(4))
    assert "without_weights" in caught.value.hint


def test_every_line_without_a_rule_is_named_at_once_the_most_used_first() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        x = torch.special.airy_ai(x)
        for _ in range(3):
            x = torch.special.bessel_y1(x) + 1
        return x

    with pytest.raises(LoweringError) as caught:
        trace(forward, torch.empty(4, device="meta"))
    first, rest = caught.value.message.split(" Also refused: ")
    assert "aten.special_bessel_y1" in first
    assert rest.startswith("aten.special_airy_ai at test_bounds.py:")
    assert ";" not in rest
