"""Attention in tiles on the emulated device: which ops it takes, shapes, masks, its words, its defects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder, Quantised, Tensor
from lockstep.numerics.cuda import CudaExecutable, loaded, wide
from lockstep.numerics.cuda.device import UNITS, Device
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.cuda.memory import plan
from lockstep.numerics.tables import width_of
from lockstep.protocol.programs.program import F32, Program
from tests.support.emulation import Both, Mutant
from tests.unit.numerics.comparison import CONTEXT, normal, strange, words
from tests.unit.numerics.test_cuda_codes import Data
from tests.unit.numerics.test_cuda_quants import limbs_of, state_of
from tests.unit.numerics.test_quants import STREAM, joined

SHARED_BYTES = 99 << 10
FLOATS, CODES = "floats", "codes"
MINUS_INFINITY = 0xFF800000


class Shape(NamedTuple):
    """Heads, those that share keys, queries, keys, terms of a head."""

    heads: int
    sharing: int
    queries: int
    keys: int
    terms: int

    @property
    def rows(self) -> int:
        """Queries of all heads that share keys."""
        return self.sharing * self.queries


SHAPES = [Shape(1, 1, 40, 300, 24), Shape(2, 1, 64, 256, 128), Shape(1, 1, 290, 37, 4), Shape(2, 2, 33, 70, 40)]
"""Whole and ragged tiles and chunks, heads that share keys, one stage of terms and several."""
MASKS = ("none", "causal", "window", "given", "everything")


@pytest.fixture(autouse=True)
def _every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "LEAST_WORDS", 1)
    monkeypatch.setattr(wide, "LEAST_BLOCKS", 1)
    monkeypatch.setattr(loaded, "WHOLE", 0.0)


class Attention:
    """softmax(q k^T / 4 + mask) v and its gradients, as the tracer writes them."""

    def __init__(self, shape: Shape, arithmetic: str, mask: str) -> None:
        heads, _, queries, keys, terms = self.shape = shape
        self.arithmetic, self.mask, self.streams = arithmetic, mask, 0
        sizes = [heads * shape.rows * terms] * 2 + [heads * keys * terms] * 2 + [queries * keys]
        self.b = ProgramBuilder([(F32, size) for size in sizes])
        self.given = self.b.input(4).reshape(queries, keys)
        self.q, self.gradient = (self.b.input(j).reshape(heads, shape.rows, terms) for j in (0, 1))
        self.k, self.v = (self.b.input(j).reshape(heads, keys, terms) for j in (2, 3))

    def product(self, x: Tensor, y: Tensor, limbs: int, name: str) -> Tensor:
        """x [Z, M, K] y [Z, N, K]^T."""
        if self.arithmetic == FLOATS:
            return self.b.dot(x.unsqueeze(2), y.unsqueeze(1), name=name)
        left, right = (self.codes(t, limbs, j, f"{name} {j}") for j, t in enumerate((x, y)))
        return self.b.qdot(left.unsqueeze(2), right.unsqueeze(1), name=name)

    def codes(self, x: Tensor, limbs: int, side: int, name: str) -> Quantised:
        """x [Z, M, K] by one limb, or high high low beside high low high."""
        Z, M, K = x.shape
        flat, group = x.reshape(Z * M, K), width_of(K)
        if limbs == 1:
            made = self.b.quant(flat, group, name=name)
        else:
            self.streams += 1
            high, low = limbs_of(self.b, flat, group, STREAM + self.streams, name)
            made = joined(self.b, [high, low, high] if side else [high, high, low], name)
        width, groups = made.codes.shape[1], made.scales.shape[1]
        return Quantised(made.codes.reshape(Z, M, width), made.scales.reshape(Z, M, groups), group)

    def turned(self, x: Tensor, name: str) -> Tensor:
        """A copy of x [Z, M, K] as [Z, K, M]."""
        Z, M, K = x.shape
        return self.b.map((Z, K, M), [x.permute(0, 2, 1)], name=name)

    def masked(self, x: Tensor, other: int, name: str, operands: Sequence[Tensor] = ()) -> Tensor:
        """x / 4, or where there are operands, x times their difference, with `other` where the mask is."""
        shape = (self.shape.heads * self.shape.sharing, self.shape.queries, self.shape.keys)
        row = self.b.iota(shape[1:2], 0).unsqueeze(1).unsqueeze(0).expand(*shape)
        column = self.b.iota(shape[2:], 0).unsqueeze(0).unsqueeze(0).expand(*shape)

        def expression(e: Expression, row: int, column: int, x: int, *more: int) -> None:
            value = e.fmul(x, e.f32(0.25)) if not operands else e.fmul(x, e.fsub(*more[:2]))
            if self.mask == "none":
                e.mov(value)
            elif self.mask == "given":
                e.fadd(value, more[-1]) if not operands else e.mov(value)
            elif self.mask == "everything":
                e.select(e.ile(e.i32(0), column), e.imm(other), value)
            else:
                hidden = e.ilt(row, column)
                if self.mask == "window":
                    hidden = e.ior(hidden, e.ilt(column, e.isub(row, e.i32(20))))
                e.select(hidden, e.imm(other), value)

        read = [row, column, x.reshape(*shape), *operands]
        if self.mask == "given" and not operands:
            read.append(self.given.unsqueeze(0).expand(*shape))
        return self.b.map(shape, read, expression, dtype=F32, name=name)

    def forward(self) -> list[Tensor]:
        """The output and the maxima; keeps the probabilities."""
        b, (heads, sharing, queries, keys, _) = self.b, self.shape
        shape = (heads * sharing, queries, keys)
        scores = self.masked(self.product(self.q, self.k, 1, "scores"), MINUS_INFINITY, "masked")
        self.peak = b.max(scores, "peak")
        peak = self.peak.unsqueeze(2).expand(*shape)
        raised = b.map(shape, [scores, peak], lambda e, x, m: e.fexp(e.fsub(x, m)), name="raised")
        total = b.sum(raised, "total").unsqueeze(2).expand(*shape)
        self.weights = b.map(shape, [raised, total], lambda e, x, t: e.fdiv(x, t), name="weights")
        wide_rows = self.weights.reshape(heads, self.shape.rows, keys)
        return [self.product(wide_rows, self.turned(self.v, "v^T"), 1, "out"), self.peak]

    def backward(self) -> list[Tensor]:
        """The gradients by v, q and k."""
        b, (heads, sharing, queries, keys, _) = self.b, self.shape
        shape, rows = (heads * sharing, queries, keys), (heads, self.shape.rows, keys)
        turned = self.turned(self.weights.reshape(*rows), "weights^T")
        by_v = self.product(turned, self.turned(self.gradient, "gradient^T"), 2, "by v")
        weights_gradient = self.product(self.gradient, self.v, 2, "weights' gradient").reshape(*shape)
        along = b.dot(weights_gradient, self.weights, name="along").unsqueeze(2).expand(*shape)
        scores = self.masked(self.weights, 0, "scores' gradient", [weights_gradient, along]).reshape(*rows)
        by_q = self.product(scores, self.turned(self.k, "k^T"), 2, "by q")
        by_k = self.product(self.turned(scores, "scores' gradient^T"), self.turned(self.q, "q^T"), 2, "by k")
        return [by_v, by_q, by_k]


def attention(shape: Shape, arithmetic: str, mask: str = "causal", *, backward: bool = True) -> Program:
    made = Attention(shape, arithmetic, mask)
    outputs = made.forward()
    return made.b.finish(outputs + (made.backward() if backward else []))


REDUCTIONS = ["peak", "total", "out", "by v", "along", "by q", "by k"]


def in_tiles(program: Program) -> list[str]:
    """The ops that are computed in tiles."""
    launches = generate(program, SHARED_BYTES).launches
    return [program.name_of(i) for i, own in enumerate(launches) if any(x.kernel.startswith("tile_") for x in own)]


# --- words -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arithmetic", [FLOATS, CODES])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_and_its_gradients_have_the_processors_words(shape: Shape, arithmetic: str) -> None:
    program = attention(shape, arithmetic)
    assert in_tiles(program) == REDUCTIONS
    descending = shape.keys % 2 == 0
    both = Both(program, descending=descending)
    for data in (normal, strange):
        both.agree(state_of(program, data), CONTEXT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arithmetic", [FLOATS, CODES])
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str, arithmetic: str) -> None:
    """Rows of several chunks, some of which a mask leaves nothing of: also where an infinity waits behind it."""
    program = attention(Shape(1, 1, 33, 530, 24), arithmetic, mask, backward=mask == "window")
    both = Both(program)
    for data in (normal, strange):
        both.agree(state_of(program, data), CONTEXT)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("descending", [False, True])
def test_codes_on_every_unit(unit: str, descending: bool) -> None:
    program = attention(Shape(1, 2, 33, 270, 40), CODES)
    Both(program, unit=unit, descending=descending).agree(state_of(program), CONTEXT)


# --- which ops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arithmetic", [FLOATS, CODES])
def test_nothing_as_large_as_the_scores_is_in_memory(arithmetic: str) -> None:
    shape = Shape(2, 2, 128, 512, 32)
    program = attention(shape, arithmetic)
    launches = generate(program, SHARED_BYTES).launches
    arena = plan(program, launches)
    largest = max(program.ops[op].header.elements for op in arena.offsets)
    assert largest < shape.heads * shape.rows * shape.keys // 2, "an output that somebody waits for"
    assert set(REDUCTIONS) <= set(in_tiles(program))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("arithmetic", [FLOATS, CODES])
def test_a_device_with_room_keeps_the_scores(arithmetic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has them in memory where a step takes half of what is free, and computes them again where it takes more."""
    monkeypatch.setattr(loaded, "WHOLE", 0.5)
    program = attention(Shape(2, 1, 64, 256, 32), arithmetic)
    whole = CudaExecutable(program, device=Emulator()).need.step
    due = paths.compile(program, fused="off").run(state_of(program), CONTEXT)
    for size, tiles in ((2 * whole, False), (2 * whole - 4, True)):
        executable = CudaExecutable(program, device=Emulator(size=size))
        launched = [launch.kernel for own in executable._loaded._generated.launches for launch in own]
        assert any(kernel.startswith("tile_") for kernel in launched) == tiles
        assert (executable.need.step < whole) == tiles
        for own, other in zip(executable.run(state_of(program), CONTEXT), due, strict=True):
            assert (own is None) == (other is None)
            if own is not None:
                np.testing.assert_array_equal(words(own), words(other))


def other(what: str) -> Program:
    """Attention that differs from what is computed in tiles in one thing."""
    shape = Shape(1, 1, 40, 70, 136 if what == "a wide head" else 24)
    made = Attention(shape, FLOATS, "causal")
    outputs: list[Tensor] = made.forward()
    if what == "weights that are kept":
        outputs.append(made.weights)
    if what == "weights that somebody gathers":
        outputs.append(made.b.concat([made.weights, made.weights], 2, "twice"))
    if what == "weights folded along a window":
        outputs.append(made.b.sum(made.weights.slice(2, 3, 9), "windows"))
    return made.b.finish(outputs)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "what",
    ["a wide head", "weights that are kept", "weights that somebody gathers", "weights folded along a window"],
)
def test_what_does_not_match_is_one_op_at_a_time(what: str) -> None:
    program = other(what)
    generated = generate(program, SHARED_BYTES)
    assert "out" not in in_tiles(program)
    assert "weights" in [program.name_of(i) for i, own in enumerate(generated.launches) if own]
    Both(program).agree(state_of(program), CONTEXT)


def test_scores_of_which_no_maxima_are_taken_are_in_memory() -> None:
    """A product, a map and a product, as in a feed-forward network: computing it twice would only cost."""
    b = ProgramBuilder([(F32, 40 * 24), (F32, 70 * 24), (F32, 16 * 70)])
    hidden = b.dot(b.input(0).reshape(40, 24).unsqueeze(1), b.input(1).reshape(70, 24), name="hidden")
    active = b.map((40, 70), [hidden], lambda e, x: e.fmax(x, e.f32(0.0)), name="active")
    program = b.finish([b.dot(active.unsqueeze(1), b.input(2).reshape(16, 70), name="out")])
    assert not wide.wide_reductions(program, []).reductions


@pytest.mark.parametrize(("name", "value"), [("LEAST_WORDS", 1 << 20), ("LEAST_BLOCKS", 60)])
def test_small_attention_is_one_op_at_a_time(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, name, value)
    assert not in_tiles(attention(SHAPES[0], FLOATS))


def test_a_device_of_little_shared_memory_takes_no_codes_in_tiles() -> None:
    program = attention(SHAPES[0], CODES)
    assert generate(program, 40 << 10).launches == generate(program, 40 << 10, tiles=False).launches


def test_a_game_sees_every_op() -> None:
    program = attention(SHAPES[0], FLOATS)
    assert all(generate(program, SHARED_BYTES).shown)


# --- defects ---------------------------------------------------------------------------------------------


def differs(program: Program, device: Device, data: Data = normal) -> bool:
    """True if a step on the device ends in other words than the processor's."""
    state = state_of(program, data)
    due = paths.compile(program, fused="off").run(state, CONTEXT)
    executable = CudaExecutable(program, device=device)
    found = executable.download(executable.step(executable.upload(state), CONTEXT))
    return any(not np.array_equal(words(a), words(b)) for a, b in zip(due, found, strict=True) if a is not None)


DEFECTS = {
    "values that replace what is still read": (
        "const bool some = unit::any((bits & ~f32::SIGN) != 0);",
        "const bool some = true;",
    ),
    "terms that nobody waits for": (
        "stage_floats<typename Base::Sweep, kSweep>(RIGHT, right, sweep0, k0);\n            __syncthreads();",
        "stage_floats<typename Base::Sweep, kSweep>(RIGHT, right, sweep0, k0);",
    ),
    "terms that are still read": (
        "k0 += kTerms) {\n            __syncthreads();",
        "k0 += kTerms) {",
    ),
    "the other matrix's terms that nobody waits for": (
        "stage_floats<Right, SIDE>(kValues, right, 0, s0 + t0);\n            __syncthreads();",
        "stage_floats<Right, SIDE>(kValues, right, 0, s0 + t0);",
    ),
    "the other matrix's terms that are still read": ("if (t0 > 0) __syncthreads();", ""),
    "one chain for all chunks": ("total = joined<ABOVE>(total, chain, 0);\n    }", "total = chain;\n    }"),
    "a second rounding": ("= f32::raw::fma(value(a[i].lane[k]), b, chains[i][j])", "+= value(a[i].lane[k]) * b"),
    "a mask the other way round": ("if (!unit::any(needed))", "if (unit::any(needed))"),
    "a column beyond the end": ("n = lane + 32 * j;", "n = lane + 32 * j + 1;"),
    "terms beyond the end": ("Form::SWEEP - begin < PART ? Form::SWEEP - begin : PART;", "PART;"),
    "halves of a tile exchanged": ("tiles.owned.sweep0 / PART == part", "tiles.owned.sweep0 / PART != part"),
}  # fmt: skip
INFINITE = ("            some = unit::any(infinite);\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_shows(defect: str) -> None:
    before, after = DEFECTS[defect]
    program = attention(Shape(1, 1, 33, 300, 20), FLOATS, backward=defect == "halves of a tile exchanged")
    shown = (differs(program, Mutant(before, after, descending=descending)) for descending in (False, True))
    assert any(shown), f"the emulation does not show {defect}"


@pytest.mark.slow
def test_a_tile_left_out_although_it_meets_an_infinity_shows() -> None:
    before, after = INFINITE
    program = attention(Shape(1, 1, 33, 300, 20), FLOATS, backward=False)
    assert differs(program, Mutant(before, after), infinite_values)


def infinite_values(rng: np.random.Generator, n: int) -> Array:
    x = normal(rng, n)
    x[-1] = np.inf
    return x


CODE_DEFECTS = {
    "values that nobody waits for": ("__syncthreads();\n            const Word own = tiles", "const Word own = tiles"),
    "right codes that nobody waits for": ("many * Form::WORDS);\n            __syncthreads();", "many * Form::WORDS);"),
    "magnitudes that nobody waits for": (
        "unit::cell(MAXIMA + 4 * (g * kTileThreads + threadIdx.x)) = most[g];\n            __syncthreads();",
        "unit::cell(MAXIMA + 4 * (g * kTileThreads + threadIdx.x)) = most[g];",
    ),
    "stages that nobody waits for": (
        "(RIGHT, kCodeRow, right, sweep0, first, limit);\n                __syncthreads();",
        "(RIGHT, kCodeRow, right, sweep0, first, limit);",
    ),
    "another group's codes": ("first = part * GROUPS + c0, many", "first = part * GROUPS, many"),
    "another group's scale": ("+ (first + c) * Right::SCALE_STEP", "+ c * Right::SCALE_STEP"),
    "another row's random words": ("i = row * Form::ROW + at_word;", "i = row + at_word;"),
    "the first limb alone": ("s0, Form::limb(part));", "s0, 0);"),
    "exchanged registers of a fragment": ("(16 * i + v % 2 * 8 + g) * a_row", "(16 * i + v / 2 * 8 + g) * a_row"),
    "values quantised beyond the end": ("if (4 * at_word + j >= Form::SWEEP) continue;", "if (j > 2) continue;"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("defect", CODE_DEFECTS)
def test_a_defect_of_codes_shows(defect: str) -> None:
    before, after = CODE_DEFECTS[defect]
    backward = defect in ("the first limb alone", "another row's random words")
    program = attention(Shape(1, 1, 33, 300, 20), CODES, "none", backward=backward)
    shown = (differs(program, Mutant(before, after, descending=descending)) for descending in (False, True))
    assert any(shown), f"the emulation does not show {defect}"
