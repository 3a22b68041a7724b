"""Exports the rows of every plot as CSV."""

from __future__ import annotations

import csv
import io
import json
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from starlette.responses import Response

MEDIA_TYPE = "text/csv; charset=utf-8"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""The beginnings of a cell that a spreadsheet takes for a formula."""
CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
OutT = TypeVar("OutT", bound=BaseModel)


def answer(found: OutT, rows: str, form: str) -> OutT:
    """Returns the value itself, which becomes JSON, or its list `rows` as a CSV file."""
    if form == "json":
        return found
    items: list[BaseModel] = getattr(found, rows)
    headers = {"Content-Disposition": f'attachment; filename="{rows}.csv"'}
    return cast(OutT, Response(table([item.model_dump(mode="json") for item in items]), 200, headers, MEDIA_TYPE))


def table(rows: list[dict[str, Any]]) -> str:
    """CSV (RFC 4180) with a line of names; nested values as JSON."""
    out = io.StringIO()
    names = list(rows[0]) if rows else []
    writer = csv.DictWriter(out, names, lineterminator="\r\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value)
    # INVARIANT: what a stranger wrote is no formula in a spreadsheet.
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
