"""The table `[data]` of a description: a file or folder of numbers as a dataset, with a held-out part.

    dataset = Data(path="houses.csv", columns={"x": ["area", "rooms"], "y": "price"}).dataset(folder, batch, TRAIN)

One row in `held_out` is kept from training, chosen only by its index; for a series it is the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import UsageError
from lockstep.storage.dataset import Dataset
from lockstep.training.brought import rows_of
from lockstep.training.job import Batch
from lockstep.training.rows import windows
from lockstep.training.tables import READABLE, read_data
from lockstep.training.tokens import ALL, HELD_OUT

_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Multipliers of splitmix64's output function (Steele, Lea and Flood 2014)."""


@dataclass(frozen=True)
class Data:
    """`[data]`: the source of a job's rows, in place of texts."""

    path: str = ""
    """A file, or a folder of files with the same fields."""
    columns: dict[str, Any] = field(default_factory=dict)
    """Columns by the field that they form, one or several; {}: each column is a field."""
    type: str = ""
    """The number type of *.bin files, e.g. "uint16"."""
    stride: int = 0
    """Steps between the starts of consecutive windows of a series; 0: the data are rows."""
    length: int = 0
    """Steps of a window; 0: the batch's `row_length`."""
    held_out: int = 0
    """One row in this many is held out of training; 0: none."""

    def __post_init__(self) -> None:
        if min(self.stride, self.length, self.held_out) < 0 or self.held_out == 1:
            raise UsageError(
                f"stride is {self.stride}, length is {self.length}, held_out is {self.held_out}",
                "each must be at least 0; held_out = 20 holds out one row in 20",
            )
        if self.length and not self.stride:
            raise UsageError(
                f"length is {self.length}, without a stride", "set stride = 1 for every window of a series"
            )

    def dataset(self, folder: Path, batch: Batch | None, side: str) -> Dataset:
        """The dataset of one side; without a batch rows of tokens may have any length. Raises UsageError."""
        if not self.path:
            raise UsageError("[data] names no path", f"name a file or folder of {READABLE}")
        if side == HELD_OUT and not self.held_out:
            raise UsageError("no rows are held out", 'set held_out = 20 under [data], or documents = "all"')
        data = read_data(folder / self.path, self.columns, self.type)
        whole = side == ALL or not self.held_out
        if not self.stride:
            data = data if whole else _each(data, self._part_of_rows(side))
            return rows_of(data, _batch_of(data) if batch is None else batch)
        if not self.length and batch is None:
            raise UsageError("the windows have no length", "set length, e.g. to the model's context + 1")
        length = self.length or (0 if batch is None else batch.row_length)
        return windows(data if whole else _each(data, self._part_of_series(side)), length=length, stride=self.stride)

    def _part_of_series(self, side: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
        def part(series: NDArray[Any]) -> NDArray[Any]:
            cut = len(series) - len(series) // self.held_out
            return series[cut:] if side == HELD_OUT else series[:cut]

        return part

    def _part_of_rows(self, side: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
        def part(rows: NDArray[Any]) -> NDArray[Any]:
            held = held_rows(len(rows), self.held_out)
            return rows[held if side == HELD_OUT else ~held]

        return part


def held_rows(count: int, one_in: int) -> NDArray[np.bool_]:
    """Returns bool [N]: True for held-out rows, one in that many and at least one, the same on every machine."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in zip((30, 27), _MIX, strict=True):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    order = np.argsort(mixed ^ (mixed >> np.uint64(31)), kind="stable")
    held = np.zeros(count, np.bool_)
    held[order[: max(1, count // one_in)]] = True
    return held


def _batch_of(data: Any) -> Batch:
    """Returns a batch that reads rows of tokens, in case the rows are tokens."""
    shape = np.shape(data) if isinstance(data, np.ndarray) else ()
    return Batch(row_length=max(2, shape[1])) if len(shape) == 2 else Batch()


def _each(data: Any, part: Callable[[NDArray[Any]], NDArray[Any]]) -> Any:
    if isinstance(data, Mapping):
        return {name: part(np.asarray(value)) for name, value in data.items()}
    if isinstance(data, tuple):
        return tuple(part(np.asarray(value)) for value in data)
    return part(np.asarray(data))
