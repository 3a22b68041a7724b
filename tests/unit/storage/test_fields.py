"""Rows of fields: every word comes back, windows are all windows, and a manifest says what a row is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.storage.dataset import Dataset, load_dataset, load_manifest, store_dataset
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.fields import BITS, RowField, RowForm, RowWindows, packed, spans, unpacked

FORM = RowForm("dict", tuple(RowField(dtype, dtype, (k % 3 + 1, 3)) for k, dtype in enumerate(BITS)))


def arrays(rows: int) -> list[np.ndarray[Any, Any]]:
    """Every field of FORM: floats of any bits, NaNs and subnormal numbers among them, integers of all their range."""
    rng, found = np.random.default_rng(rows), []
    for field in FORM.fields:
        if field.dtype == "float32":
            values = rng.integers(0, 1 << 32, (rows, *field.shape), np.uint32).view(np.float32)
        elif field.dtype == "bool":
            values = rng.integers(0, 2, (rows, *field.shape)).astype(bool)
        else:
            kind = np.dtype("int32" if field.dtype == "int64" else field.dtype)
            info = np.iinfo(kind)
            values = rng.integers(info.min, info.max, (rows, *field.shape), kind, endpoint=True).astype(field.dtype)
        found.append(values)
    return found


def dataset(rows: int = 9) -> Dataset:
    return Dataset(packed(FORM, arrays(rows)), 0, form=FORM)


def test_fields_come_back_bit_by_bit_from_the_words_of_a_row() -> None:
    given = arrays(50)
    rows = packed(FORM, given)
    assert rows.shape == (50, FORM.words)
    assert (rows < 0).any(), "words of any sign"
    for due, found in zip(given, unpacked(FORM, rows), strict=True):
        assert found.dtype == due.dtype
        assert found.tobytes() == due.tobytes()


def test_a_dataset_of_fields_is_stored_as_it_is_and_its_manifest_says_its_form(tmp_path: Path) -> None:
    store, own = DirectoryStore(tmp_path), dataset()
    cid = store_dataset(store, own, shard_bytes=4 * FORM.words * 2)
    manifest = load_manifest(store, cid)
    assert (manifest.dtype, manifest.vocabulary, manifest.form, len(manifest.shards)) == ("words", 0, FORM, 5)
    assert store.get_node(cid)["version"] == 2, "a release that knows no form refuses it"
    found = load_dataset(store, cid, root=own.root)
    assert found.form == FORM
    assert found.rows.tobytes() == own.rows.tobytes()
    assert (found.fielded, found.token_bytes) == (True, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"form": None}, {"version": 1}, {"vocabulary": 3}, {"dtype": "u8"}, {"row_tokens": FORM.words + 1},
        {"form": {"kind": "dict", "fields": []}},
        {"form": {"kind": "rows", "fields": FORM.to_node()["fields"]}},
        {"form": {"kind": "dict", "fields": [{"name": "x", "dtype": "float16", "shape": [FORM.words]}]}},
        {"form": {"kind": "dict", "fields": [{"name": "x", "dtype": "int32", "shape": [1 << 30, 1 << 30]}]}},
        {"form": {"kind": "dict", "fields": [{"name": "x", "dtype": "int32", "shape": [FORM.words]}] * 2}},
        {"form": {**FORM.to_node(), "windows": {"length": 2, "stride": 1, "count": 3}}},
        {"form": {**FORM.to_node(), "windows": {"length": 1 << 30, "stride": 1 << 30, "count": 1 << 30}}},
    ],
    ids=lambda wrong: str(wrong)[:60],
)  # fmt: skip
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    store = DirectoryStore(tmp_path)
    node = {**store.get_node(store_dataset(store, dataset())), **wrong}
    if wrong == {"form": None}:
        del node["form"]
    with pytest.raises(PayloadInvalid):
        load_manifest(store, store.put_node(node))


@pytest.mark.parametrize(
    ("rows", "vocabulary", "form"),
    [(np.zeros((2, 3), np.int32), 0, FORM), (np.zeros((2, FORM.words), np.int32), 5, FORM),
     (np.zeros((2, 3), np.int32), 0, None)],
)  # fmt: skip
def test_rows_of_another_form_are_no_dataset(rows: np.ndarray[Any, Any], vocabulary: int, form: RowForm | None) -> None:
    with pytest.raises(UsageError):
        Dataset(rows, vocabulary, form=form)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 3000))
def test_every_window_of_a_series_stands_in_one_row_and_is_as_likely_as_any_other(
    length: int, stride: int, steps: int
) -> None:
    if steps < length:
        with pytest.raises(UsageError):
            RowWindows.of(length, stride, steps)
        return
    windows, series = RowWindows.of(length, stride, steps), np.arange(steps)
    rows = spans(series, windows)
    starts = Counter(int(row[k * stride]) for row in rows for k in range(windows.count))
    whole = range(0, steps - length + 1, stride)
    assert set(starts.values()) == {1}
    assert set(starts) <= set(whole)
    assert len(whole) - len(starts) <= len(whole) // 32, "few are cut off at the end"
    assert (rows[:, -1] - rows[:, 0] == windows.span - 1).all(), "each row is consecutive"
    if windows.count > 1:
        assert rows.size <= 2 * steps + windows.span or windows.count < -(-length // stride), "a long series doubles"


def test_a_row_has_at_most_the_words_that_the_market_takes() -> None:
    with pytest.raises(UsageError, match="262145 words"):
        RowForm("dict", (RowField("x", "float32", (1 << 18,)), RowField("y", "float32")))
    with pytest.raises(UsageError, match=r"shape \(3, 300, 300\)"):
        RowField("x", "float32", (3, 300, 300))
    assert RowField("x", "uint8", (3, 500, 500)).words == 187500
    assert RowWindows.of(1 << 17, 1, 1 << 24).span <= 1 << 18
    assert RowWindows.of(100, 1, 10_000_000, 1000).span * 1000 <= 1 << 18
