"""Reads data files as arrays: CSV, Parquet, Feather, NumPy, safetensors, PyTorch, and raw numbers.

    data = read_data(Path("houses.csv"), {"x": ["area", "rooms"], "y": "price"})       {"x": [N, 2], "y": [N]}

The path is a file, or a folder whose files have the same fields and are read in the order of their names. A column of a
text table holds numbers, or true and false; an empty cell is an error that names its line.
"""

from __future__ import annotations

import csv
import io
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.base.files import open_regular
from lockstep.protocol.errors import DoctorError, UsageError
from lockstep.training.texts import PACKED, opened, readable

CELLS = {".csv": ",", ".tsv": "\t"}
"""Suffixes of text tables, which may be gzipped, and their separators."""
ARROW = (".parquet", ".feather", ".arrow")
TENSORS = (".npz", ".npy", ".safetensors", ".pt", ".pth")
RAW = ".bin"
"""The suffix of raw numbers without a header, whose type must be given."""
ENDINGS = (*CELLS, *(each + PACKED for each in CELLS), *ARROW, *TENSORS, RAW)
READABLE = ".csv, .tsv (each also .gz), .parquet, .feather, .npz, .npy, .safetensors, .pt, or .bin of a type"
RAW_TYPES = ("uint8", "uint16", "int32", "int64", "float32", "float64")
BLOCK_ROWS = 1 << 14
_WORDS = {"true": True, "false": False}


def read_data(path: Path, fields: Mapping[str, Any] | None = None, raw: str = "") -> Any:
    """Returns the data of a file or folder: a dict of arrays [N, ...] by name, or another form that the file holds.

    `fields`: columns by the field that they form, one or several; default: each column is a field.
    `raw`: the number type of *.bin files. Raises UsageError, DoctorError if a library is missing.
    """
    fields = _checked(fields or {})
    wanted = [column for columns in fields.values() for column in columns]
    with readable(path):
        files = _files(path)
        parts = [_read(file, wanted, raw) for file in files]
    data = parts[0] if len(parts) == 1 else _joined(parts, files)
    if not fields:
        return data
    if not isinstance(data, Mapping):
        raise UsageError(f"{path} has no named columns", "omit columns")
    return {name: _beside([_column(data, c, path) for c in columns], name) for name, columns in fields.items()}


def _checked(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    found = {}
    for name, columns in fields.items():
        named = [columns] if isinstance(columns, str) else columns
        if not isinstance(named, list) or not named or not all(isinstance(c, str) and c for c in named):
            raise UsageError(
                f"field {name} is {columns!r}", 'give the name of a column, or a list of them: ["area", "rooms"]'
            )
        found[name] = named
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if not path.exists():
            raise UsageError(f"{path} does not exist", f"name a file or folder of {READABLE}")
        return [path]
    found = sorted(p for p in path.iterdir() if p.name.endswith(ENDINGS) and not p.name.startswith("."))
    if not found:
        raise UsageError(f"no data in {path}", f"it needs files of {READABLE}")
    return found


def _read(path: Path, wanted: Sequence[str], raw: str) -> Any:
    name = path.name.lower()
    if name.removesuffix(PACKED).endswith(tuple(CELLS)):
        return _cells(path, wanted)
    ending = next((each for each in (*ARROW, *TENSORS, RAW) if name.endswith(each)), "")
    if not ending:
        raise UsageError(f"{path} has no supported data format", f"give {READABLE}")
    # INVARIANT: only regular files are read, no devices or pipes.
    with open_regular(path):
        pass
    if ending == RAW:
        return _raw(path, raw)
    try:
        return _arrow(path, ending, wanted) if ending in ARROW else _tensors(path, ending)
    except (UsageError, DoctorError, OSError):
        raise
    except (ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise UsageError(f"{path} cannot be read: {str(error)[:200]}", "write it again") from error
    except Exception as error:
        # Of safetensors and pyarrow: each has a family of errors of its own.
        if type(error).__module__.partition(".")[0] not in ("safetensors", "safetensors_rust", "pyarrow"):
            raise
        raise UsageError(f"{path} cannot be read: {str(error)[:200]}", "write it again") from error


def _raw(path: Path, raw: str) -> NDArray[Any]:
    if raw not in RAW_TYPES:
        raise UsageError(
            f"the number type {raw!r} of {path} is unknown" if raw else f"{path} needs a number type",
            f"use one of {', '.join(RAW_TYPES)}: nanoGPT's train.bin is uint16",
        )
    kind = np.dtype(raw).newbyteorder("<")
    size = path.stat().st_size
    if not size or size % kind.itemsize:
        raise UsageError(
            f"{path} has {size} bytes, which is not a multiple of {raw}", f"use one of {', '.join(RAW_TYPES)}"
        )
    return np.memmap(path, kind, "r")


def _tensors(path: Path, ending: str) -> Any:
    if ending == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    if ending == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    if ending == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    import torch

    # INVARIANT: no code of a file is run.
    data = torch.load(path, map_location="cpu", weights_only=True)
    return tuple(data) if isinstance(data, list) else data


def _arrow(path: Path, ending: str, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow.feather
        import pyarrow.parquet
    except ImportError as error:
        raise DoctorError(
            f"{path} needs pyarrow, which is not installed",
            "pip install 'lockstep-compute[parquet]'; or write it as .csv or .npz",
        ) from error
    columns = list(dict.fromkeys(wanted)) or None
    if ending == ".parquet":
        have = pyarrow.parquet.read_schema(path).names
        _refuse_absent(columns or (), have, path)
        found = pyarrow.parquet.read_table(path, columns=columns)
    else:
        found = pyarrow.feather.read_table(path)
        _refuse_absent(columns or (), found.column_names, path)
        found = found.select(columns) if columns else found
    arrays = {}
    for name in found.column_names:
        column = found.column(name)
        if column.null_count:
            raise UsageError(
                f"{path}: column {name} has {column.null_count} empty cells", "fill them, or remove those rows"
            )
        values = column.to_numpy()
        if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
            if len({v.shape for v in values}) > 1:
                raise UsageError(f"{path}: column {name} has lists of several lengths", "pad them to one length")
            values = np.stack(list(values))
        arrays[name] = values
    return arrays


# -- tables of text


def _cells(path: Path, wanted: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Returns the columns of a text table, each of integers, floats, or bools."""
    with opened(path) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", newline="")
        try:
            parted = CELLS[Path(path.name.lower().removesuffix(PACKED)).suffix]
            reader = csv.reader(lines, delimiter=parted, strict=True)
            names = [name.strip() for name in next(reader, [])]
            _refuse_names(names, path)
            _refuse_absent(wanted, names, path)
            kept = [k for k, name in enumerate(names) if not wanted or name in wanted]
            blocks: list[list[NDArray[Any]]] = [[] for _ in kept]
            while rows := [(reader.line_num, row) for row in islice(reader, BLOCK_ROWS) if row]:
                _refuse_ragged(rows, names, path)
                for block, k in zip(blocks, kept, strict=True):
                    block.append(_numbers([row[k] for _, row in rows], names[k], rows, path))
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8: {error.reason}", "convert it first") from error
        except csv.Error as error:
            raise UsageError(f"{path}, line {reader.line_num}: {error}", "write the table again") from error
    if not blocks[0]:
        raise UsageError(f"{path} has no rows below its column names", "the first line names the columns")
    return {names[k]: _one_kind(block, names[k], path) for k, block in zip(kept, blocks, strict=True)}


def _one_kind(blocks: Sequence[NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    if len({block.dtype == np.bool_ for block in blocks}) > 1:
        raise UsageError(f"{path}: column {name} mixes numbers with true and false", "use one or the other throughout")
    return np.concatenate(blocks)


def _numbers(cells: list[str], name: str, rows: Sequence[tuple[int, list[str]]], path: Path) -> NDArray[Any]:
    text = np.array(cells)
    for kind in (np.int64, np.float64):
        try:
            found = text.astype(kind)
        except (ValueError, OverflowError):
            continue
        if np.isfinite(found).all():
            return found
    if all(cell.strip().lower() in _WORDS for cell in cells):
        return np.array([_WORDS[cell.strip().lower()] for cell in cells])
    for (line, _), cell in zip(rows, cells, strict=True):
        if not _is_number(cell) or not np.isfinite(float(cell)):
            told = repr(cell[:40]) if cell.strip() else "empty"
            raise UsageError(
                f"{path}, line {line}: column {name} is {told}",
                "cells must be numbers: give each category a number, fill empty cells, or select columns with "
                "`columns`",
            )
    raise UsageError(f"{path}: column {name} holds numbers in another form", "write them as 12, 0.5 or 1e-3")


def _refuse_names(names: Sequence[str], path: Path) -> None:
    if not names or not all(names) or len(set(names)) < len(names):
        raise UsageError(f"{path}: the first line has no column names, or duplicates", "give each column its own name")
    if all(_is_number(name) for name in names):
        raise UsageError(f"{path}: the first line has numbers", "it must name the columns")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _refuse_ragged(rows: Sequence[tuple[int, list[str]]], names: Sequence[str], path: Path) -> None:
    for line, row in rows:
        if len(row) != len(names):
            raise UsageError(
                f"{path}, line {line} has {len(row)} cells, but the first line names {len(names)}",
                "write the table again",
            )


def _refuse_absent(wanted: Sequence[str], names: Sequence[str], path: Path) -> None:
    for each in wanted:
        if each not in names:
            raise UsageError(f"{path} has no column {each!r}", f"it has {', '.join(names)[:300]}")


# -- several columns, several files


def _column(data: Mapping[str, Any], name: str, path: Path) -> Any:
    _refuse_absent([name], [str(each) for each in data], path)
    return data[name]


def _beside(columns: Sequence[Any], name: str) -> Any:
    if len(columns) == 1:
        return columns[0]
    arrays = [np.asarray(column) for column in columns]
    if len({array.shape for array in arrays}) > 1:
        raise UsageError(
            f"the columns of field {name} have different shapes", "columns of a field must have the same shape"
        )
    return np.stack(arrays, -1)


def _joined(parts: Sequence[Any], files: Sequence[Path]) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        for part, file in zip(parts, files, strict=True):
            if not isinstance(part, Mapping) or set(part) != set(first):
                raise UsageError(
                    f"the fields of {file} differ from those of {files[0]}",
                    "all files of a folder must have the same fields",
                )
        return {name: _end_to_end([part[name] for part in parts], str(name)) for name in first}
    if any(isinstance(part, (Mapping, tuple)) for part in parts):
        raise UsageError(
            f"{files[0].parent} has files in different forms", "files of a folder must have the same fields"
        )
    return _end_to_end(parts, "rows")


def _end_to_end(parts: Sequence[Any], name: str) -> NDArray[Any]:
    arrays = [np.asarray(part) for part in parts]
    if len({array.shape[1:] for array in arrays}) > 1 or any(array.ndim == 0 for array in arrays):
        raise UsageError(f"field {name} has different shapes in the files of the folder", "a field must have one shape")
    return np.concatenate(arrays)
