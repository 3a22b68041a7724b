"""Prose and names for strangers: how docstrings begin, how documents wrap, what a class name means."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sdk/lockstep", "worker", "verifier", "coordinator")
SOURCES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
RIDDLES = ("Whether", "Who", "Whose", "What", "How", "Of", "Where", "When", "Which", "Why")
"""Openings that leave the subject out."""
WIDTH, README_WIDTH, README_LINES = 100, 120, 150
NAMES = {
    "Attention": "a file of models stands by itself, as in nanochat",
    "Block": "of a transformer, for the same reason; and the chain's",
    "Convicted": "two contracts have an event of that name",
    "Reveal": "a struct of JobMarket and a move of DisputeGame, both with the contract's name",
    "Revealed": "two contracts have an event of that name",
}
"""Class names that stand for several classes, each with its reason."""


@cache
def definitions(path: Path) -> list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """A module, and the classes and functions in it, however deep."""
    found, statements = [], list[ast.AST]([ast.parse(path.read_text())])
    while statements:
        node = statements.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node)
        statements += [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case)
        ]
    return found


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Of modules, classes, functions, and of the fields and constants that they follow."""
    for node in definitions(path):
        own = ast.get_docstring(node)
        if own:
            yield node.body[0].lineno, own
        if isinstance(node, ast.Module | ast.ClassDef):
            for field, after in pairwise(node.body):
                if isinstance(field, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                    value = after.value
                    if isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield after.lineno, value.value


def test_a_docstring_begins_with_its_subject_or_its_verb() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in SOURCES
        for line, text in docstrings(path)
        if text.strip() and text.split()[0].rstrip(",:;.") in RIDDLES
    ]
    assert found == []


def test_a_class_name_means_one_thing() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in definitions(path):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in NAMES} == {}
    assert {name for name in NAMES if len(places[name]) < 2} == set(), "a reason for nothing"
    assert len(NAMES) <= 10


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda p: str(p.relative_to(ROOT / "docs")))
def test_prose_is_wrapped(path: Path) -> None:
    if "reference" in path.parts:
        pytest.skip("written by a program")
    fenced, wide = False, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        # A table's row is one line of Markdown; so is a command.
        if not fenced and len(line) > WIDTH and not line.startswith(("|", "    ")):
            wide.append(number)
    assert wide == []


def test_the_readme_fits() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    assert max(map(len, lines)) <= README_WIDTH
