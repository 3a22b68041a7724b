"""A strategy as a commented table of a job's description: every field, its value, and what it is.

>>> print(strategy_table("allreduce").split("# H")[0].strip())
[strategy]
# Gradients of one step, 32 bits per parameter.
name = "allreduce"
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from typing import Any

from lockstep.training.optimizers.groups import Groups
from lockstep.training.optimizers.several import Members
from lockstep.training.strategies.registry import strategy_named

WIDTH = 100


def strategy_table(name: str) -> str:
    """Returns `[strategy]` and the tables of its pieces; UsageError if no strategy has this name."""
    strategy: Any = strategy_named(name)()
    return "\n".join(_table(strategy, name, "strategy"))


def _table(value: Any, name: str, path: str) -> Iterator[str]:
    """The lines of a value: its own fields, then a table for each of its pieces."""
    pieces = []
    yield f"[{path}]"
    yield from _commented(_first_line(type(value)))
    yield f"name = {json.dumps(name)}"
    said = docstrings_of(type(value))
    for field in fields(value):
        own = getattr(value, field.name)
        if isinstance(own, Groups | Members):
            own = own.to_dict()
        if hasattr(own, "to_dict"):
            pieces.append((field.name, own))
            continue
        yield from _commented(said.get(field.name, ""))
        yield f"{field.name} = {literal(own)}"
    for key, piece in pieces:
        yield ""
        yield from _commented(said.get(key, ""))
        yield from _table(piece, piece.to_dict()["name"], f"{path}.{key}")


def docstrings_of(kind: type) -> dict[str, str]:
    """Returns the docstring below each field of a dataclass, its bases included, on one line each."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError):
            continue
        assert isinstance(tree, ast.ClassDef)
        for node, after in pairwise(tree.body):
            match node, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or kind.__name__).splitlines()[0]


def _commented(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ") if text else []


def literal(value: Any) -> str:
    """Returns a field's value as a TOML literal."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{k} = {literal(v)}' for k, v in value.items())} }}"
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)
