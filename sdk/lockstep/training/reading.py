"""Converts a step's rows into what a loss takes: tokens, or the fields of each row in their shapes and types.

    given = read(form, rows, words)        # rows i64 [B, L] -> i64 [B, L], a tensor, a tuple, a NamedTuple or a dict
    value = called(loss, model, given)

The same torch operations run inside a trace, where they are views of words and shifts, and in eager torch.
"""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.protocol.errors import UsageError
from lockstep.storage.fields import BITS, DICT, NAMED, ONE, TOKENS, TUPLE, WORD_BITS, RowField, RowForm, RowWindows
from lockstep.tracing.sources import NamedFields

WINDOW_STREAM = 7 << 28
"""Stream of the words that choose windows in a step's first pass; other passes use the next streams."""
_SIGNED = {"int8", "int16"}
_GIVEN = {
    "float32": torch.float32, "int64": torch.int64, "int32": torch.int32, "int16": torch.int16,
    # torch computes hardly anything of uint16.
    "uint16": torch.int64, "int8": torch.int8, "uint8": torch.uint8, "bool": torch.bool,
}  # fmt: skip


def read(form: RowForm | None, rows_BL: Tensor, words: Callable[[int], Tensor]) -> Any:
    """Returns rows i64 [B, L] as a loss takes them; `words(count)` returns random i32 [count], which choose windows."""
    if form is None:
        return rows_BL
    parts, at = [], 0
    for field in form.fields:
        parts.append(_field(field, rows_BL[:, at : at + field.words]))
        at += field.words
    parts = parts or [rows_BL]
    if form.windows is not None and form.windows.count > 1:
        places = _places(form.windows, len(rows_BL), words)
        parts = [part.flatten(0, 1)[places] for part in parts]
    return _gathered(form, parts)


def _field(field: RowField, words: Tensor) -> Tensor:
    """Returns [B, *shape] of a field's words, i64 [B, W]."""
    bits, given = BITS[field.dtype], _GIVEN[field.dtype]
    if bits < WORD_BITS:
        parts = words.unsqueeze(-1) >> torch.arange(0, WORD_BITS, bits) & ((1 << bits) - 1)
        if field.dtype in _SIGNED:
            half = 1 << (bits - 1)
            parts = (parts ^ half) - half
        words = parts.flatten(1)[:, : field.elements]
    if given == torch.float32:
        values = words.to(torch.int32).view(torch.float32)
        # In a comparison with float64 the data are float64 too.
        values = values.to(torch.get_default_dtype())
    else:
        values = words != 0 if given == torch.bool else words.to(given)
    return values.reshape(len(words), *field.shape)


def _places(windows: RowWindows, rows: int, words: Callable[[int], Tensor]) -> Tensor:
    """i64 [B, length]: the steps of a window of each row, where the rows' steps lie one after the other."""
    # A power of two: every window is as likely as the others.
    offsets = (words(rows) & (windows.count - 1)).to(torch.int64) * windows.stride
    first = torch.arange(rows) * windows.span + offsets
    return first[:, None] + torch.arange(windows.length)


def _gathered(form: RowForm, parts: list[Tensor]) -> Any:
    if form.kind in (ONE, TOKENS):
        return parts[0]
    if form.kind == TUPLE:
        return tuple(parts)
    names = [field.name for field in form.fields]
    if form.kind == DICT:
        return NamedFields(zip(names, parts, strict=True))
    assert form.kind == NAMED, "the last of the kinds"
    return namedtuple("Row", names)(*parts)


def called(loss: Callable[..., Tensor], model: Any, given: Any, *more: Tensor) -> Tensor:
    """Calls a loss with (model, rows), or with fields instead of rows: by name, or one argument for each.

    Raises UsageError for a loss that takes neither.
    """
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):
        return loss(model, given, *more)
    if isinstance(given, Tensor):
        if not _binds(signature, model, given, *more):
            raise UsageError(
                f"the loss takes {signature}, but a row is one tensor",
                "use loss(model, rows); for several fields return their data as the fourth value, or name a file: "
                "--set data.path=FILE",
            )
        return loss(model, given, *more)
    named = given if isinstance(given, dict) else {}
    wanted = _wanted(signature, named)
    if wanted and not more:
        return loss(model, **{name: named[name] for name in wanted})
    if _binds(signature, model, given, *more):
        return loss(model, given, *more)
    spread = () if named else tuple(given)
    if not more and _binds(signature, model, *spread, **named):
        return loss(model, *spread, **named)
    told = ", ".join(map(str, named)) or f"{len(spread)} fields"
    raise UsageError(
        f"the loss takes {signature}, but the rows have {told}",
        "use loss(model, batch), where batch holds the fields; or loss(model, FIELD, ...) with a parameter for each",
    )


def _wanted(signature: inspect.Signature, named: dict[str, Tensor]) -> list[str]:
    """Returns the fields that a loss takes by name after the model; [] if it takes anything else."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    behind = [p for p in list(signature.parameters.values())[1:] if p.kind in kinds]
    asked = [p.name for p in behind if p.name in named or p.default is inspect.Parameter.empty]
    return asked if all(name in named for name in asked) else []


def _binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
