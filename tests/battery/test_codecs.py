"""The duties of every codec of the registry; a new one is a row of CASES."""

from __future__ import annotations

import math
from dataclasses import asdict
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lockstep.numerics.arrays import StepContext
from lockstep.numerics.paths import compile  # noqa: A004
from lockstep.numerics.validate import validate
from lockstep.protocol.errors import UsageError
from lockstep.protocol.programs.program import Program
from lockstep.storage.formats.registry import named
from lockstep.tracing import context, trace
from lockstep.training.codecs.base import Codec, residual, wire_bits
from lockstep.training.codecs.dct import DCT
from lockstep.training.codecs.e3m0 import E3M0
from lockstep.training.codecs.exact import Exact
from lockstep.training.codecs.float16 import Float16
from lockstep.training.codecs.int8 import Int8
from lockstep.training.codecs.random_k import RandomK
from lockstep.training.codecs.registry import CODECS
from lockstep.training.codecs.sign import Sign
from lockstep.training.codecs.topk import TopK
from lockstep.training.codecs.uniform import Uniform
from tests.unit.numerics import comparison

RANKED = {"places": "ranked", "levels": "ranked"}
CASES: dict[str, list[tuple[Codec, float]]] = {
    "exact": [(Exact(), 32)],
    "float16": [(Float16(), 16)],
    "int8": [(Int8(), 8.125), (Int8(block=100), 8.33)],
    "uniform": [(Uniform(), 8.02), (Uniform(width=4), 4.01), (Uniform(width=2, group=5000), 2.04)],
    "e3m0": [(E3M0(), 4.04), (E3M0(block=33), 4.3)],
    "sign": [(Sign(), 1.01), (Sign(block=50), 1.7)],
    "topk": [
        (TopK(), 0.22),
        (TopK(places="ranked"), 0.147),
        (TopK(**RANKED), 0.15),
        (TopK(width=1, kept=4), 0.02),
        (TopK(block=64, kept=3, width=16), 1.1),
        (TopK(block=256, kept=16, width=4, group=3), 2.0),
        (TopK(block=32, kept=32, width=32), 37.1),
    ],
    "random_k": [(RandomK(), 4.1), (RandomK(kept=512, then=TopK(block=512, kept=32, width=4)), 0.2)],
    "dct": [(DCT(), 0.06), (DCT(then=TopK(kept=4, width=1)), 0.017), (DCT(1, 64, Exact()), 32.1)],
}
"""Each with a bound of its bits for a parameter of 2^20."""
ROWS = [pytest.param(codec, id=f"{name}-{i}") for name, made in CASES.items() for i, (codec, _) in enumerate(made)]
ROUND = 3
CONTEXT = StepContext(bytes(32), ROUND, 1, 1)


class Traced(NamedTuple):
    """The Programs of a codec for n elements; `decode` halves its result, since a Program has at least one op."""

    encode: Program
    decode: Program

    def encoded(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.asarray(compile(self.encode, fused="off").run([x], CONTEXT)[0])

    def decoded(self, payload: NDArray[np.float32]) -> NDArray[np.float32]:
        return 2 * np.asarray(compile(self.decode, fused="off").run([payload], CONTEXT)[0])


@cache
def traced(codec: Codec, n: int) -> Traced:
    encode = trace(lambda x: [codec.encode(x, context("round"))], torch.empty(n, device="meta"))
    size = torch.empty(codec.size(n), device="meta")
    return Traced(encode, trace(lambda p: [codec.decode(p, n, context("round")) * 0.5], size))


def inputs(n: int) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(n)
    normal = rng.standard_normal(n).astype(np.float32)
    ties = np.round(normal).astype(np.float32)
    return {
        "normal": normal * np.float32(1e-3),
        "heavy": (normal**5).astype(np.float32),
        "ties": ties,
        "zeros": np.zeros(n, np.float32),
        "minus zeros": np.full(n, -0.0, np.float32),
        "constant": np.full(n, 0.3, np.float32),
        "strange": comparison.strange(rng, n),
        "tiny": normal * np.float32(1e-42),
        "small": normal * np.float32(1e-25),
        "huge": np.clip(normal, -3, 3) * np.float32(1e38),
        "infinite": np.full(n, -np.inf, np.float32),
    }


def test_every_row_of_the_registry_is_tried() -> None:
    assert set(CASES) == set(CODECS)
    for name, made in CASES.items():
        assert all(type(codec) is CODECS[name] and codec.to_dict()["name"] == name for codec, _ in made), name


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n", [1, pytest.param(255, marks=pytest.mark.slow), 4097])
@pytest.mark.parametrize("codec", ROWS)
def test_its_payload_is_what_its_format_carries(codec: Codec, n: int) -> None:
    programs = traced(codec, n)
    validate(programs.encode)
    validate(programs.decode)
    form = named(codec.format.name)
    assert form == codec.format, "a name stands for one format"
    for label, x in inputs(n).items():
        payload = programs.encoded(x)
        assert payload.shape == (codec.size(n),), label
        data = form.pack(payload)
        assert len(data) <= form.longest(codec.size(n)), label
        assert len(data) == form.longest(codec.size(n)) or form.head, label
        back = form.unpack(data, codec.size(n))
        assert back.tobytes() == payload.tobytes(), f"{label}: the wire gives other bits"
        decoded = programs.decoded(back)
        assert decoded.shape == (n,), label
        assert np.isfinite(decoded).all(), f"{label}: a merge would be poisoned"


@pytest.mark.slow
@pytest.mark.parametrize("codec", ROWS)
def test_its_programs_agree_with_the_reference_on_every_path(codec: Codec) -> None:
    n = 700
    programs = traced(codec, n)
    x = inputs(n)["strange"]
    comparison.compare(programs.encode, [x], budget=60, threads=(1,))
    comparison.compare(programs.decode, [programs.encoded(x)], budget=60, threads=(1,))


@pytest.mark.parametrize(
    ("codec", "bound"), [pytest.param(*row, id=f"{k}-{i}") for k, made in CASES.items() for i, row in enumerate(made)]
)
def test_its_bits_for_a_parameter(codec: Codec, bound: float) -> None:
    assert wire_bits(codec, 1 << 20) <= bound


@pytest.mark.slow
def test_ranked_levels_are_measured_below_their_bound() -> None:
    n = 1 << 18
    x = inputs(n)["normal"]
    listed, both = TopK(), TopK(**RANKED)
    payload = traced(listed, n).encoded(x)
    data = both.format.pack(payload)
    assert 8 * len(data) / n <= 0.14
    assert both.format.unpack(data, n).tobytes() == listed.format.unpack(listed.format.pack(payload), n).tobytes()


def test_a_residual_is_what_is_left_and_forgets_what_is_no_number() -> None:
    x = torch.tensor([1.0, math.nan, math.inf, -3.0, 2.0**41])
    assert residual(x, torch.tensor([0.5, 0, 0, -4.0, 0]), 0.5).tolist() == [0.25, 0, 0, 0.5, 0]


@pytest.mark.parametrize("codec", ROWS)
def test_an_empty_tensor_is_refused_and_takes_no_bytes(codec: Codec) -> None:
    with pytest.raises(UsageError, match="a codec got a tensor"):
        codec.encode(torch.empty(0), torch.tensor(0, dtype=torch.int32))
    assert codec.format.longest(0) == 0
    assert codec.format.unpack(b"", 0).size == 0


# -- against their meaning in float64 ----------------------------------------------------------------------------------


def test_float16_is_numpys_rounding() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x, (rng.standard_normal(20_000) * 1e-5).astype(np.float32)])
    x = np.concatenate([x, np.arange(0x387FC000, 0x38804000, dtype=np.uint32).view(np.float32)])
    inside = np.abs(x) <= 2.0**40
    with np.errstate(invalid="ignore"):
        due = np.clip(np.where(inside, x, 0), -65504, 65504).astype(np.float16).astype(np.float32)
    got = traced(Float16(), x.size).encoded(x)
    np.testing.assert_array_equal(got.view(np.uint32)[inside], due.view(np.uint32)[inside])
    assert not got[~inside].any()


def test_int8_is_within_half_a_step() -> None:
    x = inputs(9000)["heavy"]
    got = traced(Int8(), 9000).encoded(x).astype(np.float64)
    blocks = np.pad(np.abs(x.astype(np.float64)), (0, -9000 % 256)).reshape(-1, 256)
    step = np.repeat(blocks.max(1) / 127, 256)[:9000]
    assert (np.abs(got - x) <= step * (0.5 + 127 * 2.0**-15)).all()


def test_e3m0_is_the_nearest_power() -> None:
    x = inputs(5000)["heavy"]
    got = traced(E3M0(), 5000).encoded(x)
    for first in range(0, 5000, 256):
        block = x[first : first + 256].astype(np.float64)
        largest = np.abs(block).max()
        low = 2.0 ** math.floor(math.log2(largest))
        top = low * 2 if largest >= 1.5 * low else low
        grid = np.array([0.0, *(top * 2.0 ** -np.arange(6.0, -1, -1))])
        distance = np.abs(np.abs(block)[:, None] - grid)
        # Of two as near, the later one is the larger.
        due = grid[grid.size - 1 - np.argmin(distance[:, ::-1], axis=1)] * np.sign(block)
        np.testing.assert_array_equal(got[first : first + 256], due)


def test_sign_is_the_mean_magnitude() -> None:
    x = inputs(9000)["normal"]
    got = traced(Sign(), 9000).encoded(x)
    for first in range(0, 9000, 4096):
        block = x[first : first + 4096].astype(np.float64)
        due = np.where(block < 0, -1, 1) * np.abs(block).mean()
        np.testing.assert_allclose(got[first : first + 4096], due, rtol=1e-6)


def uniform64(x: NDArray[np.float64], bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(the bins' means of each element, distance of each from a boundary in bins), by the equations."""
    scale = 6 * x.std(ddof=1) / bins
    place = (x - x.mean()) / scale
    codes = np.clip(np.rint(place) + bins // 2, 0, bins - 1).astype(int)
    means = np.bincount(codes, x, bins) / np.maximum(np.bincount(codes, minlength=bins), 1)
    return means[codes], np.abs(place - np.floor(place) - 0.5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_uniform_is_the_mean_of_its_bin(width: int) -> None:
    x = inputs(9000)["normal"]
    got = traced(Uniform(width), 9000).encoded(x)
    due, margin = uniform64(x.astype(np.float64), 1 << width)
    clear = margin > 1e-4
    assert clear.mean() > 0.99
    np.testing.assert_allclose(got[clear], due[clear], rtol=2e-3 if width == 8 else 1e-5, atol=1e-9)
    # But for an element on a boundary, which moves its bin's mean, they agree far closer.
    assert np.median(np.abs(got - due) / np.abs(due)) < 1e-6


@pytest.mark.sampled(2)
@pytest.mark.parametrize("label", ["normal", "heavy", "ties", "zeros", "constant"])
@pytest.mark.parametrize(("block", "kept"), [(4096, 64), (64, 5), (16, 16)])
def test_topk_keeps_the_largest_and_of_equals_the_first(label: str, block: int, kept: int) -> None:
    x = inputs(9000)[label]
    got = traced(TopK(block, kept, 32), 9000).encoded(x)
    for first in range(0, 9000, block):
        part = np.abs(x[first : first + block])
        due = np.sort(np.argsort(-part, kind="stable")[:kept])
        np.testing.assert_array_equal(np.flatnonzero(got[first : first + block].view(np.uint32)), due)
        np.testing.assert_array_equal(got[first : first + block][due], x[first : first + block][due])


def test_topk_with_two_bits_bins_what_it_keeps() -> None:
    n = 3 * 4096
    x = inputs(n)["normal"]
    got = traced(TopK(), n).encoded(x)
    at = np.flatnonzero(got.view(np.uint32))
    due, margin = uniform64(x[at].astype(np.float64), 4)
    assert margin.min() > 1e-6, "no element is on a boundary"
    np.testing.assert_allclose(got[at], due, rtol=1e-6)


def test_random_k_takes_other_elements_in_every_round_and_block() -> None:
    codec, n, rounds = RandomK(64, 16), 64 * 50, 40
    x = torch.arange(1, n + 1, dtype=torch.float32)
    counts = np.zeros(n)
    seen = set()
    for r in range(rounds):
        now = torch.tensor(r, dtype=torch.int32)
        back = codec.decode(codec.encode(x, now), n, now).numpy()
        kept = back != 0
        assert (kept.reshape(-1, 64).sum(1) == 16).all(), "as many of each block"
        np.testing.assert_array_equal(back[kept], x.numpy()[kept])
        seen |= {row.tobytes() for row in kept.reshape(-1, 64)}
        counts += kept
    assert len(seen) > 0.95 * rounds * 50, "subsets do not repeat"
    # Counts are binomial, of variance 40 / 4 x 3 / 4 = 7.5.
    assert abs(counts.var() / 7.5 - 1) < 0.15
    by_place = counts.reshape(-1, 64).sum(0)
    assert (np.abs(by_place - rounds * 50 / 4) < 5 * math.sqrt(rounds * 50 * 3 / 16)).all(), "no place is preferred"


def test_dct_is_the_orthonormal_transform() -> None:
    n = 2 * 4096
    x = inputs(n)["normal"]
    programs = traced(DCT(then=Exact()), n)
    k, i = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    table = np.sqrt(np.where(k == 0, 1, 2) / 64) * np.cos(np.pi * (2 * i + 1) * k / 128)
    due = table @ x.astype(np.float64).reshape(-1, 64, 64) @ table.T
    payload = programs.encoded(x)
    np.testing.assert_allclose(payload, due.reshape(-1), atol=1e-8)
    np.testing.assert_allclose(programs.decoded(payload), x, atol=1e-8)


def test_a_codec_of_bad_parameters_is_refused() -> None:
    for made in (
        lambda: TopK(block=100),
        lambda: TopK(kept=0),
        lambda: TopK(width=3),
        lambda: TopK(width=4, levels="ranked"),
        lambda: TopK(block=1 << 16, kept=4096, places="ranked"),
        lambda: Uniform(width=1),
        lambda: RandomK(block=100),
        lambda: DCT(rows=1, columns=1),
    ):
        with pytest.raises(UsageError):
            made()


def test_fields_of_a_codec_are_its_description() -> None:
    assert TopK().to_dict() == {"name": "topk", **asdict(TopK())}
    assert RandomK().to_dict()["then"] == {"name": "exact"}
