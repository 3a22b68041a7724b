"""Makes datasets from arrays: rows of fields in common forms, and windows of one long series.

    dataset_of({"x": features, "y": prices})         float32 [N, 8] and [N]: a loss takes {"x": [B, 8], "y": [B]}
    dataset_of((images, labels))                     as `TensorDataset(images, labels)`: a tuple
    windows(tokens, length=65, stride=1)             every window of a text, as with `randint(len(tokens) - 64)`

Arrays are numpy's, torch's, or convertible to arrays; the first axis counts the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.storage.dataset import Dataset
from lockstep.storage.fields import (
    BITS,
    DICT,
    NAMED,
    ONE,
    TUPLE,
    RowField,
    RowForm,
    RowWindows,
    packed,
    spans,
)
from lockstep.training.data import WORD_BYTES, refuse_large, windows_of_tokens

_PADDED = "rows must have the same shape: pad them, and give their lengths or a mask as another field"
_FORMS = "give float, integer or bool arrays [N, ...]: one, a tuple, or a dict by name"


def dataset_of(data: Any) -> Dataset:
    """Returns rows of fields as a dataset: of an array, a tuple, a NamedTuple or a dict of arrays, a `TensorDataset`,
    a table of pandas, or of what has a length and gives such rows one by one, as `torch.utils.data.Dataset`.

    Floats become float32, integers have at most 32 bits. Raises UsageError for data without a fixed shape.
    """
    if isinstance(data, Dataset):
        return data
    kind, names, arrays = _fields(data)
    counts = {len(array) for array in arrays}
    if len(counts) > 1:
        told = ", ".join(f"{name}: {len(array)}" for name, array in zip(names, arrays, strict=True))
        raise UsageError(
            f"the fields have different numbers of rows: {told[:200]}", "give every field one entry per row"
        )
    return _packed(kind, names, arrays, None)


def windows(data: Any, *, length: int, stride: int = 1) -> Dataset:
    """Returns the windows of a series as a dataset: of tokens [T], or of fields [T, ...] as `dataset_of` takes them.

    A window has `length` steps, and the next one starts `stride` steps later. With `stride` below `length` windows
    overlap; a row then holds the steps of several windows, of which a step reads one chosen by its seed. The data at
    most double, and up to a 32nd of the windows is cut off at the end. Non-negative integers are tokens, which a loss
    takes as i64 [B, length].
    """
    kind, names, arrays = _fields(data)
    if len({len(array) for array in arrays}) != 1:
        raise UsageError("the fields have different numbers of steps", "give every field one entry per step")
    series = arrays[0]
    if kind == ONE and series.ndim == 1 and series.dtype.kind in "iu" and len(series) and series.min() >= 0:
        return windows_of_tokens(series, int(series.max()) + 1, length, stride)
    words = sum(RowField(n, str(a.dtype), a.shape[1:]).words for n, a in zip(names, arrays, strict=True))
    found = RowWindows.of(length, stride, len(series), words)
    rows = [spans(array, found) for array in arrays]
    return _packed(kind, names, rows, found)


def _packed(kind: str, names: Sequence[str], arrays: Sequence[NDArray[Any]], found: RowWindows | None) -> Dataset:
    fields = tuple(RowField(n, str(a.dtype), a.shape[1:]) for n, a in zip(names, arrays, strict=True))
    form = RowForm(kind, fields, found)
    refuse_large(len(arrays[0]), form.words)
    return Dataset(packed(form, arrays), 0, form=form)


# -- data as people have it


def _fields(data: Any) -> tuple[str, list[str], list[NDArray[Any]]]:
    """Returns (kind, names, arrays in the types and ranges that a row can hold)."""
    if isinstance(data, torch.utils.data.DataLoader):
        raise UsageError("the data are a DataLoader", "give its dataset: the market draws the batches")
    if isinstance(data, torch.utils.data.TensorDataset):
        data = data.tensors
    elif hasattr(data, "to_numpy") and hasattr(data, "columns"):
        data = {str(name): data[name].to_numpy() for name in data.columns}
    elif not _is_array(data) and not isinstance(data, (Mapping, tuple)):
        data = _collated(data)
    if isinstance(data, Mapping):
        kind, named = DICT, {str(name): data[name] for name in data}
    elif isinstance(data, tuple) and hasattr(data, "_fields"):
        kind, named = NAMED, dict(zip(data._fields, data, strict=True))
    elif isinstance(data, tuple):
        kind, named = TUPLE, {str(k): value for k, value in enumerate(data)}
    else:
        kind, named = ONE, {"rows": data}
    arrays = [_array(value, name) for name, value in named.items()]
    if not arrays or not all(len(array) for array in arrays):
        raise UsageError("the data have no rows", _FORMS)
    return kind, list(named), arrays


def _is_array(data: Any) -> bool:
    return isinstance(data, (np.ndarray, torch.Tensor)) or hasattr(data, "__array__")


def _collated(data: Any) -> Any:
    """Collates rows that are given one by one into one array per field."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise UsageError(f"the data are {type(data).__name__}", _FORMS)
    if not len(data):
        raise UsageError("the data have no rows", _FORMS)
    items = [data[k] for k in range(len(data))]
    first = items[0]
    if isinstance(first, (Mapping, tuple)):
        for k, item in enumerate(items):
            if (
                type(item) is not type(first)
                or len(item) != len(first)
                or (isinstance(item, Mapping) and set(item) != set(first))
            ):
                raise UsageError(f"row {k} has other fields than row 0", "give every row the same fields")
    if isinstance(first, Mapping):
        return {name: _stacked([item[name] for item in items], str(name)) for name in first}
    if isinstance(first, tuple):
        columns = [_stacked([item[k] for item in items], str(k)) for k in range(len(first))]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    return _stacked(items, "rows")


def _stacked(values: list[Any], name: str) -> NDArray[Any]:
    arrays = [_of_torch(v, name) if isinstance(v, torch.Tensor) else np.asarray(v) for v in values]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise UsageError(f"rows of field {name!r} have shapes {', '.join(map(str, shapes[:4]))}", _PADDED)
    return np.stack(arrays)


def _of_torch(value: torch.Tensor, name: str) -> NDArray[Any]:
    if value.is_meta or value.layout != torch.strided or value.is_quantized:
        raise UsageError(
            f"field {name!r} is a tensor of {'meta' if value.is_meta else value.layout}", "give a dense one with values"
        )
    value = value.detach().cpu().resolve_conj().resolve_neg()
    narrow = value.is_floating_point() and value.dtype not in (torch.float32, torch.float64)
    return (value.float() if narrow else value).numpy()


def _array(value: Any, name: str) -> NDArray[Any]:
    """Returns an array of one of the types of `BITS`, equal up to rounding to float32; raises UsageError."""
    if isinstance(value, (list, tuple)) and any(isinstance(each, (torch.Tensor, np.ndarray)) for each in value):
        value = _stacked(list(value), name)
    try:
        array = _of_torch(value, name) if isinstance(value, torch.Tensor) else np.asarray(value)
    except (ValueError, TypeError) as error:
        raise UsageError(f"field {name!r} has rows of several shapes", _PADDED) from error
    if array.ndim == 0:
        raise UsageError(
            f"field {name!r} is {type(value).__name__}, not an array", "the first axis of a field counts rows"
        )
    if array.dtype.kind == "f":
        return _floats(array, name)
    if array.dtype.kind == "O" and array.size and isinstance(array.flat[0], (np.ndarray, list, tuple)):
        raise UsageError(f"field {name!r} has rows of several shapes", _PADDED)
    if array.dtype.kind not in "iub":
        raise UsageError(
            f"field {name!r} has type {array.dtype}",
            "use numbers: give each category a number, and times as floats",
        )
    kept = str(array.dtype) if str(array.dtype) in BITS else "int64"
    if array.dtype.itemsize >= WORD_BYTES and array.size and not (array.min() >= -(1 << 31) and array.max() < 1 << 31):
        raise UsageError(
            f"field {name!r} has integers from {array.min()} to {array.max()}",
            "integers must fit in 32 bits: subtract a base from times, number identifiers from 0",
        )
    return array.astype(kept, copy=False)


def _floats(array: NDArray[Any], name: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        single = array.astype(np.float32, copy=False)
    if array.dtype.itemsize > WORD_BYTES and (np.isinf(single) & np.isfinite(array)).any():
        raise UsageError(f"field {name!r} has a value beyond float32", "scale it: floats are stored as float32")
    return single
