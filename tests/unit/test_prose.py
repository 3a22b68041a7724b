"""Prose and names for strangers: how docstrings begin, how documents wrap, what a class name means."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sdk/lockstep", "worker", "verifier", "coordinator")
SOURCES = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))
RIDDLES = (
    "Whether", "Who", "Whose", "What", "How", "Of", "Where", "When", "Which", "Why",
    "It", "They", "That", "Those", "So", "In",
)  # fmt: skip
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
LIBRARY = ROOT / "sdk/lockstep"
ROOTS = {path.stem: path for path in LIBRARY.iterdir() if path.stem[0] != "_"} | {"lockstep": LIBRARY}
ROOTS |= {name: ROOT / name for name in ("worker", "verifier", "coordinator", "tests")}
"""The packages that a dotted name may begin with; those of the library may leave `lockstep` out."""
DOTTED = re.compile(r"(?<![`\w])`([a-z]\w*(?:\.\w+)+)`")
FILES = {".py", ".md", ".json", ".toml"}
CODES = {"chain.foreign_blocks"}
"""Dotted names in backquotes that are codes of errors."""


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
        if isinstance(node, ast.Module | ast.ClassDef) or node.name == "__init__":
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


@cache
def names_in(path: Path) -> set[str]:
    """Returns the names that a module, or anything in it, defines, assigns or imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def stands(name: str) -> bool:
    """Says of a dotted name that begins with a package of ours if it leads to a module or to something in one."""
    first, *rest = name.split(".")
    at = ROOTS[first]
    while at.is_dir() and rest:
        inner = [path for path in (at / rest[0], at / f"{rest[0]}.py") if path.exists()]
        if not inner:
            return rest[0] in names_in(at / "__init__.py")
        at, rest = inner[0], rest[1:]
    return not rest or names_in(at) >= set(rest)


def test_a_dotted_name_leads_somewhere() -> None:
    assert stands("protocol.market.views.phase_of"), "a function of a module"
    assert not stands("protocol.views.phase_of"), "a module of another package"
    pages = [ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if p.name != "log.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path in (*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *pages)
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for name in DOTTED.findall(line)
        if name.split(".")[0] in ROOTS
        and Path(name).suffix not in (".py", ".md", ".json", ".toml")
        and name not in CODES
        if not stands(name)
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
