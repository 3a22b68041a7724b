"""Files of numbers as data: what each holds, and what is refused by its place."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lockstep.protocol.errors import DoctorError, UsageError
from lockstep.storage.fields import unpacked
from lockstep.training.job import Batch
from lockstep.training.sides import Data, held_rows
from lockstep.training.tables import read_data
from lockstep.training.tokens import ALL, HELD_OUT, TRAIN

TABLE = "area,rooms,old,price\n0.5,3,true,1.25\n1.5,4,false,2e1\n\n-2,5,TRUE,-0\n"
X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, -2, 3, 4])


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.csv.gz"])
def test_a_table_of_text_has_columns_of_whole_numbers_floats_and_bools(tmp_path: Path, name: str) -> None:
    text = TABLE.replace(",", "\t") if "tsv" in name else TABLE
    data = "\ufeff".encode() + text.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    found = read_data(tmp_path / name)
    assert {key: (value.dtype, value.tolist()) for key, value in found.items()} == {
        "area": (np.float64, [0.5, 1.5, -2.0]), "rooms": (np.int64, [3, 4, 5]), "old": (np.bool_, [True, False, True]),
        "price": (np.float64, [1.25, 20.0, 0.0]),
    }  # fmt: skip
    found = read_data(tmp_path / name, {"x": ["area", "rooms"], "y": "price"})
    assert (list(found), found["x"].tolist()) == (["x", "y"], [[0.5, 3.0], [1.5, 4.0], [-2.0, 5.0]])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n3,\n", "line 3: column b is empty"), ("a,b\n1,x\n", "line 2: column b is 'x'"),
        ("a,b\n1,nan\n", "line 2: column b is 'nan'"), ("a,b\n1\n", "line 2 has 1 cells"),
        ("a,a\n1,2\n", "or duplicates"),
        ("1,2\n3,4\n", "the first line has numbers"), ("a,b\n", "no rows"), ("", "has no column names"),
        ('a,b\n1,"2\n', "line 2: unexpected end"), ("a,b\ntrue,1\n3,1\n", "column a is 'true'"),
        ("a,b\n1_0,\u0662\n", "t.csv"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_table_is_named_by_its_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    if told == "t.csv":
        read_data(tmp_path / "t.csv")
        return
    with pytest.raises(UsageError, match=told):
        read_data(tmp_path / "t.csv")


def test_columns_that_are_text_are_passed_over_where_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("id,a\nx,1\ny,2\n")
    assert read_data(tmp_path / "t.csv", {"y": "a"})["y"].tolist() == [1, 2]
    for wrong, told in (({"y": "b"}, "no column 'b'"), ({"y": []}, "field y is"), ({"y": 3}, "field y is 3")):
        with pytest.raises(UsageError, match=told):
            read_data(tmp_path / "t.csv", wrong)


def test_arrays_of_numpy_and_torch_are_read_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    save_file({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, tmp_path / "a.safetensors")
    torch.save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}, tmp_path / "a.pt")
    np.save(tmp_path / "a.npy", X)
    np.array([1, 2, 65535], np.uint16).tofile(tmp_path / "a.bin")
    for name in ("a.npz", "a.safetensors", "a.pt"):
        found = read_data(tmp_path / name)
        assert np.array_equal(np.asarray(found["x"]), X)
        assert np.array_equal(np.asarray(found["y"]), Y)
    assert np.array_equal(read_data(tmp_path / "a.npy"), X)
    assert read_data(tmp_path / "a.bin", raw="uint16").tolist() == [1, 2, 65535]
    for name, told in (
        ("a.bin", "needs a number type"),
        ("none.csv", "does not exist"),
        ("a.doc", "has no supported data format"),
    ):
        (tmp_path / "a.doc").touch()
        with pytest.raises(UsageError, match=told):
            read_data(tmp_path / name)
    with pytest.raises(UsageError, match="not a multiple of int64"):
        read_data(tmp_path / "a.bin", raw="int64")


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.safetensors", "a.pt"])
def test_a_broken_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"neither this nor that" * 10)
    with pytest.raises(UsageError, match=name):
        read_data(tmp_path / name)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=r"not a regular file"):
        read_data(tmp_path / name)


def test_objects_of_python_in_a_file_are_not_made(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([print, 1], object), allow_pickle=True)
    torch.save({"x": print}, tmp_path / "a.pt")
    for name in ("a.npy", "a.pt"):
        with pytest.raises(UsageError):
            read_data(tmp_path / name)


def test_parquet_needs_a_library_or_is_read(tmp_path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.feather
        import pyarrow.parquet
    except ImportError:
        (tmp_path / "a.parquet").touch()
        with pytest.raises(DoctorError, match="pyarrow"):
            read_data(tmp_path / "a.parquet")
        return
    table = pyarrow.table({"x": X.tolist(), "y": Y, "name": ["a"] * 4})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.feather.write_feather(table, str(tmp_path / "a.feather"))
    for name in ("a.parquet", "a.feather"):
        found = read_data(tmp_path / name, {"x": "x", "y": "y"})
        assert np.array_equal(found["x"], X)
        assert np.array_equal(found["y"], Y)
        with pytest.raises(UsageError, match="no column 'z'"):
            read_data(tmp_path / name, {"x": "z"})
    pyarrow.parquet.write_table(pyarrow.table({"x": [1, None]}), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match="column x has 1 empty cells"):
        read_data(tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"PAR1" * 9)
    with pytest.raises(UsageError, match=r"c\.parquet"):
        read_data(tmp_path / "c.parquet")


def test_files_of_a_folder_are_read_one_after_the_other(tmp_path: Path) -> None:
    for k, text in enumerate(("a,b\n1,2\n", "a,b\n3,4.5\n")):
        (tmp_path / f"{k}.csv").write_text(text)
    assert {k: v.tolist() for k, v in read_data(tmp_path).items()} == {"a": [1, 3], "b": [2.0, 4.5]}
    (tmp_path / "2.csv").write_text("a,c\n1,2\n")
    with pytest.raises(UsageError, match="differ from those"):
        read_data(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="no data in"):
        read_data(tmp_path / "empty")


# -- [data]


def rows_of(tmp_path: Path, side: str, **given: Any) -> np.ndarray[Any, Any]:
    found = Data(path="d.npz", **given).dataset(tmp_path, Batch(row_length=4), side)
    assert found.form is not None
    return unpacked(found.form, found.rows)[0]


def test_a_part_of_the_rows_is_held_out_and_no_row_is_on_both_sides(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(100.0))
    train, held = (rows_of(tmp_path, side, held_out=20).tolist() for side in (TRAIN, HELD_OUT))
    assert (len(train), len(held)) == (95, 5)
    assert sorted(train + held) == rows_of(tmp_path, ALL, held_out=20).tolist() == list(range(100))
    assert np.flatnonzero(held_rows(100, 20)).tolist() == held == sorted(held), "the same on every machine"
    with pytest.raises(UsageError, match="no rows are held out"):
        rows_of(tmp_path, HELD_OUT)


def test_of_a_series_the_end_is_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.arange(100.0))
    train, held = (rows_of(tmp_path, side, held_out=10, stride=1) for side in (TRAIN, HELD_OUT))
    assert train.max() in (88, 89), "the last window may be cut off"
    assert (held.min(), held.shape[1]) == (90, 4)


def test_whole_numbers_from_zero_are_tokens(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.arange(12).reshape(3, 4))
    found = Data(path="t.npy").dataset(tmp_path, Batch(row_length=4), TRAIN)
    assert (found.form, found.vocabulary) == (None, 12)
    np.arange(300, dtype=np.uint16).tofile(tmp_path / "t.bin")
    found = Data(path="t.bin", type="uint16", stride=1).dataset(tmp_path, Batch(row_length=9), TRAIN)
    assert (str(found.form), found.vocabulary) == ("tokens, in windows of 9 steps, 1 apart", 300)


@pytest.mark.parametrize("wrong", [{"held_out": 1}, {"stride": -1}, {"length": 3}])
def test_numbers_that_fit_no_data_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        Data(path="d.npz", **wrong)
