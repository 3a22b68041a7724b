"""Every wire format: any bytes are one tensor or are refused, and one tensor has one form."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.storage.formats import base, combinadics, e3m0, halves, int8, levels, palette, signs, sparse
from lockstep.storage.formats.registry import KINDS, named

MODULES = (base, combinadics, e3m0, halves, int8, levels, palette, signs, sparse)
NAMES = [
    "f32",
    "f16",
    "int8-4",
    "sign-4",
    "e3m0-4",
    "palette-1-4",
    "palette-2-5",
    "palette-8-3",
    "sparse-8-2-2-2-listed-listed",
    "sparse-8-2-32-2-ranked-listed",
    "sparse-8-3-16-2-listed-listed",
    "sparse-4-2-1-1-listed-listed",
    "sparse-8-3-2-2-ranked-ranked",
    "sparse-8-5-2-1-listed-ranked",
]
Array = NDArray[np.float32]


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


def tensor(name: str, n: int, seed: int) -> Array:
    """A random tensor that the format carries."""
    rng = np.random.default_rng(seed)
    form = named(name)
    if isinstance(form, sparse.Sparse):
        x = np.zeros(n, np.float32)
        for first in range(0, n, form.block):
            size = min(form.block, n - first)
            at = first + rng.choice(size, min(form.kept, size), replace=False)
            x[at] = rng.choice([-0.0, 1, -2, 4][: 1 << min(form.width, 2)], at.size)
        return x
    if isinstance(form, palette.Palette):
        return rng.choice(floats(0.0, np.nan, -0.0, np.inf)[: 1 << min(form.width, 2)], n)
    if isinstance(form, int8.Int8Blocks):
        x = rng.integers(-127, 128, n).astype(np.float32)
        x[:: form.block] = -127
        return x
    if isinstance(form, signs.Signs):
        return (rng.choice([-3.0, 3.0], n)).astype(np.float32)
    if isinstance(form, e3m0.E3M0Blocks):
        x = rng.choice([0.0, 1.0, -2.0, 64.0], n).astype(np.float32)
        x[:: form.block] = 64
        return x
    return rng.integers(-9, 9, n).astype(np.float32)


@pytest.mark.parametrize("name", ["sign-{}", "int8-{}", "e3m0-{}", "palette-2-{}", "sparse-8-2-2-{}-listed-listed"])
def test_no_part_is_longer_than_a_decoder_may_spread(name: str) -> None:
    for size in (0, base.MAX_PART + 1, 99_999_999_999):
        with pytest.raises(UsageError):
            named(name.format(size))
    assert named(name.format(base.MAX_PART)).name == name.format(base.MAX_PART)


def test_every_kind_is_tried_and_has_one_name() -> None:
    assert {name.split("-")[0] for name in NAMES} == set(KINDS)
    assert all(named(name).name == name for name in NAMES)


NO_NAMES = ["", "int8", "int8-x", "int8-07", "int8-0", "int8-4-4", "gzip", "palette-3-4", "f32-", "int8--4"]
NO_NAMES += ["sparse-8-2-4-2-listed-ranked", "sparse-8-2-2-2-listed-sorted"]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        named(name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_one_tensor_or_are_refused(name: str, data: st.DataObject) -> None:
    form, n, seed = named(name), data.draw(st.integers(1, 21)), data.draw(st.integers(0, 1 << 32))
    if data.draw(st.booleans()):
        blob = bytearray(form.pack(tensor(name, n, seed)))
    else:
        size = data.draw(st.integers(form.head, form.longest(n))) if form.head else form.longest(n)
        blob = bytearray(np.random.default_rng(seed).bytes(size))
        if form.head:
            blob[: form.head] = struct.pack("<I", size)
    # A few bytes changed in a tensor's form are the form of another tensor, or of none.
    for _ in range(data.draw(st.integers(0, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        values = form.unpack(bytes(blob), n)
    except PayloadInvalid:
        return
    assert values.shape == (n,)
    assert form.pack(values) == bytes(blob), "a tensor has one form"


@pytest.mark.parametrize("name", NAMES)
def test_tensors_of_all_lengths_come_back(name: str) -> None:
    form = named(name)
    for n in range(1, 70):
        x = tensor(name, n, n)
        data = form.pack(x)
        assert form.unpack(data, n).tobytes() == x.tobytes(), n
        assert len(data) <= form.longest(n), n
        for wrong in (data[:-1], data + b"\0", b""):
            with pytest.raises(PayloadInvalid, match=r"due|follow|end within|ends? before|stated"):
                form.unpack(wrong, n)


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_nothing_takes_nothing(name: str) -> None:
    form = named(name)
    assert form.pack(np.zeros(0, np.float32)) == b""
    assert form.unpack(b"", 0).size == 0
    with pytest.raises(PayloadInvalid):
        form.unpack(b"\0", 0)


SPARSE, RANKED, BOTH = "sparse-8-2-32-2-listed-listed", "sparse-8-2-32-2-ranked-listed", "sparse-8-3-2-2-ranked-ranked"
ONE = struct.pack("<f", 1.0)
TWO = struct.pack("<f", 2.0)
PLANTED: dict[str, tuple[str, int, bytes]] = {
    "a NaN of another pattern": ("f16", 1, b"\x01\x7e"),
    "an infinite half": ("f16", 1, b"\x00\x7c"),
    "a scale with a low bit": ("int8-4", 1, b"\x7f" + struct.pack("<I", 0x3F800001)),
    "codes that are half of what they could be": ("int8-4", 2, b"\x02\x04" + TWO),
    "code -128": ("int8-4", 2, b"\x80\x7f" + ONE),
    "a code under no scale": ("int8-4", 1, b"\x01" + bytes(4)),
    "a negative magnitude": ("sign-4", 1, struct.pack("<f", -1.0) + b"\x01"),
    "a sign of zero": ("sign-4", 1, bytes(4) + b"\x01"),
    "a sign beyond the last element": ("sign-4", 1, ONE + b"\x02"),
    "minus zero in E3M0": ("e3m0-4", 2, b"\x7f\x87"),
    "an exponent that no element has": ("e3m0-4", 1, b"\x80\x06"),
    "half a byte beyond the last element": ("e3m0-4", 1, b"\x7f\x17"),
    "a palette that descends": ("palette-1-4", 2, TWO + ONE + b"\x02"),
    "a palette that names a word twice": ("palette-2-5", 2, ONE + ONE + bytes(8) + b"\x04"),
    "a palette that names a word that does not occur": ("palette-2-5", 2, ONE + TWO + bytes(8) + b"\x00"),
    "a code beyond its palette": ("palette-2-5", 2, ONE + bytes(12) + b"\x0c"),
    "indices in another order": (SPARSE, 8, bytes([0o12]) + TWO + ONE),
    "an index twice": (SPARSE, 8, bytes([0o11]) + ONE + TWO),
    "a kept word 0": (SPARSE, 8, bytes([0o21]) + ONE + bytes(4)),
    "an index beyond the short block": (SPARSE, 3, bytes([0o50]) + ONE + ONE),
    "a rank of no subset": (RANKED, 8, bytes([comb(8, 2)]) + ONE + ONE),
    "counts of no symbols": (BOTH, 8, struct.pack("<I", 22) + ONE + bytes(12) + b"\x00" + b"\x1f"),
    "a stated length with a byte too many": (
        BOTH, 8, struct.pack("<I", 23) + ONE + bytes(12) + b"\x00\x13" + b"\x00",
    ),
}  # fmt: skip


@pytest.mark.parametrize("label", PLANTED)
def test_a_second_form_is_refused(label: str) -> None:
    name, n, data = PLANTED[label]
    with pytest.raises(PayloadInvalid) as refused:
        named(name).unpack(data, n)
    assert refused.value.hint


@pytest.mark.parametrize("label", PLANTED)
def test_the_refusal_alone_keeps_a_second_form_out(label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the checks taken out, the same bytes decode to a tensor that has another form, or none."""
    name, n, data = PLANTED[label]
    form = named(name)
    for module in MODULES:
        if hasattr(module, "require"):
            monkeypatch.setattr(module, "require", lambda *_: None)
    try:
        values = form.unpack(data, n)
    except (IndexError, ValueError):
        return  # without the check, not even total
    with contextlib.suppress(PayloadInvalid):
        assert form.pack(values) != data, "this defect would not be seen"


UNCARRIED: dict[str, tuple[str, Array]] = {
    "no half": ("f16", floats(1 + 2**-20)),
    "infinite": ("f16", floats(np.inf)),
    "no code": ("int8-4", floats(127, 0.5)),
    "two magnitudes": ("sign-4", floats(1, 2)),
    "minus zero": ("sign-4", floats(-0.0)),
    "no power": ("e3m0-4", floats(3)),
    "too far apart": ("e3m0-4", floats(1, 128)),
    "three words": ("palette-1-4", floats(1, 2, 3)),
    "too many kept": (SPARSE, floats(1, 2, 3, 0)),
    "too few kept": (SPARSE, floats(1, 0, 0)),
}


@pytest.mark.parametrize("label", UNCARRIED)
def test_what_a_format_cannot_carry_is_not_packed(label: str) -> None:
    name, x = UNCARRIED[label]
    with pytest.raises(PayloadInvalid):
        named(name).pack(x)


def test_subsets_are_numbered_without_a_gap() -> None:
    m, k = 9, 4
    ranks = np.arange(comb(m, k), dtype=np.uint8)[:, None]
    found = combinadics.unrank_subsets(ranks, m, k)
    assert len({tuple(row) for row in found.tolist()}) == comb(m, k)
    np.testing.assert_array_equal(combinadics.rank_subsets(found, m), ranks)


def test_ranks_are_those_of_the_sum_of_binomials() -> None:
    rng = np.random.default_rng(5)
    rows = np.sort(np.stack([rng.choice(4096, 64, replace=False) for _ in range(20)]), axis=1)
    due = [sum(comb(c, i + 1) for i, c in enumerate(row)) for row in rows.tolist()]
    found = combinadics.rank_subsets(rows, 4096)
    assert [int.from_bytes(row.tobytes(), "little") for row in found] == due
    assert found.shape == (20, 59)


@pytest.mark.parametrize("k", [1, 2, 7, 63, 64])
def test_sequences_of_levels_come_back(k: int) -> None:
    rows = np.random.default_rng(k).choice(4, (50, k), p=[0.1, 0.4, 0.45, 0.05]).astype(np.uint8)
    rows[0], rows[1] = 3, 0
    counts = levels.counts_of(rows)
    np.testing.assert_array_equal(levels.unpack_counts(levels.pack_counts(counts), 50, k), counts)
    np.testing.assert_array_equal(levels.unpack_ranks(levels.pack_ranks(rows, counts), counts), rows)


def test_a_stated_length_beyond_the_most_is_refused_before_decoding() -> None:
    form = named(BOTH)
    with pytest.raises(PayloadInvalid, match="is the most"):
        form.length(8, struct.pack("<I", 1 << 30))


@pytest.mark.parametrize("made", [lambda: np.zeros((2, 2), np.float32), lambda: np.zeros(2, np.int32)])
def test_what_is_no_flat_float_tensor_is_refused(made: Callable[[], Any]) -> None:
    with pytest.raises(PayloadInvalid, match="a payload tensor has"):
        named("f32").pack(made())
