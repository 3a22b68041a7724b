"""Row formats of datasets: packs named fields of floats, integers, bools and bytes into the i32 words of a row.

    form = RowForm("dict", (RowField("x", "float32", (8,)), RowField("image", "uint8", (28, 28))))
    rows = packed(form, [x, images])             # i32 [N, 8 + 196]: a float by its bits, four bytes a word
    x, images = unpacked(form, rows)

Windows of one long series overlap. A row then holds a span that several of them share, and a step reads one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.base.decoding import one_of, several, table, text, whole
from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.protocol.market.job_rules import MAX_ROW
from lockstep.protocol.merkle import ceil_log2

BITS = {
    "float32": 32, "int64": 32, "int32": 32, "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8,
}  # fmt: skip
"""Maps a field's type to the bits of an element in a row. An int64 must fit in 32 bits."""
TOKENS, ONE, TUPLE, NAMED, DICT = KINDS = ("tokens", "one", "tuple", "named", "dict")
"""Forms in which a loss receives a row: as i64 tokens, or its fields as one tensor, a tuple, a NamedTuple or a dict."""
WORD_BITS = 32
MAX_FIELDS = 1 << 12
MAX_AXES = 8
FEW = 32
"""Least number of rows of windows for which the end of a series may be dropped."""

_STORED = {"int64": "<i4", "bool": "u1", "float32": "<f4", "int32": "<i4", "int16": "<i2", "uint16": "<u2",
           "int8": "i1", "uint8": "u1"}  # fmt: skip


@dataclass(frozen=True)
class RowField:
    """One field of a row: name, type and shape."""

    name: str
    dtype: str
    """The field's type, a key of `BITS`."""
    shape: tuple[int, ...] = ()
    """The field's shape in one row."""

    def __post_init__(self) -> None:
        if self.dtype not in BITS:
            raise UsageError(f"field {self.name!r} has type {self.dtype}", f"use one of {', '.join(BITS)}")
        if len(self.shape) > MAX_AXES or not all(0 < n <= MAX_ROW * 4 for n in self.shape) or self.words > MAX_ROW:
            raise UsageError(
                f"field {self.name!r} has shape {self.shape} in a row",
                f"a row has at most {MAX_ROW} words of four bytes and no empty field; uint8 takes a quarter of float32",
            )

    @property
    def elements(self) -> int:
        """Number of elements of the field in one row."""
        return prod(self.shape)

    @property
    def words(self) -> int:
        """Number of words of the field in one row: small elements share a word."""
        return -(-self.elements * BITS[self.dtype] // WORD_BITS)

    def __str__(self) -> str:
        return f"{self.name or 'rows'} {self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class RowWindows:
    """Windows of a series: a row holds `count` windows, each `stride` steps after the one before."""

    length: int
    """Number of steps in a window."""
    stride: int
    count: int = 1
    """Number of windows in a row, a power of two."""

    def __post_init__(self) -> None:
        if self.length < 1 or self.stride < 1:
            raise UsageError(f"windows of {self.length} steps, {self.stride} apart", "length and stride are 1 at least")
        if self.count < 1 or self.count & (self.count - 1):
            raise UsageError(f"{self.count} windows in a row", "a power of two")
        if self.span > MAX_ROW:
            raise UsageError(f"{self.count} windows of {self.length} steps in a row", f"a row has {MAX_ROW} words")

    @property
    def span(self) -> int:
        """Number of steps in a row."""
        return (self.count - 1) * self.stride + self.length

    @property
    def hop(self) -> int:
        """Number of steps between the starts of two rows."""
        return self.count * self.stride

    def rows(self, steps: int) -> int:
        """Returns the rows of a series with that many steps; its last windows are dropped if they do not fill a row."""
        return ((steps - self.length) // self.stride + 1) // self.count if steps >= self.length else 0

    @staticmethod
    def of(length: int, stride: int, steps: int, step_words: int = 1) -> RowWindows:
        """Chooses the windows of a series with that many steps, packed so that a long series at most doubles."""
        windows = RowWindows(length, stride)
        starts = windows.rows(steps)
        if starts < 1:
            raise UsageError(f"{steps} steps do not fill a window of {length}", "give more data or shorter windows")
        count = 1 << ceil_log2(-(-length // stride))
        while count > 1 and (count * FEW > starts or ((count - 1) * stride + length) * step_words > MAX_ROW):
            count //= 2
        return RowWindows(length, stride, count)


@dataclass(frozen=True)
class RowForm:
    """Form of a dataset's rows, unless they are tokens that are read whole."""

    kind: str
    """One of `KINDS`."""
    fields: tuple[RowField, ...] = ()
    """Fields in order, each beginning with a new word; () for tokens."""
    windows: RowWindows | None = None
    """Windows, one of which a step reads; the first axis of every field is then the steps of a row.

    None: rows are read whole.
    """

    def __post_init__(self) -> None:
        tokens = self.kind == TOKENS
        if self.kind not in KINDS or tokens != (not self.fields) or (tokens and self.windows is None):
            raise UsageError(f"rows of kind {self.kind!r} with {len(self.fields)} fields", f"{', '.join(KINDS)}")
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names) or len(names) > MAX_FIELDS or (self.kind == ONE and len(names) > 1):
            raise UsageError(
                f"{len(names)} fields of {len(set(names))} names", f"at most {MAX_FIELDS} fields, each by its own name"
            )
        if self.windows is not None and any(f.shape[:1] != (self.windows.span,) for f in self.fields):
            raise UsageError("fields of a window's rows have other steps", "every field has the series' length")
        if self.words > MAX_ROW:
            raise UsageError(
                f"a row of {', '.join(map(str, self.fields))[:200]} has {self.words} words of four bytes",
                f"at most {MAX_ROW}: uint8 takes a quarter of float32",
            )

    @property
    def words(self) -> int:
        """L, the number of words in a row."""
        if not self.fields:
            return 0 if self.windows is None else self.windows.span
        return sum(field.words for field in self.fields)

    def read(self) -> list[RowField]:
        """Returns the fields as a loss receives them, without the axis of rows."""
        if self.windows is None:
            return list(self.fields)
        return [RowField(f.name, f.dtype, (self.windows.length, *f.shape[1:])) for f in self.fields]

    def __str__(self) -> str:
        """Describes in words the fields that a loss receives."""
        said = ", ".join(str(field) for field in self.read()) or "tokens"
        each = self.windows
        return said if each is None else f"{said}, in windows of {each.length} steps, {each.stride} apart"

    def to_node(self) -> dict[str, Any]:
        """Returns the form's DAG-CBOR value in a manifest."""
        node: dict[str, Any] = {
            "kind": self.kind,
            "fields": [{"name": f.name, "dtype": f.dtype, "shape": list(f.shape)} for f in self.fields],
        }
        return node if self.windows is None else {**node, "windows": vars(self.windows)}

    @staticmethod
    def of(node: Mapping[str, Any]) -> RowForm:
        """Parses a form from a manifest. Raises PayloadInvalid."""
        try:
            fields = tuple(RowField(f["name"], f["dtype"], tuple(f["shape"])) for f in node["fields"])
            windows = RowWindows(**node["windows"]) if "windows" in node else None
            return RowForm(node["kind"], fields, windows)
        except UsageError as error:
            raise PayloadInvalid(f"a dataset manifest: {error.message}", "do not run the job") from error


_LONG = whole(1, (1 << 31) - 1)
FORM = table(
    {
        "kind": one_of(*KINDS),
        "fields": several(
            table({"name": text(256), "dtype": one_of(*BITS), "shape": several(_LONG, MAX_AXES)}), MAX_FIELDS
        ),
    },
    {"windows": table({"length": _LONG, "stride": _LONG, "count": _LONG})},
)
"""Reader of a form in a manifest."""


def packed(form: RowForm, arrays: Sequence[NDArray[Any]]) -> NDArray[np.int32]:
    """Packs fields to i32 rows [N, L]; each array is [N, *shape], of its field's type and range."""
    count = len(arrays[0])
    rows = np.zeros((count, form.words), "<i4")
    at = 0
    for field, array in zip(form.fields, arrays, strict=True):
        kind = np.dtype(_STORED[field.dtype])
        room = np.zeros((count, field.words * 4 // kind.itemsize), kind)
        room[:, : field.elements] = array.reshape(count, field.elements)
        # Bits are copied unchanged: a NaN keeps its payload.
        rows[:, at : at + field.words] = room.view("<i4")
        at += field.words
    return rows


def unpacked(form: RowForm, rows: NDArray[np.int32]) -> list[NDArray[Any]]:
    """Unpacks rows to their fields, each [N, *shape]: the inverse of `packed`."""
    found, at = [], 0
    for field in form.fields:
        words = np.ascontiguousarray(rows[:, at : at + field.words], "<i4")
        values = words.view(_STORED[field.dtype])[:, : field.elements].reshape(len(rows), *field.shape)
        found.append(values.astype(field.dtype, copy=False))
        at += field.words
    return found


def spans(series: NDArray[Any], windows: RowWindows) -> NDArray[Any]:
    """Returns the rows [N, span, ...] of windows of a series [T, ...], as a view."""
    step, *rest = series.strides
    shape = (windows.rows(len(series)), windows.span, *series.shape[1:])
    return np.lib.stride_tricks.as_strided(series, shape, (windows.hop * step, step, *rest), writeable=False)
